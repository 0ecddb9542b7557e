"""How many items are computed at once, and what the host gets ready while a GPU computes."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from threadpoolctl import ThreadpoolController

from ..core.processes import available_cores
from ..models.judge import EmpathyJudge, Moved


class Sized(Protocol):
    """What takes memory."""

    @property
    def nbytes(self) -> int: ...


Item = TypeVar("Item")
Made = TypeVar("Made", bound=Sized)

_PADDED = 1.25
"""Largest size of a padded batch relative to its items: beyond it, shorter items make a batch of their own."""
_FREE_SECONDS = 60.0
"""Seconds of audio by which padding may pass that limit on a GPU, which computes them in about the time in which the
host starts the kernels of a batch: on an H200 a pass of a 7B backbone took some 0.1 s with one pair as with seven."""
_MOST_TOKENS = 16_384
"""Tokens of a pass on a GPU. Products of 7B matrices reach their full rate at some 12,000 rows."""
_OF_FREE_MEMORY = 0.5
"""Share of the memory that is free after loading that a pass may take."""
_QUEUE = 2
"""Passes whose inputs are made ahead of a GPU."""
_READERS = 8
"""Most threads that decode clips ahead of a GPU."""
READ_AHEAD = 2**30
"""Bytes of decoded clips from which on no further ones are decoded ahead of a GPU, and those so far are encoded."""
_CUDA_OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation`, which `torch.AcceleratorError` carries."""
_STATUSES = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Messages of libraries that allocate on their own, and of torch before it had that class (2.8)."""


class Workers(AbstractContextManager["Workers"]):
    """Threads of the host that work ahead of a GPU. There are none (None in their place) on a CPU, which would compute
    no sooner for them: things are then made when they are asked for."""

    def __init__(self) -> None:
        self._held, self._counting = 0, threading.Lock()  # bytes of what was read and not taken
        # Two pools: inputs of the next pass may not wait for the clips of the next thousand pairs
        self._readers = ThreadPoolExecutor(min(available_cores(), _READERS), "decoding", initializer=_one_thread)
        self._makers = ThreadPoolExecutor(_QUEUE, "inputs", initializer=_one_thread)

    def __exit__(self, *error: object) -> None:
        for pool in (self._readers, self._makers):
            pool.shutdown(cancel_futures=True)

    def read(self, items: Iterable[Item], read: Callable[[Item], Made]) -> dict[Item, Future[Made | None]]:
        """Begin to read items that have their size (`nbytes`) afterwards."""

        def ahead(item: Item) -> Made | None:
            # None makes the pass read the clip itself, when there is room again
            if self._held > READ_AHEAD:
                return None
            made = read(item)
            self._hold(made.nbytes)
            return made

        return {item: self._readers.submit(ahead, item) for item in items}

    def take(self, begun: dict[Item, Future[Made | None]], item: Item) -> Made | None:
        """What was read of an item that was begun, once; None = there was no room. Raises what reading it raised."""
        made = begun.pop(item).result()
        if made is not None:
            self._hold(-made.nbytes)
        return made

    def _hold(self, size: int) -> None:
        with self._counting:
            self._held += size

    def make(self, function: Callable[[slice], Any], rows: slice) -> Callable[[], Any]:
        """A function that returns what `function` makes of these rows, from now on."""
        return self._makers.submit(function, rows).result


@cache
def _libraries() -> ThreadpoolController:
    """To look for them takes up to 25 ms, which each thread of each call would spend."""
    return ThreadpoolController()


def _one_thread() -> None:
    # the threads together are as many as there are cores; this limit holds for the calling thread alone. Asked first,
    # torch does not put back later what `torch.set_num_threads` said
    torch.get_num_threads()
    _libraries().limit(limits=1, user_api="openmp")


def pinned(inputs: Moved, device: torch.device) -> Moved:
    """Inputs in memory that a GPU reads while the host goes on, if the device is one."""
    return inputs.pin_memory() if device.type == "cuda" and torch.cuda.is_available() else inputs


class AutoBatch:
    """Batches of consecutive items with little padding. Where one runs out of memory, all later ones are smaller.

        for batch in batches.split(lengths, make, workers):
            with batch:
                results[batch.rows] = compute(batch.take())

    Items that ran out of memory come again in smaller batches; an item that does not fit even alone never gets a
    result.
    """

    def __init__(self, size: int, free: float = 0, most: float = math.inf) -> None:
        """Start with the largest number of items in a batch; the padding of a batch that costs nothing, and the largest
        size of a batch, padding included, in the unit of lengths."""
        self._size, self._free, self._most = size, free, most

    def split(
        self, lengths: Sequence[int], make: Callable[[slice], Any], workers: Workers | None, padded: bool = True
    ) -> Iterator[ItemBatch]:
        """Yield batches until all items were computed or do not fit.

        Args:
            lengths: How much of a batch each item takes, in any unit; the longest first, so that memory runs out early.
            make: Makes from the numbers of items what is computed.
            workers: The threads that do so ahead, if there are any.
            padded: Whether each item takes as much as the longest of its batch.
        """
        start, waiting = 0, deque[ItemBatch]()
        try:
            while start < len(lengths) or waiting:
                while start < len(lengths) and len(waiting) <= (0 if workers is None else _QUEUE):
                    rows = slice(start, start + self._count(lengths[start:], padded))
                    made = partial(make, rows) if workers is None else workers.make(make, rows)
                    waiting.append(ItemBatch(rows, made))
                    start = rows.stop
                batch = waiting.popleft()
                yield batch
                if batch.ran_out:
                    _drop(waiting)  # they are as large
                    # By now nothing refers to the tensors of the batch that failed
                    # torch keeps freed blocks of the old sizes, which smaller batches cannot use
                    clear_device_cache(garbage_collection=True)
                    items = lengths[batch.rows]
                    # A single item cannot be made smaller: it is left without a result, and the others go on
                    start = batch.rows.stop if len(items) == 1 else batch.rows.start
                    if len(items) > 1:
                        # Half of what did not fit, in size and not in number: later batches may hold shorter items
                        self._most = (len(items) * max(items) if padded else sum(items)) / 2
        finally:
            _drop(waiting)

    def _count(self, lengths: Sequence[int], padded: bool) -> int:
        """How many of the next items make a batch."""
        count, longest, used = 1, lengths[0], lengths[0]
        for length in lengths[1 : self._size]:
            longest, used = max(longest, length), used + length
            size = (count + 1) * longest if padded else used
            # Beyond this padding shorter items are cheaper in a pass of their own
            if size > min(self._most, max(_PADDED * used, used + self._free)):
                break
            count += 1
        return count


@dataclass
class ItemBatch(AbstractContextManager["ItemBatch"]):
    """Some consecutive items (`rows`). As a context it notes whether memory ran out, and lets other errors pass."""

    rows: slice
    made: Callable[[], Any] | None
    ran_out: bool = False

    def take(self) -> Any:
        """What is computed; it can be taken once, so that nothing keeps it."""
        made, self.made = self.made, None
        assert made is not None
        return made()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.ran_out = error is not None and ran_out_of_memory(error)
        return self.ran_out


def _drop(waiting: deque[ItemBatch]) -> None:
    """Forget batches, once nothing works on them any more."""
    while waiting:
        with suppress(Exception):
            # A thread may be making it: it is waited for, as its memory is freed only then
            waiting.popleft().take()


def batches_for(judge: EmpathyJudge, size: int, per_second: float, most_tokens: float = math.inf) -> AutoBatch:
    """Batches for a judge of at most so many items and tokens, whose lengths are so much for each second of audio."""
    rate = judge.backbone.sampling_rate
    most = most_tokens * per_second / judge.backbone.audio_tokens(rate)
    return AutoBatch(size, 0 if judge.device.type == "cpu" else _FREE_SECONDS * per_second, most)


def batch_tokens(judge: EmpathyJudge) -> float:
    """Most tokens of a pass: on a GPU as many as use it well and fit into the memory that is free. On a CPU, where a
    few pairs are as fast as many, their number is the limit alone."""
    return tokens_in(judge, free_bytes(judge.device)) if judge.device.type == "cuda" else math.inf


def tokens_in(judge: EmpathyJudge, free: float) -> float:
    """Most tokens of a pass on a GPU with so much free memory (bytes)."""
    return min(_MOST_TOKENS, max(1.0, _OF_FREE_MEMORY * free / bytes_per_token(judge)))


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process can still take (bytes)."""
    free, _ = torch.cuda.mem_get_info(device)
    # What torch holds without using it is free to this process, and the driver counts it as taken
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def bytes_per_token(judge: EmpathyJudge) -> int:
    """What a layer holds of a token at once, at most: six vectors as wide as the hidden state and three of its MLP in
    the precision of the weights, and two of each in float32, where norms and adapters compute. Of an encoder without a
    language model the states of all layers are kept, too."""
    backbone: Any = judge.backbone
    if "language_model" in backbone.parts:
        network, hidden, kept = backbone.language_model, backbone.hidden_size, 0
    else:
        network, hidden, kept = backbone.tower, backbone.layer_sizes[1], backbone.audio_size
    inner = getattr(network.config, "intermediate_size", None) or 4 * hidden
    weight = next(judge.network.parameters()).dtype.itemsize
    return weight * (6 * hidden + 3 * inner + kept) + 4 * (2 * hidden + 2 * inner)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a computation failed for lack of memory, on any device."""
    return isinstance(error, RuntimeError | MemoryError) and (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY
        or should_reduce_batch_size(error)
        or any(status in str(error) for status in _STATUSES)
    )


def lost_device(error: BaseException) -> bool:
    """Whether a GPU failed in a way after which this process can compute nothing on it any more."""
    # Torch before 2.8 has no such class
    return isinstance(error, getattr(torch, "AcceleratorError", ())) and not ran_out_of_memory(error)
