"""What prompted judges say of their answers, against figures computed by hand, and what is shown of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import evaluate as typed_evaluate
from empathy_judge.eval.judges import OK, score_table
from empathy_judge.eval.prompted_report import orders
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import ComparisonReport, Report
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.views import comparison_views, failed_questions, notes, prompted_rows

from .conftest import AnyJudge, long_is_good, printed_at


def evaluate(*arguments: Any, **options: Any) -> Any:
    """What is null or not is for the tests to say, not for a type checker."""
    return typed_evaluate(*arguments, **{"checks": (), "resamples": 200, **options})


def answer(samples: Sequence[float] = (), versions: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """What `PointwiseJudge` says of a pair whose three questions were answered at 1 cent and 2 seconds each."""
    return {
        "samples": {"empathy": list(samples)},
        "sample_versions": {"empathy": list(versions)[: len(samples)] or ["m-1"] * len(samples)}, "questions": 3,
        "requests": 3, "kept": 0, "failures": {}, "cost": 0.03, "seconds": 6.0,
        "versions": sorted(set(versions)) or ["m-1"], **changes,
    }  # fmt: skip


def asked_judge(by_pair: Mapping[str, Mapping[str, Any]]) -> AnyJudge:
    """Says what it is told to say; a pair's score is the mean of its samples."""

    def score(pairs: Sequence[Pair]) -> pd.DataFrame:
        metas = [by_pair[pair.pair_id] for pair in pairs]
        samples = [own["samples"]["empathy"] for own in metas]
        scores = np.array([np.mean(own) if own else math.nan for own in samples])
        statuses = [OK if own else next(iter(one["failures"])) for own, one in zip(samples, metas, strict=True)]
        return score_table(pairs, ("empathy",), scores[:, None], statuses=statuses, metas=metas)

    return AnyJudge(score, "asked")


@pytest.fixture
def six(make_dataset) -> PairDataset:
    """Six pairs in six groups, pair-2 to pair-7, rated by four people who do not quite agree."""
    return make_dataset(n_groups=8, per_group=1, noise=0.4).subset("test")


ANSWERS = {
    "pair-2": answer([1, 3]) | {"failures": {"refused": 1}},
    "pair-3": answer([2, 2, 2], ["m-1", "m-2", "m-2"]),
    "pair-4": answer([4, 5], ["m-1", "m-2"], failures={"timeout": 1}, requests=2, cost=0.02, seconds=4.0),
    "pair-5": answer([3], failures={"refused": 2}, kept=3),
    "pair-6": answer(failures={"refused": 3}, versions=["m-1"]),
    "pair-7": answer([5, 5], ["m-2", "m-2"], failures={"no score": 1}),
}


def test_requests_failures_cost_and_time_and_the_requests_of_listening_checks_apart(six):
    report = evaluate(asked_judge(ANSWERS), six, checks=("silent", "response_only")).report
    assert report.prompting.as_json() == {
        "pairs": 6, "scored": 5, "without_score": {"refused": 1}, "questions": 18, "requests": 17, "kept": 3,
        "failed": 8, "failure_rate": pytest.approx(8 / 18),
        "failures": {
            "refused": {"count": 6, "rate": pytest.approx(6 / 18)},
            "timeout": {"count": 1, "rate": pytest.approx(1 / 18)},
            "no score": {"count": 1, "rate": pytest.approx(1 / 18)},
        },
        "cost": pytest.approx(0.17), "cost_per_1000_pairs": pytest.approx(1000 * 0.17 / 6), "cost_reason": None,
        "versions": {"m-1": 5, "m-2": 3}, "version_changed": True, "check_requests": 34,
        "check_cost": pytest.approx(2 * 0.17), "check_failures": {"refused": 12, "timeout": 2, "no score": 2},
        "reserve": 0.0,
    }  # fmt: skip
    assert report.runtime.as_json() == {"seconds_per_pair": pytest.approx(34 / 6), "measured": "requests"}


def test_a_cost_that_is_not_wholly_known_is_no_cost(six):
    unknown = {name: own | {"cost": None} if name in ("pair-3", "pair-7") else own for name, own in ANSWERS.items()}
    report = evaluate(asked_judge(unknown), six).report
    prompting = report.prompting
    assert (prompting.cost, prompting.cost_per_1000_pairs, prompting.check_requests) == (None, None, 0)
    assert prompting.cost_reason == "no price or tokens are known of the answers on 2 of 6 pairs"
    assert notes(report)[1].endswith(f"Cost: {prompting.cost_reason}.")


