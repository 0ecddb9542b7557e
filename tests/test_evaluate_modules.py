"""The modules for the evaluate library, loaded as its users load them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import ccc, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.like_for_like import like_for_like
from empathy_judge.eval.statistics.reliability import measure
from empathy_judge.scorer import Scorer

pytest.importorskip("evaluate")


def answers(given: dict[str, Any]) -> dict[str, Any]:
    """What the modules say to some arguments; `conftest.py` says where the library keeps its cache."""
    import evaluate
    from empathy_judge.eval.modules import AGREEMENT, SCORE

    agreement, score = evaluate.load(AGREEMENT), evaluate.load(SCORE)
    found: dict[str, Any] = {
        "score": score.compute(**given["score"]),
        "types": [agreement.module_type, score.module_type],
        **{name: agreement.compute(**given[name]) for name in ("panel", "means")},
    }
    for name, wrong in given["wrong"].items():
        with pytest.raises(Exception) as refused:  # noqa: PT011 what it says is looked at by the tests
            agreement.compute(**wrong)
        found[name] = str(refused.value)
    return found


@pytest.fixture(scope="module")
def panel() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Scores, ratings by four raters with gaps, and groups of two."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=60)
    ratings = truth[:, None] + rng.normal(size=(60, 4))
    ratings[::3, 1] = np.nan
    return truth + rng.normal(size=60), ratings, [f"g{item // 2}" for item in range(60)]


@pytest.fixture(scope="module")
def found(panel, judge_folder, tmp_path_factory) -> tuple[dict[str, Any], list[str]]:
    """What the modules say, and the clips that were scored."""
    folder = tmp_path_factory.mktemp("modules")
    clips = []
    for number in range(3):
        clips.append(str(folder / f"{number}.wav"))
        soundfile.write(clips[-1], 0.3 * np.sin(np.arange(8_000) * (0.05 + 0.02 * number)), 16_000)
    score, ratings, groups = panel
    rated = {"predictions": score.tolist(), "references": ratings.tolist(), "groups": groups, "resamples": 200}
    given = {
        "score": {"data": clips[1:], "contexts": [clips[0]] * 2, "judge": str(judge_folder)},
        "panel": rated,
        "means": {"predictions": [1.0, 2.0, 3.0, float("nan")], "references": [1.0, 3.0, 2.0, 4.0]},
        "wrong": {
            "groups": rated | {"groups": groups[1:]},
            "uneven": {"predictions": [1.0, 2.0], "references": [[1.0, 2.0], [1.0]]},
        },
    }
    return json.loads(json.dumps(answers(given))), clips


def test_agreement_equals_ours(found, panel):
    own = found[0]["panel"]
    score, ratings, groups = panel
    draws = Resamples.draw(np.array(groups), 200, seed=0)
    expected = estimate(spearman, score, np.nanmean(ratings, axis=1), resamples=draws)
    assert (own["spearman"], own["spearman_low"], own["spearman_high"]) == pytest.approx(
        (expected.value, expected.low, expected.high), abs=1e-12
    )
    assert own["ccc"] == pytest.approx(ccc(score, np.nanmean(ratings, axis=1)), abs=1e-12)
    item, rater = np.nonzero(~np.isnan(ratings))
    table = RatingTable(item, rater, ratings[item, rater], 60, ("a", "b", "c", "d"))
    reference = measure(table, draws, 0)
    assert own["one_rater"] == pytest.approx(reference.leave_one_rater_out.value, abs=1e-12)
    beside = like_for_like(score, table, draws).difference
    assert (own["difference_from_one_rater"], own["difference_from_one_rater_high"]) == pytest.approx(
        (beside.value, beside.high), abs=1e-12
    )
    assert own["best_possible"] == pytest.approx(reference.panel_mean.value, abs=1e-12)


def test_single_references_and_missing_predictions(found):
    own = found[0]["means"]
    assert (own["n"], own["dropped"]) == (3, 1)
    assert own["spearman"] == pytest.approx(spearman(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])), abs=1e-12)
    assert own["spearman_low"] is None
    assert own["reason"] == "no interval: 3 groups, at least 5 needed"
    assert "one_rater" not in own


def test_scores_are_those_of_the_scorer(found, judge_folder):
    measured, clips = found
    scorer = Scorer.from_pretrained(judge_folder, device="cpu")
    expected = scorer.score([clips[0]] * 2, list(clips[1:]))
    for dimension in scorer.dimensions:
        values = [own[dimension.name] for own in expected]
        assert measured["score"]["scores"][dimension.name] == pytest.approx(values, abs=1e-5)
        assert measured["score"]["mean"][dimension.name] == pytest.approx(sum(values) / 2, abs=1e-5)
    assert measured["types"] == ["metric", "measurement"]


def test_wrong_input_is_named(found):
    assert found[0]["groups"] == "59 groups; expected 60, one per prediction"
    assert found[0]["uneven"] == "references: [1.0]; expected 2 places in each, one per rater"
