"""Clips longer than the backbone hears: refused, or heard in windows that are averaged by their voice."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.core.errors import AudioError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.model_card import render_card
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.features import Features

from .conftest import RATE, clip, described, noise, saved


def pair(context: np.ndarray | None, response: np.ndarray) -> Pair:
    turns = () if context is None else (Turn("user", Clip(context, RATE)),)
    return Pair("x", Clip(response, RATE), turns)


@pytest.fixture(scope="module")
def judge(make_judge):
    return make_judge(LoraSettings(parts=[]), long_clips="window")


@torch.no_grad()
def pooled(judge, *pairs: Pair) -> torch.Tensor:
    return judge.pooled(judge.build_inputs(pairs))


def test_a_long_clip_is_refused_unless_it_may_be_cut(make_judge, judge):
    long = pair(noise(1), noise(12))
    with pytest.raises(AudioError, match="10 s"):
        make_judge(LoraSettings(parts=[])).build_inputs([long])
    assert [len(window) for window in judge.decode(long.response)] == [6 * RATE, 6 * RATE]
    assert [len(window) for window in judge.decode(clip(10))] == [10 * RATE]
    assert [len(window) for window in judge.decode(clip(20.5))] == [109_334, 109_333, 109_333]


def test_what_the_head_reads_is_the_mean_over_windows(judge):
    context, response = noise(3), noise(21, 1)
    parts = np.array_split(response, 3)
    expected = sum(pooled(judge, pair(context, part)) for part in parts) / 3
    assert (pooled(judge, pair(context, response)) - expected).abs().max() <= 1e-5
    assert (pooled(judge, pair(context, parts[0])) - expected).abs().max() > 1e-3  # windows differ


def test_windows_of_context_and_response_are_combined(judge):
    context, response = noise(15), noise(11, 1)
    expected = sum(
        pooled(judge, pair(one, two)) for one in np.array_split(context, 2) for two in np.array_split(response, 2)
    )
    assert (pooled(judge, pair(context, response)) - expected / 4).abs().max() <= 1e-5


def test_windows_without_any_voice_weigh_as_much_as_they_last(judge):
    long = pair(None, noise(20.51))
    inputs = judge.build_inputs([long])
    lengths = torch.tensor([len(window) for window in judge.decode(long.response)])
    assert inputs.window_weights.shape == (1, 3)
    torch.testing.assert_close(inputs.window_weights[0], lengths / lengths.sum())


def test_each_window_weighs_as_much_as_its_voice_lasts(judge, make_tone):
    """A pause at the end of a reply does not count; where half a window is silent, it weighs half as much."""
    voice, pause = make_tone(8, 150, 0.3), noise(8, 1) / 1000
    inputs = judge.build_inputs([pair(None, np.concatenate([voice, voice[:64_000], pause[:64_000]]))])
    torch.testing.assert_close(inputs.window_weights[0], torch.tensor([2 / 3, 1 / 3]), atol=0.005, rtol=0)
    inputs = judge.build_inputs([pair(None, np.concatenate([voice, pause]))])
    torch.testing.assert_close(inputs.window_weights[0], torch.tensor([1.0, 0.0]), atol=0.005, rtol=0)


def test_training_takes_no_windows_of_scoring_out_of_a_shared_cache(make_judge, tmp_path):
    refuses, store = make_judge(LoraSettings(parts=[])), DiskStore(tmp_path / "kept")
    long = pair(noise(2), noise(13, 1))
    list(Predictor(refuses, store=store).predict([long]))
    features = Features(refuses, "audio", store, "32-true")
    assert refuses.backbone.max_seconds < 13
    with pytest.raises(AudioError, match="expected at most 10 s"):
        features.prepare([long], nullcontext)


def test_a_long_pair_does_not_touch_the_others(judge):
    short, long = pair(noise(2), noise(3, 1)), pair(noise(2, 2), noise(25, 3))
    both = pooled(judge, long, short, long)
    assert (both[1] - pooled(judge, short)[0]).abs().max() <= 1e-5
    assert (both[0] - both[2]).abs().max() <= 1e-5
    assert judge.build_inputs([short]).window_weights is None


@torch.no_grad()
def test_scores_do_not_depend_on_whether_audio_was_encoded_before(judge, tmp_path):
    pairs = [pair(noise(2), noise(3, 1)), pair(noise(13, 2), noise(25, 3))]
    direct = judge(judge.build_inputs(pairs))
    features = Features(judge, "audio", DiskStore(tmp_path / "kept"), "32-true")
    features.prepare(pairs, nullcontext)
    inputs = features.inputs(pairs)
    assert inputs.clips is None
    cached = judge(inputs)
    assert (direct - cached).abs().max() <= 1e-5
    scored = torch.stack([found.score for _, found in Predictor(judge, batch_size=1).predict(pairs)])
    assert (direct - scored).abs().max() <= 1e-5


def test_the_policy_is_in_the_artifact(judge, tmp_path):
    card = render_card(described(judge).description, None)
    assert "clips up to 10 s at 16000 Hz; longer ones are cut into windows of equal length" in card
    folder = saved(judge, tmp_path / "judge")
    stored = json.loads((folder / "judge.json").read_text())
    assert (stored["settings"]["long_clips"], stored["max_seconds"]) == ("window", 10.0)
    assert len(load_any(folder).judge.decode(clip(12))) == 2