def test_pairs_without_answers_do_not_make_the_others_cheaper(six):
    nothing = answer(failures={"not asked: the budget is used up": 3}, requests=0, cost=None)
    answers = ANSWERS | {"pair-5": nothing, "pair-6": nothing}
    # a score without requests, as in a comparison that is recorded with its other pair
    answers["pair-7"] = ANSWERS["pair-7"] | {"requests": 0, "cost": None}
    prompting = evaluate(asked_judge(answers), six).report.prompting
    assert (prompting.cost, prompting.cost_per_1000_pairs) == pytest.approx((0.08, 1000 * 0.08 / 4))
    assert (prompting.requests, prompting.unasked) == (8, 6)


def test_repeated_answers_and_a_changed_version_where_both_answered(six):
    """Sums of squares 2, 0, 0.5 and 0 with 1, 2, 1 and 1 degrees of freedom; ICC from the analysis of variance."""
    asked = evaluate(asked_judge(ANSWERS), six).report.dimensions["empathy"].usage
    found = asked.repeats
    assert found.within_sd.value == pytest.approx(math.sqrt(2.5 / 5))
    assert (found.within_sd.n, found.within_sd.dropped) == (4, 2)
    between = (2 * 2**2 + 3 * 2**2 + 2 * 4.5**2 + 2 * 5**2 - 29**2 / 9) / 3
    item = (between - 0.5) / ((9 - (4 + 9 + 4 + 4) / 9) / 3)
    assert found.icc.value == pytest.approx(item / (item + 0.5))
    mean = 4 / (3 / 2 + 1 / 3)  # harmonic
    assert found.icc_of_mean.value == pytest.approx(item / (item + 0.5 / mean))
    drift = asked.drift
    assert [(one.first, one.second) for one in drift] == [("m-1", "m-2")]
    assert (drift[0].difference.value, drift[0].difference.n) == (pytest.approx((0 + 1) / 2), 2)
    assert drift[0].difference.reason == "no interval: 2 groups, at least 5 needed"


def test_versions_that_never_met_have_no_difference(six):
    answers = {
        f"pair-{number}": answer([number / 2] * 3, ["m-1" if number < 5 else "m-2"] * 3) for number in range(2, 8)
    }
    report = evaluate(asked_judge(answers), six).report
    assert report.prompting.versions == {"m-1": 3, "m-2": 3}
    assert report.dimensions["empathy"].usage.drift[0].difference.reason == "no pair was answered by both"


def test_one_version_and_one_answer_have_neither_drift_nor_repeats(six):
    answers = {f"pair-{number}": answer([number / 2]) for number in range(2, 8)}
    report = evaluate(asked_judge(answers), six).report
    asked = report.dimensions["empathy"].usage
    assert (report.prompting.version_changed, asked.drift) == (False, ())
    assert (asked.repeats.icc.value, asked.repeats.icc.reason) == (None, "no item has two answers")
    assert asked.orders.inconsistent.reason == "0 comparisons"


# ---------------------------------------------------------------- both orders


def comparing_judge(bias: float) -> AnyJudge:
    """Compares every two neighbours of a group; says the first is better with probability `bias`, else the longer."""

    def score(pairs: Sequence[Pair]) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        seen: list[list[list[float]]] = [[] for _ in pairs]
        for place, (one, other) in enumerate(pairwise(pairs)):
            if one.group_id == other.group_id:  # the other one is longer
                seen[place].append([1.0 if rng.random() < bias else wins for wins in (-1.0, 1.0)])
        metas = [
            answer() | {"samples": {}, "sample_versions": {}, "questions": 2 * len(own), "requests": 2 * len(own)}
            | {"orders": {"empathy": own}} for own in seen
        ]  # fmt: skip
        return score_table(pairs, ("empathy",), np.arange(len(pairs))[:, None], metas=metas)

    return AnyJudge(score, "comparing")


@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
def test_position_bias(make_dataset, bias):
    """Where it follows its bias, the order in which the better one comes first is right all the same."""
    dataset = make_dataset(n_groups=60, per_group=5, noise=0.4)
    found = evaluate(comparing_judge(bias), dataset).report.dimensions["empathy"].usage.orders
    inconsistent, first = found.inconsistent, found.first_preferred
    assert inconsistent.n == 45 * 4
    assert inconsistent.value == pytest.approx(bias, abs=0.1)
    assert first.value == pytest.approx((1 + bias) / 2, abs=0.05)
    assert inconsistent.low <= bias <= inconsistent.high
    assert first.low <= (1 + bias) / 2 <= first.high
    assert (first.low > 0.5) == (bias > 0)


