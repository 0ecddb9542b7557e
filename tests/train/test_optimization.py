"""The fused optimizer of the GPU recipes, which runs on a CPU as well: clipping and steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train import module as module_file
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.optimization import wants_fused
from empathy_judge.train.run import train
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

CLIP = 0.05
RECIPE = {
    "trainer__precision": "bf16-mixed",
    "trainer__gradient_clip_val": CLIP,
    "trainer__max_epochs": 2,
    "trainer__logger": "false",
}


def gradient_norm(module: JudgeModule) -> float:
    return float(torch.stack([weight.grad.norm() for weight in module.parameters() if weight.grad is not None]).norm())


def trained(run: Path, arguments: Callable[..., list[str]], norms: list[tuple[float, float]]) -> dict[str, Any]:
    """The last checkpoint of a run; norms of its gradients before and after clipping are appended to `norms`."""
    clip = JudgeModule.configure_gradient_clipping

    def measured(module: JudgeModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        before = gradient_norm(module)
        clip(module, optimizer, *args, **kwargs)
        norms.append((before, gradient_norm(module)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgeModule, "configure_gradient_clipping", measured)
        train(arguments(run, **RECIPE))
    return read_checkpoint(run / "checkpoints" / "last.ckpt")


def test_fused_steps_clip_and_end_where_unfused_ones_do(train_arguments, tmp_path, monkeypatch):
    norms: list[tuple[float, float]] = []
    fused = trained(tmp_path / "fused", train_arguments, norms)
    assert all(group["fused"] for group in fused["optimizer_states"][0]["param_groups"])
    assert len(norms) == 6
    assert sum(before > CLIP for before, _ in norms) >= 3
    for before, after in norms:
        assert after == pytest.approx(min(before, CLIP), rel=1e-4)
    monkeypatch.setattr(module_file, "wants_fused", lambda precision: False)
    unfused = trained(tmp_path / "unfused", train_arguments, [])
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


def test_clipping_by_value(train_arguments, tmp_path):
    largest: list[float] = []
    clip = JudgeModule.configure_gradient_clipping

    def measured(module: JudgeModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        clip(module, optimizer, *args, **kwargs)
        largest.append(max(float(w.grad.abs().max()) for w in module.parameters() if w.grad is not None))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgeModule, "configure_gradient_clipping", measured)
        settings = {**RECIPE, "trainer__gradient_clip_algorithm": "value", "trainer__gradient_clip_val": 0.001}
        train(train_arguments(tmp_path / "run", **{**settings, "trainer__max_epochs": 1}))
    assert largest == pytest.approx([0.001] * 3)
