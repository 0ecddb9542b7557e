"""Facts about raters on panels in which everything about them is planted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.eval.statistics.raters import RaterFacts, rater_report
from empathy_judge.eval.statistics.reliability import leave_one_rater_out, rated_items
from scipy.stats import spearmanr

from .conftest import NAN
from .conftest import long as unnamed

SCALE = Dimension("d", 1, 7, 1)


def long(scores: dict[str, np.ndarray]) -> pd.DataFrame:
    """One row per rating from rater -> scores of all items; NaN = not rated."""
    names = dict(zip((f"r{n}" for n in range(len(scores))), scores, strict=True))
    table = unnamed(np.stack(list(scores.values())))
    return table.assign(rater_id=table["rater_id"].map(names))


def facts_of(ratings: pd.DataFrame, dimension: Dimension, groups: dict[str, str], resamples: int) -> list[RaterFacts]:
    table, draws = rated_items(ratings, dimension.name, groups, resamples, 0)
    return rater_report(table, draws, *leave_one_rater_out(table, draws), dimension)


def report(scores: dict[str, np.ndarray], dimension: Dimension = SCALE, resamples: int = 300) -> dict[str, RaterFacts]:
    n = len(next(iter(scores.values())))
    groups = {f"p{item}": f"g{item // 2}" for item in range(n)}
    return {one.rater_id: one for one in facts_of(long(scores), dimension, groups, resamples)}


def honest(n: int, raters: int, seed: int = 0, noise: float = 0.7) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """True scores and whole-number ratings from 1 to 7 of raters who mean them."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(4, 1.2, size=n)
    return truth, {f"r{k}": np.clip(np.round(truth + noise * rng.normal(size=n)), 1, 7) for k in range(raters)}


def flags(facts: dict[str, RaterFacts]) -> dict[str, list[str]]:
    return {rater: [flag.kind for flag in one.flags] for rater, one in facts.items() if one.flags}


def test_numbers_by_hand():
    scores = {
        "a": np.array([1, 2, 3, 4, 5, 6, 7, 6, 5, 4.0, NAN]),
        "b": np.array([2, 3, 4, 5, 6, 7, 7, 7, 6, 5.0, NAN]),
        "c": np.array([2, 3, 4, 5, 6, 7, 7, 7, 6, NAN, 3]),
    }
    facts = report(scores)
    a, c = facts["a"], facts["c"]
    assert (a.n_ratings, a.n_shared, c.n_ratings, c.n_shared) == (10, 10, 10, 9)
    assert a.mean == pytest.approx(4.3)
    assert a.sd == pytest.approx(np.std([1, 2, 3, 4, 5, 6, 7, 6, 5, 4]))
    assert a.severity.value == pytest.approx(0.9)  # one below the others on nine items, equal on one
    assert c.severity.value == pytest.approx(-4 / 9)  # half above the mean of a and b on eight items
    assert (a.severity.n, c.severity.n) == (10, 9)
    others = np.array([2, 3, 4, 5, 6, 7, 7, 7, 6, 5.0])
    assert a.agreement.value == pytest.approx(spearmanr(scores["a"][:10], others)[0])
    assert c.agreement.value is None
    assert c.agreement.reason == "shares 9 items with other raters, at least 10 needed"
    assert c.spread is None
    assert (a.scale_share, a.n_distinct) == (1.0, 7)
    assert (c.scale_share, c.n_distinct) == (5 / 6, 6)


def test_an_honest_panel_has_no_flags():
    for seed in range(8):
        assert flags(report(honest(60, 8, seed)[1])) == {}, seed
    # Nobody is random where the panel does not agree
    rng = np.random.default_rng(4)
    assert flags(report({f"r{k}": rng.integers(1, 8, size=80).astype(float) for k in range(6)})) == {}


