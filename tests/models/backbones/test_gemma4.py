"""Gemma 4: the longest clips, vision that is not there, the tower's clipping, sizes without an audio tower."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.settings import LoraSettings

RATE, WINDOW = 16_000, 480_000


@pytest.fixture(scope="module")
def folder(make_family) -> Path:
    return make_family("gemma4").folder


@torch.no_grad()
def test_a_pair_of_the_longest_clips_equals_the_official_one(make_family, make_judge, noise, same):
    family = make_family("gemma4")
    judge = make_judge(LoraSettings(parts=[]), pooling="attention", backbone=str(family.folder))
    pair = Pair("x", Clip(noise(WINDOW), RATE), (Turn("user", Clip(noise(801, 1), RATE)),))
    inputs = judge.build_inputs([pair])
    assert inputs.response_mask.sum() == 750  # what the official processor says 30 s make
    ids, expected = family.official(pair)
    assert torch.equal(inputs.input_ids, ids)
    assert same(judge.backbone.hidden_states(inputs), expected)


@torch.no_grad()
def test_the_tower_clips_what_its_linear_layers_read_and_return(folder):
    backbone = load_backbone(Checkpoint(str(folder)))
    layer = backbone.network.get_submodule("audio_tower.layers.0.self_attn.q_proj")
    assert layer.input_max == 1.0
    assert layer(torch.full((1, 32), 5.0)).abs().max() <= 1.0
    assert torch.equal(layer(torch.full((1, 32), 5.0)), layer(torch.full((1, 32), 1.0)))


def test_a_size_without_audio_tower_is_refused(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "deaf"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "audio_config": None}))
    with pytest.raises(UserError, match="has no audio tower; expected Gemma 4 E2B or E4B"):
        load_backbone(Checkpoint(str(copy)))
