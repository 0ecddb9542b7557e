"""The fused optimizer of the GPU recipes, which runs on a CPU as well: clipping and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train import module as module_file
from empathy_judge.train.module import JudgeModule, wants_fused
from empathy_judge.train.run import train
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from .conftest import LAST_FILE

CLIP = 0.05
RECIPE = {
    "trainer__precision": "bf16-mixed",
    "trainer__gradient_clip_val": CLIP,
    "trainer__max_epochs": 2,
    "trainer__logger": "false",
}


@pytest.fixture
def clipped(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All gradients of a step before and after clipping, side by side."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    clip = JudgeModule.configure_gradient_clipping

    def gradients(module: JudgeModule) -> torch.Tensor:
        return torch.cat([weight.grad.flatten() for weight in module.parameters() if weight.grad is not None])

    def measured(module: JudgeModule, *args: Any, **kwargs: Any) -> None:
        before = gradients(module)
        clip(module, *args, **kwargs)
        found.append((before, gradients(module)))

    monkeypatch.setattr(JudgeModule, "configure_gradient_clipping", measured)
    return found


def test_fused_steps_clip_and_end_where_unfused_ones_do(train_arguments, tmp_path, monkeypatch, clipped):
    def trained(run: Path) -> dict[str, Any]:
        train(train_arguments(run, **RECIPE))
        return read_checkpoint(run / LAST_FILE)

    fused = trained(tmp_path / "fused")
    assert all(group["fused"] for group in fused["optimizer_states"][0]["param_groups"])
    norms = [(float(before.norm()), float(after.norm())) for before, after in clipped]
    assert len(norms) == 6
    assert sum(before > CLIP for before, _ in norms) >= 3
    for before, after in norms:
        assert after == pytest.approx(min(before, CLIP), rel=1e-4)
    monkeypatch.setattr(module_file, "wants_fused", lambda precision: False)
    unfused = trained(tmp_path / "unfused")
    assert not any(group["fused"] for group in unfused["optimizer_states"][0]["param_groups"])
    # forward passes in bfloat16 make much of the last bit of a weight
    ours, theirs = fused["state_dict"], unfused["state_dict"]
    moved = sum(float(weight.abs().sum()) for name, weight in ours.items() if "lora_B" in name)  # from zero
    apart = sum(float((weight - theirs[name]).abs().sum()) for name, weight in ours.items() if "lora_B" in name)
    assert apart < 2e-3 * moved


def test_fused_wherever_gradients_are_not_scaled():
    assert wants_fused(Precision())
    assert wants_fused(MixedPrecision("bf16-mixed", "cuda"))
    assert not wants_fused(MixedPrecision("16-mixed", "cpu"))  # has a scaler, and clips unscaled gradients


def test_clipping_by_value(train_arguments, tmp_path, clipped):
    settings = {**RECIPE, "trainer__gradient_clip_algorithm": "value", "trainer__gradient_clip_val": 0.001}
    train(train_arguments(tmp_path / "run", **{**settings, "trainer__max_epochs": 1}))
    assert [float(after.abs().max()) for _, after in clipped] == pytest.approx([0.001] * 3)
