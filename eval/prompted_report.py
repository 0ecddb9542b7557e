"""What prompted judges tell beside their scores: requests, failures, cost, versions, repeats, orders.

It stands in the column ``meta`` of their score tables; see `judges.prompted.judges.record`.

Is such a judge consistent? Answers to one question, asked several times, should agree with each other. A comparison,
asked in both orders, should not depend on which response comes first. Judges that are language models often have a
position bias (Zheng et al., 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import counted
from ..data_modules.ratings import RatingTable
from ..data_modules.schema import Pair
from .dimension_report import MISSING, status_counts
from .judges import OK
from .report.dataset import Failure, Prompting
from .report.dimension import Drift, Orders, Repeats, Usage
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples, estimate, estimate_share
from .statistics.icc import icc


@dataclass(frozen=True, eq=False)
class Answers:
    """What a prompted judge said of each pair."""

    metas: Sequence[Mapping[str, Any]]  # shape (pairs,), the ``meta`` of each; empty where the judge gave no row
    statuses: Sequence[str]  # of each pair: ``ok`` where every dimension has a score, else why the first one has none

    @classmethod
    def of(cls, table: pd.DataFrame, pairs: Sequence[Pair]) -> Answers | None:
        """From a score table; None where the judge is not prompted."""
        if not any("requests" in meta for meta in table["meta"]):
            return None
        first = table.drop_duplicates("pair_id").set_index("pair_id")["meta"].to_dict()  # the same for each dimension
        failed = table.loc[table["status"] != OK].drop_duplicates("pair_id").set_index("pair_id")["status"].to_dict()
        return cls(
            [first.get(pair.pair_id, {}) for pair in pairs],
            [failed.get(pair.pair_id, OK if pair.pair_id in first else MISSING) for pair in pairs],
        )

    def count(self, what: str) -> int:
        """The sum of a count over the pairs."""
        return sum(meta.get(what, 0) for meta in self.metas)

    @property
    def seconds(self) -> float:
        """What all requests took."""
        return sum(meta.get("seconds", 0) for meta in self.metas)

    def dimension_report(self, dimension: str, resamples: Resamples) -> Usage:
        """Repeats, orders and versions on one dimension, with draws over all pairs."""
        samples, versions, by_pair = (
            [list(meta.get(key, {}).get(dimension, [])) for meta in self.metas]
            for key in ("samples", "sample_versions", "orders")
        )
        positions = np.repeat(np.arange(len(by_pair)), [len(pair_orders) for pair_orders in by_pair])
        verdicts = np.array(list(chain.from_iterable(by_pair)), dtype=np.float64).reshape(-1, 2)
        names = sorted({version for meta in self.metas for version in meta.get("versions", [])})
        rows = [
            (position, version, sample)
            for position, pair_answers in enumerate(zip(samples, versions, strict=True))
            for sample, version in zip(*pair_answers, strict=True)
            if version is not None
        ]
        table = pd.DataFrame(rows, columns=["pair", "version", "score"]).astype({"score": float})
        means = table.pivot_table("score", "pair", "version").reindex(range(len(samples)), columns=names)
        return Usage(
            repeats=repeats(samples, resamples),
            orders=orders(verdicts, resamples.select(positions)),
            drift=tuple(
                Drift(
                    first=first,
                    second=second,
                    difference=_moved(means[first].to_numpy(), means[second].to_numpy(), resamples),
                )
                for first, second in combinations(names, 2)
            ),
        )


def _moved(first: np.ndarray, second: np.ndarray, resamples: Resamples) -> Statistic:
    """The mean change from one version of a model to another; NaN = a pair that it did not answer."""
    change = second - first
    answered = np.isfinite(change)
    if not answered.any():
        known = np.isfinite([first, second]).any()
        return Statistic(None, reason="no pair was answered by both" if known else "scores are not kept by version")
    return estimate(np.mean, change[answered], resamples=resamples.select(answered))


def repeats(answers: Sequence[Sequence[float]], resamples: Resamples) -> Repeats:
    """Agreement of repeated answers.

    Args:
        answers: Of each of n items, any number; finite. Items with fewer than two do not count.
        resamples: Draws over the same n items.

    Returns:
        The standard deviation is pooled over items: root of the sum of squares over the sum of (answers - 1). ICC is
        one-way, as answers have no identity across items. Undefined, with the reason, without an item of two answers.
    """
    counts = np.array([len(item) for item in answers], dtype=np.intp)
    repeated = counts >= 2
    if not repeated.any():
        undefined = Statistic(None, dropped=len(counts), reason="no item has two answers")
        return Repeats(within_sd=undefined, icc=undefined, icc_of_mean=undefined)
    items = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    scores = np.concatenate([np.asarray(item, dtype=np.float64) for item in answers])
    # Answers have no identity across items: the first of one is no more like the first of another
    names = tuple(f"answer {number + 1}" for number in range(counts.max()))
    forms = icc(RatingTable(items, numbers, scores, len(counts), names), resamples)
    squares = np.array([np.square(np.asarray(item) - np.mean(item)).sum() for item in answers if len(item) >= 2])

    def pooled(own: np.ndarray, freedom: np.ndarray) -> float:
        return math.sqrt(own.sum() / freedom.sum())

    within = estimate(pooled, squares, counts[repeated] - 1, resamples=resamples.select(repeated))
    within = replace(within, dropped=int((~repeated).sum()))
    return Repeats(within_sd=within, icc=forms["ICC(1,1)"], icc_of_mean=forms["ICC(1,k)"])


def orders(verdicts: np.ndarray, resamples: Resamples) -> Orders:
    """Consistency and position bias of n comparisons that were asked in both orders.

    Args:
        verdicts: Shape (n, 2), a verdict in each order, between -1 and 1: 1 = the response in the first place is
            better, 0 = a tie.
        resamples: Draws over the n comparisons.

    Returns:
        A preference and a tie are not the same verdict.
    """
    if len(verdicts) == 0:
        undefined = Statistic(None, reason="0 comparisons")
        return Orders(inconsistent=undefined, first_preferred=undefined)
    first, second = np.sign(verdicts).T
    return Orders(
        inconsistent=estimate_share(first != -second, resamples),
        first_preferred=estimate_share((2 + verdicts[:, 0] + verdicts[:, 1]) / 4, resamples),
    )


def prompting_report(answers: Answers, checks: Sequence[pd.DataFrame]) -> Prompting:
    """Counts and cost of the answers on the unchanged pairs, and requests of the score tables of listening checks."""
    questions, pairs = answers.count("questions"), len(answers.metas)
    of_checks = [meta for table in checks for meta in table.drop_duplicates("pair_id")["meta"]]
    failures = _failures(answers.metas)
    answered = _costs(answers.metas)
    cost = float(sum(answered)) if answered and None not in answered else None
    checked = _costs(of_checks)
    unknown = (
        f"no price or tokens are known of the answers on {answered.count(None)} of {counted(len(answered), 'pair')}"
    )
    # a comparison is recorded with one of its two pairs: the other one has a score and no requests
    with_answers = sum(
        status == OK or meta.get("requests", 0) > 0
        for meta, status in zip(answers.metas, answers.statuses, strict=True)
    )
    reason = None if cost is not None else unknown if answered else "no request was answered"
    versions = Counter(version for meta in answers.metas for version in meta.get("versions", []))
    return Prompting(
        pairs=pairs,
        scored=sum(status == OK for status in answers.statuses),
        without_score=status_counts(status for status in answers.statuses if status != OK),
        questions=questions,
        requests=answers.count("requests"),
        kept=answers.count("kept"),
        failed=failures.total(),
        failure_rate=failures.total() / questions if questions else None,
        failures={kind: Failure(count=count, rate=count / questions) for kind, count in failures.most_common()},
        cost=cost,
        cost_per_1000_pairs=None if cost is None else 1000 * cost / with_answers,
        cost_reason=reason,
        versions=dict(versions.most_common()),
        version_changed=len(versions) > 1,
        check_requests=sum(meta.get("requests", 0) for meta in of_checks),
        check_cost=None if None in checked else float(sum(checked)),
        check_failures=dict(_failures(of_checks).most_common()),
        reserve=max((meta.get("reserve", 0.0) for meta in chain(answers.metas, of_checks)), default=0.0),
    )


def _failures(metas: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Kind of failure -> questions."""
    found: Counter[str] = Counter()
    for meta in metas:
        found.update(meta.get("failures", {}))
    return found


def _costs(metas: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Dollars for each pair with an answer; None = not known."""
    return [meta["cost"] for meta in metas if meta.get("requests", 0)]
