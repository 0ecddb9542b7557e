"""Coverage, width and error ratio against hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.calibration import coverage, error_ratio, mean_width

HUMAN = np.array([1.0, 2.0, 3.0, 4.0, np.nan, 2.5])
LOW = np.array([1.0, 2.5, 2.0, np.nan, 0.0, 2.0])
HIGH = np.array([2.0, 3.0, 3.0, np.nan, 9.0, 4.0])


def draws(groups: np.ndarray, count: int = 500) -> Resamples:
    return Resamples.draw(groups, count, 0)


def test_shares_and_widths_by_hand():
    """The first and the third rating are ends of their intervals; the second lies below, two items do not count."""
    resamples = draws(np.arange(6))
    share = coverage(LOW, HIGH, HUMAN, resamples)
    assert (share.value, share.n, share.dropped) == (0.75, 4, 2)
    assert share.reason == "no interval: 4 groups, at least 5 needed"
    width = mean_width(LOW, HIGH, HUMAN, resamples)
    assert (width.value, width.n) == ((1 + 0.5 + 1 + 2) / 4, 4)
    nothing = coverage(np.full(6, np.nan), HIGH, HUMAN, resamples)
    assert nothing.value is None
    assert nothing.reason is not None


def test_the_interval_of_a_share_draws_whole_groups():
    """Of 40 groups of five items four lie outside with all their items: as uncertain as 40 items, not as 200."""
    groups = np.repeat(np.arange(40), 5)
    human = np.where(groups < 4, 5.0, 3.0)
    found = coverage(np.full(200, 2.5), np.full(200, 3.5), human, draws(groups, 2000))
    assert found.value == pytest.approx(0.9)
    assert found.low is not None
    assert found.high is not None
    spread = (found.high - found.low) / (2 * 1.96)
    assert spread == pytest.approx(np.sqrt(0.9 * 0.1 / 40), rel=0.1)
    alone = coverage(np.full(200, 2.5), np.full(200, 3.5), human, draws(np.arange(200), 2000))
    assert alone.low is not None
    assert alone.low > found.low + 0.03


def test_errors_over_their_standard_errors_by_hand():
    score, error = HUMAN + np.array([0.3, -0.4, 0.0, 0.5, 1.0, 9.0]), np.array([0.3, 0.2, 1.0, 0.5, 1.0, np.nan])
    found = error_ratio(score, error, HUMAN, draws(np.arange(6)))
    assert found.value == pytest.approx(np.sqrt((1 + 4 + 0 + 1) / 4))
    assert (found.n, found.dropped) == (4, 2)
