"""Weights & Biases is a second configuration file; offline it needs neither account nor network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from empathy_judge.train.run import train

RECIPE = Path(__file__).parents[2] / "configs" / "nano_wandb.yaml"
SECRET = "0123456789abcdef0123456789abcdef01234567"  # of the length that the library accepts


@pytest.fixture
def without_pictures() -> None:
    """Here they are drawn."""


@pytest.mark.slow
def test_offline_run(train_arguments, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    arguments = train_arguments(tmp_path / "run", trainer__max_epochs=1)
    run = train([*arguments, "--config", str(RECIPE), "--log-audio", "true"])
    assert run.checkpoint.is_file()
    (log,) = tmp_path.glob("**/offline-run-*/*.wandb")
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    media = log.parent / "files" / "media"
    pictures = sorted(path.name.split("_")[0] for path in media.glob("images/**/*.png"))
    assert pictures == ["empathy", "warmth"]
    # a table with players is an artifact, whose files wait beside the runs
    staged = [path.read_bytes() for path in (tmp_path / "artifacts" / "staging").iterdir()]
    table = next(json.loads(held) for held in staged if held.startswith(b'{"_type": "table"'))
    assert table["columns"] == ["pair", "dimension", "prediction", "rating", "error", "context", "response"]
    assert len(table["data"]) == 8
    assert {player["_type"] for row in table["data"] for player in row[5:]} == {"audio-file"}
    sounds = {held for held in staged if held.startswith(b"RIFF")}
    assert len(sounds) == len({player["sha256"] for row in table["data"] for player in row[5:]}) >= 8
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not holding
