"""The trained judge as a Python call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import overload

import numpy as np

from .assessment import Assessment, UncertainScore
from .data_modules.audio import AudioSource, Clip
from .data_modules.errors import AudioError, UserError
from .data_modules.scales import label
from .data_modules.schema import Dimension, Pair, Turn
from .data_modules.stored_clips import StoredClip
from .models.artifact import Placement, load_any
from .models.backbones.common.base import Quantization
from .models.calibration import DEFAULT_LEVEL
from .models.feature_store import DiskStore
from .models.scoring import SPREAD, PairScorer, Scored, placed

Audio = AudioSource | tuple[np.ndarray, int]
"""A path, the bytes of an audio file, or samples with their rate in Hz: `(array, rate)`."""
Scores = dict[str, float]
"""Rating points by dimension."""


class Scorer:
    """Scores spoken responses. Build one with `from_pretrained` and keep it: loading takes longer than scoring.

    Attributes:
        dimensions: What it scores and on which scale.
        description: What `judge.json` says: training data, hashes, versions.
        calibration: What is known of its errors; None = nothing.
        batch_size: Pairs per forward pass.
    """

    def __init__(
        self,
        folder: Path,
        backbone: str | None,
        device: str | None,
        quantization: Quantization | None,
        batch_size: int,
        cache: Path | None,
        revision: str | None,
    ) -> None:
        loaded = load_any(folder, Placement(backbone, quantization, device == SPREAD), revision)
        self.dimensions: tuple[Dimension, ...] = loaded.judge.dimensions
        self.description = loaded.description
        self.calibration = loaded.calibration
        self._not_calibrated = f"{folder}: no intervals: {loaded.not_calibrated}"
        # of a judge that learned from comparisons alone only the order of scores means something
        self._in_points = loaded.description["provenance"].get("shares", {}).get("ratings", 1) > 0
        self.batch_size = batch_size
        store = None if cache is None else DiskStore(cache)
        self._scorer = PairScorer(placed(loaded, device), batch_size, loaded.calibration, store)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backbone: str | None = None,
        device: str | None = None,
        quantization: Quantization | None = None,
        batch_size: int = 16,
        cache: str | Path | None = None,
        revision: str | None = None,
    ) -> Scorer:
        """Load a judge.

        Args:
            folder: Of an exported judge (or of a training run), or `OWNER/NAME` on the Hugging Face hub where there is
                no such folder.
            backbone: Where the backbone lies now, if not where the judge found it.
            device: "cpu", "cuda", ...; "auto" spreads the backbone over all GPUs, then main memory; None = a GPU if
                there is one.
            quantization: "nf4" keeps the language model in 4 bits, for small GPUs: scores change a little. None = as in
                training.
            batch_size: Pairs per forward pass; scores do not depend on it.
            cache: Folder where what the audio tower makes of a clip is kept for later, at most 100 GB; training with
                `model.cache_folder` shares it. None = for as long as this scorer lives.
            revision: Commit, tag or branch on the hub.

        Raises:
            UserError: If the judge is incomplete or does not fit the backbone; the text names what is wrong.
        """
        store = None if cache is None else Path(cache)
        return cls(Path(folder), backbone, device, quantization, batch_size, store, revision)

    @overload
    def score(self, context: Audio | None, response: Audio, *, situation: str | None = None) -> Scores: ...
    @overload
    def score(
        self,
        context: Sequence[Audio | None],
        response: Sequence[Audio],
        *,
        situation: Sequence[str | None] | None = None,
    ) -> list[Scores]: ...
    def score(self, context, response, *, situation=None) -> Scores | list[Scores]:
        """Score one response, or several.

        Args:
            context: What the response answers: a clip, or None to judge the response alone. For several responses a
                list of the same length.
            response: The clip that is judged, or a list of clips.
            situation: Text about the situation, as raters were given it; for several responses a list of texts.

        Returns:
            Rating points by dimension; a list of that for a list of responses, in the same order.

        Raises:
            AudioError: If a clip cannot be read, is not finite, or is longer than the backbone hears.
            UserError: If lists differ in length.
        """
        scores = [self._scores(found) for found in self._score(context, response, situation, DEFAULT_LEVEL)]
        return scores if isinstance(response, list) else scores[0]

    @overload
    def assess(
        self, context: Audio | None, response: Audio, *, situation: str | None = None, level: float = DEFAULT_LEVEL
    ) -> Assessment: ...
    @overload
    def assess(
        self,
        context: Sequence[Audio | None],
        response: Sequence[Audio],
        *,
        situation: Sequence[str | None] | None = None,
        level: float = DEFAULT_LEVEL,
    ) -> list[Assessment]: ...
    def assess(self, context, response, *, situation=None, level=DEFAULT_LEVEL) -> Assessment | list[Assessment]:
        """As `score`, with all that is known beside each score: standard error, interval, a word for it, warnings.

        Args:
            context: As for `score`.
            response: As for `score`.
            situation: As for `score`.
            level: Share of pairs that the intervals of a calibrated judge shall cover: 0.5, 0.8, 0.9 or 0.95.

        Raises:
            AudioError: As `score`.
            UserError: As `score`; also if there are no intervals of this level.
        """
        found = [self._assessment(found) for found in self._score(context, response, situation, level)]
        return found if isinstance(response, list) else found[0]

    def assess_pairs(
        self, pairs: Iterable[Pair], level: float = DEFAULT_LEVEL
    ) -> Iterator[tuple[Pair, Assessment | AudioError]]:
        """Yield each pair, in order, with its assessment or with what is wrong with its audio.

        Pairs are taken from the iterable a few batches at a time, so that it may be endless.
        """
        for pair, found in self._scorer.score(pairs, level):
            yield pair, found if isinstance(found, AudioError) else self._assessment(found)

    def require_calibration(self) -> None:
        """Something is known of the errors of this judge.

        Raises:
            UserError: If not, saying why.
        """
        if self.calibration is None:
            raise UserError(self._not_calibrated)

    def _score(self, context, response, situation, level: float) -> list[Scored]:
        """What the public calls share: one or many in, a list out."""
        if not isinstance(response, list):
            context, response, situation = [context], [response], [situation]
        count = len(response)
        texts = [None] * count if situation is None else situation
        is_list = isinstance(context, list) and not isinstance(texts, str)  # a text has a length too
        if not is_list or len(context) != count or len(texts) != count:
            raise UserError(f"{count} responses need a list of {count} contexts (and of {count} situations, if any)")
        pairs = [
            make_pair(f"{number}", None if first is None else clip(first), clip(second), text)
            for number, (first, second, text) in enumerate(zip(context, response, texts, strict=True))
        ]
        return [_or_raise(found) for _, found in self._scorer.score(pairs, level)]

    def _scores(self, found: Scored) -> Scores:
        return dict(zip((dimension.name for dimension in self.dimensions), found.score.tolist(), strict=True))

    def _assessment(self, found: Scored) -> Assessment:
        columns = zip(*(values.tolist() for values in found), strict=True)
        return Assessment(
            {
                dimension.name: UncertainScore(
                    score,
                    _known(error),
                    _known(low),
                    _known(high),
                    abstained,
                    label(dimension, score) if self._in_points else None,
                )
                for dimension, (score, error, low, high, abstained) in zip(self.dimensions, columns, strict=True)
            }
        )


def clip(audio: Audio) -> AudioSource:
    """Bring what users pass to the form that the package reads.

    Raises:
        UserError: For samples without a rate, and for what is no clip at all.
    """
    if isinstance(audio, str | Path | bytes | Clip | StoredClip):
        return audio
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[1], Real):
        return Clip(np.asarray(audio[0]), int(audio[1]))  # integers are left as they are: Clip refuses them
    raise UserError(
        f"clip of type {type(audio).__name__}, samples without a rate?; accepted: a path, bytes of an audio file, or "
        "(samples, rate in Hz)"
    )


def make_pair(pair_id: str, context: AudioSource | None, response: AudioSource, situation: str | None = None) -> Pair:
    """A pair of at most one context turn."""
    turns = () if context is None else (Turn("user", context),)
    return Pair(pair_id, response, turns, situation=situation, group_id=pair_id)


def _or_raise(found: Scored | AudioError) -> Scored:
    if isinstance(found, AudioError):
        raise found
    return found


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
