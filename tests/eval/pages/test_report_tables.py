"""A report as CSV and Markdown: every statistic once, nothing that breaks a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from empathy_judge.eval import rendering
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import Results, evaluate
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.pages.report import markdown_comparison, markdown_report


@pytest.fixture
def evaluation(make_dataset, make_tone_judge) -> Results:
    dimensions = ("empathy", "warmth")
    data = make_dataset(noise=0.4, dimensions=dimensions)
    checks = ("response_only", "gain", "low_pass", "flat_prosody")
    return evaluate(make_tone_judge(0.4, dimensions), data, split="test", checks=checks, resamples=50)


def statistics(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        if "undefined_resamples" in tree:
            yield tree
        else:
            for branch in tree.values():
                yield from statistics(branch)
    elif isinstance(tree, list):
        for branch in tree:
            yield from statistics(branch)


def test_every_statistic_of_the_report_is_one_row(evaluation):
    table = evaluation.to_frame()
    key = ["judge", "dimension", "slice", "check", "statistic"]
    assert not table.duplicated(key).any()
    assert set(table["judge"]) == {"tone judge"}
    whole: Any = evaluation.report
    parts = [whole.as_json()[part] for part in ("dimensions", "checks", "slices", "voice_and_words")]
    assert len(table) == sum(1 for part in parts for _ in statistics(part))
    found = table.fillna({"slice": "", "check": ""}).set_index(key[1:])
    for name, own in whole.dimensions.items():
        for where, wanted in {
            ("", "", "spearman"): own.spearman,
            ("", "", "ceiling.panel_mean"): own.ceiling.panel_mean,
            ("", "", "system_level.spearman"): own.system_level.spearman,
            ("", "response_only", "drop"): whole.checks["response_only"][name].drop,
            ("setting=tone_variant", "", "spearman"): whole.slices["setting"]["tone_variant"][name].spearman,
        }.items():
            row: Any = found.loc[(name, *where)]
            assert (row.value, row.low, row.n) == (wanted.value, wanted.low, wanted.n)


def rows_of(markdown: str, table: int = 0) -> list[list[str]]:
    """Cells of a table."""
    lines = [part for part in markdown.split("\n\n") if part.startswith("|")][table].splitlines()
    return [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in lines]


def test_the_markdown_holds_agreement_verdict_and_listening(evaluation):
    text = markdown_report(evaluation.report)
    rows = rows_of(text)
    assert {len(row) for row in rows[:4]} == {8}
    assert [row[0] for row in rows[2:4]] == ["empathy", "warmth"]
    own = evaluation.report.dimensions["empathy"]
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
    check = evaluation.report.checks["response_only"]["empathy"]
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


@pytest.mark.parametrize(
    ("value", "high", "shown"),
    [(4.0, 9.0, "4.00 2.31 to 9.00"), (4.0, None, "4.00 2.31 and more"), (None, None, "at least 2.31 why")],
)
def test_an_interval_without_an_upper_end_is_said_on_the_page(value, high, shown):
    template = '{% from "pieces" import statistic %}{{ statistic(s) }}'
    page = rendering.render(template, s={"value": value, "low": 2.31, "high": high, "reason": "why"})
    assert re.sub(r"\s+|<[^>]+>", " ", page).split() == shown.split()
