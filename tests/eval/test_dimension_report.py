"""Standard errors and intervals of a judge in the report, on its page, in the terminal and on the model card."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import probe
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.dimension_report import count_words, response_lengths
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.pages.report import markdown_report, render_page
from empathy_judge.eval.rendering import sentences
from empathy_judge.eval.views import evaluation_views
from empathy_judge.scoring.model_card import render_card
from empathy_judge.scoring.three_way import (
    PreferenceModel,
    against_one_rater,
    comparisons,
    probabilities,
    quality,
    verdict_of,
)
from scipy.stats import spearmanr

from .conftest import assert_near, long_is_good, printed_at, sure_judge


@pytest.fixture
def evaluation(make_dataset, make_tone_judge):
    """60 items of two settings: in one the intervals are far too narrow."""
    dataset = make_dataset(noise=0.3)
    judge = sure_judge(make_tone_judge(noise=0.4), {"context_variant": 2.0, "tone_variant": 0.2}, (0.3, 0.6))
    return evaluate(judge, dataset, split="test", checks=(), resamples=60)


def test_coverage_widths_and_the_surest_half_are_those_of_the_items(evaluation):
    items, report = evaluation.items, evaluation.report
    own: Any = report.dimensions["empathy"].uncertainty
    inside = (items["low_90"] <= items["human_mean"]) & (items["human_mean"] <= items["high_90"])
    found = own.intervals["90"]
    assert found.level == 0.9
    assert_near(found.covered, inside.mean())
    assert found.width.value == pytest.approx((items["high_90"] - items["low_90"]).mean())
    assert own.intervals["95"].covered.value is None
    assert own.intervals["95"].covered.reason
    assert own.abstained == items["abstained"].sum() == 30
    assert own.standard_error.as_json() == {"mean": pytest.approx(0.45), "sd": pytest.approx(0.15)}
    sure = items["uncertainty"] == 0.3
    half = spearmanr(items["score"][sure], items["human_mean"][sure]).statistic
    full = report.dimensions["empathy"].spearman.value
    assert own.most_confident_half.spearman.value == pytest.approx(half)
    assert_near(own.most_confident_half.gain, half - full)
    ratio = np.sqrt((((items["score"] - items["human_mean"]) / items["uncertainty"]) ** 2).mean())
    assert own.error_ratio.value == pytest.approx(ratio)
    assert report.dimensions["empathy"].verdicts is None  # it knows nothing of people's verdicts on two
    for value in ("context_variant", "tone_variant"):
        part = items["setting"] == value
        found = report.slices["setting"][value]["empathy"].intervals["90"]
        assert found.covered.value == pytest.approx(inside[part].mean())
        assert found.width.value == pytest.approx({"context_variant": 4.0, "tone_variant": 0.4}[value])


def test_slices_in_which_intervals_fail_are_named(evaluation):
    said = " ".join(sentences("uncertainty", report=evaluation.report, name="empathy"))
    assert "Not so in setting tone_variant: " in said
    assert "context_variant" not in said  # all of its few groups are covered, as happens where 90 % of all are
    wide = evaluation.report.slices["setting"]["context_variant"]["empathy"].intervals["90"].covered
    assert wide.value == wide.high == 1
    assert wide.low < 0.9

    def said_where(where: str, **covered: float) -> str:
        by_value = evaluation.report.slices["setting"]
        stated = by_value[where]["empathy"].intervals["90"]
        stated = stated.model_copy(update={"covered": replace(stated.covered, **covered)})
        own = by_value[where]["empathy"].model_copy(update={"intervals": {"90": stated}})
        slices = {"setting": {**by_value, where: {"empathy": own}}}
        report = evaluation.report.model_copy(update={"slices": slices})
        return " ".join(sentences("uncertainty", report=report, name="empathy"))

    assert "setting context_variant: 100 %" in said_where("context_variant", low=0.91)  # as in many groups
    # its interval holds 90 %: chance
    assert "tone_variant" not in said_where("tone_variant", value=0.86, low=0.8, high=0.92)


def test_page_terminal_and_card_say_what_the_intervals_are_worth(evaluation):
    report = evaluation.report
    share = report.dimensions["empathy"].uncertainty.intervals["90"].covered
    covered = f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    page = render_page(evaluation.report, evaluation.items, evaluation.dataset)
    assert f"90 % intervals cover {covered} of the mean ratings" in page
    assert "Not so in setting tone_variant: " in page
    assert "It abstains from 30 items" in page
    terminal = printed_at(200, [next(evaluation_views(report))])
    (line,) = [line for line in terminal.splitlines() if "intervals cover" in line]
    assert covered in line
    on_card = covered.replace("[", "(").replace(", ", " to ").replace("]", ")")
    assert f"- empathy: 90 % intervals cover {on_card} of the mean ratings there" in render_card(
        _DESCRIPTION, report.as_json()
    )


def test_verdicts_on_two_responses_are_measured_beside_one_rater(make_dataset, make_tone_judge):
    made, contexts = make_dataset(noise=0.3), {}
    pairs = [replace(pair, context=contexts.setdefault(pair.group_id, pair.context)) for pair in made.pairs]
    dataset = replace(made, pairs=tuple(pairs))
    judge = sure_judge(make_tone_judge(noise=0.4), {"context_variant": 2.0, "tone_variant": 0.2}, (0.3, 0.6))
    bounds = (None, None, 0.9, 0.8, 0.7, 0.5)
    judge.three_way = {"empathy": PreferenceModel(90, 30, 1.2, 0.4, bounds)}  # type: ignore[attr-defined]
    measured = evaluate(judge, dataset, split="test", checks=(), resamples=60)
    own: Any = measured.report.dimensions["empathy"].verdicts
    part = dataset.subset("test")
    first, second, counts = comparisons(part, part.pairs, part.card.dimensions[0])
    items = measured.items.set_index("pair_id").loc[[pair.pair_id for pair in part.pairs]]
    score, error = (items[name].to_numpy() for name in ("score", "uncertainty"))
    found = probabilities(score[first] - score[second], np.hypot(error[first], error[second]), 1.2, 0.4)
    verdict, wrong = verdict_of(counts), found.argmax(1) != verdict_of(counts)
    assert own.n == len(first) > 20
    for name, value in quality(found, verdict).items():
        assert_near(getattr(own, name), value)
    assert own.vs_single_rater.rater.value == pytest.approx(np.nanmean(against_one_rater(found.argmax(1), counts)[1]))
    given = found.max(1) >= 0.8
    assert own.risk_bounds["20"].given.value == pytest.approx(given.mean())
    assert own.risk_bounds["20"].wrong.value == pytest.approx(wrong[given].mean())
    assert own.risk_bounds["5"].wrong.reason == "no verdict is given"
    assert own.curve[-1].as_json() == {"coverage": 1.0, "risk": pytest.approx(wrong.mean())}
    assert [point.coverage for point in own.curve] == sorted({point.coverage for point in own.curve})
    share = 100 * own.risk_bounds["15"].given.value
    said = f"Where at most 15 % of its verdicts may be wrong it gives {share:.0f} % of them"
    page, text = render_page(measured.report, measured.items, measured.dataset), markdown_report(measured.report)
    assert said in page
    assert "share of wrong verdicts on two responses by the share that is given" in page
    assert f"| {own.n} / {own.n_groups} | {own.accuracy.value:.2f} [" in text
    shown = " ".join(printed_at(200, [next(evaluation_views(measured.report))]).split())
    assert f"two responses: Brier score {own.brier.value:.2f} [" in shown


def test_one_standard_error_for_all_items_tells_none_apart(make_dataset, make_tone_judge):
    judge = sure_judge(make_tone_judge(noise=0.4), {"context_variant": 1.0, "tone_variant": 1.0}, (0.4, 0.4))
    measured = evaluate(judge, make_dataset(noise=0.3), split="test", checks=(), resamples=20)
    own: Any = measured.report.dimensions["empathy"].uncertainty
    assert own.most_confident_half.spearman.value is None
    assert own.most_confident_half.gain.reason == "the standard error is the same for all items"
    assert "It does not say which items are harder" in render_page(measured.report, measured.items, measured.dataset)


_DESCRIPTION = {
    "provenance": {"synthetic": True, "dataset": "tones", "target": "mean", "content_hash": "c", "split_hash": "s",
                   "start": {}, "shares": {}, "probe": ""},
    "dimensions": [{"name": "empathy", "minimum": 1, "maximum": 5, "higher_is_better": True}],
    "settings": {
        "backbone": "nano", "dtype": "float32", "attention": "sdpa", "pooling": "response_mean",
        "lora": {"parts": ["language_model"], "rank": 4}, "head_input": {"audio": "none", "functionals": False},
    },
    "head": {"type": "regression"},
    "max_seconds": 10,
    "sampling_rate": 16_000,
    "trained_in_full": [],
}  # fmt: skip


def test_a_judge_that_takes_long_for_good(make_dataset):
    dataset = make_dataset(n_groups=30, noise=0.4)
    judge = long_is_good(0.05)
    found = evaluate(judge, dataset, checks=(), resamples=100)
    report, items = found.report, found.items
    found = report.dimensions["empathy"].length.seconds
    seconds = [probe(pair.response).seconds for pair in dataset.subset("test").pairs]
    for side, column in (("judge", "score"), ("human", "human_mean")):
        assert getattr(found, side).value == pytest.approx(spearmanr(items[column], seconds)[0])
    assert found.difference.value == pytest.approx(found.judge.value - found.human.value)
    assert 0.3 < found.difference.low < found.difference.value < found.difference.high
    words = report.dimensions["empathy"].length.words
    assert words.judge.reason == "all responses are equally long"
    assert report.prompting is None
    assert report.runtime.measured == "wall_clock"


def test_people_who_like_length_too_are_no_bias(make_dataset):
    dataset = make_dataset(n_groups=30, noise=0.4)
    lengths = {pair.pair_id: probe(pair.response).seconds for pair in dataset.pairs}
    ratings = dataset.ratings.assign(score=dataset.ratings["pair_id"].map(lengths) * 20)
    found = evaluate(long_is_good(0.0), replace(dataset, ratings=ratings), checks=(), resamples=50).report
    difference = found.dimensions["empathy"].length.seconds.difference
    assert (difference.low, difference.value, difference.high) == pytest.approx((0, 0, 0), abs=1e-9)


def test_each_distinct_clip_is_opened_once(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.full(4000, 0.1), 8000)
    inside = (tmp_path / "a.wav").read_bytes()
    opened: list[Any] = []
    monkeypatch.setattr(
        "empathy_judge.eval.dimension_report.read_header", lambda source: (opened.append(source), probe(source))[1]
    )
    sources = [tmp_path / "a.wav", tmp_path / "a.wav", inside, tmp_path / "missing.wav"]
    texts = ["Oh no.", "  ", None, "我很抱歉 really"]
    pairs = [
        Pair(f"p{n}", source, response_text=text) for n, (source, text) in enumerate(zip(sources, texts, strict=True))
    ]
    found = list(response_lengths(pairs).values())
    np.testing.assert_equal(found, [(0.5, 2), (0.5, 0), (0.5, math.nan), (math.nan, 5)])
    assert len(opened) == 3
    assert count_words("ありがとう。") == 6


@pytest.mark.parametrize(("sign", "more"), [(1, "higher"), (-1, "lower")])
def test_length_bias_is_said_where_it_is_certain(make_dataset, sign, more):
    dataset = make_dataset(n_groups=30, noise=0.4)

    def reported(noise: float) -> Any:
        judge = long_is_good(noise, sign=sign)
        return evaluate(judge, dataset, checks=(), resamples=100).report.dimensions["empathy"]

    own = reported(0.02)
    (sentence,) = sentences("length", length=own.length)
    found = own.length.seconds
    assert f"scores long responses {more} than people do: with the duration of the response its" in sentence
    assert f"Spearman is {found.judge.value:+.2f}".replace("-", "−") in sentence
    assert sentences("length", length=reported(2.0).length) == []
