"""What a dry run says of the memory of a step, against what a step really allocates."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel
from empathy_judge.models.backbones.layers import recompute_activations
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.memory import LiveMemory, StepMemory, step_memory
from empathy_judge.train.run import train

from .conftest import LAST_FILE

RATE, SECONDS, BATCH = 16_000, 4.0, 6


def real_step(settings: JudgeSettings, gradient_checkpointing: bool, device: torch.device) -> tuple[EmpathyJudge, int]:
    """The judge after one backward pass, and what that held beside weights and gradients (bytes): on a GPU by its
    allocator, after a step that made the libraries' own buffers."""
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)]).to(device)
    if gradient_checkpointing:
        recompute_activations(judge.network)
    clips = [
        Clip(np.random.default_rng(n).normal(size=round(SECONDS * RATE)).astype(np.float32), RATE)
        for n in range(2 * BATCH)
    ]
    pairs = [Pair(f"{n}", clips[2 * n], (Turn("user", clips[2 * n + 1]),)) for n in range(BATCH)]
    inputs = judge.build_inputs(pairs).to(device)

    def step() -> None:
        judge.zero_grad()
        states = judge.backbone.encode_audio(inputs.clips)
        encoded = replace(inputs, clips=None, audio_states=states)
        judge.backbone.hidden_states(encoded).float().sum().backward()

    if device.type == "cuda":
        step()
        judge.zero_grad()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with LiveMemory(judge.parameters()) as live:
            step()
        peak = live.peak
    gradients = sum(weight.grad.nbytes for weight in judge.parameters() if weight.grad is not None)
    return judge, peak - gradients


def memory(settings: JudgeSettings, batch: int = 2, seconds: float = 2.0, **values) -> StepMemory:
    options = {"mixed_precision": False, "gradient_checkpointing": False, **values}
    return step_memory(settings, batch=batch, seconds=seconds, **options)


@pytest.fixture
def plain(backbone_folder) -> JudgeSettings:
    return JudgeSettings(backbone=str(backbone_folder), lora=LoraSettings(rank=4))


ALL_PARTS = LoraSettings(parts=["language_model", "audio_tower"], rank=4, full_parts=["projector"])


@pytest.mark.parametrize(
    ("lora", "gradient_checkpointing"),
    [(LoraSettings(rank=4, layers=(3, 4)), False), (ALL_PARTS, False), (ALL_PARTS, True)],
    ids=["one layer", "all parts", "all parts, computed again"],
)
def test_the_prediction_is_near_what_a_step_allocates(lora, gradient_checkpointing, backbone_folder, device):
    settings = JudgeSettings(backbone=str(backbone_folder), lora=lora)
    judge, activations = real_step(settings, gradient_checkpointing, device)
    found = memory(settings, BATCH, SECONDS, gradient_checkpointing=gradient_checkpointing)
    # a GPU's kernels have buffers of their own, and it gives memory out in blocks of 512 bytes
    assert 0.95 * activations <= found.activations <= (1.15 if device.type == "cpu" else 1.4) * activations
    assert found.weights == sum(weight.nbytes for weight in judge.parameters())
    assert found.gradients == sum(weight.nbytes for weight in judge.trainable().values())
    assert found.optimizer == 2 * found.gradients


def test_four_bits_are_counted_as_they_are_stored(plain):
    pytest.importorskip("bitsandbytes")
    settings = replace(plain, quantization="nf4")
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)])
    stored = 0
    for weight in judge.parameters():
        state = getattr(weight, "quant_state", None)
        stored += weight.nbytes
        if state is not None:
            stored += state.absmax.nbytes + state.state2.absmax.nbytes
    assert memory(settings, 1, 1.0).weights == pytest.approx(stored, rel=0.01)


