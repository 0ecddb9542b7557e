"""Judges that were written with their backbones, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.export.check import ExportCheck, rated_set
from empathy_judge.scoring.export.write import write_whole


@pytest.fixture(scope="session")
def tones(dataset_folder) -> PairDataset:
    return PairDataset.load(dataset_folder)


@pytest.fixture(scope="session")
def write(tones) -> Callable[..., ExportCheck]:
    """Writes another form of a judge folder, compared on all pairs: from, to, quantization."""

    def make(source: Path, out: Path, quantization: Any = "none", **options: Any) -> ExportCheck:
        loaded = load_any(source)
        return write_whole(loaded, out, quantization, rated_set(loaded, tones, "all"), **options)

    return make


@pytest.fixture(scope="session")
def merged(judge_folder, write, tmp_path_factory) -> Path:
    """`judge_folder`, merged. Tests that change it copy it first."""
    out = tmp_path_factory.mktemp("merged") / "judge"
    write(judge_folder, out)
    return out
