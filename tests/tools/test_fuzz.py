"""Damaged files are accepted or refused in one line, never more than that: `tools/fuzz` does the damage."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ..pages import ROOT

PROGRAM = ROOT / "tools" / "fuzz"


def fuzz(*words: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and what it prints as JSON."""
    ran = subprocess.run([sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, timeout=600)
    return ran.returncode, json.loads(ran.stdout)


@pytest.mark.long
def test_no_mutation_does_harm():
    """`python tools/fuzz` runs 10,000 others."""
    code, found = fuzz("--mutations", "80", "--seed", "1000000")
    assert found["failures"] == []
    assert code == 0
    counts = found["outcomes"]
    assert sum(sum(count.values()) for count in counts.values()) == 80
    assert {"decode", "dataset", "import table", "import label-studio", "import empathy-eval"} <= set(counts)
    for outcome in ("accepted", "refused"):
        assert sum(count.get(outcome, 0) for count in counts.values()) > 18


@pytest.mark.slow
def test_the_program_finds_out():
    wanted = {
        "exception": "ValueError at targets.py:",
        "crash": "the process ended: SIGABRT",
        "hang": "no answer after 1 s",
        "waste": "MemoryError at ",
    }
    words = [word for fault in wanted for word in ("--target", f"planted {fault}")]
    code, found = fuzz(*words, "--mutations", "4", "--seed", "7", "--seconds", "1", "--jobs", "1")
    assert code == 1
    assert [(failure["target"], failure["seed"]) for failure in found["failures"]] == [
        (f"planted {fault}", 7 + n) for n, fault in enumerate(wanted)
    ]
    for failure, start in zip(found["failures"], wanted.values(), strict=True):
        assert failure["failure"].startswith(start)
