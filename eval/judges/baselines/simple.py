"""Baselines that use no audio: a random score, the mean human score, and one rater of the dataset."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....core.errors import DataError, UserError, names_shown, shown
from ....data_modules.schema import Dimension, Pair, PairDataset
from ...judge_names import HUMAN
from .. import given_scores, score_table


class RandomJudge:
    """Implements `Judge`: every score of the scale is equally likely.

    The draw depends on the pair's id, the dimension and the seed alone, so that order and split do not matter, and a
    changed pair keeps the score of its id.
    """

    name = "random"
    only_given: str | None = None

    def __init__(self, dimensions: Sequence[Dimension], seed: int = 0) -> None:
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.record: Mapping[str, Any] = {"seed": seed}
        self._scales, self._seed = tuple(dimensions), seed

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        scores = [[self._draw(pair.pair_id, scale) for scale in self._scales] for pair in pairs]
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), len(self._scales))))

    def _draw(self, pair_id: str, scale: Dimension) -> float:
        """Uniform on the steps of the scale, or on all of it where it has none."""
        digest = hashlib.sha256(f"{self._seed}\n{scale.name}\n{pair_id}".encode()).digest()
        # In [0, 1): 48 bits are exact in float64
        draw = int.from_bytes(digest[:6]) / 2**48
        if scale.step is None:
            return scale.minimum + draw * (scale.maximum - scale.minimum)
        return scale.minimum + int(draw * scale.steps) * scale.step


class ConstantJudge:
    """Gives every pair the same score of each dimension, in rating points.

    Its correlations are undefined; its errors are what a judge must beat.
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
        return score_table(pairs, self.dimensions, np.tile([*self._scores.values()], (len(pairs), 1)))


class HumanJudge:
    """Gives the ratings of one rater of a dataset. What it is compared with must come from `without_raters`.

    Raises:
        UserError: If there is no such rater.
    """

    only_given: str | None = "a rater of the dataset cannot be asked about changed pairs"

    def __init__(self, dataset: PairDataset, rater: str) -> None:
        ratings = dataset.ratings[dataset.ratings["rater_id"] == rater]
        if ratings.empty:
            raters = sorted(set(dataset.ratings["rater_id"]))
            raise UserError(f"judge {shown(HUMAN + rater)}: expected one of {names_shown(map(HUMAN.__add__, raters))}")
        self.name = HUMAN + rater
        rated = set(ratings["dimension"])
        self.dimensions = tuple(d.name for d in dataset.card.dimensions if d.name in rated)
        self.record: Mapping[str, Any] = {"rater": rater, "ratings": len(ratings)}
        self._scores = ratings.set_index(["pair_id", "dimension"])["score"].to_dict()

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. What the rater did not rate has no score."""
        return given_scores(pairs, self.dimensions, self._scores, "not rated by this rater")


def without_raters(dataset: PairDataset, raters: Sequence[str]) -> PairDataset:
    """The dataset without the ratings and preferences of some raters; its hashes stay those of the whole dataset.

    Raises:
        DataError: If no rating is left.
    """
    ratings = dataset.ratings[~dataset.ratings["rater_id"].isin(list(raters))].reset_index(drop=True)
    if ratings.empty:
        raise DataError(
            f"{dataset.root}: there are no ratings but those of {', '.join(map(shown, raters))}; leave at least one "
            "rater to compare with"
        )
    preferences = dataset.preferences
    if preferences is not None:
        preferences = preferences[~preferences["rater_id"].isin(list(raters))].reset_index(drop=True)
    return dataclasses.replace(dataset, ratings=ratings, preferences=preferences)
