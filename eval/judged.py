"""The items of one dimension that a judge and people scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .statistics.bootstrap import Interval, Resamples, statistic_draws


@dataclass(frozen=True, eq=False)
class Judged:
    """The items of one dimension, and those n of them that have a rating and a score.

    Attributes:
        all_items: The dimension's rows of `evaluate.Evaluation.items`.
        items: The rows with a rating and a score.
        score: Shape (n,), rating points.
        human: Shape (n,), mean over raters, rating points.
        resamples: Draws over the groups of the n items.
        draws: Shape (resamples,), Spearman of score and human in every resample.
    """

    all_items: pd.DataFrame
    items: pd.DataFrame
    score: np.ndarray
    human: np.ndarray
    resamples: Resamples
    draws: np.ndarray

    @classmethod
    def of(
        cls,
        all_items: pd.DataFrame,
        clusters: Mapping[str, str],
        resamples: int,
        seed: int,
        interval: Interval = "percentile",
    ) -> Judged:
        """Selects the items and draws `resamples` times from their clusters, given by pair id."""
        items = all_items.loc[all_items["human_mean"].notna() & all_items["score"].notna()]
        score, human = items["score"].to_numpy(np.float64), items["human_mean"].to_numpy(np.float64)
        names = np.array([clusters[pair_id] for pair_id in items["pair_id"]], dtype=str)
        drawn = Resamples.draw(names, resamples, seed, interval)
        return cls(all_items, items, score, human, drawn, statistic_draws("spearman", score, human, drawn))
