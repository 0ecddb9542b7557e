"""Runs of these tests end where training ends."""

from __future__ import annotations

import pytest
from empathy_judge.train import run
from empathy_judge.train.validation_pictures import ValidationPictures


@pytest.fixture(autouse=True)
def without_calibration(monkeypatch) -> None:
    """Measuring clips takes as long as an epoch; `trained_run` is calibrated."""
    monkeypatch.setattr(run, "_calibrate", lambda *_: None)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch) -> None:
    """Drawing takes as long as an epoch, too; modules about pictures have a fixture of this name that does nothing."""
    monkeypatch.setattr(ValidationPictures, "on_validation_end", lambda *_: None)
