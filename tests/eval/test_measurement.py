"""The arguments of `evaluate` and `compare` are the options of their commands."""

from __future__ import annotations

import inspect
from dataclasses import asdict

import empathy_judge
import pytest
from empathy_judge.cli import options_of
from empathy_judge.eval.measurement import Measurement, chosen


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_command_and_its_function_have_the_same_arguments_and_defaults(command):
    shown = inspect.signature(getattr(empathy_judge, command)).parameters.values()
    assert {one.name: one.default for one in shown if one.kind is one.KEYWORD_ONLY} == asdict(Measurement())
    words = [command, "judge", "--data", "data"]
    typed = {"command": f"empathy-judge {' '.join(words)}"}
    assert chosen(options_of(words), Measurement) == asdict(Measurement()) | typed
    words = [*words, "--split", "all", "--checks", "none", "--budget", "5", "--no-windows", "--cluster", "system_id"]
    changed = {"split": None, "checks": ["none"], "budget": 5.0, "windows": False, "cluster": "system_id"}
    typed = {"command": f"empathy-judge {' '.join(words)}"}
    assert chosen(options_of(words), Measurement) == asdict(Measurement()) | changed | typed


@pytest.mark.parametrize(
    ("checks", "named"),
    [(None, None), ("all", "all"), (["all"], "all"), (["none"], ()), ((), ()), (["silent"], ["silent"])],
)
def test_listening_checks_are_named_or_not(checks, named):
    assert Measurement(checks=checks).named_checks() == named
