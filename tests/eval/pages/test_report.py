"""The files of a report and of a comparison: complete, strict, self-contained, and safe with hostile names."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval import rendering
from empathy_judge.eval.compare import Comparison, compare
from empathy_judge.eval.evaluate import Results, evaluate
from empathy_judge.eval.judges import score_table
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.listening import check_view
from empathy_judge.eval.pages import charts
from empathy_judge.eval.pages.report import render_comparison, render_page
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import ComparisonReport, Report
from empathy_judge.eval.results import COLUMNS
from empathy_judge.eval.views import comparison_views, evaluation_views, listening
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..conftest import HOSTILE, AnyJudge, Page, check_of, printed_at, statistic


@pytest.fixture
def evaluation(make_dataset, make_tone_judge) -> Results:
    return evaluate(make_tone_judge(noise=0.4), make_dataset(noise=0.4), split="test", resamples=50)


def test_the_files_hold_the_report_the_items_and_the_page(evaluation, tmp_path):
    out = tmp_path / "new" / "report"
    evaluation.save(out)
    assert sorted(path.name for path in out.iterdir()) == [
        ".empathy-judge", "agreement.json", "agreement.md", "index.html", "items.csv", "results.csv",
    ]  # fmt: skip
    assert read_report(out / "agreement.json", Report) == evaluation.report
    items = pd.read_csv(out / "items.csv")
    assert len(items) == 60
    np.testing.assert_array_equal(items["score"], evaluation.items["score"])
    assert (out / "index.html").read_text(encoding="utf-8") == render_page(
        evaluation.report, evaluation.items, evaluation.dataset
    )


def test_the_hashes_of_a_signature_are_told_from_those_that_they_are_of(evaluation, tmp_path):
    evaluation.save(tmp_path)
    report = evaluation.report
    for name, whole in (("data:tones", report.dataset.content_hash), ("split:test", report.split_hash)):
        assert f"{name}@{hashlib.sha256(whole.encode()).hexdigest()[:8]}|" in report.signature
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8")).text
    assert "the signature has hashes of those of data and split below: other digits for the same" in page
    told = "(the signature has hashes of these, with other digits)"
    assert told in " ".join((tmp_path / "agreement.md").read_text(encoding="utf-8").split())


def test_a_report_with_nan_is_refused_before_anything_is_written(evaluation, tmp_path):
    evaluation.report.provenance["loss"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        evaluation.save(tmp_path / "report")
    assert list(tmp_path.iterdir()) == []


def test_the_page_says_what_the_numbers_are(evaluation):
    start = {"empathy": {"probe": 0.5, "added": -0.02, "low": -0.1, "high": 0.04}}
    evaluation.report.provenance["provenance"] = {"start": start}
    page = Page(render_page(evaluation.report, evaluation.items, evaluation.dataset))
    own: Any = evaluation.report.dimensions["empathy"]
    text = page.text
    value, low, high = (f"{end:.2f}" for end in (own.spearman.value, own.spearman.low, own.spearman.high))
    assert f"with a Spearman correlation of {value} (95 % interval {low} to {high})" in text
    assert f"{100 * own.share_of_panel_ceiling.value:.0f} %" in text
    assert "training began at a probe with Spearman 0.500 and added -0.020 (90 % interval -0.100 to +0.040)" in text
    worst = (evaluation.items["score"] - evaluation.items["human_mean"]).abs().idxmax()
    disagreements = text[text.index("Largest disagreements") :]
    assert evaluation.items["pair_id"][worst] == re.findall(r"pair-\d+", disagreements)[0]
    # checks, scatter, calibration, by setting, by system; the ratings of each item that is heard
    assert page.tags.count("svg") == 5 + 10
    page.assert_alone()


@pytest.mark.parametrize("lowest", [0.0, -0.3, -0.6, -0.7, -1.0])
def test_labels_of_an_axis_stay_apart(lowest, monkeypatch):
    """Quarters such as -0.25 have labels so wide that they touched where the axis reached to -0.6 or so."""
    labels = []
    draw = charts.svg

    def drawn(figure, alt):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        (axes,) = figure.axes
        ticks = [label for label in axes.get_xticklabels() if axes.viewLim.x0 <= label.get_position()[0] <= 1]
        boxes = sorted((label.get_window_extent(canvas.get_renderer()) for label in ticks), key=lambda box: box.x0)
        labels.extend((72 * box.x0 / figure.dpi, 72 * box.x1 / figure.dpi) for box in boxes)
        return draw(figure, alt)

    monkeypatch.setattr(charts, "svg", drawn)
    charts.rows_with_intervals("plot", [("medium_length_judge", statistic(0.5, lowest, 0.7))], ("ceiling", 0.8))
    assert len(labels) >= 3
    assert min(after[0] - before[1] for before, after in pairwise(labels)) > 8  # points, at letters of 10


def test_a_check_that_was_not_run_is_not_called_undefined():
    full, constant = statistic(0.5, 0.3, 0.7), statistic(None, None, None)
    rows = [("Full input", full), ("Both silent", constant), ("Context swapped", replace(constant, n=0))]
    plot = charts.rows_with_intervals("plot", rows, ("ceiling", 0.8), bars=True)
    assert (plot.count(">undefined<"), plot.count(">not run<")) == (1, 1)
    no_scores = [(label, replace(constant, n=0)) for label, _ in rows[:1]]
    assert ">undefined<" in charts.rows_with_intervals("plot", no_scores, ("ceiling", 0.8), bars=True)
    assert ">undefined<" in charts.rows_with_intervals("of a slice", no_scores, ("all items", 0.8))


def test_players_hold_their_clips(make_dataset, make_tone_judge):
    dataset = make_dataset(noise=0.4)
    found = evaluate(make_tone_judge(noise=0.4), dataset, split="test", checks=(), resamples=10)
    page = Page(render_page(found.report, found.items, found.dataset))
    players = [player["src"] for player in page.all("audio")]
    assert len(players) == 20
    worst = (found.items["score"] - found.items["human_mean"]).abs().idxmax()
    (pair,) = (pair for pair in dataset.pairs if pair.pair_id == found.items["pair_id"][worst])
    heard, rate = soundfile.read(io.BytesIO(base64.b64decode(players[1].removeprefix("data:audio/wav;base64,"))))
    np.testing.assert_allclose(heard, pair.response.samples, atol=1e-4)  # type: ignore[union-attr]
    assert rate == 8000
    assert "under its licence. They stand in this file" in page.text


@pytest.mark.parametrize("synthetic", [True, False])
def test_synthetic_ratings_are_labelled_and_human_ones_are_not(synthetic, make_dataset, make_tone_judge):
    found = evaluate(make_tone_judge(), make_dataset(synthetic=synthetic), split=None, resamples=10)
    page = Page(render_page(found.report, found.items, found.dataset))
    assert ("Synthetic data." in page.text) is synthetic
    assert ("banner" in [paragraph.get("class") for paragraph in page.all("p")]) is synthetic
    title = next(evaluation_views(found.report)).title or ""  # type: ignore[union-attr]
    assert ("(synthetic ratings)" in title) is synthetic


def test_hostile_names_are_text_on_the_page(make_dataset, make_tone_judge):
    dataset = make_dataset(noise=0.4)
    pairs = tuple(
        replace(
            pair, pair_id=f"{HOSTILE}-{number}", group_id=HOSTILE + pair.group_id, system_id=f"{HOSTILE}{number % 3}"
        )
        for number, pair in enumerate(dataset.pairs)
    )
    names = dict(zip((pair.pair_id for pair in dataset.pairs), (pair.pair_id for pair in pairs), strict=True))
    ratings = dataset.ratings.assign(
        pair_id=dataset.ratings["pair_id"].replace(names), rater_id=HOSTILE + dataset.ratings["rater_id"]
    )
    card = replace(dataset.card, name=HOSTILE, source=HOSTILE, licence=HOSTILE)
    judge = make_tone_judge(noise=0.4)
    judge.name = HOSTILE
    judge.record = {HOSTILE: HOSTILE}
    hostile = replace(dataset, card=card, pairs=pairs, ratings=ratings)
    found = evaluate(judge, hostile, split="test", resamples=10, command=HOSTILE)
    page = Page(render_page(found.report, found.items, found.dataset))
    page.assert_alone()
    # Heading, title, dataset, command, provenance (twice), slices, systems, worst items, raters.
    assert page.text.count(HOSTILE) >= 20


def test_undefined_numbers_show_their_reason(make_dataset, make_tone_judge):
    def with_contexts_alone(pairs: Sequence[Pair]) -> pd.DataFrame:
        if all(pair.context for pair in pairs):
            return make_tone_judge().score(pairs)
        nothing = np.full((len(pairs), 1), np.nan)
        return score_table(pairs, ("empathy",), nothing, statuses=["needs a context"] * len(pairs))

    found = evaluate(AnyJudge(with_contexts_alone), make_dataset(n_groups=4), split="test", resamples=10)
    text = Page(render_page(found.report, found.items, found.dataset)).text
    assert "No score: 12 x needs a context." in text
    assert "nothing is left to order the items by: the judge scores are constant" in text
    assert "no interval: 3 groups, at least 5 needed" in text
    found = evaluate(ConstantJudge({"empathy": 3.0}), make_dataset(noise=0.2), split="test", resamples=10)
    text = Page(render_page(found.report, found.items, found.dataset)).text
    assert "No agreement can be stated: the judge scores are constant." in text


def test_many_kinds_of_failure_are_counted_not_all_named():
    statuses = {f"clip {number} is damaged": 1 for number in range(40)}
    text = rendering.counted_statuses({"refused": 7} | statuses)
    assert text.startswith("7 x refused; 1 x clip 0 is damaged; ")
    assert text.endswith("; and 36 more kinds (see items.csv)")


@pytest.mark.parametrize(
    ("name", "left", "drop", "mark"),
    [
        ("response_only", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "drops"),
        ("response_only", statistic(0.78, 0.70, 0.85), statistic(0.02, -0.02, 0.06), "no clear drop"),
        ("context_swapped", statistic(0.74, 0.68, 0.80), statistic(0.06, 0.03, 0.09), "small drop"),
        ("context_swapped", statistic(0.85, 0.80, 0.90), statistic(-0.05, -0.09, -0.01), "no clear drop"),
        ("silent", statistic(0.05, -0.10, 0.20), statistic(0.75, 0.60, 0.90), "drops"),
        ("silent", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "not all of it"),
        ("response_only", statistic(0.40, None, None), statistic(0.40, None, None), "no interval"),
        ("response_swapped", statistic(0.46, 0.10, 0.80), statistic(0.34, -0.06, 0.74), "not clear"),
        ("low_pass", statistic(0.78, 0.70, 0.85), statistic(0.02, -0.02, 0.06), "stays"),
        ("low_pass", statistic(0.72, 0.60, 0.85), statistic(0.08, -0.02, 0.18), "not clear"),
        ("low_pass", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "drops"),
    ],
)
def test_the_verdict_on_a_listening_check(name, left, drop, mark):
    check = check_of(name, left, drop)
    view = check_view(name, check, statistic(0.8, 0.75, 0.85))
    assert view.mark == mark
    assert f"{left.value:.2f}" in view.text
    assert "Scores move by 0.50 rating points on average, 62 % of their standard deviation;" in view.text
    assert "95 % of them by no more than 1.20." in view.text


@pytest.mark.parametrize(("p95", "mark", "tone"), [(0.19, "stays", "good"), (0.21, "moves", "warn")])
def test_scores_that_must_stay_are_held_against_their_tolerance(p95, mark, tone):
    """Of a standard deviation of 0.8 points, a quarter: 0.2 points."""
    check = check_of("gain", statistic(0.8, 0.7, 0.9), statistic(0.0, -0.1, 0.1), p95=p95)
    view = check_view("gain", check, statistic(0.8, 0.75, 0.85))
    assert (view.mark, view.tone) == (mark, tone)
    assert f"move by no more than {p95 / 0.8:.0%} of their".replace("%", " %") in view.text


def test_the_terminal_table_is_short_and_plain(make_dataset, make_tone_judge):
    judge = make_tone_judge(noise=0.4, dimensions=("empathy", "warmth"))
    judge.name = "[bold]judge[/bold]"
    found = evaluate(judge, make_dataset(noise=0.4, dimensions=("empathy", "warmth")), split="test", resamples=50)
    lines = printed_at(90, [next(evaluation_views(found.report))]).splitlines()
    assert len(lines) <= 18
    assert "[bold]judge[/bold] on tones, split test (synthetic ratings)" in lines[0]
    own = found.report.dimensions["warmth"].spearman
    row = next(line for line in lines if re.match(r"\W*Spearman\b", line))
    assert f"{own.value:.2f} [{own.low:.2f}, {own.high:.2f}]" in row


def test_the_terminal_says_the_verdict_whether_it_listens_and_which_checks_were_not_possible(
    make_dataset, make_tone_judge
):
    alone = make_dataset(noise=0.4)
    alone = replace(
        alone, pairs=tuple(replace(pair, context=(), situation=None, context_text=None) for pair in alone.pairs)
    )
    found = evaluate(make_tone_judge(noise=0.4), alone, split="test", resamples=50, checks=("response_only", "silent"))
    said = [view for view in evaluation_views(found.report) if isinstance(view, str)]
    assert "Not possible, as no pair has a context: response only." in said
    (verdict,) = (line for line in said if line.startswith(found.report.dimensions["empathy"].verdict.text))
    assert verdict.endswith(listening(found.report, "empathy").text)


# ---------------------------------------------------------------- comparisons


@pytest.fixture
def comparison(make_dataset, make_tone_judge) -> Comparison:
    judges: list[Any] = [make_tone_judge(noise) for noise in (3.0, 0.1, 0.1)]
    for judge, name in zip(judges, (HOSTILE, "first", "second"), strict=True):
        judge.name = name
    return compare(
        [*judges, ConstantJudge({"empathy": 3.0})], make_dataset(noise=0.4), split=None, checks=(), resamples=200
    )


def test_the_files_hold_the_numbers_the_table_and_the_page(comparison, tmp_path):
    comparison.save(tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".empathy-judge", "comparison.json", "comparison.md", "index.html", "results.csv"]
    assert read_report(tmp_path / "out" / "comparison.json", ComparisonReport) == comparison.report
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(results) == list(comparison.to_frame()) == list(COLUMNS)
    assert len(results) == len(comparison.to_frame())
    own = results.set_index(["judge", "statistic"]).loc[("first against second", "difference")]
    pairs = {(one.first, one.second): one for one in comparison.rankings["empathy"].comparisons}
    assert own.value.item() == pytest.approx(pairs["first", "second"].difference.value)


def test_the_page_boxes_clusters_and_compares_every_two(comparison):
    page = Page(render_comparison(comparison.reports, comparison.rankings))
    ranking = comparison.rankings["empathy"]
    assert [judge.cluster for judge in ranking.judges] == [1, 1, 2, None]
    assert page.tags.count("svg") == 1
    page.assert_alone()
    assert page.text.count("Cluster ") == 2
    assert page.text.index("Cluster 1") < page.text.index("Cluster 2") < page.text.index("Without a rank")
    table = page.text[page.text.index("Judge against judge") : page.text.index("Differences of Spearman")]
    assert len(re.findall(r"\b(yes|no)\b", table)) == 3  # the constant judge is in none
    told_apart = [own for own in ranking.comparisons if own.p_adjusted is not None and own.p_adjusted < 0.05]
    assert table.count("yes") == len(told_apart) == 2
    assert "clearly worse. 1 judge has no rank." in page.text
    assert page.text.count(HOSTILE) >= 4
    # The difference is shown from the better judge
    assert "\N{MINUS SIGN}" not in table.split(HOSTILE)[1]  # after a clear difference: value and interval above 0


def test_a_ceiling_of_some_items_only_says_whose_they_are(comparison, make_dataset, make_tone_judge):
    """Judges that scored the same items share a ceiling; elsewhere terminal and page show that of the best judge."""
    shown = printed_at(120, comparison_views(comparison.reports, comparison.rankings))
    assert re.search(r"^\s*noise ceiling +0\.\d", shown, re.MULTILINE)
    dataset, partial, whole = make_dataset(noise=2.5), make_tone_judge(1.5), make_tone_judge(0.1)
    partial.name, score = "partial", partial.score
    partial.score = lambda pairs: score(pairs[: len(pairs) // 2])
    found = compare([partial, whole], dataset, split=None, checks=(), resamples=50)
    given, best = (report.dimensions["empathy"].ceiling.panel_mean.value for report in found.reports)
    assert f"{given:.2f}" != f"{best:.2f}"
    assert found.rankings["empathy"].judges[0].judge == whole.name
    shown = printed_at(120, comparison_views(found.reports, found.rankings))
    assert re.search(rf"^\s*noise ceiling, items of {whole.name} +{best:.2f} ", shown, re.MULTILINE)
    page = render_comparison(found.reports, found.rankings)
    assert f"noise ceiling {best:.2f}" in page
    assert "on the items of the judge at the top" in Page(page).text


def words(given: Any) -> str:
    return " ".join(rendering.sentences("ranking", ranking=given))


def ranking(*judges: tuple[str, int | None, float | None], needed: int | None = 180) -> Any:
    own: Any = {
        "groups_needed": needed, "n_groups": 40, "first": judges[0][0], "second": judges[-1][0], "p_adjusted": 0.3,
    }  # fmt: skip
    comparisons: list[dict[str, Any]] = [own] if len(judges) > 1 else []
    found: Any = [
        {"judge": name, "cluster": cluster, "spearman": spearman, "reason": None if cluster else "constant"}
        for name, cluster, spearman in judges
    ]
    return {"judges": found, "comparisons": comparisons}


def test_judges_of_one_cluster_in_words():
    text = words(ranking(("a", 1, 0.7), ("b", 1, 0.68)))
    assert text.startswith("a and b form one cluster: a is highest (Spearman 0.70), but not clearly better than b.")
    assert "180" in text
    assert "40" in text
    # A cluster may hold a judge that is told apart from the best
    given = ranking(("a", 1, 0.7), ("b", 1, 0.68), ("c", 1, 0.6), ("d", 2, 0.2))
    shared: Any = {"groups_needed": None, "n_groups": 40}
    pairs = {("a", "b"): 0.3, ("a", "c"): 0.01, ("b", "c"): 0.2, ("a", "d"): 0.01}
    given["comparisons"] = [{"first": a, "second": b, "p_adjusted": p, **shared} for (a, b), p in pairs.items()]
    assert words(given) == (
        "a, b and c form one cluster: a is highest (Spearman 0.70), but not clearly better than b. All others are "
        "clearly worse."
    )


def test_p_values_are_never_zero():
    assert [rendering.p_value(p) for p in (None, 0.0002, 0.0123)] == ["—", "<0.001", "0.012"]
