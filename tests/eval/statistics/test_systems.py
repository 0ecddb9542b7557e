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


@pytest.mark.parametrize("groups", ["group", "system"])
@pytest.mark.parametrize("name", SYSTEM_STATISTICS)
def test_values_and_intervals_are_those_of_the_means(name, groups, table):
    """Where the systems are the groups, systems are drawn, with all of their items."""
    resamples = Resamples.sample(table[groups].to_numpy(), 100, seed=0)
    found = system_level(table["system"].tolist(), table["score"].to_numpy(), table["human"].to_numpy(), resamples)[
        name
    ]
    means = by_system(table)
    if groups == "system":
        resampled = [means.iloc[np.repeat(np.arange(5), counts.astype(int))] for counts in resamples.counts]
    else:
        resampled = [by_system(table.iloc[items]) for items in redrawn(resamples)]
    value, *draws = (
        STATISTICS[name](own["score"].to_numpy(), own["human"].to_numpy())
        for own in (means, *resampled)
        if len(own) == 5
    )
    assert (found.value, found.n) == (pytest.approx(value), 5)
    defined = [own for own in draws if not np.isnan(own)]
    assert found.undefined_resamples == 100 - len(defined)
    low, high = np.percentile(defined, [2.5, 97.5])
    if groups == "system" and STATISTICS[name] in CORRELATIONS:
        error = np.sqrt(5 / 4) * np.std(defined, ddof=1) / (1 - value**2)  # of artanh
        low, high = np.tanh(np.arctanh(value) + stats.t.ppf(0.975, 4) * error * np.array([-1, 1]))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_means_by_system():
    score, human = np.array([1.0, 5.0, 2.0]), np.array([2.0, 4.0, 2.0])
    found = system_level(["b", "a", "b"], score, human, Resamples.sample(list("xyz"), 0, 0))
    assert found["systems"] == [
        {"system_id": "a", "n_items": 1, "human": 4.0, "judge": 5.0},
        {"system_id": "b", "n_items": 2, "human": 2.0, "judge": 1.5},
    ]
    assert (found["n_systems"], found["spearman"].reason) == (2, "2 systems, at least 3 needed")


def complete_table(n_systems: int, n_prompts: int, seed: int) -> tuple[np.ndarray, ...]:
    """Systems, prompts, judge and human scores in whole points."""
    rng = np.random.default_rng(seed)
    human = rng.normal(size=(n_systems, n_prompts)) + 0.5 * np.arange(n_systems)[:, None]
    judge = human + rng.normal(size=human.shape)
    systems, prompts = np.indices(human.shape)
    return systems.ravel(), prompts.ravel(), judge.ravel().round(0), human.ravel().round(0)


def accuracy_by_hand(systems: np.ndarray, judge: np.ndarray, human: np.ndarray, n_systems: int) -> float:
    if len(np.unique(systems)) < n_systems:
        return NAN
    means = [[own[systems == name].mean() for name in range(n_systems)] for own in (judge, human)]
    right = [
        np.sign(round(means[0][i] - means[0][j], 9)) == np.sign(round(means[1][i] - means[1][j], 9))
        for i, j in combinations(range(n_systems), 2)
    ]
    return float(np.mean(right))


def test_system_pairs_and_their_draws_are_those_of_means():
    systems, prompts, judge, human = complete_table(5, 12, 10)
    resamples = Resamples.sample(prompts, 60, 0)
    found = system_level(systems, judge, human, resamples)["pairwise_accuracy"]
    assert (found.value, found.n) == (accuracy_by_hand(systems, judge, human, 5), 5)
    for draw, items in zip(found.draws, redrawn(resamples), strict=True):
        expected = accuracy_by_hand(systems[items], judge[items], human[items], 5)
        np.testing.assert_allclose(draw, expected, rtol=0, atol=1e-12)
    assert found.low <= found.value <= found.high


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
