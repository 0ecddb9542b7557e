"""Spectrograms on the device against the official extractor; in Audio Flamingo Next the time of a state in its clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones.qwen2_audio import WhisperTowerModel, log_mel
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings
from transformers import WhisperFeatureExtractor

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


@pytest.mark.parametrize("bins", [80, 128])
def test_spectrograms_are_those_of_the_extractor(bins, noise):
    """transformers 5.23.0, `_torch_extract_fbank_features` on the CPU."""
    extractor, rng = WhisperFeatureExtractor(bins), np.random.default_rng(0)
    for longest in (800, 801, 959, 960, 961, 16_000, 16_161, 47_999, 479_999, 480_000):
        lengths = [longest, *rng.integers(800, longest + 1, 3).tolist()]
        clips = [noise(length, seed) * np.float32(10.0**-seed) for seed, length in enumerate(lengths)]
        clips[-1][:] = 0  # silence
        padded = -(-longest // 160) * 160
        expected = extractor(
            clips, sampling_rate=RATE, padding="max_length", max_length=padded, truncation=False, return_tensors="pt"
        )["input_features"]
        samples = torch.zeros(len(clips), padded)
        for row, clip in zip(samples, clips, strict=True):
            row[: len(clip)] = torch.from_numpy(clip)
        found = log_mel(samples, extractor)
        assert found.shape == expected.shape == (4, bins, padded // 160)
        assert (found - expected).abs().max() <= 1e-6
        alone = log_mel(samples[1:2], extractor)  # a clip does not depend on the others
        assert (found[1] - alone[0]).abs().max() <= 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(log_mel(samples, extractor), found)


@pytest.mark.parametrize("name", ["qwen2_audio", "audioflamingo3"])
def test_a_tower_on_a_gpu_makes_them_of_samples(name, make_family, noise, monkeypatch):
    """The same states and lengths, with windows of a long clip; here the CPU stands for the GPU."""
    judge = EmpathyJudge(JudgeSettings(backbone=str(make_family(name).folder)), ())
    backbone = judge.backbone
    lengths = [800, 801, 959, 960, 961, 1_599, 16_000, 16_161, 33_333]
    clips = [noise(length, length) for length in lengths]
    if backbone.max_seconds > 30:
        clips.append(noise(500_000))
    expected = backbone.prepare_clips(clips)
    assert not expected.as_samples
    monkeypatch.setattr(WhisperTowerModel, "makes_spectrograms", True)
    found = backbone.prepare_clips(clips)
    assert found.as_samples
    assert (found.lengths, found.rows) == (expected.lengths, expected.rows)
    with torch.no_grad():
        assert (log_mel(found.features, backbone.extractor) - expected.features).abs().max() <= 1e-6
        assert (backbone.encode_audio(found) - backbone.encode_audio(expected)).abs().max() <= 1e-5
    monkeypatch.setattr(backbone.extractor, "dither", 0.1)  # random: the extractor's own
    assert not backbone.prepare_clips(clips[:1]).as_samples
