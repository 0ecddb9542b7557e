"""What follows from the figures of a report on a dataset."""

from __future__ import annotations

from typing import Any

import pytest
from empathy_judge.eval.report.dataset import OVER_BUDGET, Failure, Prompting


def prompting(**changes: Any) -> Prompting:
    """0.08 dollars for 8 requests, and 6 questions that were not asked."""
    failures = {OVER_BUDGET: Failure(count=6, rate=0.4)}
    known = {"requests": 8, "failures": failures, "cost": 0.08, "check_failures": {}, "reserve": 0.0}
    return Prompting.model_construct(**{**known, **changes})


def test_the_cost_of_questions_that_were_not_asked_is_not_rounded_down():
    assert (prompting().unasked, prompting().unasked_cost) == (6, pytest.approx(0.06))
    assert prompting(cost=0.0811).unasked_cost == pytest.approx(0.061)
    assert prompting(cost=0.0).unasked_cost is None
    assert prompting(failures={}).unasked_cost is None
    # 3 more of a listening check; before the last one, its longest answer must be free; none is known to cost less
    more = {"check_failures": {OVER_BUDGET: 3, "refused": 1}, "reserve": 0.05}
    assert (prompting(**more).unasked, prompting(**more).unasked_cost) == (9, pytest.approx(0.14))
    assert prompting(**more, cost=None).unasked_cost == pytest.approx(0.5)
    assert prompting(**more, cost=None, requests=0).unasked_cost is None
