"""Gemma 3n: clips that leave tokens over, vision that is not there, keys and values that layers share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.settings import LoraSettings

RATE, WINDOW = 16_000, 81_920


@pytest.fixture(scope="module")
def folder(make_family) -> Path:
    return make_family("gemma3n").folder


def test_what_a_short_clip_leaves_over_is_the_embedding_of_one_token(folder, noise):
    backbone = load_backbone(Checkpoint(str(folder)))
    states = backbone.encode_audio(backbone.prepare_clips([noise(RATE), noise(WINDOW)])).reshape(2, 32, -1)
    heard = states.any(-1)
    assert heard[0].tolist() == [True] * 7 + [False] * 25  # 97 frames, one state for each 16
    assert heard[1].all()
    for samples in (800, 2_561, 3_000, 5_120, 8_000, 33_333, WINDOW):  # the response is pooled over these alone
        states = backbone.encode_audio(backbone.prepare_clips([noise(samples)]))
        assert backbone.real_audio_tokens(samples) == states.any(-1).sum(), samples
    states = backbone.encode_audio(backbone.prepare_clips([noise(RATE)])).reshape(1, 32, -1)
    embedded = backbone.project(states[0])
    assert (embedded[7:] == embedded[7]).all()
    assert (embedded[:7] != embedded[7]).any(-1).all()


@torch.no_grad()
def test_a_pair_of_the_longest_clips_equals_the_official_one(make_family, make_judge, noise, same):
    family = make_family("gemma3n")
    judge = make_judge(LoraSettings(parts=[]), pooling="attention", backbone=str(family.folder))
    pair = Pair("x", Clip(noise(WINDOW), RATE), (Turn("user", Clip(noise(WINDOW - 1, 1), RATE)),))
    inputs = judge.build_inputs([pair])
    ids, expected = family.official(pair)
    assert torch.equal(inputs.input_ids, ids)
    assert same(judge.backbone.hidden_states(inputs), expected)


def test_keys_and_values_of_layers_that_share_them_are_passed_over(folder, with_weights):
    """Checkpoints may hold them; the official class does not read them either."""
    name = "model.language_model.layers.{}.self_attn.k_proj.weight"
    copy = with_weights(folder, lambda tensors: {**tensors, name.format(3): tensors[name.format(1)].clone()})
    load_backbone(Checkpoint(str(copy)))
