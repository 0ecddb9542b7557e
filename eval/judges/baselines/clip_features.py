"""From clips to features of pairs: of the context, of the response, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....data_modules.audio import AudioSource, Clip, decode
from ....data_modules.errors import AudioError
from ....data_modules.parallel import map_threads
from ....data_modules.prosody import RATE
from ....data_modules.schema import Pair
from .. import OK


@dataclass(frozen=True)
class Measures:
    """A list of measures of a clip.

    Attributes:
        names: Of the k measures.
        measure: From mono samples at `RATE` Hz to shape (k,), float64, NaN = cannot be told. Called in several threads.
    """

    names: tuple[str, ...]
    measure: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ClipFeatures:
    """Features of pairs; every distinct clip is decoded and measured once.

    Those of a dataset's clips are kept. Clips in memory are not: listening checks make new ones.

    Attributes:
        measures: What is measured.
    """

    measures: Measures
    _kept: dict[AudioSource, np.ndarray | AudioError] = field(default_factory=dict, repr=False)

    def of(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, list[str]]:
        """The features of n pairs.

        Returns:
            Shape (n, 3 k), float64: the measures of the last turn of the context, which is the one that is answered, of
            the response, and the second less the first. NaN where a measure cannot be told; without a context its
            measures and the differences are NaN. Then per pair ``ok``, or why a clip cannot be used; its row is NaN.
        """
        found = self._of_clips([source for pair in pairs for source in _sources(pair)])
        features = np.full((len(pairs), 3 * len(self.measures.names)), np.nan)
        statuses = [OK] * len(pairs)
        absent = np.full(len(self.measures.names), np.nan)
        for row, pair in enumerate(pairs):
            response = found[pair.response]
            context = found[pair.context[-1].audio] if pair.context else absent
            if isinstance(context, AudioError) or isinstance(response, AudioError):
                statuses[row] = str(context if isinstance(context, AudioError) else response)
            else:
                features[row] = np.concatenate([context, response, response - context])
        return features, statuses

    def _of_clips(self, sources: Sequence[AudioSource]) -> dict[AudioSource, np.ndarray | AudioError]:
        new = [source for source in dict.fromkeys(sources) if source not in self._kept]
        found = dict(zip(new, map_threads(self._of_clip, new, "measuring clips", len(new)), strict=True))
        self._kept.update((source, row) for source, row in found.items() if not isinstance(source, Clip | bytes))
        return found | {source: self._kept[source] for source in sources if source in self._kept}

    def _of_clip(self, source: AudioSource) -> np.ndarray | AudioError:
        try:
            return self.measures.measure(decode(source, RATE))
        except AudioError as error:
            return error


def _sources(pair: Pair) -> list[AudioSource]:
    return [*(turn.audio for turn in pair.context[-1:]), pair.response]
