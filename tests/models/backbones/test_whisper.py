"""Whisper's encoder out of a whole checkpoint, and the window that it hears."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from safetensors.torch import load_file


@pytest.fixture
def folder(make_family) -> Path:
    return make_family("whisper").folder


def test_the_decoder_is_not_there_whatever_its_shape(folder, with_weights):
    network = load_backbone(Checkpoint(str(folder))).network
    tensors = load_file(folder / "model.safetensors")
    encoder = sum(tensor.numel() for key, tensor in tensors.items() if key.startswith("model.encoder."))
    assert sum(weight.numel() for weight in network.encoder.parameters()) == encoder
    nothing = torch.full((1,), float("nan"))
    shrunk = with_weights(folder, lambda own: {k: nothing.clone() if ".decoder." in k else v for k, v in own.items()})
    weights = load_backbone(Checkpoint(str(shrunk))).network.encoder.state_dict()
    assert all(torch.equal(weights[key], weight) for key, weight in network.encoder.state_dict().items())


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
