"""Means of systems from a judge, from ratings, and from both, against textbook formulas and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.system_means import SystemSums, system_means
from scipy import stats


def rectangle(judge: np.ndarray, human: np.ndarray, standard_error: np.ndarray | None = None) -> SystemSums:
    """Sums of a test in which each system (column) answers each context (row)."""
    contexts, systems = judge.shape
    groups = np.repeat([f"c{number:02}" for number in range(contexts)], systems).tolist()
    names = [f"s{number}" for number in range(systems)] * contexts
    errors = None if standard_error is None else standard_error.ravel()
    return SystemSums.of(names, groups, judge.ravel(), human.ravel(), errors)


def drawn(seed: int, contexts: int = 30, systems: int = 3, rated: int = 12, noise: float = 0.5):
    """Scores and ratings that share what is right; the judge is biased by system."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(3, 1, (contexts, 1)) + rng.normal(0, 0.5, (contexts, systems))
    judge = quality + rng.normal(0, noise, quality.shape) + np.linspace(-1, 1, systems)
    human = np.full(quality.shape, np.nan)
    human[:rated] = (quality + rng.normal(0, 0.5, quality.shape))[:rated]
    return judge, human


def test_ratings_alone_are_a_t_interval_and_a_paired_one():
    judge, human = drawn(0)
    found, shown = system_means(rectangle(judge, human), "ratings"), human[:12]
    for column, mean in enumerate(found.means):
        low, high = stats.t.interval(0.95, 11, shown[:, column].mean(), stats.sem(shown[:, column]))
        assert (mean.low, mean.high, mean.groups) == (pytest.approx(low), pytest.approx(high), 12)
    paired = stats.ttest_rel(shown[:, 0], shown[:, 2])
    assert found.differences[0, 2].value == pytest.approx((shown[:, 0] - shown[:, 2]).mean())
    assert found.differences[0, 2].p == pytest.approx(paired.pvalue)


def test_a_judge_alone_adds_its_own_noise():
    judge, human = drawn(1)
    plain = system_means(rectangle(judge, human), "judge")
    noisy = system_means(rectangle(judge, human, np.full(judge.shape, 0.6)), "judge")
    assert plain.means[1].standard_error == pytest.approx(stats.sem(judge[:, 1]))
    assert noisy.means[1].standard_error == pytest.approx(np.hypot(stats.sem(judge[:, 1]), 0.6 / np.sqrt(30)))
    apart = stats.sem(judge[:, 0] - judge[:, 1])
    assert noisy.differences[0, 1].standard_error == pytest.approx(np.hypot(apart, 0.6 * np.sqrt(2 / 30)))


def test_both_are_the_corrected_mean_with_the_weight_of_least_variance():
    """Against the formula written out with sample variances; each response is rated or not, groups are single pairs."""
    judge, human = drawn(2, contexts=200, systems=1, rated=60)
    f, y, rated = judge[:, 0], human[:60, 0], judge[:60, 0]
    found = system_means(rectangle(judge, human), "both")

    def variance(weight: float) -> float:
        # Of mean(y - w f) over the rated and w mean(f) over all, which contain the rated
        left = (y - weight * rated) - (y - weight * rated).mean()
        whole = weight * (f - f.mean())
        parts = whole / 199 * np.sqrt(199 / 200)
        parts[:60] += left / 59 * np.sqrt(59 / 60)
        return float((parts**2).sum())

    best = min(np.linspace(0, 2, 20_001), key=variance)
    assert found.weight == pytest.approx(best, abs=1e-4)
    assert found.means[0].value == pytest.approx((y - found.weight * rated).mean() + found.weight * f.mean())
    assert found.means[0].standard_error == pytest.approx(np.sqrt(variance(found.weight)))
    assert found.ratings_worth == pytest.approx(variance(0) / variance(found.weight))


@pytest.mark.parametrize("judge", ["constant", "all rated"])
def test_where_the_judge_adds_nothing_it_is_the_ratings_alone(judge):
    scores, human = drawn(3, contexts=12) if judge == "all rated" else drawn(3)
    scores = np.full(scores.shape, 2.0) if judge == "constant" else scores
    both, alone = (system_means(rectangle(scores, human), source) for source in ("both", "ratings"))
    assert (both.weight, both.ratings_worth) == (0.0, 1.0)
    assert both.means == alone.means
    assert both.differences == alone.differences


def test_differences_are_over_the_contexts_that_both_answer():
    judge, human = drawn(4)
    judge[:, 1] += 5 * (np.arange(30) < 10)  # these contexts are not answered by system 0
    keep = np.ones(judge.shape, bool)
    keep[:10, 0] = False
    groups = np.repeat([f"c{number:02}" for number in range(30)], 3)[keep.ravel()]
    names = np.tile(["s0", "s1", "s2"], 30)[keep.ravel()]
    sums = SystemSums.of(names.tolist(), groups.tolist(), judge[keep], human[keep])
    found = system_means(sums, "judge")
    assert found.differences[0, 1].value == pytest.approx((judge[10:, 0] - judge[10:, 1]).mean())
    assert found.differences[0, 1].groups == 20
    assert found.means[1].value == pytest.approx(judge[:, 1].mean())