def test_ties_in_one_order_alone_are_inconsistent():
    verdicts = np.array([[1, -1], [-0.2, 0.6], [0, 0], [0, 1], [1, 1 / 3], [-1, -1]])
    found = orders(verdicts, Resamples.sample([f"g{number}" for number in range(6)], 50, 0))
    assert found.inconsistent.value == pytest.approx(3 / 6)
    assert found.first_preferred.value == pytest.approx(0.5 + verdicts.sum() / 24)


# ---------------------------------------------------------------- length


def test_a_report_of_an_asked_judge_follows_its_schema(six):
    for judge in (asked_judge(ANSWERS), comparing_judge(0.5), long_is_good(0.1)):
        report = evaluate(judge, six).report
        assert Report.model_validate_json(json.dumps(report.as_json(), allow_nan=False)) == report


# ---------------------------------------------------------------- what is shown


ANSWERED = {f"pair-{number}": answer([number % 5, (number + number % 2) % 5]) for number in range(100)}
"""Two answers each to the pairs of a larger set."""


def test_a_comparison_shows_what_prompting_took(make_dataset, make_tone_judge, tmp_path):
    dataset = make_dataset(n_groups=24, noise=0.4)
    found = compare(
        [asked_judge(ANSWERED), comparing_judge(1.0), make_tone_judge(0.4)], dataset, checks=(), resamples=50
    )
    asked, comparing, tone = prompted_rows(found.reports)
    icc = found.reports[0].dimensions["empathy"].usage.repeats.icc.value
    assert asked[5].startswith(f"{icc:.2f} [")
    assert asked == ["asked", "empathy", "30.00", "6", "0 %", asked[5], "—", "—"]
    assert comparing[5:] == ["—", "100 % [81, 100]", "100 % [81, 100]"]  # all comparisons in 18 groups
    assert (tone[0], tone[2], tone[4:]) == ("tone judge", "—", ["—"] * 4)
    for width in (120, 80):
        text = " ".join(printed_at(width, comparison_views(found.reports, found.rankings)).split())
        assert "what prompting took" in text
        assert "Seconds: what requests took" in text
    found.save(tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("What prompting took") == 1
    assert ">30.00<" in page
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert f"| asked | empathy | 30.00 | 6 | 0 % | {asked[5]} | — | — |" in table
    numbers = read_report(tmp_path / "comparison.json", ComparisonReport)
    assert [report.prompting is None for report in numbers.reports] == [False, False, True]


def test_a_comparison_tells_why_questions_failed(make_dataset, make_tone_judge, tmp_path):
    dataset = make_dataset(n_groups=24, noise=0.4)
    refused = answer(failures={"rate limit": 3}, requests=0, cost=None)
    failing = ANSWERED | {pair.pair_id: refused for pair in dataset.pairs[-2:]}
    found = compare([asked_judge(failing), make_tone_judge(0.4)], dataset, checks=(), resamples=50)
    (said,) = failed_questions(found.reports)
    assert said == ("asked: 216 questions about 72 pairs; 6 failed (3 %: 6 x rate limit); 2 pairs without a score.")
    assert said in " ".join(printed_at(300, comparison_views(found.reports, found.rankings)).split())
    found.save(tmp_path)
    for name in ("index.html", "comparison.md"):
        assert said in (tmp_path / name).read_text(encoding="utf-8")


def test_a_report_tells_how_the_judge_was_asked(six, tmp_path):
    found = evaluate(asked_judge(ANSWERS), six, resamples=50)
    said = notes(found.report)
    assert said[0] == (
        "18 questions about 6 pairs, 3 of them answered in earlier runs; 8 failed (44 %: 6 x refused; 1 x timeout; "
        "1 x no score); 1 pair without a score."
    )
    assert (
        said[1] == "Requests took 5.7 s for each pair, several at a time. Cost: $0.17 in all, $28.33 per 1,000 pairs."
    )
    assert said[2] == "The model changed while it was asked: m-1 (5 pairs), m-2 (3 pairs)."
    assert said[3].startswith("Repeated answers lie 0.71 rating points around their mean (standard deviation; ICC 0.82")
    assert said[4] == "From m-1 to m-2 scores moved by +0.50 on 2 pairs."
    found.save(tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    table = (tmp_path / "agreement.md").read_text(encoding="utf-8")
    assert "How it was prompted" in page
    assert "Cost: $0.17 in all, $28.33 per 1,000 pairs." in page
    assert "The model changed while it was asked: m-1 (5 pairs)" in table
    statistics = (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert "asked,empathy,,,usage.repeats.within_sd,0.70" in statistics