def test_planted_severity_and_spread_are_found_whoever_rated_what():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=400)
    bias, stretch = np.array([-1.5, 0.5, 0, 0, 0, 0.5, 0.5]), np.array([1, 1, 1, 1, 1, 0.5, 2])
    scores = bias[:, None] + stretch[:, None] * (truth + 0.3 * rng.normal(size=(7, 400)))
    scores[rng.random(scores.shape) < 0.4] = NAN
    scores[0, truth > 0.5] = NAN  # the strict one got the worse items: not what makes a rater strict
    facts = report({f"r{k}": own for k, own in enumerate(scores)}, Dimension("d", -20, 20))
    severity = [facts[f"r{k}"].severity for k in range(7)]
    assert severity[0].value == pytest.approx(1.5 + 1.5 / 6, abs=0.15)
    assert severity[0].low > 1
    assert all(abs(one.value or 9) < 0.7 for one in severity[1:])
    assert facts["r5"].spread == pytest.approx(0.5 / np.sqrt(np.mean([1, 1, 1, 1, 1, 4])), rel=0.12)
    assert facts["r6"].spread == pytest.approx(2 / np.sqrt(np.mean([1, 1, 1, 1, 1, 0.25])), rel=0.12)


def test_a_constant_rater_is_flagged_with_evidence():
    _, scores = honest(40, 5)
    facts = report({**scores, "same": np.full(40, 4.0)})
    assert flags(facts) == {"same": ["constant"]}
    assert next(iter(facts)) == "same"  # first in the list
    evidence = facts["same"].flags[0].evidence
    assert evidence.startswith("gave 4 to all of 40 items; the means of the others range from ")
    assert facts["same"].agreement.value is None
    assert facts["same"].spread is None
    # The same score for items that all call equal, or for few, is none
    assert flags(report({f"r{k}": np.full(30, 4.0) for k in range(4)})) == {}
    few = np.full(40, NAN)
    few[:9] = 4.0
    assert flags(report({**scores, "few": few})) == {}


def test_a_random_rater_is_flagged_and_one_with_few_items_is_not():
    rng = np.random.default_rng(3)
    _, scores = honest(80, 6, noise=0.5)
    noise = rng.integers(1, 8, size=80).astype(float)
    facts = report({**scores, "noise": noise})
    assert flags(facts) == {"noise": ["random"]}
    own = facts["noise"].agreement
    assert own.low <= 0
    assert facts["noise"].flags[0].evidence.startswith(f"Spearman with the others {own.value:.2f} [")
    noise[12:] = NAN
    few = report({**scores, "noise": noise})["noise"]
    assert few.agreement.n == 12
    assert few.flags == ()
    # So is one who turned the scale round
    _, scores = honest(60, 6)
    facts = report({**scores, "turned": 8 - scores["r0"]})
    assert flags(facts) == {"turned": ["random"]}
    assert (facts["turned"].agreement.value or 0) < -0.5


def test_a_copy_is_flagged_on_both_sides_with_evidence():
    _, scores = honest(50, 6)
    copy = scores["r2"].copy()
    copy[7] = 8 - copy[7] if copy[7] != 4 else 5
    facts = report({**scores, "copy": copy})
    assert flags(facts) == {"copy": ["duplicate"], "r2": ["duplicate"]}
    assert (
        facts["copy"].flags[0].evidence.startswith("the same score as r2 on 49 of 50 items; with the other raters on ")
    )


def test_raters_who_agree_are_not_copies():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, size=60).astype(float)  # yes or no, and everybody sees it
    scores = {f"r{k}": np.where(rng.random(60) < 0.02, 1 - truth, truth) for k in range(6)}
    assert flags(report(scores, Dimension("d", 0, 1, 1))) == {}
    _, two = honest(50, 1)
    assert flags(report({"r0": two["r0"], "r1": two["r0"].copy()})) == {}  # of two raters nothing can be said


