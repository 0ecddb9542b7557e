"""Fixtures of small sources; what they are made with is in `builders`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .builders import Source


@pytest.fixture(scope="session")
def source_type() -> type[Source]:
    return Source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")
