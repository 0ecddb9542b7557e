"""From clips to audio states, each clip once, with what was measured of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..data_modules.audio import AudioSource, Clip, audio_hash
from ..data_modules.errors import AudioError
from .auto_batch import AutoBatch
from .cautions import ClipFacts, clip_facts
from .feature_cache import ClipStates, FeatureStore
from .judge import EmpathyJudge, EncodedClip, tower_is_trained

KEPT_BYTES = 512 * 2**20
"""Of audio states in memory, where nothing else is wanted."""
_KEPT_FACTS = 100_000


class Encoded(NamedTuple):
    """What is known of some clips.

    Attributes:
        states: Audio states of those that can be used.
        facts: What was measured of these, where it was.
        failed: Why the others cannot be used.
    """

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
        store: FeatureStore | None,
        measures: bool,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """See `PairScorer` for the arguments."""
        self.judge = judge
        self._measures = measures
        self._most_bytes = kept_bytes
        self._states: OrderedDict[Hashable, EncodedClip] = OrderedDict()
        self._bytes = 0
        self._facts: OrderedDict[Hashable, ClipFacts] = OrderedDict()
        self._store = None if store is None or tower_is_trained(judge) else ClipStates(judge, store)
        self._batches = AutoBatch(batch_size)

    def encode(self, clips: Iterable[AudioSource], member: int | None) -> Encoded:
        """Audio states of distinct clips.

        Args:
            clips: Any number.
            member: Of an ensemble, whose tower has its weights now; None = the tower is everyone's.
        """
        found = Encoded({}, {}, {})
        decoded: list[tuple[AudioSource, Hashable, list[np.ndarray]]] = []
        for source in clips:
            try:
                key = _key(source)
                if (windows := self._read(source, key, member, found)) is not None:
                    decoded.append((source, (member, key), windows))
            except AudioError as error:
                found.failed[source] = error
        decoded.sort(key=lambda clip: -len(clip[2][0]))
        made = self._batches.run(
            decoded,
            [sum(map(len, windows)) for _, _, windows in decoded],
            lambda some: self.judge.encode_clips([windows for _, _, windows in some]),
            lambda clip: None,
        )
        for (source, key, windows), encoded in zip(decoded, made, strict=True):
            if encoded is None:
                seconds = sum(map(len, windows)) / self.judge.backbone.sampling_rate
                reason = f"clip of {seconds:.1f} s: too long for the memory of {self.judge.device}"
                found.failed[source] = AudioError(reason, "too large for the memory")
                continue
            found.states[source] = encoded
            self._cache(key, encoded)
            if self._store is not None:
                self._store.put(source, encoded)
        return found

    def forget(self) -> None:
        """Drop the audio states that are cached in this process."""
        self._states.clear()
        self._bytes = 0

    def _read(self, source: AudioSource, key: Hashable, member: int | None, found: Encoded) -> list[np.ndarray] | None:
        """Put what is known of a clip into `found`; its samples if it must be encoded."""
        known, facts = self._known(source, (member, key)), self._facts.get(key)
        wanted = self._measures and facts is None
        windows = self.judge.decode(source) if known is None or wanted else None
        if wanted and windows is not None:
            facts = self._facts[key] = clip_facts(windows, self.judge.backbone.sampling_rate)
            if len(self._facts) > _KEPT_FACTS:
                self._facts.popitem(last=False)
        if facts is not None:
            found.facts[source] = facts
        if known is None:
            return windows
        found.states[source] = known
        return None

    def _known(self, source: AudioSource, key: Hashable) -> EncodedClip | None:
        """Cached audio states, in memory or in the store."""
        if key in self._states:
            return self._states[key]
        cached = None if self._store is None else self._store.get(source)
        if cached is not None:
            self._cache(key, cached)
        return cached

    def _cache(self, key: Hashable, encoded: EncodedClip) -> None:
        if key not in self._states:
            self._bytes += _size(encoded)
        self._states[key] = encoded
        while self._bytes > self._most_bytes:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(encoded: EncodedClip) -> int:
    return sum(window.states.nbytes for window in encoded)


def _key(source: AudioSource) -> Hashable:
    """What a clip is known by: small, whatever the clip is. A file that was changed is another clip."""
    if isinstance(source, bytes | Clip):
        return audio_hash(source)
    if isinstance(source, str | Path) and Path(source).is_file():
        facts = Path(source).stat()
        return str(source), facts.st_mtime_ns, facts.st_size
    return source
