"""Tables of ratings and draws for the tests of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.report.people import PeopleReport
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.reliability import measure, rated_items

NAN = float("nan")
# Shrout and Fleiss (1979), table 2: six items, four raters. They print 0.17, 0.29, 0.71, 0.44, 0.62, 0.91.
SHROUT_FLEISS = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], float)


def table_of(scores: np.ndarray) -> RatingTable:
    """From shape (raters, items); NaN = not rated."""
    raters, items = np.nonzero(~np.isnan(scores))
    names = tuple(f"r{rater}" for rater in range(len(scores)))
    return RatingTable(items, raters, scores[raters, items], scores.shape[1], names)


def simulated(
    n: int, raters: int, bias: float, noise: float, missing: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """True scores (sd 1), shape (n,), and ratings, shape (raters, n)."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    scores = truth + bias * rng.normal(size=(raters, 1)) + noise * rng.normal(size=(raters, n))
    scores[rng.random((raters, n)) < missing] = NAN
    return truth, scores


def own_groups(n: int, resamples: int = 0) -> Resamples:
    """Draws of n items, each a group of its own."""
    return Resamples.sample([f"g{item}" for item in range(n)], resamples, 0)


def redrawn(resamples: Resamples) -> list[np.ndarray]:
    """For each draw its items, each as often as its group was drawn: what a plain loop measures."""
    items = np.arange(len(resamples.codes))
    return [np.repeat(items, counts[resamples.codes].astype(int)) for counts in resamples.counts]


def long(scores: np.ndarray) -> pd.DataFrame:
    """One row per rating of dimension d from shape (raters, items); NaN = not rated."""
    raters, items = np.nonzero(~np.isnan(scores))
    names = {"pair_id": [f"p{item}" for item in items], "rater_id": [f"r{rater}" for rater in raters]}
    return pd.DataFrame({**names, "dimension": "d", "score": scores[raters, items]})


def reliability(
    ratings: pd.DataFrame, dimension: str, groups: Mapping[str, str], resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """`PeopleReport` of a long table of ratings."""
    table, draws = rated_items(ratings, dimension, groups, resamples, seed)
    return PeopleReport.measured(table, draws, measure(table, draws, seed), seed).as_json()
