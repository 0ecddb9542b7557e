"""What commands print of judges and people."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest
from empathy_judge.commands.shared import Printing
from empathy_judge.eval import rendering
from empathy_judge.eval.agreement_table import measure_agreement
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.views import agreement_views, evaluation_views, listening, table_comparison_views

from .conftest import printed_at
from .test_agreement_table import JUDGES, made, table_of_scores


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


@pytest.mark.parametrize("width", [80, 120])
def test_printed_tables_fit_and_say_why_values_are_missing(tmp_path, width):
    frame = made().assign(dimension="[bold]demonstrating_understanding", dataset="a_long_name")
    found = measure_agreement(table_of_scores(tmp_path, frame), JUDGES, pairs=True, resamples=100)
    text = printed_at(width, agreement_views(found))
    one = found.dimensions[0]
    for part in rendering.ranged(one.judges["half"].system_level.icc_a1).split(" ", 1):  # one below the other
        assert part in text
    assert rendering.ranged(one.judges["half"].like_for_like.difference, rendering.signed) in text
    assert f"{one.people.alpha['interval'].value:.2f}" in text
    assert "a_long_name/[bold]demonstrating_understanding" in "".join(text.split())
    assert "constant: the judge scores are constant" in " ".join(text.split())
    assert "more values or intervals that are missing (see --json)" in " ".join(text.split())


def test_long_names_fold_between_their_parts(tmp_path):
    """At 80 columns; numbers stay on one line, a verdict beside them."""
    long = {"half": "openai:gpt-audio-1.5-mini,samples=5", "perfect": "gemini:gemini-3.1-pro-preview"}
    frame = made().replace({"annotator": long}).assign(dimension="validating_emotions", dataset="lend_an_ear")
    found = measure_agreement(table_of_scores(tmp_path, frame), [*long.values()], resamples=100)
    lines = [line.rstrip() for line in printed_at(80, table_comparison_views(found)).splitlines()]
    first = [line.split("  ")[0].strip() for line in lines[: lines.index("") + 30]]
    for parts in (["lend_an_ear/", "validating_", "emotions"], ["gemini:gemini-", "3.1-pro-preview"]):
        assert any(first[at : at + len(parts)] == parts for at in range(len(first))), first
    own = found.dimensions[0].judges[long["half"]]
    (line,) = [line for line in lines if rendering.ranged(own.like_for_like.difference, rendering.signed) in line]
    assert line.startswith(" openai:gpt-")
    assert rendering.ranged(own.spearman) in line


@pytest.mark.parametrize("width", [80, 40])
def test_names_and_figures_of_all_dimensions_are_whole_in_a_narrow_terminal(tmp_path, width, capsys, monkeypatch):
    """At 80 columns the table fits, with intervals below their values; at 40 nothing is left out for the width."""
    monkeypatch.setenv("COLUMNS", str(width))
    long = {"half": "openai:gpt-audio-1.5-mini,samples=5", "perfect": "gemini:gemini-3.1-pro-preview"}
    frame = made().replace({"annotator": long})
    both = pd.concat([frame.assign(dimension=name) for name in ("warmth", "demonstrating_understanding")])
    found = measure_agreement(table_of_scores(tmp_path, both), [*long.values()], resamples=100)
    assert Printing().tell(found, table_comparison_views) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    tables = [line for line in lines if line.startswith(" ")]
    assert width < 80 or max(map(len, tables)) <= 80
    assert sum(line.startswith(" openai:gpt-") for line in tables) == 1 + 2 + 4
    (own,) = [judge for judge in found.overall.judges if judge.judge == long["half"]]
    value, _, interval = rendering.ranged(own.like_for_like.difference, rendering.signed).partition(" ")
    at = next(number for number, line in enumerate(tables) if interval in line)  # over all dimensions
    assert value in tables[at - 1]
    assert value not in tables[at]


@pytest.mark.parametrize("size", [1e6 / 7, 1e49])
def test_large_scores_leave_names_their_room(tmp_path, size):
    frame = made()
    found = measure_agreement(
        table_of_scores(tmp_path, frame.assign(score=frame["score"] * size)), ["half", "perfect"], resamples=100
    )
    lines = printed_at(80, agreement_views(found)).splitlines()
    own = found.dimensions[0].judges["half"]
    (line,) = [line for line in lines if rendering.number(own.bias.value) in line and line.startswith(" half ")]
    assert rendering.number(own.icc_a1.value) in line
    assert rendering.signed(123_456.0) == "+1.23e+05"
    assert rendering.number(-99_999.0) == "−99999.00"