def test_mixed_precision_halves_what_is_kept_and_not_what_is_trained(plain):
    whole, half = memory(plain), memory(replace(plain, dtype="bfloat16"), mixed_precision=True)
    assert half.gradients == whole.gradients  # float32 in both
    assert 0.45 < half.activations / whole.activations < 0.75  # norms and the softmax compute in float32
    assert 0.5 < half.weights / whole.weights < 0.56


def test_longer_clips_in_larger_batches_need_more(plain):
    assert memory(plain, 4, 4.0).activations > 3 * memory(plain).activations
    with pytest.raises(UserError, match=r"--clip-seconds 11: backbone .* takes at most 10 s"):
        memory(plain, seconds=11.0)


def test_a_batch_by_tokens_counts_as_many_pairs_as_fit_in(plain):
    three = memory(plain, 3)
    by_tokens = memory(plain, 99, batch_tokens=4 * three.tokens - 1)
    assert (by_tokens.pairs, by_tokens.activations) == (3, three.activations)
    with pytest.raises(UserError, match=rf"data.batch_tokens 9: one pair has {three.tokens}; expected {three.tokens}"):
        memory(plain, 3, batch_tokens=9)


@pytest.fixture
def limit(monkeypatch) -> list[int]:
    """Tokens, padding included, that this machine pretends to have memory for; then those of every batch above."""
    plain, known = AudioLanguageModel.hidden_states, [300]

    def hidden_states(backbone, inputs, read=None):
        if inputs.input_ids.numel() > known[0]:
            known.append(inputs.input_ids.numel())
            if len(known) == 2:  # a library that allocates by itself
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return plain(backbone, inputs, read)

    monkeypatch.setattr(AudioLanguageModel, "hidden_states", hidden_states)
    return known


def test_batches_as_large_as_memory_lose_no_pair(limit, train_arguments, tmp_path, batches_read):
    """What is tried is not trained: batches that were too large come again, smaller, and each pair once in an epoch."""
    options = {"data__batch_tokens": "auto", "data__batch_size": 8, "trainer__logger": "false"}
    train(train_arguments(tmp_path / "run", trainer__max_epochs=2, **options))
    tried = limit[1:]
    assert len(tried) > 1
    assert tried == sorted(tried, reverse=True)
    for epoch in range(2):
        assert sorted(item for when, _, items in batches_read if when == epoch for item in items) == list(range(12))
    found = read_checkpoint(tmp_path / "run" / LAST_FILE)["order"]["data.batch_tokens"]
    assert 0.8 * 300 < found <= min(tried)
    limit[:] = [10_000]  # a run goes on with the batches that it had
    train([*train_arguments(tmp_path / "run", trainer__max_epochs=3, **options), "--resume", "true"])
    assert read_checkpoint(tmp_path / "run" / LAST_FILE)["order"]["data.batch_tokens"] == found


def test_an_item_that_does_not_fit_is_told(limit, train_arguments, tmp_path):
    limit[:] = [20]
    with pytest.raises(UserError, match=r"auto: one item has \d+ tokens, for which cpu has no memory; expected grad"):
        train(train_arguments(tmp_path / "run", data__batch_tokens="auto", trainer__logger="false"))


def test_audio_that_is_cached_leaves_out_what_the_tower_computes(backbone_folder, tmp_path):
    """Where the tower takes more than the language model: layers of it that are computed again hardly count."""
    wide = shutil.copytree(backbone_folder, tmp_path / "wide")
    config = json.loads((wide / "config.json").read_text())
    config["audio_config"]["encoder_ffn_dim"] *= 8
    (wide / "config.json").write_text(json.dumps(config))
    settings = JudgeSettings(backbone=str(wide), lora=LoraSettings(rank=4, layers=(3, 4)))
    running, cached = (
        memory(settings, 3, 4.0, gradient_checkpointing=True, audio_cached=cached) for cached in (False, True)
    )
    assert cached.activations < 0.7 * running.activations
    assert cached.weights == running.weights  # the tower stays, for what is not cached
