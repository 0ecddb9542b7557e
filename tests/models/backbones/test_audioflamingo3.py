"""Audio Flamingo 3: long clips are heard in windows."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings


@torch.no_grad()
@pytest.mark.parametrize("samples", [16_000, 16_001, 16_500, 32_000, 47_999, 48_000])
def test_a_clip_in_windows_is_what_the_official_processor_makes_of_it(make_family, noise, same, samples):
    family = make_family("audioflamingo3")
    judge = EmpathyJudge(JudgeSettings(backbone=str(family.folder), pooling="attention"), ()).eval()
    pair = Pair("long", Clip(noise(samples), 16_000))
    ids, expected = family.official(pair)
    inputs = judge.build_inputs([pair])
    assert torch.equal(inputs.input_ids, ids)
    assert same(judge.backbone.hidden_states(inputs), expected)


@torch.no_grad()
def test_a_window_is_heard_alone(make_family, noise, same):
    backbone = load_backbone(Checkpoint(str(make_family("audioflamingo3").folder)))
    clip = noise(40_000)
    whole = backbone.encode_audio(backbone.prepare_clips([clip]))
    pieces = backbone.encode_audio(backbone.prepare_clips([clip[:16_000], clip[16_000:32_000], clip[32_000:]]))
    assert same(whole, pieces)
