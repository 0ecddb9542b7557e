"""What `inspect` prints: counts by split, ceilings by dimension, problems with their places."""

from __future__ import annotations

from typing import Any

from empathy_judge.data_modules.inspection import ClipProblem, Histogram, Inspection, NumberSummary
from empathy_judge.eval.inspection.facts import inspection_tables
from empathy_judge.eval.statistics.agreement import Statistic, as_report
from empathy_judge.eval.statistics.icc import FORMS
from empathy_judge.eval.statistics.krippendorff import DISTANCES
from empathy_judge.eval.statistics.raters import RaterFacts, RaterFlag

from ..conftest import printed_at

COUNTS = ("pairs", "groups", "systems", "context_speakers", "response_speakers", "raters", "ratings", "rated_pairs")


def _found(problems: tuple[ClipProblem, ...] = ()) -> Inspection:
    return Inspection(
        name="mine",
        synthetic=False,
        content_hash="0",
        counts={"all": dict.fromkeys(COUNTS, 7), "test": dict.fromkeys(COUNTS, 3)},
        seconds={"context": NumberSummary(2, 1.0, 1.5, 2.0, 90.0)},
        durations={"context": Histogram((1.0, 2.0), (2,))},
        scores={"empathy": {"scale": "1 to 5", "count": 9, "minimum": 1, "mean": 2.5, "maximum": 5}},
        raters_per_pair={"empathy": NumberSummary(3, 2, 3, 4, 9)},
        problems=problems,
        max_seconds=30.0,
        crossings={"group_id": {"[red]g1": ("test", "train")}},
        split_by=("group_id",),
        unrated=("p9",),
    )


def _statistic(value: float | None) -> dict[str, object]:
    return {"value": value, "low": None, "high": None, "n": 9, "reason": None if value else "too few"}


def _rater(name: str, *flags: RaterFlag) -> RaterFacts:
    severity, agreement = Statistic(-0.75, n=9), Statistic(0.41, 0.2, 0.6, n=9)
    return RaterFacts(name, 9, 9, 3.12, 1.0, severity, 0.87, agreement, 0.66, 4, None, flags)


def _printed(found: Inspection, raters: tuple[RaterFacts, ...] = ()) -> str:
    panel = {
        "spearman": _statistic(0.61),
        "panel_mean": _statistic(0.83),
        "panel_reliability": _statistic(0.69),
        "icc": {form: _statistic(0.1 + 0.01 * number) for number, form in enumerate(FORMS)},
        "alpha": {distance: _statistic(None) for distance in DISTANCES},
    }
    facts: dict[str, Any] = {"reliability": {"empathy": panel}, "ratings": {"empathy": {"raters": as_report(raters)}}}
    names = ("comparisons", "raters", "ties", "couples", "shared_couples", "unanimous_couples")
    facts["preferences"] = {"empathy": dict(zip(names, (31, 4, 2, 17, 9, 6), strict=True))}
    return printed_at(150, inspection_tables(found, facts))


def test_shows_numbers_and_places():
    problems = tuple(ClipProblem("silent", f"p{i}", "response", "-90 dBFS") for i in range(12))
    text = _printed(_found(problems))
    for expected in ("mine (human ratings)", "0.61", "0.83", "2 to 4, median 3", "1.5", "p0, response", "and 2 more"):
        assert expected in text
    assert "[red]g1" in text  # ids come from outside and are no markup
    assert "p9" in text
    assert _line(text, "unanimous couples")[-1] == "6"
    assert _line(text, "ties")[-1] == "2"


def _line(text: str, start: str) -> list[str]:
    """The cells of the line whose first cell begins so."""
    lines = [line.strip("│┃ ").split("│") for line in text.splitlines()]
    return next([cell.strip() for cell in cells] for cells in lines if cells[0].startswith(start))


def test_raters_have_a_line_each_and_their_flags_the_evidence():
    many = tuple(_rater(f"r{number:02d}") for number in range(29))
    text = _printed(_found(), (_rater("[b]odd", RaterFlag("constant", "gave 3 to all")), *many))
    assert _line(text, "[b]odd") == ["[b]odd", "9", "3.12", "−0.75", "0.87", "0.41 [0.20, 0.60]", "66 %"]
    assert _line(text, "constant") == ["constant", "[b]odd", "gave 3 to all"]
    assert _line(text, "r23")[0] == "r23"
    assert "r24" not in text
    assert "and 5 more (--json lists all)" in " ".join(text.split())
