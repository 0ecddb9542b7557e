"""The files of a report and of a comparison: complete, strict, self-contained, and safe with hostile names."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import replace
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
from empathy_judge.eval.pages.report import markdown_comparison, markdown_report, render_comparison, render_page
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import ComparisonReport, Report
from empathy_judge.eval.results import COLUMNS
from empathy_judge.eval.views import comparison_views, evaluation_views

from ..conftest import HOSTILE, AnyJudge, Page, printed_at
from .browser import check_page, measured, needs_chromium


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


def rows_of(markdown: str, table: int = 0) -> list[list[str]]:
    """Cells of a table."""
    lines = [part for part in markdown.split("\n\n") if part.startswith("|")][table].splitlines()
    return [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in lines]


def test_the_markdown_holds_agreement_verdict_and_listening(two_dimensions):
    text = markdown_report(two_dimensions.report)
    rows = rows_of(text)
    assert {len(row) for row in rows[:4]} == {8}
    assert [row[0] for row in rows[2:4]] == ["empathy", "warmth"]
    own = two_dimensions.report.dimensions["empathy"]
    assert rows[2][2] == rendering.ranged(own.spearman)
    assert rows[2][4] == rendering.percent(own.share_of_panel_ceiling.value)
    assert own.verdict.text in text
    assert "synthetic ratings, not given by people" in text
    assert text.count("| empathy |") == 1 + 2 + 4
    items, systems = rows_of(text, 1)[2:4]
    assert items[:4] == ["empathy", "items", str(own.n_items), rendering.ranged(own.icc_a1)]
    level = own.system_level
    assert systems[1:3] == ["systems", str(level.n_systems)]
    assert systems[3:6] == [rendering.ranged(own) for own in (level.icc_a1, level.icc_c1, level.bias)]
    limits = [rendering.signed(limit.value) for limit in (level.loa_lower, level.loa_upper)]
    assert systems[6] == " to ".join(limits)
    check = two_dimensions.report.checks["response_only"]["empathy"]
    assert f"| {rendering.ranged(check.drop)} |" in text


def test_names_do_not_break_a_markdown_table(make_dataset, make_tone_judge):
    judge, hostile = make_tone_judge(0.4), "a|b\n| --- |\n<img src=x> [x](http://x) `y`"
    judge.name = hostile
    data = make_dataset(noise=0.4)
    data = replace(data, card=replace(data.card, name=hostile))
    report = evaluate(judge, data, split="test", checks=(), resamples=10).report
    text = markdown_report(report)
    assert {len(row) for row in rows_of(text)} == {8}
    assert {len(row) for row in rows_of(text, 1)} == {7}
    assert "<img" not in text.replace("\\<", "")
    assert "[x](" not in text
    text = markdown_comparison([report], {})
    assert "<img" not in text.replace("\\<", "")


def test_judges_are_listed_by_cluster(make_dataset, make_tone_judge):
    good, other, constant = make_tone_judge(0.1), make_tone_judge(3.0), ConstantJudge({"empathy": 3.0})
    good.name, other.name = "good", "noisy"
    found = compare([constant, other, good], make_dataset(noise=0.4), split=None, checks=(), resamples=200)
    text = markdown_comparison(found.reports, found.rankings)
    rows = rows_of(text)
    assert [(row[1], row[2]) for row in rows[2:]] == [("1", "good"), ("2", "noisy"), (rendering.NONE, "constant")]
    assert rows[4][6].startswith("Not ranked: ")
    reported = found.reports[2].dimensions["empathy"].spearman
    assert rows[2][4] == rendering.ranged(reported)
    panel = rows_of(text, 1)[2:]
    assert [row[1:3] for row in panel[::2]] == [[name, "items"] for name in ("constant", "noisy", "good")]
    assert panel[0][4:6] == [rendering.NONE, rendering.NONE]
    assert panel[4][4] == rendering.ranged(found.reports[2].dimensions["empathy"].icc_a1)


# ---------------------------------------------------------------- in a real browser

CHECKS = ("response_only", "silent", "context_swapped", "low_pass", "gain")
LONG = "a/judge/with/a/rather/long/path/" + "x" * 120


@pytest.mark.slow
@needs_chromium
def test_a_report_in_a_browser(make_dataset, make_tone_judge, tmp_path):
    dataset = make_dataset(noise=0.4, dimensions=("empathy", "warmth"))
    pairs = tuple(
        replace(pair, system_id=f"{pair.system_id}-{'y' * 60}", situation=f"{pair.situation} {'z' * 200}")
        for pair in dataset.pairs
    )
    judge = make_tone_judge(noise=0.4, dimensions=("empathy", "warmth"))
    judge.name = LONG
    found = evaluate(judge, replace(dataset, pairs=pairs), split="test", checks=CHECKS, resamples=20, command="w" * 300)
    found.save(tmp_path / "report")
    page = tmp_path / "report" / "index.html"
    durations = check_page(page, tmp_path)
    assert len(durations) == 2 * 2 * 10
    np.testing.assert_allclose(min(durations), 0.05, atol=0.02)
    assert min(durations) > 0.04
    text = page.read_text(encoding="utf-8")
    assert '<meta name="viewport" content="width=device-width' in text  # a phone would lay it out 980 wide
    start = text.index("base64,") + 7
    page.write_text(f"{text[:start]}AAAA{text[start + 4 :]}", encoding="utf-8")
    assert -1 in measured(page, "light", tmp_path)[0][0]["players"]  # the test sees a player that does not load


@pytest.mark.long
@needs_chromium
def test_a_comparison_in_a_browser(make_dataset, make_tone_judge, tmp_path):
    judges = [make_tone_judge(noise=noise) for noise in (0.1, 0.12, 1.0, 3.0)]
    for number, judge in enumerate(judges):
        judge.name = f"{number}-{LONG}"
    compare(judges, make_dataset(noise=0.4), split=None, resamples=50).save(tmp_path / "comparison")
    check_page(tmp_path / "comparison" / "index.html", tmp_path)