def timed(seconds: np.ndarray) -> dict[str, RaterFacts]:
    """Facts about honest raters who took these times, shape (raters, items), NaN = unknown."""
    raters, n = seconds.shape
    table = long(honest(n, raters)[1])  # rater by rater
    groups = {f"p{item}": f"g{item}" for item in range(n)}
    report = facts_of(table.assign(seconds=seconds.reshape(-1)), SCALE, groups, 50)
    return {one.rater_id: one for one in report}


def natural(raters: int, items: int, seed: int) -> np.ndarray:
    """Times of people of different speed who listen to clips of different length (seconds)."""
    rng = np.random.default_rng(seed)
    clips, people = rng.uniform(4, 40, size=items), np.exp(rng.normal(0, 0.25, size=(raters, 1)))
    return people * (clips + 5) * np.exp(rng.normal(0, 0.3, size=(raters, items)))


def test_a_fast_rater_is_flagged_with_evidence():
    seconds = natural(6, 40, 0)
    seconds[3] = 1.25
    seconds[3, :4] = 60  # now and then a pause
    facts = timed(seconds)
    assert flags(facts) == {"r3": ["fast"]}
    others = np.median([np.sort(np.delete(seconds[:, item], 3))[2] for item in range(40)])  # the median of five
    assert facts["r3"].flags[0].evidence == (
        f"took less than a third of the others' time on 36 of 40 items; median 1.2 s, of the others {others:.1f} s"
    )
    assert facts["r3"].median_seconds == 1.25
    assert facts["r0"].median_seconds == pytest.approx(np.median(seconds[0]))


def test_nobody_is_fast_among_honest_raters_of_different_speed():
    assert [flags(timed(natural(8, 40, seed))) for seed in range(8)] == [{}] * 8
    short = natural(6, 40, 0)
    length = np.where(np.arange(40) < 20, 1.0, 30.0)  # who rates short clips only is not fast
    short = np.ones((6, 1)) * length
    short[0, length > 1] = NAN
    assert flags(timed(short)) == {}


def test_rapid_responding_needs_times_items_and_others():
    seconds = np.full((4, 30), 9.0)
    seconds[0] = 1.0
    assert flags(timed(seconds)) == {"r0": ["fast"]}
    few = seconds.copy()
    few[0, 9:] = NAN  # nine known times
    assert flags(timed(few)) == {}
    half = seconds.copy()
    half[0, 15:] = 3.0  # a third is not less than a third
    assert flags(timed(half)) == {}
    half[0, 15] = 2.9
    assert flags(timed(half)) == {"r0": ["fast"]}
    slow = seconds[:3].copy()
    assert flags(timed(slow)) == {"r0": ["fast"]}
    slow[1] = 1.5  # of two others only one is slow
    assert flags(timed(slow)) == {}
    slow[2] = NAN
    assert flags(timed(slow)) == {}
    two = seconds[:3].copy()
    two[2] = NAN  # of two raters, is one fast or the other slow?
    assert flags(timed(two)) == {}
    unknown = timed(np.full((4, 30), NAN))
    assert flags(unknown) == {}
    assert {one.median_seconds for one in unknown.values()} == {None}
    assert flags(timed(np.zeros((4, 30)))) == {}


def test_other_dimensions_and_pairs_do_not_count_and_nothing_gives_nothing():
    _, scores = honest(30, 3)
    table = long(scores)
    groups = {f"p{item}": "g" for item in range(30)}
    more = pd.concat([table, table.assign(dimension="e", score=1.0), table.assign(pair_id="x" + table["pair_id"])])
    assert facts_of(more, SCALE, groups, 20) == facts_of(table, SCALE, groups, 20)
    assert facts_of(table, Dimension("e", 1, 7), groups, 20) == []


def test_a_rater_alone_on_all_items_has_no_comparison():
    alone = report({"r0": np.arange(1, 8.0)})["r0"]
    assert (alone.n_shared, alone.severity.value, alone.spread, alone.agreement.value) == (0, None, None, None)
    assert alone.severity.reason