def test_a_difference_is_paired_where_systems_give_unequal_numbers_of_responses():
    """System a gave four responses to the hard contexts, and differs from b by nothing but noise: weighted by its
    responses its mean would be half a point lower."""
    rng = np.random.default_rng(7)
    quality = np.sort(rng.normal(3, 1, 20))
    number = {"a": np.repeat([4, 1], 10), "b": np.ones(20, int)}
    system = np.repeat(["a", "b"], [50, 20])
    context = np.concatenate([np.repeat(np.arange(20), number[name]) for name in "ab"])
    judge = quality[context] + rng.normal(0, 0.1, 70)
    human = np.where(context % 2 == 0, judge + rng.normal(0, 0.1, 70), np.nan)
    sums = SystemSums.of(system.tolist(), [f"c{c:02}" for c in context], judge, human)
    weight = 2 * number["a"] / (number["a"] + 1)

    def paired(values: np.ndarray, keep: np.ndarray) -> float:
        apart = [values[(system == "a") & (context == c)].mean() - values[(system == "b") & (context == c)].mean()
                 for c in np.flatnonzero(keep)]  # fmt: skip
        return float(np.average(apart, weights=weight[keep]))

    shown = np.arange(20) % 2 == 0
    alone, people, both = (system_means(sums, source) for source in ("judge", "ratings", "both"))
    assert alone.differences[0, 1].value == pytest.approx(paired(judge, np.ones(20, bool)), abs=1e-12)
    assert people.differences[0, 1].value == pytest.approx(paired(human, shown), abs=1e-12)
    excess = paired(judge, shown) - paired(judge, np.ones(20, bool))
    assert both.differences[0, 1].value == pytest.approx(paired(human, shown) - both.difference_weight * excess)
    assert judge[system == "a"].mean() - judge[system == "b"].mean() < -0.3
    assert (alone.differences[0, 1].p or 0) > 0.05


def test_the_error_of_unequal_groups_is_the_jackknife_and_other_groups_change_nothing():
    """Each group left out in turn, around the mean itself: CR3 of clusters."""
    rng = np.random.default_rng(6)
    groups = np.repeat([f"c{number}" for number in range(8)], [9, 1, 2, 1, 1, 3, 1, 2])
    judge = rng.normal(3, 1, len(groups)) + (groups == "c0")
    without = np.array([judge[groups != name].mean() for name in np.unique(groups)])
    error = np.sqrt(7 / 8 * ((without - judge.mean()) ** 2).sum())
    alone = SystemSums.of(["a"] * 20, groups.tolist(), judge, np.full(20, np.nan))
    assert system_means(alone, "judge").means[0].standard_error == pytest.approx(error)
    names, wider = ["a"] * 20 + ["b"] * 50, [*groups.tolist(), *(f"d{number}" for number in range(50))]
    beside = SystemSums.of(names, wider, np.append(judge, np.zeros(50)), np.full(70, np.nan))
    assert system_means(beside, "judge").means[0].standard_error == pytest.approx(error)


def test_few_groups_and_none_have_a_reason_instead_of_an_interval():
    judge, human = drawn(5, rated=4)
    human[:, 2] = np.nan
    found = system_means(rectangle(judge, human), "both")
    assert found.means[0].value is not None
    assert (found.means[0].low, found.means[0].reason) == (None, "4 rated groups, at least 5 needed")
    assert (found.means[2].value, found.means[2].reason) == (None, "no rated group")
    assert found.differences[0, 2].reason == "no shared rated group"


def test_equal_scores_differ_by_nothing_and_shifted_ones_surely():
    judge = np.arange(30.0)[:, None] + np.array([0.0, 0.0, 1.0])
    found = system_means(rectangle(judge, np.full(judge.shape, np.nan)), "judge")
    assert (found.differences[0, 1].value, found.differences[0, 1].p) == (0.0, 1.0)
    assert found.differences[0, 2].p == 0.0


@pytest.mark.parametrize(("noise", "narrower"), [(50.0, 1.01), (0.1, 0.75)])
def test_intervals_hold_the_truth_whatever_the_judge_is_worth(noise, narrower):
    held, ratios = [], []
    for seed in range(300):
        judge, human = drawn(seed, contexts=60, systems=2, rated=20, noise=noise)
        both, alone = (system_means(rectangle(judge, human), source) for source in ("both", "ratings"))
        for mean, other in zip(both.means, alone.means, strict=True):
            held.append(mean.low <= 3 <= mean.high)
            ratios.append(mean.standard_error / other.standard_error)
        held.append(both.differences[0, 1].low <= 0 <= both.differences[0, 1].high)
    assert 0.925 <= np.mean(held) <= 0.975  # three standard errors of 300 simulations
    assert np.mean(ratios) < narrower


@pytest.mark.parametrize("noise", [50.0, 0.5])
def test_few_groups_of_systems_that_differ_in_spread_never_lose_by_a_judge(noise):
    """A system of wide ratings does not choose lambda for the others: each board is in the mean no wider."""
    spread = np.array([0.2, 0.3, 0.5, 5.0])
    for seed in range(30):
        judge, human = (values * spread for values in drawn(seed, contexts=16, systems=4, rated=5, noise=noise))
        both, alone = (system_means(rectangle(judge, human), source) for source in ("both", "ratings"))
        for found, rest in ((both.means, alone.means), (both.differences.values(), alone.differences.values())):
            pairs = zip(found, rest, strict=True)
            assert np.mean([mean.standard_error / other.standard_error for mean, other in pairs]) <= 1 + 1e-12
        assert both.ratings_worth >= 1
