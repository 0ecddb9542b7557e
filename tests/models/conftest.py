"""How judges are written for a test, and what they hear."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.artifact import LoadedJudge, Placement, Provenance, describe, load_any, save_judge

RATE = 16_000
ADAPTER, HEAD, JUDGE = "adapter/adapter_model.safetensors", "head.safetensors", "judge.json"
ORIGIN = Provenance(
    "tones", True, "c" * 64, "s" * 64, {"empathy": 0.5, "warmth": None}, ["train"], ["validation"], "mean",
    preferences_met={}, losses={}, shares={}, refit=False, start={}, probe="",
)  # fmt: skip


def described(judge: EmpathyJudge, **origin: Any) -> LoadedJudge:
    """A judge and what is written of it; `origin` is what differs from `ORIGIN`."""
    return LoadedJudge(judge, describe(judge, replace(ORIGIN, **origin)))


def saved(judge: EmpathyJudge, folder: Path, **origin: Any) -> Path:
    """Write a judge; returns its folder."""
    save_judge(described(judge, **origin), folder)
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def refused(folder: Path, *texts: str, placement: Placement = Placement()) -> None:  # noqa: B008
    """Loading a judge ends in a message with these texts."""
    with pytest.raises(UserError) as found:
        load_any(folder, placement)
    for text in texts:
        assert text in str(found.value)


@pytest.fixture
def folder(judge_folder, tmp_path) -> Path:
    """A copy of `judge_folder`, to be spoilt."""
    return Path(shutil.copytree(judge_folder, tmp_path / "judge"))


@pytest.fixture(scope="module")
def pairs(dataset_folder) -> tuple[Pair, ...]:
    """The first pairs of the dataset."""
    return PairDataset.load(dataset_folder).pairs[:6]


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """A clip that is loud up to its end `(samples,)`, float32."""
    return np.random.default_rng(seed).normal(scale=0.2, size=round(seconds * RATE)).astype(np.float32)


def clip(seconds: float, seed: int = 0) -> Clip:
    """`noise` as pairs have it."""
    return Clip(noise(seconds, seed), RATE)
