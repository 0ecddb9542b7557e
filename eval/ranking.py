"""Who is better than whom: the judges of a panel against each other, with the significance of every difference."""

from __future__ import annotations

from .frame import Panel
from .report.dataset import Compared, RankedJudge, Ranking
from .statistics.agreement import spearman
from .statistics.bootstrap import estimate
from .statistics.significance import PairedDifference, compare_all, rank_judges, separation

_EXCHANGED_VALUES = 500_000_000  # permutations x groups
_MOST, _FEWEST = 10_000, 1_000


def ranking_report(panel: Panel) -> Ranking:
    """The judges of a panel, ranked in significance clusters, and the comparison of every two."""
    scores, human = panel.scores, panel.human
    permutations = max(_FEWEST, min(_MOST, _EXCHANGED_VALUES // max(1, panel.draws.n_groups)))
    comparisons = compare_all(scores, human, panel.draws, permutations=permutations, seed=panel.seed)
    agreement = {name: estimate(spearman, score, human) for name, score in scores.items()}
    tested = {
        pair: (comparison.difference.value or 0.0, comparison.p)
        for pair, comparison in comparisons.items()
        if comparison.p is not None
    }
    ranking = rank_judges(agreement, tested)
    return Ranking(
        judges=tuple(
            RankedJudge(judge=name, cluster=ranking.clusters.get(name), spearman=agreement[name].value, reason=reason)
            for name, reason in {**dict.fromkeys(ranking.clusters), **ranking.unranked}.items()
        ),
        comparisons=tuple(
            _compared(*pair, comparison, ranking.p.get(pair)) for pair, comparison in comparisons.items()
        ),
    )


def _compared(first: str, second: str, found: PairedDifference, p_adjusted: float | None) -> Compared:
    needed = separation(found)
    return Compared(
        first=first,
        second=second,
        n_items=found.difference.n,
        n_groups=found.n_groups,
        difference=found.difference,
        p=found.p,
        p_adjusted=p_adjusted,
        permutations=found.permutations,
        bootstrap_p=found.bootstrap_p,
        williams_p=found.williams_p,
        power=needed.power,
        detectable_difference=needed.detectable_difference,
        groups_needed=needed.groups_needed,
        groups_low=needed.groups_low,
        groups_high=needed.groups_high,
        items_needed=needed.items_needed,
        power_reason=needed.reason,
    )
