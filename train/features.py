"""Activations of frozen layers for the training data, computed once instead of once per epoch."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock, Timeout
from torch import distributed as dist
from torch import nn

from ..audio.decode import AudioSource
from ..core.disk_store import DiskStore
from ..core.errors import ASKED_TO_STOP, UserError
from ..core.processes import progress
from ..data_modules.schema import Pair
from ..models.backbones.audio_language_model import AudioLanguageModel
from ..models.backbones.base import Backbone
from ..models.backbones.inputs import Inputs
from ..models.feature_cache import ClipStates, PairStates
from ..models.judge import EmpathyJudge
from ..models.settings import JudgeSettings

_CLIPS, _PAIRS = 16, 8  # in a forward pass
_TOGETHER = 4  # forward passes of one process until all of them meet
_TEMPORARY = "empathy-judge-cache-"
Item = TypeVar("Item", AudioSource, Pair)
Own = TypeVar("Own")
signals_received: list[int] = []
"""Signals that asked this process to stop, see `train.checkpointing`. One of several may not end alone: others would
wait for it in a collective operation, with NCCL for ever. They end together, in `all_gather_object`."""
Precision = Callable[[], AbstractContextManager[None]]
"""The context in which the trainer computes, such as autocast."""


class Features:
    """Inputs of the judge from stored activations.

    These are exactly what the frozen layers would compute in training, because nothing in and before them is trained or
    random.
    """

    def __init__(
        self, judge: EmpathyJudge, cache: Literal["audio", "layers"], store: DiskStore, precision: str
    ) -> None:
        """Nothing is computed before `prepare`; `precision` is what the trainer calls it.

        Raises:
            UserError: If the activations to be stored change in training.
        """
        if judge.settings.lora.trains_tower:
            raise UserError(
                f"cache: {cache} with an audio_tower that is trained; expected cache.what none, or other parts to train"
            )
        self._judge, self._local = judge, (0, 1)
        self._clips = ClipStates(judge, store)
        self._pairs: PairStates | None = None
        if cache == "layers":
            first = _first_adapted_layer(judge.backbone, judge.settings)
            self._pairs = PairStates(judge, self._clips, first, precision)

    @property
    def lower_layers(self) -> list[nn.Module]:
        """Layers of the language model that are not computed in training."""
        return [] if self._pairs is None else self._pairs.lower_layers

    def prepare(self, pairs: Iterable[Pair], precision: Precision, local: tuple[int, int] = (0, 1)) -> None:
        """Compute the missing activations of all pairs of training and validation.

        Where several processes share the store each computes a part, alone. Hidden states are computed in this
        precision, audio states in that of the tower's weights. `local` = number of this process among those of its
        machine, and how many these are.
        """
        pairs, self._local = list(pairs), local
        with evaluating(self._judge):
            if self._pairs is not None:
                # Pairs that are stored need no audio states any more; equal pairs are computed once
                pairs = list({self._pairs.name(pair): pair for pair in pairs if pair not in self._pairs}.values())
            # A context of many responses is encoded once
            sources = list(dict.fromkeys(source for pair in pairs for source in pair.clips))
            if self._judge.backbone.has_tower:
                self._in_parts(sources, self._clips, self._encode, _CLIPS, "clips")
            if self._pairs is not None:
                self._in_parts(pairs, self._pairs, lambda batch: self._run_lower(batch, precision), _PAIRS, "pairs")

    def _in_parts(
        self, items: list[Item], kept: Container[Item], compute: Callable[[list[Item]], None], size: int, what: str
    ) -> None:
        """Compute this process's share of the missing items. Where each machine has a folder of its own, repeat that
        among the processes of the machine."""
        rank, ranks = rank_and_world_size()
        for part, parts in ((rank, ranks), self._local) if ranks > 1 else ((0, 1),):
            # `in` reads each stored file once: a damaged one counts as missing
            share = [item for item in items[part::parts] if item not in kept]
            # this waits for all: each has listed what is missing before any of them writes
            steps = max(all_gather_object(-(-len(share) // size)))
            for step in progress(range(steps), f"caching activations of {what}, batches", steps, quiet=rank > 0):
                # No process waits for long, and a signal to one ends all
                if step % _TOGETHER == 0:
                    barrier()
                if batch := share[step * size : (step + 1) * size]:
                    compute(batch)
            barrier()  # waits for all: afterwards all that they wrote is there

    def _encode(self, sources: list[AudioSource]) -> None:
        states = self._judge.encode_clips([self._judge.decode(source) for source in sources])
        for source, encoded in zip(sources, states, strict=True):
            self._clips.put(source, encoded)

    def _run_lower(self, pairs: list[Pair], precision: Precision) -> None:
        assert self._pairs is not None
        with precision():
            self._pairs.compute(pairs, self._from_clips(pairs).to(self._judge.device))

    def inputs(self, pairs: Sequence[Pair]) -> Inputs:
        """The inputs of the judge for pairs, on the CPU; in any process. What is no longer stored is computed again."""
        if self._pairs is not None:
            try:
                return self._pairs.inputs(pairs)
            except KeyError:
                pass
        return self._from_clips(pairs)

    def _from_clips(self, pairs: Sequence[Pair]) -> Inputs:
        sources = dict.fromkeys(source for pair in pairs for source in pair.clips)
        stored = {source: self._clips.get(source) for source in sources}
        available = {source: encoded for source, encoded in stored.items() if encoded is not None}
        # Inputs hold stored states or clips, never both: with one state missing all clips are encoded
        return self._judge.build_inputs(pairs, available if len(available) == len(stored) else None)


def rank_and_world_size() -> tuple[int, int]:
    """Rank of this process and number of processes of the run."""
    distributed = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)


def all_gather_object(own: Own) -> list[Own]:
    """The values of all processes, by rank (a collective operation).

    Raises:
        SystemExit: With `ASKED_TO_STOP` in all of them, if any has `signals_received`.
    """
    _, ranks = rank_and_world_size()
    if ranks == 1:
        return [own]
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, (own, signals_received))
    if received := [number for _, numbers in gathered for number in numbers]:
        signals_received.extend(received)
        raise SystemExit(ASKED_TO_STOP)
    return [value for value, _ in gathered]


def barrier() -> None:
    """Wait for all processes (a collective operation).

    Raises:
        SystemExit: As `all_gather_object`.
    """
    all_gather_object(None)


@contextmanager
def evaluating(judge: EmpathyJudge) -> Iterator[None]:
    """Within it, a judge is in evaluation mode. Afterwards all modes are restored: `judge.train()` would enable dropout
    in the frozen backbone."""
    modes = {module: module.training for module in judge.modules()}
    judge.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def temporary_folder(run: Path, local_rank: int) -> Iterator[Path]:
    """A new folder on each machine, the same in all processes of a run. The first process of the machine makes it and
    deletes it at the end. What a killed run left is deleted when the next one starts here.
    """
    name = hashlib.blake2b(str(run.resolve()).encode(), digest_size=16).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"{_TEMPORARY}{name}"
    if local_rank != 0:
        yield folder
        return
    # A killed run leaves its folder behind, and its lock is free
    for left in folder.parent.glob(f"{_TEMPORARY}*.lock"):
        with suppress(Timeout, OSError), FileLock(left, blocking=False):
            _delete(left.with_suffix(""), left)
    lock, process = folder.with_suffix(".lock"), os.getpid()
    with FileLock(lock):  # the system releases it when the process dies
        try:
            yield folder
        finally:
            if os.getpid() == process:  # not in a forked copy of this process
                _delete(folder, lock)


def _delete(folder: Path, lock: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.unlink(missing_ok=True)


def _first_adapted_layer(backbone: Backbone, settings: JudgeSettings) -> int:
    """Number of the first layer of the language model with LoRA.

    Raises:
        UserError: Saying why what enters that layer changes in training, or is not worth caching.
    """
    if not isinstance(backbone, AudioLanguageModel):
        raise UserError(f"cache: layers: backbone {backbone.name} has no language model; expected audio or none")
    if not backbone.entered_at_layers:
        raise UserError(
            f"cache: layers: backbone {backbone.name} cannot be entered at a layer: its layers pass on more than one "
            "state for each token; expected audio or none"
        )
    lora = settings.lora
    changing = {*lora.parts, *lora.full_parts} - {"language_model"}
    if changing or "language_model" in lora.full_parts:
        part = min(changing or {"language_model"})
        raise UserError(f"cache: layers with {part} that is trained: what enters the layers changes; expected audio")
    count = len(backbone.layers)
    first = 0 if lora.layers is None else range(count)[slice(*lora.layers)].start
    if "language_model" not in lora.parts:
        first = count - 1  # the head alone is trained; the last layer is computed each time
    if first == 0:
        raise UserError(
            "cache: layers with LoRA from the first layer on: there is nothing below; use lora.layers such as "
            f"[-{max(1, count // 4)}, {count}], or cache: audio"
        )
    return first
