"""The baseline that does not even hear: a score drawn by lot."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....data_modules.schema import Dimension, Pair
from .. import score_table


class RandomJudge:
    """Implements `Judge`: every score of the scale is equally likely.

    The draw depends on the pair's id, the dimension and the seed alone, so that order and split do not matter, and a
    changed pair keeps the score of its id.

    Args:
        dimensions: What it scores.
        seed: Of the draws.
    """

    name = "random"
    only_given: str | None = None

    def __init__(self, dimensions: Sequence[Dimension], seed: int = 0) -> None:
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.record: Mapping[str, Any] = {"seed": seed}
        self._scales, self._seed = tuple(dimensions), seed

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`."""
        scores = [[self._draw(pair.pair_id, scale) for scale in self._scales] for pair in pairs]
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), len(self._scales))))

    def _draw(self, pair_id: str, scale: Dimension) -> float:
        """Uniform on the steps of the scale, or on all of it where it has none."""
        digest = hashlib.sha256(f"{self._seed}\n{scale.name}\n{pair_id}".encode()).digest()
        share = int.from_bytes(digest[:6]) / 2**48  # in [0, 1), exact in float64
        if scale.step is None:
            return scale.minimum + share * (scale.maximum - scale.minimum)
        return scale.minimum + int(share * scale.steps) * scale.step
