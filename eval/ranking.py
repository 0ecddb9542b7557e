"""Several judges on the same items: who is better than whom, and how many items it would take to know."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .report_schema import ComparisonReport, RankingReport, statistic_report
from .statistics.agreement import spearman
from .statistics.bootstrap import Resamples
from .statistics.clusters import rank_judges
from .statistics.power import separation
from .statistics.significance import Comparison, compare_all

_EXCHANGED_VALUES = 500_000_000  # permutations x groups
_MOST, _FEWEST = 10_000, 1_000


def ranking_report(
    scores: Mapping[str, np.ndarray], human: np.ndarray, resamples: Resamples, seed: int
) -> RankingReport:
    """Judges in significance clusters, every two compared.

    Args:
        scores: Judge -> scores of the same items, shape (n,), NaN = not scored.
        human: Shape (n,), mean over the raters.
        resamples: Draws over the n items.
        seed: Of the permutations.
    """
    permutations = max(_FEWEST, min(_MOST, _EXCHANGED_VALUES // max(1, resamples.n_groups)))
    comparisons = compare_all(scores, human, resamples, permutations=permutations, seed=seed)
    agreement = {name: spearman(score, human) for name, score in scores.items()}
    ranking = rank_judges(agreement, comparisons)
    place = {name: position for position, name in enumerate(ranking.judges)}

    def adjusted(first: str, second: str) -> float | None:
        if first not in place or second not in place:
            return None
        p = float(ranking.p[place[first], place[second]])
        return None if np.isnan(p) else p

    return {
        "judges": [
            *(
                {"judge": name, "cluster": cluster, "spearman": agreement[name].value, "reason": None}
                for name, cluster in zip(ranking.judges, ranking.clusters, strict=True)
            ),
            *(
                {"judge": name, "cluster": None, "spearman": None, "reason": reason}
                for name, reason in ranking.unranked.items()
            ),
        ],
        "comparisons": [
            _comparison_report(first, second, found, adjusted(first, second))
            for (first, second), found in comparisons.items()
        ],
    }


def _comparison_report(first: str, second: str, found: Comparison, adjusted: float | None) -> ComparisonReport:
    needed = separation(found)
    return {
        "first": first,
        "second": second,
        "n_items": found.difference.n,
        "n_groups": found.n_groups,
        "difference": statistic_report(found.difference),
        "p": None if found.permutation is None else found.permutation.p,
        "p_adjusted": adjusted,
        "permutations": None if found.permutation is None else found.permutation.permutations,
        "bootstrap_p": found.bootstrap_p,
        "williams_p": found.williams.p,
        "steiger_p": found.steiger.p,
        "power": needed.power,
        "detectable_difference": needed.detectable_difference,
        "groups_needed": needed.groups_needed,
        "groups_low": needed.groups_low,
        "groups_high": needed.groups_high,
        "items_needed": needed.items_needed,
        "power_reason": needed.reason,
    }
