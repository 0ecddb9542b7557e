"""Scores of one quality from several scales: ends meet ends, good meets good, steps stay only where they are true."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import Dimension, onto_first_scale

FIVE = Dimension("empathy", 1, 5, 1)


def onto(first: Dimension, own: Dimension, scores: list[float]) -> tuple[Dimension, list[float]]:
    scale, (_, mapped) = onto_first_scale([first, own], [np.array([first.minimum]), np.array(scores)])
    return scale, mapped.tolist()


@pytest.mark.parametrize(
    ("own", "scores", "expected"),
    [
        (Dimension("empathy", 1, 7, 1), [1, 4, 7], [1, 3, 5]),
        (Dimension("empathy", 1, 5, 1, higher_is_better=False), [1, 2, 5], [5, 4, 1]),
        (Dimension("empathy", -0.3, 0.3, 0.15, higher_is_better=False), [-0.3, -0.15, 0.0, 0.15, 0.3], [5, 4, 3, 2, 1]),
        (Dimension("empathy", 0, 100), [0, 25, 75], [1, 2, 4]),
    ],
)
def test_a_step_stays_where_all_scores_are_on_it(own, scores, expected):
    assert onto(FIVE, own, scores) == (FIVE, expected)


def test_scores_on_a_step_are_the_same_numbers_in_all_parts():
    tenths = Dimension("empathy", 0, 0.7, 0.1)
    scale, mapped = onto(tenths, Dimension("empathy", 1, 8, 1), [1, 2, 3, 4, 5, 6, 7, 8])
    assert (scale, mapped) == (tenths, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])


def test_a_scale_becomes_continuous_where_a_score_falls_between_its_steps():
    scale, mapped = onto(FIVE, Dimension("empathy", 1, 7, 1), [1, 2, 7])
    assert scale == Dimension("empathy", 1, 5)
    assert mapped == pytest.approx([1, 1 + 2 / 3, 5], abs=1e-12)
    scale, mapped = onto(FIVE, Dimension("empathy", 1, 5, 0.5), [1.5, 4])
    assert (scale, mapped) == (Dimension("empathy", 1, 5), [1.5, 4])


def test_scores_with_the_same_ends_and_direction_are_not_touched():
    tenths = Dimension("empathy", 0, 1, 0.1)
    odd = [0.1, 0.30000000000000004, 0.7, 0.699999]
    assert onto(tenths, Dimension("empathy", 0, 1), odd) == (tenths, odd)
    low = Dimension("empathy", 0, 1, higher_is_better=False)
    assert onto(low, low, odd) == (low, odd)


def test_no_score_leaves_the_scale_by_rounding():
    first, own = Dimension("empathy", 0.1, 0.7), Dimension("empathy", 0.3, 1.1)
    for direction in (True, False):
        turned = Dimension("empathy", 0.3, 1.1, higher_is_better=direction)
        _, mapped = onto(first, turned, [own.minimum, own.maximum, 0.7])
        assert min(mapped) == 0.1
        assert max(mapped) == 0.7
        assert mapped[2] == pytest.approx(0.4)
