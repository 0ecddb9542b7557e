"""What `inspect` prints: counts by split, ceilings by dimension, problems with their places."""

from __future__ import annotations

from empathy_judge.data_modules.inspection import Inspection, Problem, Summary
from empathy_judge.eval.inspection_tables import inspection_tables
from rich.console import Console

COUNTS = ("pairs", "groups", "systems", "context_speakers", "response_speakers", "raters", "ratings", "rated_pairs")


def _found(problems: tuple[Problem, ...] = ()) -> Inspection:
    return Inspection(
        name="mine",
        synthetic=False,
        content_hash="0",
        counts={"all": dict.fromkeys(COUNTS, 7), "test": dict.fromkeys(COUNTS, 3)},
        seconds={"context": Summary(2, 1.0, 1.5, 2.0, 90.0)},
        scores={"empathy": {"scale": "1 to 5", "count": 9, "minimum": 1, "mean": 2.5, "maximum": 5}},
        raters_per_pair={"empathy": Summary(3, 2, 3, 4, 9)},
        problems=problems,
        max_seconds=30.0,
        crossings={"group_id": {"[red]g1": ("test", "train")}},
        split_by=("group_id",),
        unrated=("p9",),
    )


def _statistic(value: float | None) -> dict[str, object]:
    return {"value": value, "low": None, "high": None, "n": 9, "reason": None if value else "too few"}


def _printed(found: Inspection) -> str:
    panel = {"spearman": _statistic(0.61), "panel_mean": _statistic(0.83), "krippendorff_alpha": _statistic(None)}
    console = Console(width=100)
    with console.capture() as captured:
        for table in inspection_tables(found, {"empathy": panel}):
            console.print(table)
    return captured.get()


def test_shows_numbers_and_places() -> None:
    problems = tuple(Problem("silent", f"p{i}", "response", "-90 dBFS") for i in range(12))
    text = _printed(_found(problems))
    for expected in ("mine (human ratings)", "0.61", "0.83", "2 to 4, median 3", "1.5", "p0, response", "and 2 more"):
        assert expected in text
    assert "[red]g1" in text  # ids come from outside and are no markup
    assert "p9" in text


def test_says_when_nothing_is_wrong() -> None:
    found = _found()
    clean = Inspection(**{**found.__dict__, "crossings": {}, "unrated": ()})
    assert "nothing" in _printed(clean)
