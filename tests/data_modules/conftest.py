"""Fixtures of small sources; what they are made with is in `builders`."""

from __future__ import annotations

import pytest

from .builders import Source


@pytest.fixture(scope="session")
def source_type() -> type[Source]:
    return Source


@pytest.fixture
def source(tmp_path) -> Source:
    return Source(tmp_path / "source")
