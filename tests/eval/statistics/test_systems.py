"""Agreement of system means and of pairs of systems against plain loops and hand values."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from empathy_judge.eval.statistics.agreement import CORRELATIONS, STATISTICS
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.systems import (
    SYSTEM_STATISTICS,
    soft_pairwise_accuracy,
    system_agreement,
    system_level,
    system_pairwise_accuracy,
)
from scipy import stats

from .conftest import NAN


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


@pytest.mark.parametrize("name", SYSTEM_STATISTICS)
def test_values_and_intervals_are_those_of_the_means(name: str, table: pd.DataFrame) -> None:
    resamples = Resamples.draw(table["group"].to_numpy(), 100, seed=0)
    systems, score, human = table["system"].tolist(), table["score"].to_numpy(), table["human"].to_numpy()
    found = system_agreement(systems, score, human, resamples)[name]
    means = by_system(table)
    point = STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy())
    assert (found.value, found.n) == (pytest.approx(point), 5)
    draws = []
    for counts in resamples.counts:
        drawn = table.iloc[np.repeat(np.arange(60), counts[resamples.codes].astype(int))]
        means = by_system(drawn)
        if len(means) == 5:
            draws.append(STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy()))
    assert found.undefined_resamples == 100 - len(draws)
    low, high = np.percentile(np.array(draws, dtype=float), [2.5, 97.5])
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("name", SYSTEM_STATISTICS)
def test_intervals_draw_systems_where_these_are_the_groups(name: str, table: pd.DataFrame) -> None:
    resamples = Resamples.draw(table["system"].to_numpy(), 100, seed=0)
    score, human = table["score"].to_numpy(), table["human"].to_numpy()
    found = system_agreement(table["system"].tolist(), score, human, resamples)[name]
    means = by_system(table)
    draws = []
    for counts in resamples.counts:
        drawn = means.iloc[np.repeat(np.arange(5), counts.astype(int))]
        draws.append(STATISTICS[name](drawn["score"].to_numpy(), drawn["human"].to_numpy()))
    defined = [own for own in draws if not np.isnan(own)]
    low, high = np.percentile(defined, [2.5, 97.5])
    if STATISTICS[name] in CORRELATIONS:
        value = STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy())
        error = np.sqrt(5 / 4) * np.std(defined, ddof=1) / (1 - value**2)  # of artanh
        low, high = np.tanh(np.arctanh(value) + stats.t.ppf(0.975, 4) * error * np.array([-1, 1]))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_means_by_system() -> None:
    score, human = np.array([1.0, 5.0, 2.0]), np.array([2.0, 4.0, 2.0])
    found = system_level(["b", "a", "b"], list("xyz"), score, human, Resamples.draw(list("xyz"), 0, 0), 0)
    assert found["systems"] == [
        {"system_id": "a", "n_items": 1, "human": 4.0, "judge": 5.0},
        {"system_id": "b", "n_items": 2, "human": 2.0, "judge": 1.5},
    ]
    assert (found["n_systems"], found["spearman"].reason) == (2, "2 systems, at least 3 needed")


def p_by_hand(difference: np.ndarray) -> float:
    """Mid-p of all exchanges of paired answers."""
    sums = [float(np.dot(signs, difference)) for signs in product((1, -1), repeat=len(difference))]
    above = [total > difference.sum() + 1e-9 for total in sums]
    equal = [abs(total - difference.sum()) <= 1e-9 for total in sums]
    return float(np.mean(above) + np.mean(equal) / 2)


def complete_table(n_systems: int, n_prompts: int, seed: int) -> tuple[np.ndarray, ...]:
    """Systems, prompts, judge and human scores in whole points."""
    rng = np.random.default_rng(seed)
    human = rng.normal(size=(n_systems, n_prompts)) + 0.5 * np.arange(n_systems)[:, None]
    judge = human + rng.normal(size=human.shape)
    systems, prompts = np.indices(human.shape)
    return systems.ravel(), prompts.ravel(), judge.ravel().round(0), human.ravel().round(0)


def test_worked_example_of_one_pair():
    # Every prompt favours the first system by 0.6: 1 of 2^5 sums is 3.0, none is above.
    first, second = [0.8, 0.9, 0.7, 1.0, 0.6], [0.2, 0.3, 0.1, 0.4, 0.0]
    human = np.array(first + second)
    systems, prompts = ["a"] * 5 + ["b"] * 5, list(range(5)) * 2
    assert soft_pairwise_accuracy(systems, prompts, human, human).accuracy.value == 1.0
    opposite = soft_pairwise_accuracy(systems, prompts, -human, human)
    assert opposite.accuracy.value == pytest.approx(1 - ((1 - 1 / 64) - 1 / 64), abs=1e-12)
    assert (opposite.pairs, opposite.left_out, opposite.unmatched) == (1, 0, 0)
    assert (opposite.accuracy.low, opposite.accuracy.reason[:11]) == (None, "no interval")


@pytest.mark.parametrize("seed", range(3))
def test_all_exchanges_of_few_prompts(seed: int):
    systems, prompts, judge, human = complete_table(4, 7, seed)
    of = {(s, p): (j, h) for s, p, j, h in zip(systems, prompts, judge, human, strict=True)}
    apart = []
    for one, other in combinations(range(4), 2):
        differences = np.array([np.subtract(of[one, prompt], of[other, prompt]) for prompt in range(7)])
        apart.append(abs(p_by_hand(differences[:, 0]) - p_by_hand(differences[:, 1])))
    found = soft_pairwise_accuracy(systems, prompts, judge, human)
    assert found.accuracy.value == pytest.approx(1 - np.mean(apart), abs=1e-12)
    assert (found.pairs, found.accuracy.n) == (6, 4)


def test_the_names_of_systems_do_not_matter():
    systems, prompts, judge, human = complete_table(5, 8, 3)
    for permutations in (256, 200):  # all, and some
        given = soft_pairwise_accuracy(systems, prompts, judge, human, permutations)
        if permutations == 256:
            assert soft_pairwise_accuracy(4 - systems, prompts, judge, human, permutations) == given
        shuffled = np.random.default_rng(0).permutation(40)
        again = soft_pairwise_accuracy(*(own[shuffled] for own in (systems, prompts, judge, human)), permutations)
        assert again == given


def test_many_prompts_approach_the_normal_test():
    systems, prompts, judge, human = complete_table(3, 400, 4)
    human = human + 0.02 * np.random.default_rng(5).normal(size=len(human))
    judge = np.where(systems == 2, judge - 0.7, judge - 0.35 * systems)
    expected = []
    for one, other in combinations(range(3), 2):
        p_values = []
        for own in (judge, human):
            difference = own[systems == one] - own[systems == other]
            p_values.append(stats.norm.sf(difference.sum() / np.sqrt((difference**2).sum())))
        expected.append(abs(p_values[0] - p_values[1]))
    found = soft_pairwise_accuracy(systems, prompts, judge, human, permutations=20000)
    assert found.accuracy.value == pytest.approx(1 - np.mean(expected), abs=0.01)
    assert found == soft_pairwise_accuracy(systems, prompts, judge, human, permutations=20000)
    assert found != soft_pairwise_accuracy(systems, prompts, judge, human, permutations=20000, seed=1)


def test_what_only_one_system_answered_does_not_count():
    systems, prompts, judge, human = complete_table(3, 6, 6)
    apart = np.where(systems == 2, prompts + 100, prompts)  # the third system answered prompts of its own
    alone = systems < 2
    expected = soft_pairwise_accuracy(systems[alone], prompts[alone], judge[alone], human[alone])
    found = soft_pairwise_accuracy(systems, apart, judge, human)
    assert (found.accuracy.value, found.accuracy.n) == (expected.accuracy.value, 2)
    assert (found.pairs, found.left_out, found.unmatched) == (1, 2, 6)


def test_a_missing_answer_leaves_its_prompt_out_and_several_are_averaged():
    systems, prompts, judge, human = complete_table(2, 6, 7)
    gaps = judge.copy()
    gaps[3] = NAN
    kept = prompts != 3
    found = soft_pairwise_accuracy(systems, prompts, gaps, human)
    expected = soft_pairwise_accuracy(systems[kept], prompts[kept], judge[kept], human[kept])
    assert found.accuracy.value == expected.accuracy.value
    assert (found.accuracy.dropped, found.unmatched) == (1, 1)
    doubled = [np.append(own, own[0]) for own in (systems, prompts, judge, human)]
    doubled[2][0] += 1
    doubled[2][-1] -= 1
    assert soft_pairwise_accuracy(*doubled).accuracy.value == pytest.approx(
        soft_pairwise_accuracy(systems, prompts, judge, human).accuracy.value, abs=1e-12
    )


def test_undefined_soft_accuracy_has_a_reason():
    systems, prompts, judge, human = complete_table(2, 6, 9)
    assert soft_pairwise_accuracy(systems, prompts, np.ones(12), human).accuracy.reason == (
        "the judge scores are constant"
    )
    apart = soft_pairwise_accuracy(systems, np.arange(12), judge, human)
    assert apart.accuracy.reason == "no two of 2 systems answered a common prompt"
    assert (apart.accuracy.value, apart.left_out, apart.unmatched) == (None, 1, 12)
    assert soft_pairwise_accuracy([], [], np.array([]), np.array([])).accuracy.reason == "0 items"


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
    judge[::7] = NAN
    resamples = Resamples.draw(prompts, 60, 0)
    found = system_pairwise_accuracy(systems, judge, human, resamples)
    kept = ~np.isnan(judge)
    assert found.value == accuracy_by_hand(systems[kept], judge[kept], human[kept], 5)
    assert (found.n, found.dropped) == (5, 9)
    for draw, counts in zip(found.draws, resamples.counts, strict=True):
        items = np.repeat(np.arange(60), np.where(kept, counts[resamples.codes], 0).astype(int))
        expected = accuracy_by_hand(systems[items], judge[items], human[items], 5)
        np.testing.assert_allclose(draw, expected, rtol=0, atol=1e-12)
    assert found.low <= found.value <= found.high


def test_equal_means_are_tied_and_undefined_accuracy_has_a_reason():
    draws = Resamples.draw(list("abcdef"), 0, 0)
    human = np.array([0.1, 0.3, 0.2, 0.2, 0.0, 0.1])  # means 0.2, 0.2 up to rounding, and 0.05
    tied = system_pairwise_accuracy([0, 0, 1, 1, 2, 2], np.array([3.0, 5, 4, 4, 1, 1]), human, draws)
    assert tied.value == 1.0
    apart = system_pairwise_accuracy([0, 0, 1, 1, 2, 2], np.array([3.0, 5, 4, 5, 1, 1]), human, draws)
    assert apart.value == pytest.approx(2 / 3, abs=1e-12)
    assert system_pairwise_accuracy([0] * 6, human, human, draws).reason == "1 system, no pair"
    constant = system_pairwise_accuracy([0, 0, 1, 1, 2, 2], np.ones(6), human, draws)
    assert (constant.value, constant.reason) == (None, "the judge scores are constant")
