"""What the commands, networks and losses computed when the values were written, they compute today."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest

from . import make as golden

# The values are those of x86-64; scores on arm64 lie 2e-5 apart
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")
NETWORK = 1e-5 if ON_X86 else 1e-4
ARITHMETIC = 1e-9
OTHER_CPUS = {"hidden_states": 1e-4, "demo_report": 1e-3, "mushra": 1e-6}
"""Where another instruction set moves more: a random network's states by 2e-5, and rank correlations by 1e-4, since
scores of silence that hardly differ change places. A kernel's eigenvalues that are nearly 0 are rounding."""
MONTE_CARLO = 0.05
"""How far the end of an interval, or a p-value, may move when it is drawn in another way."""
SILENCE = 0.05
"""How far rank correlations of the check with silence may move: its scores hardly differ, and rounding ranks them."""
ADDED = {"windows", "seconds", "in_windows", "signature", "over_next", "verdicts", "ranges"}
"""Fields and columns that may stand where there were none when the values were written."""
DRAWN = {"low", "high", "p_value", "interval"}
BY_AUDIO = (
    set()
    if ON_X86
    else {"response", "content_hash", "signature", "flat_prosody_score", "flat_prosody", "voice_and_words"}
)
"""What is not compared on other CPUs. There the sample's speech differs in the last bit, and with it the names of its
files, which are hashes, and what perturbations draw, whose seeds are hashes too."""
OF_NETWORKS = {"scores", "rank", "manifest", "answers", "demo_report", "checks", "losses", "hidden_states"}


def differences(found: Any, expected: Any, tolerance: float, where: str = "") -> list[str]:
    """Where two trees differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{where}/{key}: only in one" for key in sorted((found.keys() - ADDED) ^ (expected.keys() - ADDED))]
        lines += [f"{where}/{key}: gone" for key in ADDED & expected.keys() - found.keys()]
        for key in (found.keys() & expected.keys()) - BY_AUDIO:
            near = MONTE_CARLO if key in DRAWN else max(tolerance, SILENCE) if key == "silent" else tolerance
            lines += differences(found[key], expected[key], near, f"{where}/{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for n, (one, other) in pairs for line in differences(one, other, tolerance, f"{where}[{n}]")]
    numbers = (int, float)
    if isinstance(expected, numbers) and isinstance(found, numbers) and not isinstance(expected, bool):
        same = abs(found - expected) <= tolerance * max(1.0, abs(expected))
    else:
        same = found == expected
    return [] if same else [f"{where}: {found!r}, was {expected!r}"]


# Of real speech `splits` imports two sets, which takes most of its time
LONG = {"splits": pytest.mark.long}


@pytest.mark.slow
@pytest.mark.usefixtures("worker_in_process")
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in golden.GOLDEN])
def test_nothing_has_moved(name: str) -> None:
    if name in golden.NEEDS_REAL_DATA and golden.REAL is None:
        pytest.skip("EMPATHY_JUDGE_REAL_DATA is not set")
    if name == "checks" and not ON_X86:
        pytest.skip("the draws of perturbations are those of x86-64")
    expected = json.loads(golden.file_of(name).read_text())
    tolerance = OTHER_CPUS.get(name, NETWORK if name in OF_NETWORKS else ARITHMETIC)
    found = differences(golden.make(name), expected, tolerance)
    assert found == []


@pytest.mark.parametrize(
    ("found", "moved"),
    [
        ({"spearman": {"value": 0.5, "low": 0.3}}, 0),
        ({"spearman": {"value": 0.5, "low": 0.34}}, 0),
        ({"spearman": {"value": 0.50001, "low": 0.3}}, 1),
        ({"spearman": {"value": None, "low": 0.36}}, 2),
        ({"spearman": {"value": 0.5}}, 1),
        ({"spearman": [0.5, 0.3]}, 1),
    ],
)
def test_differences_are_found(found: Any, moved: int) -> None:
    assert len(differences(found, {"spearman": {"value": 0.5, "low": 0.3}}, ARITHMETIC)) == moved
