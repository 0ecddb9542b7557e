"""What terminals, pages and tables show of how judges were asked, and when they show nothing."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from empathy_judge.eval.compare import Comparison, compare
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.pages.report import write_comparison, write_report
from empathy_judge.eval.rendering import dollars, seconds, sentences
from empathy_judge.eval.views import comparison_views, notes, prompted_rows
from rich.console import Console

from .test_prompted_report import ANSWERS, asked_judge, comparing_judge, long_is_good, told


def shown(found: Comparison, width: int = 120) -> str:
    """What the terminal prints, on one line."""
    with Console(width=width, record=True, file=io.StringIO()) as console:
        for view in comparison_views(found.reports, found.rankings):
            console.print(view, markup=False)
    return " ".join(console.export_text().split())


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Two answers each to 40 pairs, at a cent for three questions."""
    return {f"pair-{number}": told([number % 5, (number + number % 2) % 5]) for number in range(100)}


def test_a_comparison_shows_what_asking_took(make_dataset, make_judge, answers, tmp_path):
    dataset = make_dataset(n_groups=24, noise=0.4)
    found = compare(
        [asked_judge(answers), comparing_judge(1.0), make_judge(0.4)], dataset, split="test", probes=(), resamples=50
    )
    asked, comparing, tone = prompted_rows(found.reports)
    icc = found.reports[0]["dimensions"]["empathy"]["asked"]["repeats"]["icc"]["value"]
    assert asked[5].startswith(f"{icc:.2f} [")
    assert asked == ["asked", "empathy", "30.00", "6", "0 %", asked[5], "—", "—"]
    assert comparing[5:] == ["—", "100 % [100, 100]", "100 % [100, 100]"]
    assert (tone[0], tone[2], tone[4:]) == ("tone judge", "—", ["—"] * 4)
    for text in (shown(found), shown(found, 80)):
        assert "what prompting took" in text
        assert "Seconds: what requests took" in text
    write_comparison(found.reports, found.rankings, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("What prompting took") == 1
    assert ">30.00<" in page
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert f"| asked | empathy | 30.00 | 6 | 0 % | {asked[5]} | — | — |" in table
    numbers = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert [report["asking"] is None for report in numbers["reports"]] == [False, False, True]


def test_a_report_tells_how_the_judge_was_asked(make_dataset, tmp_path):
    dataset = make_dataset(n_groups=8, per_group=1, noise=0.4)
    found = evaluate(asked_judge(ANSWERS), dataset, split="test", probes=(), resamples=50)
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
    write_report(found.report, found.items, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    table = (tmp_path / "agreement.md").read_text(encoding="utf-8")
    assert "How it was prompted" in page
    assert "Cost: $0.17 in all, $28.33 per 1,000 pairs." in page
    assert "The model changed while it was asked: m-1 (5 pairs)" in table
    statistics = (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert "asked,empathy,,,asked.repeats.within_sd,0.70" in statistics


@pytest.mark.parametrize(("sign", "more"), [(1, "higher"), (-1, "lower")])
def test_length_bias_is_said_where_it_is_certain(make_dataset, sign, more):
    dataset = make_dataset(n_groups=30, noise=0.4)

    def reported(noise: float) -> Any:
        judge = long_is_good(noise, sign=sign)
        return evaluate(judge, dataset, split="test", probes=(), resamples=100).report["dimensions"]["empathy"]

    own = reported(0.02)
    (sentence,) = sentences("length", length=own["length"])
    found = own["length"]["seconds"]
    assert f"scores long responses {more} than people do: with the duration of the response its" in sentence
    assert f"Spearman is {found['judge']['value']:+.2f}".replace("-", "−") in sentence
    assert sentences("length", length=reported(2.0)["length"]) == []


def test_amounts_and_times():
    assert [dollars(amount) for amount in (None, 0.0, 0.0042, 1234.5)] == ["—", "0.00", "0.0042", "1,234.50"]
    assert [seconds(value) for value in (0.0, 0.0001, 0.25, 9.94, 12345.0)] == [
        "0", "<0.01", "0.25", "9.9", "12,345",
    ]  # fmt: skip
