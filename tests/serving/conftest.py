"""Judges that answer at once, and a service that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .services import FakeScorer, InProcess, in_process


@pytest.fixture
def scorer() -> FakeScorer:
    """A fresh one."""
    return FakeScorer()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[InProcess, FakeScorer]]:
    """A service with the usual limits and its judge, for tests that leave both as they are."""
    scorer = FakeScorer()
    with in_process(scorer, processes=True) as service:
        yield service, scorer
