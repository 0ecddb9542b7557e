"""Runs of these tests end where training ends."""

from __future__ import annotations

import pytest
from empathy_judge.train import fit


@pytest.fixture(autouse=True)
def without_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the best checkpoint and scoring with it takes as long as an epoch; `trained_run` is calibrated."""
    monkeypatch.setattr(fit, "_calibrate", lambda run, data: None)
