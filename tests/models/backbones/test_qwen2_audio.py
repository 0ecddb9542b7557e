"""The short path through the backbone against the official model on the full window."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import layers, load_backbone
from empathy_judge.models.backbones.audio_language_model import messages
from empathy_judge.models.backbones.base import Backbone, Checkpoint
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

RATE, WINDOW = 16_000, 160_000


def noise(samples: int, seed: int = 0) -> np.ndarray:
    """A clip that is loud up to its end, where cutting it differs most from padding it."""
    return np.random.default_rng(seed).normal(scale=0.2, size=samples).astype(np.float32)


@pytest.fixture(scope="module")
def backbone(backbone_folder) -> Backbone:
    return load_backbone(Checkpoint(str(backbone_folder)))


@pytest.fixture(scope="module")
def official(backbone_folder) -> Qwen2AudioForConditionalGeneration:
    return Qwen2AudioForConditionalGeneration.from_pretrained(backbone_folder).eval()


@pytest.fixture(scope="module")
def processor(backbone_folder):
    return AutoProcessor.from_pretrained(backbone_folder)


# 0.05 s is the shortest clip that is accepted; 159_999 and the window leave no room for zeros behind the clip
LENGTHS = (800, 6_400, 21_931, 16_321, 64_000, 159_999, WINDOW)


@torch.no_grad()
def test_audio_states_on_the_real_length_equal_the_official_ones(backbone, official, processor):
    clips = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    seen = []
    hook = official.model.multi_modal_projector.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        for clip in clips:
            text = "<|audio_bos|><|AUDIO|><|audio_eos|>"
            inputs = processor(text=text, audio=[clip], sampling_rate=RATE, return_tensors="pt")
            assert inputs["input_features"].shape[-1] == WINDOW // 320  # the plain path: padded to the window
            official(**inputs)
    finally:
        hook.remove()
    expected = [
        given.reshape(-1, given.shape[-1])[: backbone.audio_tokens(length)]
        for given, length in zip(seen, LENGTHS, strict=True)
    ]
    for group in (slice(0, 3), slice(0, 4), slice(0, 7), slice(6, 7)):
        states = backbone.encode_audio(backbone.prepare_clips(clips[group]))
        assert states.shape == torch.cat(expected[group]).shape
        assert (states - torch.cat(expected[group])).abs().max() <= 1e-5
    assert torch.cat(expected).std() > 0.1  # the comparison is not one of zeros


@torch.no_grad()
def test_layers_of_the_tower_compute_no_padding(backbone):
    clips = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    rows = []
    tower = backbone.network.audio_tower
    hook = tower.layers[-1].fc1.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[:-1].numel()))
    try:
        backbone.encode_audio(backbone.prepare_clips(clips))
    finally:
        hook.remove()
    assert rows == [sum(-(-length // 640) for length in LENGTHS)]  # a hop of 320 samples, a stride of 2


@pytest.mark.parametrize("way", [layers.clip_by_clip, layers.in_padded_rows])  # on a CPU, on a GPU
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_clips_in_one_row_are_those_of_each_clip_alone(backbone_folder, monkeypatch, way, recompute):
    monkeypatch.setattr(layers, "clip_by_clip", way)
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    tower, clips = backbone.network.audio_tower, [noise(length, seed) for seed, length in enumerate(LENGTHS[:4])]
    weights = [layer.self_attn.v_proj.weight.requires_grad_() for layer in tower.layers]

    def gradients(states: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(states[:, ::2].square().sum(), weights))

    alone = [gradients(backbone.encode_audio(backbone.prepare_clips([clip]))) for clip in clips]
    if recompute:
        layers.recompute_activations(tower)
    together = gradients(backbone.encode_audio(backbone.prepare_clips(clips)))
    for own, each in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(own, sum(each), rtol=0, atol=1e-5 * own.abs().max().item())


def test_the_question_names_each_clip_in_order():
    clip = Clip(noise(8_000), RATE)
    turns = tuple(Turn(role, clip) for role in ("user", "assistant", "user"))
    (message,) = messages(Pair("turns", clip, turns))
    text = "".join("*" if part["type"] == "audio" else part["text"] for part in message["content"])
    assert text.startswith("Context, user: *\nContext, assistant: *\nContext, user: *\nResponse: *\n")
    (message,) = messages(Pair("situation", clip, turns[:1], situation="Late again."))
    assert message["content"][0]["text"] == "Situation: Late again.\n"


def test_a_situation_may_not_stand_for_audio(make_judge):
    with pytest.raises(UserError, match=r"pair 'x': situation text may not contain <\|AUDIO\|>"):
        make_judge().build_inputs([Pair("x", Clip(noise(8_000), RATE), situation="a <|AUDIO|> b")])


def broken(backbone_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(backbone_folder, tmp_path / "broken"))


def test_unknown_backbones_are_refused(backbone_folder, tmp_path):
    with pytest.raises(UserError, match=r"backbone 'no/such-model': expected 'nano', a hub id or a folder"):
        load_backbone(Checkpoint("no/such-model"))
    folder = broken(backbone_folder, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen2"}))
    with pytest.raises(UserError, match=r"no class for family 'qwen2'; expected .*qwen2_audio"):
        load_backbone(Checkpoint(str(folder)))


def test_the_backbone_is_frozen_and_in_evaluation_mode(backbone):
    assert not any(weight.requires_grad for weight in backbone.network.parameters())
    assert not any(module.training for module in backbone.network.modules())
    assert (backbone.sampling_rate, backbone.max_seconds) == (16_000, 10.0)
    assert (backbone.audio_size, backbone.hidden_size) == (160, 192)
