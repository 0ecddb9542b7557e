"""Audio states of clips, each decoded and encoded once, and their measurements."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ..audio.decode import AudioSource, known_by, memory_for
from ..audio.prosody import ClipFacts, clip_facts
from ..core.disk_store import DiskStore
from ..core.errors import AudioError
from ..models.feature_cache import ClipStates
from ..models.judge import EmpathyJudge
from ..models.settings import LongClips
from ..models.windows import ClipInputs, EncodedClip
from . import KEPT_BYTES
from .batches import READ_AHEAD, Workers, batches_for, free_bytes, pinned

_KEPT_FACTS = 100_000
_OF_FREE_MEMORY = 0.25
"""Share of the free memory of a GPU that audio states may take; further ones wait in main memory."""


class Encoded(NamedTuple):
    """Results for some clips: audio states of those that can be used, their measurements, where they were measured, and
    why the others cannot be used."""

    states: dict[AudioSource, EncodedClip]
    facts: dict[AudioSource, ClipFacts]
    failed: dict[AudioSource, AudioError]


class OpenedClip(NamedTuple):
    """What the host found of a clip."""

    key: Hashable  # see `known_by`
    states: EncodedClip | None = None  # where they were stored
    windows: Sequence[np.ndarray] = ()  # samples; empty where nothing has to be computed
    facts: ClipFacts | None = None  # measurements; None = not asked for, or known before

    @property
    def nbytes(self) -> int:
        """Bytes of its samples."""
        return sum(window.nbytes for window in self.windows)


@dataclass
class KeptClips:
    """Opened clips that the next member of an ensemble needs again."""

    clips: dict[AudioSource, OpenedClip] = field(default_factory=dict)
    nbytes: int = 0  # of all of them

    def add(self, source: AudioSource, clip: OpenedClip) -> None:
        """Keep a clip, as long as all take less than `READ_AHEAD`."""
        if source not in self.clips and self.nbytes + clip.nbytes <= READ_AHEAD:
            self.clips[source] = clip
            self.nbytes += clip.nbytes


class ClipEncoder:
    """Runs the audio tower of a judge over clips. States are cached, the oldest dropped beyond a limit."""

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int,
        store: DiskStore | None = None,
        *,
        measures: bool = False,
        kept_bytes: float = KEPT_BYTES,
        windows: bool = True,
        tokens: float = math.inf,
        statistics_alone: bool = False,
    ) -> None:
        """See `Predictor` for the other arguments.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Most clips per pass of the tower.
            store: Where audio states stay beyond this run.
            measures: Whether clips are measured too.
            kept_bytes: Bytes of audio states that stay in memory.
            windows: Whether long clips are read in windows.
            tokens: Most audio tokens per pass.
            statistics_alone: Whether audio states are dropped as soon as their statistics are taken: `encode` returns
                windows with states of width 0, which only `EmpathyJudge.clip_features` can use.
        """
        self.judge, self._device, self._measures, self._most_bytes = judge, judge.device, measures, kept_bytes
        self._statistics_alone = statistics_alone
        self._long_clips: LongClips = "window" if windows else "refuse"
        self._states: OrderedDict[Hashable, tuple[EncodedClip, int]] = OrderedDict()  # with their bytes
        self._bytes = 0
        self._facts: OrderedDict[Hashable, ClipFacts] = OrderedDict()
        # The store is shared by all judges of a backbone, whose tower must be the frozen one
        kept = judge.backbone.has_tower and not judge.trains_tower
        self._store = ClipStates(judge, store) if store is not None and kept else None
        self._batches = batches_for(judge, batch_size, judge.backbone.sampling_rate, tokens)
        on_gpu = self._device.type == "cuda"
        self._most_on_device = _OF_FREE_MEMORY * free_bytes(self._device) if on_gpu else math.inf

    def forget(self) -> None:
        """Drop the audio states that are cached."""
        self._states.clear()
        self._bytes = 0

    def open(self, source: AudioSource, member: int | None) -> OpenedClip:
        """What is known of a clip, or its samples; in any thread.

        Raises:
            AudioError: If it cannot be used.
        """
        key, states, windows, facts = known_by(source), None, [], None
        known, unmeasured = (member, key) in self._states, self._measures and key not in self._facts
        if not known and self._store is not None:
            states = self._store.get(source, self._long_clips)
        if (not known and states is None) or unmeasured:
            windows = self.judge.decode(source, self._long_clips)
        if unmeasured:
            with memory_for(source):
                facts = clip_facts(windows, self.judge.backbone.sampling_rate)
        return OpenedClip(key, states, windows, facts)

    def encode(
        self,
        clips: Iterable[AudioSource],
        member: int | None = None,
        workers: Workers | None = None,
        opened: dict[AudioSource, Future[OpenedClip | None]] | None = None,
        kept: KeptClips | None = None,
    ) -> Encoded:
        """Encode distinct clips.

        Args:
            clips: The clips.
            member: The member of an ensemble whose weights the tower has now; None = all members share the tower.
            workers: The threads that make the inputs of the tower ahead, if there are any.
            opened: Clips that they have begun to open; those that are used are taken out.
            kept: Clips that were opened for another member; further ones are added. None = nobody needs them again.

        Returns:
            Audio states on the judge's device, as long as they fit there.
        """
        result, opened, known = Encoded({}, {}, {}), opened or {}, {} if kept is None else kept.clips
        waiting: dict[AudioSource, OpenedClip] = {}  # to be encoded
        held = 0  # bytes of their samples
        # What is known already, and what has to be computed; a clip that cannot be used holds no other up
        for source in clips:
            try:
                clip = workers.take(opened, source) if workers is not None and source in opened else known.get(source)
                clip = clip or self.open(source, member)
                states, _ = self._states.get((member, clip.key), (None, 0))
                if states is None and clip.states is None and not clip.windows:
                    clip = self.open(source, member)  # it was known when it was opened ahead, and dropped since
            except AudioError as error:
                result.failed[source] = error
                continue
            if kept is not None:
                kept.add(source, clip)
            if states is None and clip.states is not None:
                states = self._keep((member, clip.key), clip.states)
            if (facts := clip.facts or self._facts.get(clip.key)) is not None:
                result.facts[source] = self._facts[clip.key] = facts
                # Of a service that runs for months, each clip would leave an entry
                if len(self._facts) > _KEPT_FACTS:
                    self._facts.popitem(last=False)
            if states is not None:
                result.states[source] = states
                continue
            waiting[source] = clip
            if workers is not None:
                held += clip.nbytes
                # Samples of all clips of a window may not fit into memory; states are a fraction of them
                if held > READ_AHEAD:
                    self._compute(waiting, member, result, workers)
                    waiting, held = {}, 0
        if waiting:
            self._compute(waiting, member, result, workers)
        return result

    def _compute(
        self, clips: Mapping[AudioSource, OpenedClip], member: int | None, result: Encoded, workers: Workers | None
    ) -> None:
        """Run the tower over clips, and add their states to the result."""
        judge = self.judge
        # The longest first: little padding, and where memory runs out, it does so early
        order = sorted(clips, key=lambda source: -len(clips[source].windows[0]))
        lengths = [sum(map(len, clips[source].windows)) for source in order]
        # A clip that does not fit alone never gets a result, and stays None
        encodings: list[EncodedClip | None] = [None] * len(order)

        def inputs(rows: slice) -> ClipInputs:
            facts, prepared = judge.clip_inputs([clips[source].windows for source in order[rows]])
            return facts, prepared if workers is None else pinned(prepared, self._device)

        on_device = self._bytes + sum(map(_bytes, result.states.values()))
        for batch in self._batches.split(lengths, inputs, workers):
            with batch:
                encoded = judge.encode_prepared(*batch.take())
                on_device += sum(map(_bytes, encoded))
                # Weights and passes need the rest of the card, and main memory is near
                if on_device > self._most_on_device:
                    encoded = [[window.to(torch.device("cpu")) for window in clip] for clip in encoded]
                encodings[batch.rows] = encoded
        for source, samples, encoded in zip(order, lengths, encodings, strict=True):
            if encoded is None:
                seconds = samples / judge.backbone.sampling_rate
                reason = f"clip of {seconds:.1f} s: too long for the memory of {self._device}"
                result.failed[source] = AudioError(reason, "too large for the memory")
                continue
            if self._store is not None:
                self._store.put(source, encoded)
            result.states[source] = self._keep((member, clips[source].key), encoded)

    def _keep(self, key: Hashable, encoded: EncodedClip) -> EncodedClip:
        """Cache what stays of a clip, and return it."""
        if self._statistics_alone:
            # copies: a view would hold the states, or the statistics, of the whole batch
            encoded = [
                window._replace(
                    states=window.states[:, :0].clone(), layers=None if window.layers is None else window.layers.clone()
                )
                for window in encoded
            ]
        size = _bytes(encoded)
        self._bytes += 0 if key in self._states else size
        self._states[key] = encoded, size
        # By bytes and not by number: a clip of 30 minutes weighs as much as a thousand short ones
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._states.popitem(last=False)
            self._bytes -= dropped
        return encoded


def _bytes(encoded: EncodedClip) -> int:
    return sum(tensor.nbytes for window in encoded for tensor in window if isinstance(tensor, torch.Tensor))
