"""Encodes clips to audio states, each clip once, and measures them; and makes batches that fit into memory."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from ..data_modules.audio import AudioSource
from ..data_modules.errors import AudioError
from ..data_modules.prosody import ClipFacts, clip_facts
from .disk_store import DiskStore
from .feature_cache import ClipStates
from .judge import EmpathyJudge, EncodedClip, known_by
from .settings import LongClips

KEPT_BYTES = 512 * 2**20
"""Bytes of audio states that are kept in memory by default."""
_KEPT_FACTS = 100_000
_PADDED = 1.25
"""Largest size of a padded batch relative to its items: beyond it, shorter items make a batch of their own."""
_FREE_SECONDS = 60.0
"""Seconds of audio by which padding may pass that limit on a GPU, which computes them in about the time in which the
host starts the kernels of a batch: on an H200 a pass of a 7B backbone took some 0.1 s with one pair as with seven."""
_CUDA_OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation`, which `torch.AcceleratorError` carries."""
_STATUSES = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Messages of libraries that allocate on their own, and of torch before it had that class (2.8)."""


class Encoded(NamedTuple):
    """Results for some clips: audio states of those that can be used, their measurements, where they were measured, and
    why the others cannot be used."""

    states: dict[AudioSource, EncodedClip]
    facts: dict[AudioSource, ClipFacts]
    failed: dict[AudioSource, AudioError]


class ClipEncoder:
    """Runs the audio tower. Audio states are cached, the oldest dropped beyond a limit: one context is often answered
    several times, and perturbations leave many clips as they are."""

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int,
        store: DiskStore | None,
        measures: bool,
        kept_bytes: int = KEPT_BYTES,
        long_clips: LongClips = "window",
    ) -> None:
        """See `Predictor` for the arguments."""
        self.judge = judge
        self._long_clips: LongClips = long_clips
        self._measures = measures
        self._most_bytes = kept_bytes
        self._states: OrderedDict[Hashable, tuple[EncodedClip, int]] = OrderedDict()  # with their bytes
        self._bytes = 0
        self._facts: OrderedDict[Hashable, ClipFacts] = OrderedDict()
        self._store = None if store is None or judge.trains_tower else ClipStates(judge, store)
        self._batches = batches_for(judge, batch_size, judge.backbone.sampling_rate)

    def encode(self, clips: Iterable[AudioSource], member: int | None) -> Encoded:
        """Encode distinct clips; `member` = the member of an ensemble whose weights the tower has now, None = all
        members share the tower.
        """
        result = Encoded({}, {}, {})
        decoded: list[tuple[AudioSource, Hashable, list[np.ndarray]]] = []
        # What is known already, and what has to be decoded; a clip that cannot be used holds no other up
        for source, key in {source: known_by(source) for source in clips}.items():
            (states, _), facts = self._states.get((member, key), (None, 0)), self._facts.get(key)
            unmeasured = self._measures and facts is None
            try:
                if states is None and self._store is not None and (states := self._store.get(source, self._long_clips)):
                    self._cache((member, key), states)
                windows = self.judge.decode(source, self._long_clips) if states is None or unmeasured else []
            except AudioError as error:
                result.failed[source] = error
                continue
            if unmeasured:
                facts = self._facts[key] = clip_facts(windows, self.judge.backbone.sampling_rate)
                if len(self._facts) > _KEPT_FACTS:
                    self._facts.popitem(last=False)
            if facts is not None:
                result.facts[source] = facts
            if states is None:
                decoded.append((source, (member, key), windows))
            else:
                result.states[source] = states
        # The longest first: little padding, and where memory runs out, it does so early
        decoded.sort(key=lambda clip: -len(clip[2][0]))
        encodings: list[EncodedClip | None] = [None] * len(decoded)
        for batch in self._batches.split([sum(map(len, windows)) for _, _, windows in decoded]):
            with batch:
                encodings[batch.rows] = self.judge.encode_clips([windows for _, _, windows in decoded[batch.rows]])
        for (source, key, windows), encoded in zip(decoded, encodings, strict=True):
            if encoded is None:
                seconds = sum(map(len, windows)) / self.judge.backbone.sampling_rate
                reason = f"clip of {seconds:.1f} s: too long for the memory of {self.judge.device}"
                result.failed[source] = AudioError(reason, "too large for the memory")
                continue
            result.states[source] = encoded
            self._cache(key, encoded)
            if self._store is not None:
                self._store.put(source, encoded)
        return result

    def forget(self) -> None:
        """Drop the audio states that are cached in this process."""
        self._states.clear()
        self._bytes = 0

    def _cache(self, key: Hashable, encoded: EncodedClip) -> None:
        size = sum(tensor.nbytes for window in encoded for tensor in window if isinstance(tensor, torch.Tensor))
        self._bytes += 0 if key in self._states else size
        self._states[key] = encoded, size
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._states.popitem(last=False)
            self._bytes -= dropped


class AutoBatch:
    """Batches of consecutive items with little padding. Where one runs out of memory, all later ones are smaller.

        for batch in batches.split(lengths):
            with batch:
                results[batch.rows] = compute(items[batch.rows])

    Items that ran out of memory come again in smaller batches; an item that does not fit even alone never gets a
    result.
    """

    def __init__(self, size: int, free: float = 0) -> None:
        """Start with the largest number of items in a batch, and the padding of a batch that costs nothing, in the unit
        of lengths."""
        self._size, self._free = size, free
        self._most = math.inf  # largest size of a batch, padding included

    def split(self, lengths: Sequence[int], padded: bool = True) -> Iterator[ItemBatch]:
        """Yield batches until all items were computed or do not fit. `lengths` is how much of a batch each item takes,
        in any unit; the longest first, so that memory runs out early. `padded` = each item takes as much as the longest
        of its batch.
        """
        start = 0
        while start < len(lengths):
            count, longest, used = 1, lengths[start], lengths[start]
            for length in lengths[start + 1 : start + self._size]:
                longest, used = max(longest, length), used + length
                size = (count + 1) * longest if padded else used
                if size > min(self._most, max(_PADDED * used, used + self._free)):
                    break
                count += 1
            batch = ItemBatch(slice(start, start + count))
            yield batch
            if not batch.ran_out or count == 1:
                start += count
            if batch.ran_out:
                # By now nothing refers to the tensors of the batch that failed
                clear_device_cache(garbage_collection=True)
                if count > 1:
                    items = lengths[start : start + count]
                    self._most = (count * max(items) if padded else sum(items)) / 2


def batches_for(judge: EmpathyJudge, size: int, per_second: float) -> AutoBatch:
    """Batches of at most so many items for a judge, whose lengths are so much for each second of audio."""
    return AutoBatch(size, 0 if judge.device.type == "cpu" else _FREE_SECONDS * per_second)


@dataclass
class ItemBatch(AbstractContextManager["ItemBatch"]):
    """Some consecutive items (`rows`). As a context it notes whether memory ran out, and lets other errors pass."""

    rows: slice
    ran_out: bool = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.ran_out = error is not None and ran_out_of_memory(error)
        return self.ran_out


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
