"""Agreement of a judge's scores with human ratings, as a metric of the ``evaluate`` library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from empathy_judge.core.errors import DataError, counted, shown
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import STATISTICS
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.like_for_like import like_for_like
from empathy_judge.eval.statistics.reliability import measure

_DESCRIPTION = """Spearman and other agreement of a judge with human ratings, each with a 95 % interval from a bootstrap
over groups, and beside it what the raters allow: one rater against the others, the judge beside one
rater, and the best that any judge can expect."""

_INPUTS = """
Args:
    predictions: One score per item, rating points. NaN = the judge gave none; such items are dropped and counted.
    references: Per item its human score, or the list of its ratings: one place per rater, NaN = did not rate.
    groups: Group of each item (same context or script); intervals draw whole groups. None = every item is its own.
    resamples: Of the bootstrap.
    seed: Of the resamples and of the halvings of the panel.

Returns:
    For each of `agreement.STATISTICS` (spearman, ..., loa_upper) the value, and under ``<name>_low``, ``<name>_high``
    its interval; ``n`` and ``dropped``. With lists of ratings also ``one_rater`` (leave-one-out human
    agreement), ``difference_from_one_rater`` (judge and rater against the mean of the other raters) with its interval,
    and ``best_possible`` (highest Spearman to expect). What is undefined is None; ``reason`` says why Spearman is.
"""


class EmpathyAgreement(evaluate.Metric):
    """See `_INPUTS`."""

    def _info(self) -> evaluate.MetricInfo:
        score = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": score, "references": datasets.Sequence(score)}),
                datasets.Features({"predictions": score, "references": score}),
            ],
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # the library calls it by these names
        self,
        predictions: Sequence[float],
        references: Sequence[Any],
        groups: Sequence[object] | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> dict[str, Any]:
        if groups is not None and len(groups) != len(predictions):
            raise DataError(f"{counted(len(groups), 'group')}; expected {len(predictions)}, one per prediction")
        score = np.array(predictions, dtype=np.float64)
        panel = [np.atleast_1d(np.array(reference, dtype=np.float64)) for reference in references]
        means = np.array([row[~np.isnan(row)].mean() if (~np.isnan(row)).any() else np.nan for row in panel])
        names = np.arange(len(score)) if groups is None else np.array([str(group) for group in groups])
        draws = Resamples.sample(names.astype(str), resamples, seed)
        results: dict[str, Any] = {}
        for name, function in STATISTICS.items():
            statistic = estimate(function, score, means, resamples=draws)
            results |= {name: statistic.value, f"{name}_low": statistic.low, f"{name}_high": statistic.high}
            if name == "spearman":
                results |= {"n": statistic.n, "dropped": statistic.dropped, "reason": statistic.reason}
        return results | (_ceilings(panel, score, draws, seed) if isinstance(references[0], (list, np.ndarray)) else {})


def _ceilings(panel: list[np.ndarray], score: np.ndarray, draws: Resamples, seed: int) -> dict[str, float | None]:
    """Agreement of the raters, and the ceiling, on the items that have a score."""
    raters = len(panel[0])
    uneven = next((row for row in panel if len(row) != raters), None)
    if uneven is not None:
        raise DataError(f"references: {shown(uneven.tolist())}; expected {raters} places in each, one per rater")
    ratings = np.stack(panel)
    scored = ~np.isnan(score) & ~np.isnan(ratings).all(axis=1)
    items, rater = np.nonzero(~np.isnan(ratings[scored]))
    scores = ratings[scored][items, rater]
    table = RatingTable(items, rater, scores, int(scored.sum()), tuple(f"rater {number}" for number in range(raters)))
    reliability = measure(table, draws.select(scored), seed)
    difference = like_for_like(score[scored], table, draws.select(scored)).difference
    return {
        "one_rater": reliability.leave_one_rater_out.value,
        "difference_from_one_rater": difference.value,
        "difference_from_one_rater_low": difference.low,
        "difference_from_one_rater_high": difference.high,
        "best_possible": reliability.panel_mean.value,
    }
