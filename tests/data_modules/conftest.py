"""Fixtures of small sources; what they are made with is in `builders`."""

from __future__ import annotations

import pytest

from .builders import Source


@pytest.fixture
def source(request, tmp_path) -> Source:
    """A source as the tests of a module bring it: of the class that is called `SOURCE` there."""
    return getattr(request.module, "SOURCE", Source)(tmp_path / "source")
