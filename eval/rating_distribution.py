"""What a judge that predicts shares of raters adds to its report on a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..data_modules.ratings import Dimension, RatingTable
from ..data_modules.schema import PairDataset
from ..scoring.score_table import DISTRIBUTION
from .frame import Judged
from .report.distribution import LevelReliability, ProperScore, RatingDistribution
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples, estimate
from .statistics.calibration import calibration_curve
from .statistics.distributions import at_least, penalties, penalties_of_people

_MOST_CURVES = 9


class Constant(NamedTuple):
    """Mean shares of raters at each step `(steps,)`, and of which pairs (`RatingDistribution.constant_from`)."""

    shares: np.ndarray
    source: str


def rating_distribution(
    dimension: Dimension, judged: Judged, items: pd.DataFrame, dataset: PairDataset, split: str | None
) -> RatingDistribution | None:
    """Scores of the shares in the column `levels` of the judged items, beside those of a constant and of people.

    None where the judge gave no shares, or the dataset has other steps than the judge: nothing can be compared then.
    """
    given = items[DISTRIBUTION].tolist() if DISTRIBUTION in items and dimension.step is not None else []
    kept = np.array([isinstance(own, tuple) and len(own) == dimension.steps for own in given], dtype=bool)
    if not kept.any():
        return None
    panel = judged.panel.select(kept)
    predicted = np.array([own for own in given if isinstance(own, tuple) and len(own) == dimension.steps])
    # Shares out of a file are rounded, and sum to 1 but for that
    predicted /= predicted.sum(axis=-1, keepdims=True)
    counts, constant = _counts(panel.table, dimension), _constant(dataset, split, dimension)
    if constant is None:
        constant = Constant(_mean_shares(counts), "measured pairs")
    everywhere = np.broadcast_to(constant.shares, counts.shape)
    people = penalties_of_people(counts, constant.shares)
    scores = [penalties(predicted, counts), penalties(everywhere, counts), *people]
    rps, log = ([getattr(own, name) for own in scores] for name in ("rps", "log"))
    levels = np.unique(np.linspace(1, dimension.steps - 1, min(dimension.steps - 1, _MOST_CURVES)).round().astype(int))
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return RatingDistribution(
        constant_from=constant.source,  # type: ignore[arg-type]
        rps=_proper(rps, panel.draws),
        log_score=_proper(log, panel.draws),
        reliability=tuple(
            LevelReliability(
                at_least=dimension.minimum + level * (dimension.step or 0),
                curve=calibration_curve(at_least(predicted, level), at_least(shares, level), panel.draws.codes),
            )
            for level in levels.tolist()
        ),
    )


def _proper(scores: Sequence[np.ndarray], draws: Resamples) -> ProperScore:
    judge, *others = scores
    of_each = [estimate(np.mean, own, resamples=draws) for own in scores]
    # Item by item: two intervals may overlap although each item says the same of the difference
    apart = [estimate(np.mean, judge - own, resamples=draws) for own in others]
    one_rater, panel = (
        own if own.value is not None else Statistic(None, reason="no item has two raters") for own in of_each[2:]
    )
    return ProperScore(
        judge=of_each[0],
        constant=of_each[1],
        one_rater=one_rater,
        panel=panel,
        from_constant=apart[0],
        from_one_rater=apart[1],
        from_panel=apart[2],
    )


def _counts(table: RatingTable, dimension: Dimension) -> np.ndarray:
    """How many raters gave each step, the lowest first `(items, steps)`."""
    counts = np.zeros((table.n_items, dimension.steps))
    steps = np.rint((table.scores - dimension.minimum) / (dimension.step or 1)).astype(int)
    np.add.at(counts, (table.items, steps), 1)
    return counts


def _mean_shares(counts: np.ndarray) -> np.ndarray:
    """Mean over the rated items of their shares."""
    rated = counts[counts.sum(axis=-1) > 0]
    return (rated / rated.sum(axis=-1, keepdims=True)).mean(axis=0)


def _constant(dataset: PairDataset, split: str | None, dimension: Dimension) -> Constant | None:
    """The shares of pairs that are not measured; None where none of these is rated."""
    # Where all pairs are measured there are no others
    elsewhere = [] if split is None else [pair for pair in dataset.pairs if pair.split != split]
    training = [pair.pair_id for pair in elsewhere if pair.split == "train"]
    for source, ids in (("train", training), ("other splits", [pair.pair_id for pair in elsewhere])):
        table = RatingTable.of(dataset.ratings, dimension.name, ids)
        if len(table.scores):
            return Constant(_mean_shares(_counts(table, dimension)), source)
    return None
