"""The trained judge as a Python call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import overload

import numpy as np

from .data_modules.audio import AudioSource, Clip
from .data_modules.errors import AudioError, UserError
from .data_modules.schema import Dimension, Pair, Turn
from .data_modules.stored_clips import StoredClip
from .models.artifact import Placement, load_any
from .models.backbones.common.base import Quantization
from .models.scoring import SPREAD, PairScorer, placed

Audio = AudioSource | tuple[np.ndarray, int]
"""A path, the bytes of an audio file, or samples with their rate in Hz: `(array, rate)`."""
Scores = dict[str, float]
"""Rating points by dimension."""


class Scorer:
    """Scores spoken responses. Build one with `from_pretrained` and keep it: loading takes longer than scoring.

    Attributes:
        dimensions: What it scores and on which scale.
        description: What `judge.json` says: training data, hashes, versions.
    """

    def __init__(
        self,
        folder: Path,
        backbone: str | None,
        device: str | None,
        quantization: Quantization | None,
        batch_size: int,
    ) -> None:
        loaded = load_any(folder, Placement(backbone, quantization, device == SPREAD))
        self.dimensions: tuple[Dimension, ...] = loaded.judge.dimensions
        self.description = loaded.description
        self._scorer = PairScorer(placed(loaded, device), batch_size)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backbone: str | None = None,
        device: str | None = None,
        quantization: Quantization | None = None,
        batch_size: int = 16,
    ) -> Scorer:
        """Load a judge.

        Args:
            folder: Of an exported judge (or of a training run).
            backbone: Where the backbone lies now, if not where the judge found it.
            device: "cpu", "cuda", ...; "auto" spreads the backbone over all GPUs, then main memory; None = a GPU if
                there is one.
            quantization: "nf4" keeps the language model in 4 bits, for small GPUs: scores change a little. None = as in
                training.
            batch_size: Pairs per forward pass; scores do not depend on it.

        Raises:
            UserError: If the judge is incomplete or does not fit the backbone; the text names what is wrong.
        """
        return cls(Path(folder), backbone, device, quantization, batch_size)

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
        if not isinstance(response, list):
            (one,) = self.score([context], [response], situation=[situation])
            return one
        count = len(response)
        texts = [None] * count if situation is None else situation
        is_list = isinstance(context, list) and not isinstance(texts, str)  # a text has a length too
        if not is_list or len(context) != count or len(texts) != count:
            raise UserError(f"{count} responses need a list of {count} contexts (and of {count} situations, if any)")
        pairs = [
            make_pair(f"{number}", None if first is None else clip(first), clip(second), text)
            for number, (first, second, text) in enumerate(zip(context, response, texts, strict=True))
        ]
        return [_or_raise(scores) for _, scores in self.score_pairs(pairs)]

    def score_pairs(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Scores | AudioError]]:
        """Yield each pair with its scores, or with what is wrong with its audio; for long jobs."""
        for pair, scores in self._scorer.score(list(pairs)):
            if isinstance(scores, AudioError):
                yield pair, scores
            else:
                names = (dimension.name for dimension in self.dimensions)
                yield pair, dict(zip(names, scores.tolist(), strict=True))


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


def _or_raise(scores: Scores | AudioError) -> Scores:
    if isinstance(scores, AudioError):
        raise scores
    return scores
