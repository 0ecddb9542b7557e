"""How many contexts tell two systems apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.frame import Frame, read_frame
from empathy_judge.eval.plan_systems import plan_systems

# Differences of two systems are 0.5 and 1.5 by turns: a spread of 0.52 over 16 contexts
ROWS = [
    f"{system}{n},{who},warmth,{2 + n % 4 / 4 + lead * (0.5 + n % 2) + off},c{n},{system}"
    for system, lead in (("v1", 0), ("v2", 1))
    for n in range(16)
    for who, off in (("ann", 0), ("bob", 0.25 * (n % 3)))
]


def pilot(folder: Path, rows: list[str], header: str = "item,annotator,dimension,score,group,system") -> Frame:
    (folder / "pilot.csv").write_text("\n".join([header, *rows]) + "\n")
    return read_frame(folder / "pilot.csv", {})


def test_contexts_follow_from_the_spread_of_differences(tmp_path):
    frame = pilot(tmp_path, ROWS)
    (row,) = plan_systems(frame, 0.5, 0.8)
    assert row.spread == pytest.approx(0.5 * (16 / 15) ** 0.5)
    assert (row.n_systems, row.ratings_per_context) == (2, 2.0)
    # d = 0.968: 10.45 pairs by `TTestPower` of statsmodels 0.15.0
    assert (row.contexts, row.ratings_per_system) == (11, 22)
    assert plan_systems(frame, 0.5, 0.8, ["clarity"]) == ()


def test_a_pilot_that_cannot_say_is_refused(tmp_path):
    with pytest.raises(UserError, match="--systems 0: expected rating points above 0"):
        plan_systems(pilot(tmp_path, ROWS), 0, 0.8)
    few = [row for row in ROWS if row.split(",")[4] in ("c0", "c1", "c2", "c3")]
    with pytest.raises(UserError, match="no two systems share 5 rated groups on warmth"):
        plan_systems(pilot(tmp_path, few), 0.5, 0.8)
    without = [row.rpartition(",")[0] for row in ROWS]
    with pytest.raises(UserError, match="names no systems; expected system_id"):
        plan_systems(pilot(tmp_path, without, "item,annotator,dimension,score,group"), 0.5, 0.8)
