"""Agreement as a metric of the evaluate library, loaded as its users load it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.modules import AGREEMENT
from empathy_judge.eval.statistics.agreement import ccc, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.like_for_like import like_for_like
from empathy_judge.eval.statistics.reliability import measure

evaluate = pytest.importorskip("evaluate")  # the library; `conftest.py` says where it keeps its cache


@pytest.fixture(scope="module")
def agreement() -> Any:
    return evaluate.load(AGREEMENT)


def test_agreement_equals_ours(agreement):
    """Ratings by four raters with gaps, and groups of two."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=60)
    ratings = truth[:, None] + rng.normal(size=(60, 4))
    ratings[::3, 1] = np.nan
    score, groups = truth + rng.normal(size=60), [f"g{item // 2}" for item in range(60)]
    given: dict[str, Any] = {"predictions": score.tolist(), "references": ratings.tolist(), "resamples": 200}
    own = agreement.compute(**given, groups=groups)
    assert agreement.module_type == "metric"
    json.dumps(own)  # no scalars of NumPy
    draws = Resamples.sample(np.array(groups), 200, seed=0)
    expected = estimate(spearman, score, np.nanmean(ratings, axis=1), resamples=draws)
    item, rater = np.nonzero(~np.isnan(ratings))
    table = RatingTable(item, rater, ratings[item, rater], 60, ("a", "b", "c", "d"))
    reference, beside = measure(table, draws, 0), like_for_like(score, table, draws).difference
    for name, value in {
        "spearman": expected.value,
        "spearman_low": expected.low,
        "spearman_high": expected.high,
        "ccc": ccc(score, np.nanmean(ratings, axis=1)),
        "one_rater": reference.leave_one_rater_out.value,
        "difference_from_one_rater": beside.value,
        "difference_from_one_rater_high": beside.high,
        "best_possible": reference.panel_mean.value,
    }.items():
        assert own[name] == pytest.approx(value, abs=1e-12), name
    with pytest.raises(Exception, match=r"^59 groups; expected 60, one per prediction$"):
        agreement.compute(**given, groups=groups[1:])


def test_single_references_and_missing_predictions(agreement):
    own = agreement.compute(predictions=[1.0, 2.0, 3.0, float("nan")], references=[1.0, 3.0, 2.0, 4.0])
    assert (own["n"], own["dropped"]) == (3, 1)
    assert own["spearman"] == pytest.approx(spearman(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])), abs=1e-12)
    assert own["spearman_low"] is None
    assert own["reason"] == "no interval: 3 groups, at least 5 needed"
    assert "one_rater" not in own
    with pytest.raises(Exception, match=r"^references: \[1\.0\]; expected 2 places in each, one per rater$"):
        agreement.compute(predictions=[1.0, 2.0], references=[[1.0, 2.0], [1.0]])
