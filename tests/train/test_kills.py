"""A run that is killed at random, again and again, ends like one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "kills"


@pytest.mark.long
def test_random_kills(train_arguments, tmp_path):
    """A few here; ``python tests/kills train --moments 50`` for more."""
    options = {"trainer__max_epochs": 3, "data__batch_tokens": 400, "judge__lora__dropout": 0.2}
    words = train_arguments(tmp_path / "unused", **options)
    at = words.index("--run")
    words = [*words[:at], *words[at + 2 :]]
    program = [sys.executable, str(PROGRAM), "train", "--moments", "4", "--seed", "1", "--", *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=500, check=False)
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["kills"] == 4
    assert found["starts"] == 4 + found["runs"]
