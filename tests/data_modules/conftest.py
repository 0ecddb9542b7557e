"""Fixtures of small sources; what they are made with is in `builders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules import writing

from .builders import Source


@pytest.fixture
def source(request, tmp_path) -> Source:
    """A source as the tests of a module bring it: of the class that is called `SOURCE` there."""
    return getattr(request.module, "SOURCE", Source)(tmp_path / "source")


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """The caches of Hugging Face libraries, empty and without a network."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()
    return tmp_path / "hub"


@pytest.fixture
def sharded(tmp_path, monkeypatch) -> Any:
    """60 embedded pairs in 3 shards, row groups of 4."""
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    source = Source(tmp_path / "source", groups=12, per_group=5)
    source.load(embed_audio=True, shard_rows=25)
    return source
