"""Scores of predicted shares: known values, that the truth wins, and that people and judges are measured alike."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.distributions import (
    FLOOR,
    at_least,
    log_score,
    penalties,
    penalties_of_people,
    ranked_probability_score,
)

STEPS = np.arange(5)
TRUTH = np.random.default_rng(7).dirichlet(np.full(5, 2.0), 150)
"""Shares of all raters on 150 items."""


def drawn(rng: np.random.Generator, raters: int, truth: np.ndarray = TRUTH) -> np.ndarray:
    """Counts of a panel of so many raters of each item."""
    return np.stack([rng.multinomial(raters, shares) for shares in truth])


def test_known_values():
    uniform, low, high = np.full(5, 0.2), np.eye(5)[0], np.eye(5)[4]
    assert ranked_probability_score(low, high) == 1
    assert ranked_probability_score(low, np.eye(5)[1]) == 0.25  # a step is a quarter of the scale
    assert ranked_probability_score(uniform, uniform) == 0
    # (0.8^2 + 0.6^2 + 0.4^2 + 0.2^2) / 4
    assert ranked_probability_score(uniform, low) == pytest.approx(0.3)
    # the pair of distributions of ms-swift's RPS: 0.00625 over K - 1
    assert ranked_probability_score(np.array([0.1, 0.2, 0.4, 0.2, 0.1]), np.array([0.1, 0.1, 0.4, 0.3, 0.1])) == (
        pytest.approx(0.02 / 4)
    )
    assert log_score(uniform, low) == pytest.approx(np.log(5))
    assert log_score(low, high) == pytest.approx(-np.log(FLOOR))
    assert log_score(np.array([0.5, 0, 0, 0, 0.5]), np.array([0.5, 0, 0, 0, 0.5])) == pytest.approx(np.log(2))
    np.testing.assert_allclose(at_least(np.stack([uniform, high]), 3), [0.4, 1.0])


def test_the_true_distribution_wins_in_99_of_100_simulations():
    """Against the same with half its spread, twice its spread, one step higher, the constant, and the mean alone."""
    mean = TRUTH @ STEPS
    sharp, flat = TRUTH**2, TRUTH**0.5
    others = {
        "sharper": sharp / sharp.sum(1, keepdims=True),
        "flatter": flat / flat.sum(1, keepdims=True),
        "higher": 0.8 * TRUTH + 0.2 * np.eye(5)[4],
        "constant": np.tile(TRUTH.mean(0), (len(TRUTH), 1)),
        "one step": np.eye(5)[np.rint(mean).astype(int)],
    }
    rng, wins = np.random.default_rng(0), dict.fromkeys(others, np.zeros(2, dtype=int))
    for _ in range(200):
        counts = drawn(rng, 5)
        true = penalties(TRUTH, counts)
        for name, predicted in others.items():
            other = penalties(predicted, counts)
            won = [own.mean() < rival.mean() for own, rival in zip(true, other, strict=True)]
            wins[name] = wins[name] + won
    assert {name: won.tolist() for name, won in wins.items() if won.min() < 198} == {}


def test_the_score_of_shares_is_that_of_each_rater_less_what_no_prediction_changes():
    counts = drawn(np.random.default_rng(1), 6)
    predicted = np.random.default_rng(2).dirichlet(np.ones(5), len(counts))
    shares = counts / 6
    each, own = np.zeros(len(counts)), np.zeros(len(counts))
    for step, given in enumerate(np.eye(5)):
        each += shares[:, step] * ranked_probability_score(predicted, given)
        own += shares[:, step] * ranked_probability_score(shares, given)
    np.testing.assert_allclose(penalties(predicted, counts).rps, each - own, atol=1e-12)


def test_people_are_measured_by_ratings_that_are_not_theirs():
    """By hand: raters 1, 1 and 3 on a scale of three steps, and a constant of thirds."""
    counts, constant = np.array([[2, 0, 1]]), np.full(3, 1 / 3)
    one_rater, panel = penalties_of_people(counts, constant)
    # who is left out at 1: the others gave 1 and 3; at 3: both gave 1
    own = 2 / 3 * ((1 / 3) ** 2 * 2) / 2 + 1 / 3 * ((2 / 3) ** 2 * 2) / 2
    assert one_rater.rps[0] == pytest.approx(2 / 3 * 0.5 + 1 / 3 * 1 - own)
    assert one_rater.log[0] == pytest.approx((2 / 3 * 0.5 + 1 / 3) * -np.log(FLOOR))
    near, far = np.array([4, 1, 4]) / 9, np.array([7, 1, 1]) / 9
    expected = 2 / 3 * ((5 / 9) ** 2 + (4 / 9) ** 2) / 2 + 1 / 3 * ((7 / 9) ** 2 + (8 / 9) ** 2) / 2 - own
    assert panel.rps[0] == pytest.approx(expected)
    assert panel.log[0] == pytest.approx(-2 / 3 * np.log(near[0]) - 1 / 3 * np.log(far[2]))


def test_the_truth_as_a_judge_and_people_as_prophets_stand_on_one_scale():
    """Two raters of the truth, one predicting from outside of the panel and one within, get the same on average."""
    rng, outside, inside = np.random.default_rng(3), [], []
    for _ in range(60):
        counts = drawn(rng, 5)
        outside.append(penalties(drawn(rng, 1).astype(float), counts).rps.mean())
        inside.append(penalties_of_people(counts, TRUTH.mean(0))[0].rps.mean())
    assert np.mean(inside) == pytest.approx(np.mean(outside), rel=0.02)


def test_one_rater_predicts_nobody():
    one_rater, panel = penalties_of_people(np.array([[0, 1, 0], [1, 1, 0]]), np.full(3, 1 / 3))
    for own in (*one_rater, *panel):
        assert np.isnan(own).tolist() == [True, False]
