"""Weights & Biases is a second configuration file; offline it needs neither account nor network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from empathy_judge.train.fit import train

RECIPE = Path(__file__).parents[2] / "configs" / "nano_wandb.yaml"


@pytest.mark.slow
def test_offline_run(
    train_arguments: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    best = train([*train_arguments(tmp_path / "run", trainer__max_epochs=1), "--config", str(RECIPE)])
    assert best.is_file()
    assert len(list(tmp_path.glob("**/offline-run-*/*.wandb"))) == 1
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["trainer"]["logger"]["class_path"].endswith("WandbLogger")
