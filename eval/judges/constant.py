"""The baseline that hears nothing: the mean human score, for every pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...data_modules.errors import DataError
from ...data_modules.schema import Pair, PairDataset
from . import score_table


class ConstantJudge:
    """Gives every pair the same score.

    Its correlations are undefined; its errors in rating points are what a judge must beat.

    Args:
        scores: Dimension -> score in rating points.
    """

    name = "constant"
    only_given: str | None = None

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.dimensions = tuple(scores)
        self.record: Mapping[str, Any] = {"scores": dict(scores)}
        self._scores = dict(scores)

    @classmethod
    def fitted_to(cls, dataset: PairDataset) -> ConstantJudge:
        """The mean over the rated pairs of `dataset` (its training split) of each dimension.

        Raises:
            DataError: If no pair has a rating.
        """
        means = dataset.mean_scores().mean(axis=0).dropna()
        if means.empty:
            raise DataError(f"{dataset.root}: no pair has a rating; the constant judge needs some")
        return cls({str(dimension): float(score) for dimension, score in means.items()})

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`."""
        return score_table(pairs, self.dimensions, np.tile([*self._scores.values()], (len(pairs), 1)))
