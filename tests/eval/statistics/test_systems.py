"""Agreement of system means and of pairs of systems against plain loops and hand values."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from empathy_judge.eval.statistics.agreement import CORRELATIONS, STATISTICS
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.systems import SYSTEM_STATISTICS, system_level
from scipy import stats

from .conftest import NAN, own_groups, redrawn


def in_order(judge: np.ndarray, human: np.ndarray) -> float:
    """Pairwise accuracy by a loop."""
    pairs = list(combinations(range(len(judge)), 2))
    return float(np.mean([(judge[i] > judge[j]) == (human[i] > human[j]) for i, j in pairs]))


FUNCTIONS = {name: STATISTICS[name] for name in SYSTEM_STATISTICS} | {"pairwise_accuracy": in_order}


@pytest.fixture
def table() -> pd.DataFrame:
    """60 items of 5 systems of unequal sizes, in 12 groups."""
    rng = np.random.default_rng(0)
    system = rng.choice(list("abcde"), size=60, p=[0.4, 0.25, 0.15, 0.1, 0.1])
    human = np.array([ord(name) for name in system]) / 4 + rng.normal(size=60)
    return pd.DataFrame(
        {
            "system": system,
            "human": human,
            "score": human + rng.normal(size=60),
            "group": [str(item % 12) for item in range(60)],
        }
    )


def by_system(table: pd.DataFrame) -> pd.DataFrame:
    return pd.pivot_table(table, index="system", values=["human", "score"], aggfunc="mean")


@pytest.mark.parametrize(
    ("name", "groups"), [*((name, "group") for name in FUNCTIONS), *((name, "system") for name in SYSTEM_STATISTICS)]
)
def test_values_and_intervals_are_those_of_the_means(name, groups, table):
    """Where the systems are the groups, systems are drawn, with all of their items."""
    resamples = Resamples.draw(table[groups].to_numpy(), 100, seed=0)
    score, human = table["score"].to_numpy(), table["human"].to_numpy()
    found = system_level(table["system"].tolist(), score, human, resamples)[name]
    means = by_system(table)
    if groups == "system":
        resampled = [means.iloc[np.repeat(np.arange(5), counts.astype(int))] for counts in resamples.counts]
    else:
        resampled = [by_system(table.iloc[items]) for items in redrawn(resamples)]
    value, *draws = (
        FUNCTIONS[name](own["score"].to_numpy(), own["human"].to_numpy()) if len(own) == 5 else NAN
        for own in (means, *resampled)
    )
    assert (found.value, found.n) == (pytest.approx(value), 5)
    np.testing.assert_allclose(found.draws, draws, rtol=0, atol=1e-12)
    assert found.undefined_resamples == np.isnan(draws).sum()
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    if groups == "system" and FUNCTIONS[name] in CORRELATIONS:
        error = np.sqrt(5 / 4) * np.nanstd(draws, ddof=1) / (1 - value**2)  # of artanh
        low, high = np.tanh(np.arctanh(value) + stats.t.ppf(0.975, 4) * error * np.array([-1, 1]))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_means_by_system():
    score, human = np.array([1.0, 5.0, 2.0]), np.array([2.0, 4.0, 2.0])
    found = system_level(["b", "a", "b"], score, human, Resamples.draw(list("xyz"), 0, 0))
    assert found["systems"] == [
        {"system_id": "a", "n_items": 1, "human": 4.0, "judge": 5.0},
        {"system_id": "b", "n_items": 2, "human": 2.0, "judge": 1.5},
    ]
    assert (found["n_systems"], found["spearman"].reason) == (2, "2 systems, at least 3 needed")


@pytest.mark.parametrize(
    ("systems", "judge", "value", "reason"),
    [  # means of people: 0.2, 0.2 up to rounding, and 0.05
        ("aabbcc", [3.0, 5, 4, 4, 1, 1], 1.0, None),
        ("aabbcc", [3.0, 5, 4, 5, 1, 1], 2 / 3, None),
        ("aabbcc", [1.0] * 6, None, "the judge scores are constant"),
        ("aaaaaa", [3.0, 5, 4, 4, 1, 1], None, "1 system, no pair"),
        ("", [], None, "0 items"),
    ],
)
def test_equal_means_are_tied_and_undefined_accuracy_has_a_reason(systems, judge, value, reason):
    human = np.array([0.1, 0.3, 0.2, 0.2, 0.0, 0.1])[: len(judge)]
    found = system_level(list(systems), np.array(judge), human, own_groups(len(judge)))["pairwise_accuracy"]
    assert (found.value, found.reason) == (value if value is None else pytest.approx(value, abs=1e-12), reason)
