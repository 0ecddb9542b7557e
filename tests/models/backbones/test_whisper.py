"""Whisper's encoder out of a whole checkpoint, and the window that it hears."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from safetensors.torch import load_file, save_file


@pytest.fixture
def folder(make_family) -> Path:
    return make_family("whisper").folder


def changed(folder, tmp_path, change) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "changed"))
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_the_decoder_is_not_there(folder, tmp_path):
    network = load_backbone(Checkpoint(str(folder))).network
    tensors = load_file(folder / "model.safetensors")
    encoder = sum(tensor.numel() for key, tensor in tensors.items() if key.startswith("model.encoder."))
    assert any(key.startswith("model.decoder.") for key in tensors)
    assert sum(weight.numel() for weight in network.encoder.parameters()) == encoder

    def without(tensors):
        for key in [key for key in tensors if ".decoder." in key]:
            del tensors[key]

    load_backbone(Checkpoint(str(changed(folder, tmp_path, without))))


def test_a_decoder_of_any_shape_is_not_looked_at(folder, tmp_path):
    def shrink(tensors):
        for key in [key for key in tensors if ".decoder." in key]:
            tensors[key] = torch.full((1,), float("nan"))

    weights = load_backbone(Checkpoint(str(changed(folder, tmp_path, shrink)))).network.encoder.state_dict()
    for key, weight in load_backbone(Checkpoint(str(folder))).network.encoder.state_dict().items():
        assert torch.equal(weights[key], weight)


@torch.no_grad()
def test_a_clip_is_heard_in_its_window_of_silence_as_whisper_does(folder, noise):
    """Cutting the silence away would be cheaper and other states: the official encoder attends to it."""
    backbone = load_backbone(Checkpoint(str(folder)))
    prepared = backbone.prepare_clips([noise(8_000), noise(80_000, 1)])
    assert prepared.features.shape == (2, 80, 500)
    assert prepared.lengths == [25, 250]
    louder = prepared.features.clone()
    louder[0, :, 100:] += 1.0
    quiet, loud = (
        backbone.encode_audio(type(prepared)(features, prepared.lengths)) for features in (prepared.features, louder)
    )
    assert (loud[:25] - quiet[:25]).abs().max() > 1e-3
    assert torch.equal(loud[25:], quiet[25:])
