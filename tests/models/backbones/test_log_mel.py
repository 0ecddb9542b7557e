"""Spectrograms on the device against the official extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from empathy_judge.models.backbones.qwen2_audio import WhisperTowerModel, log_mel
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings
from transformers import WhisperFeatureExtractor

RATE = 16_000


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
