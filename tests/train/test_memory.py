"""What a dry run says of the memory of a step, against what a step really allocates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.lora import LoraSettings
from empathy_judge.models.recompute import recompute_activations
from empathy_judge.train.memory import LiveMemory, step_memory

RATE, SECONDS, BATCH = 16_000, 4.0, 6


def real_step(settings: JudgeSettings, gradient_checkpointing: bool) -> tuple[EmpathyJudge, int]:
    """The judge after one backward pass, and what that held beside weights and gradients (bytes)."""
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)])
    if gradient_checkpointing:
        recompute_activations(judge.network)
    clips = [
        Clip(np.random.default_rng(n).normal(size=round(SECONDS * RATE)).astype(np.float32), RATE)
        for n in range(2 * BATCH)
    ]
    pairs = [Pair(f"{n}", clips[2 * n], (Turn("user", clips[2 * n + 1]),)) for n in range(BATCH)]
    inputs = judge.build_inputs(pairs)
    with LiveMemory(judge.parameters()) as live:
        states = judge.backbone.encode_audio(inputs.clips)
        inputs = replace(inputs, clips=None, audio_states=states)
        judge.backbone.hidden_states(inputs).float().sum().backward()
    gradients = sum(weight.grad.nbytes for weight in judge.parameters() if weight.grad is not None)
    return judge, live.peak - gradients


LANGUAGE_MODEL = LoraSettings(rank=4)
ALL_PARTS = LoraSettings(parts=["language_model", "audio_tower"], rank=4, full=["projector"])


@pytest.mark.parametrize(
    ("lora", "gradient_checkpointing"),
    [(LANGUAGE_MODEL, False), (LoraSettings(rank=4, layers=(3, 4)), False), (ALL_PARTS, False), (ALL_PARTS, True)],
    ids=["language model", "one layer", "all parts", "all parts, computed again"],
)
def test_the_prediction_is_near_what_a_step_allocates(lora, gradient_checkpointing, backbone_folder):
    settings = JudgeSettings(backbone=str(backbone_folder), lora=lora)
    judge, activations = real_step(settings, gradient_checkpointing)
    found = step_memory(
        settings,
        batch=BATCH,
        seconds=SECONDS,
        mixed_precision=False,
        gradient_checkpointing=gradient_checkpointing,
    )
    assert found.tower_counted
    assert 0.95 * activations <= found.activations <= 1.15 * activations
    assert found.weights == sum(weight.nbytes for weight in judge.parameters())
    assert found.gradients == sum(weight.nbytes for weight in judge.trainable().values())
    assert found.optimizer == 2 * found.gradients


def test_four_bits_are_counted_as_they_are_stored(backbone_folder):
    pytest.importorskip("bitsandbytes")
    settings = JudgeSettings(backbone=str(backbone_folder), lora=LoraSettings(rank=4), quantization="nf4")
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)])
    stored = 0
    for weight in judge.parameters():
        state = getattr(weight, "quant_state", None)
        stored += weight.nbytes
        if state is not None:
            stored += state.absmax.nbytes + state.state2.absmax.nbytes
    options = {"batch": 1, "seconds": 1.0, "mixed_precision": False, "gradient_checkpointing": False}
    assert step_memory(settings, **options).weights == pytest.approx(stored, rel=0.01)


def test_mixed_precision_halves_what_is_kept_and_not_what_is_trained(backbone_folder):
    settings = JudgeSettings(backbone=str(backbone_folder), lora=LoraSettings(rank=4))
    options = {"batch": 2, "seconds": 2.0, "gradient_checkpointing": False}
    whole = step_memory(settings, mixed_precision=False, **options)
    half = step_memory(replace(settings, dtype="bfloat16"), mixed_precision=True, **options)
    assert half.gradients == whole.gradients  # float32 in both
    assert 0.45 < half.activations / whole.activations < 0.75  # norms and the softmax compute in float32
    assert 0.5 < half.weights / whole.weights < 0.56


def test_longer_clips_in_larger_batches_need_more(backbone_folder):
    settings = JudgeSettings(backbone=str(backbone_folder), lora=LoraSettings(rank=4))
    options = {"mixed_precision": False, "gradient_checkpointing": False}
    small = step_memory(settings, batch=2, seconds=2.0, **options)
    assert step_memory(settings, batch=4, seconds=4.0, **options).activations > 3 * small.activations
    with pytest.raises(UserError, match=r"--clip-seconds 11: backbone .* hears at most 10 s"):
        step_memory(settings, batch=2, seconds=11.0, **options)


def test_a_dry_run_prints_its_tables_and_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["train", "--dry-run", "--model.lora_rank", "4", "--data.path", "nowhere", "--data.batch_size", "16"]
    assert main([*words, "--gpu-gib", "24"]) == 0
    out = capsys.readouterr().out
    trained = 4 * 4 * (4 * (192 + 192) + 3 * (192 + 416))
    assert f"{trained:,}" in out
    assert "16 pairs of two clips of 8 s" in " ".join(out.split())
    assert "of a GPU with 24 GiB: fits" in out
    assert main([*words, "--gpu-gib", "0.8"]) == 0
    assert "does not fit" in capsys.readouterr().out
    assert main([*words, "--model.expected_trainable", "{language_model: 7}"]) == 2
    assert f"language_model has {trained} trainable parameters, expected 7" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
