"""The caches of Hugging Face libraries, empty."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """The caches of Hugging Face libraries, empty and without a network."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()
    return tmp_path / "hub"
