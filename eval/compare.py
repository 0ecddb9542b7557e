"""Several judges on the same pairs: a report of each, and who is better than whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ..data_modules.errors import UserError, shown
from ..data_modules.schema import PairDataset
from .evaluate import CLUSTERS, Cluster, Evaluation, evaluate
from .judges import Judge
from .lengths import response_lengths
from .probes import DEFAULT_PROBES
from .report_schema import AgreementReport, RankingReport
from .statistics import significance
from .statistics.agreement import as_report, spearman
from .statistics.bootstrap import Interval, Resamples, estimate
from .statistics.ranking import rank_judges, separation


class Comparison(NamedTuple):
    """Several judges.

    Attributes:
        evaluations: Of each judge, in the order given.
        rankings: Dimension -> the judges that score it against each other; only where there are at least two.
    """

    evaluations: list[Evaluation]
    rankings: dict[str, RankingReport]

    @property
    def reports(self) -> list[AgreementReport]:
        """Of each judge, in the order given."""
        return [evaluation.report for evaluation in self.evaluations]


def compare(
    judges: Sequence[Judge],
    dataset: PairDataset,
    *,
    split: str | None,
    slices: Sequence[str] | None = None,
    probes: Sequence[str] | Literal["all"] = DEFAULT_PROBES,
    cluster: Cluster = "group_id",
    interval: Interval = "percentile",
    resamples: int = 1000,
    seed: int = 0,
    command: str = "",
    provenances: Sequence[Mapping[str, Any] | None] | None = None,
) -> Comparison:
    """Evaluates each judge on the same pairs with the same seed, then compares every two on the items both scored.

    Args:
        judges: Each with a name of its own.
        dataset: Pairs and ratings.
        split: Which pairs; None = all.
        slices: See `evaluate.evaluate`; also the other arguments.
        probes: The listening checks.
        cluster: What intervals draw, and permutations exchange, whole.
        interval: The kind of intervals.
        resamples: Bootstrap resamples of an interval.
        seed: Of everything drawn.
        command: The command line, for the record.
        provenances: What else is known of each judge; must fit strict JSON.

    Raises:
        UserError: If two judges have one name.
    """
    names = [judge.name for judge in judges]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two judges are called {shown(twice)}; expected each judge once")
    part = dataset.subset(split)
    lengths = response_lengths(part.pairs)
    evaluations = [
        evaluate(
            judge,
            dataset,
            split=split,
            slices=slices,
            probes=probes,
            cluster=cluster,
            interval=interval,
            resamples=resamples,
            seed=seed,
            command=command,
            provenance=provenance,
            lengths=lengths,
        )
        for judge, provenance in zip(judges, provenances or [None] * len(judges), strict=True)
    ]
    clusters = pd.Series({pair.pair_id: CLUSTERS[cluster](pair) for pair in part.pairs})
    rankings = {}
    for dimension in dataset.card.dimensions:
        own = {
            name: found.items.loc[found.items["dimension"] == dimension.name].set_index("pair_id")
            for name, found in zip(names, evaluations, strict=True)
        }
        own = {name: items for name, items in own.items() if len(items)}
        if len(own) < 2:
            continue
        human = next(iter(own.values()))["human_mean"].dropna()
        draws = Resamples.draw(clusters.loc[human.index].to_numpy(str), resamples, seed, interval)
        scores = {name: items["score"].loc[human.index].to_numpy(np.float64) for name, items in own.items()}
        rankings[dimension.name] = ranking_report(scores, human.to_numpy(np.float64), draws, seed)
    return Comparison(evaluations, rankings)


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
    comparisons = significance.compare_all(scores, human, resamples, permutations=permutations, seed=seed)
    agreement = {name: estimate(spearman, score, human) for name, score in scores.items()}
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


def _comparison_report(
    first: str, second: str, found: significance.Comparison, adjusted: float | None
) -> dict[str, Any]:
    needed = as_report(separation(found))
    return {
        "first": first,
        "second": second,
        "n_items": found.difference.n,
        "n_groups": found.n_groups,
        "difference": as_report(found.difference),
        "p": None if found.permutation is None else found.permutation.p,
        "p_adjusted": adjusted,
        "permutations": None if found.permutation is None else found.permutation.permutations,
        "bootstrap_p": found.bootstrap_p,
        "williams_p": found.williams_p,
        "steiger_p": found.steiger_p,
        "power_reason": needed.pop("reason"),
        **needed,
    }
