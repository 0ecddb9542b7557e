"""Audio Flamingo Next: the time of a state in its clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair

from .conftest import RATE, loaded

STATES = 25  # of a window of 1 s


def states_of(backbone, *clips: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return backbone.encode_audio(backbone.prepare_clips(clips))


def test_a_state_is_turned_by_its_time_in_its_own_clip(make_family, noise):
    backbone, one = loaded(make_family("musicflamingo").folder), noise(RATE)
    first, second = states_of(backbone, np.tile(one, 2)).split(STATES)
    turned = 2 * int(48 * 0.2 / 2 + 0.5)  # values by the number of the window and as many by the place in it
    assert torch.equal(first[:, 2 * turned :], second[:, 2 * turned :])
    assert (first - second)[:, : 2 * turned].abs().max() > 0.1
    again = states_of(backbone, np.tile(one, 2), one)[2 * STATES :]
    assert torch.equal(again[:, 2 * turned :], first[:, 2 * turned :])
    assert (again - first).abs().max() < 1e-5, "a clip begins at 0, whatever was before it"


@pytest.mark.parametrize("samples", [RATE + 1, RATE + 320])
def test_a_last_window_without_a_state_is_left_out_where_the_official_class_fails(make_family, noise, samples):
    """transformers 5.23, `MusicFlamingoModel._build_audio_timestamps`: it takes the window for one of the next clip."""
    family = make_family("musicflamingo")
    backbone, clip = loaded(family.folder), noise(samples)
    assert backbone.audio_tokens(samples) == STATES
    assert (states_of(backbone, clip) - states_of(backbone, clip[:RATE])).abs().max() < 1e-5
    with pytest.raises(IndexError, match="out of bounds"):
        family.official(Pair("alone", Clip(clip, RATE)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_angles_are_float32_whatever_the_weights_are(make_family, dtype):
    network = loaded(make_family("musicflamingo").folder, dtype=dtype).network
    assert {name: own.dtype for name, own in network.pos_emb.named_buffers()} == dict.fromkeys(
        ("inv_freq", "original_inv_freq", "position_angles"), torch.float32
    )
