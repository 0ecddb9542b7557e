"""Gemma 4 12B: what it lacks is said in one line, its keys are its values, and its samples stay float32."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.settings import HeadInputSettings
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train
from torch.nn import functional

from .conftest import RATE, judge_of, loaded, refused


@pytest.fixture
def family(make_family):
    return make_family("gemma4_unified")


def test_tower_layers_and_tower_lora_are_refused_in_one_line(family):
    with pytest.raises(UserError, match=r"^head_input.audio all_layers: .* has no audio tower to read; expected none$"):
        judge_of(family, head_input=HeadInputSettings("all_layers"))
    with pytest.raises(UserError, match=r"^train 'audio_tower': .* no such part; expected language_model, projector$"):
        judge_of(family, ["audio_tower"])


def test_a_size_that_does_not_hear_is_refused(family, with_config):
    refused(with_config(family.folder, {"audio_config": None}), "has no audio tower; expected Gemma 4 12B")


@pytest.mark.parametrize("what", ["auto", "audio"])
def test_no_clip_is_written_to_a_cache(family, train_arguments, tmp_path, what, capsys, noise):
    words = {"judge__backbone": family.folder, "judge__lora__parts": "[projector]", "trainer__max_epochs": 1}
    train(train_arguments(tmp_path / "run", cache__what=what, cache__folder=tmp_path / "cache", **words))
    assert "has no audio tower; no clip is cached" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "cache").exists()
    list(
        Predictor(judge_of(family), 1, DiskStore(tmp_path / "scores", 1.0)).predict(
            [Pair("p", Clip(noise(RATE), RATE))]
        )
    )
    assert not [path for path in (tmp_path / "scores").rglob("*") if path.is_file() and path.stat().st_size > 640]


@torch.no_grad()
def test_keys_are_values_where_attention_is_full_and_one_shared_head_is_copied_under_a_mask(family, noise):
    judge = judge_of(family, padding_side="left")
    linears = {name for name, _ in judge.network.named_modules() if name.endswith("v_proj")}
    assert linears == {f"language_model.layers.{n}.self_attn.v_proj" for n in (0, 2)}
    context = Turn("user", Clip(noise(9_999, 3), RATE))
    pairs = [Pair("p", Clip(noise(4_000, 10), RATE), (context,)), Pair("q", Clip(noise(RATE), RATE), (context,))]
    inputs = judge.build_inputs(pairs)
    plain = functional.scaled_dot_product_attention
    with mock.patch.object(functional, "scaled_dot_product_attention", side_effect=plain) as attend:
        judge(inputs)
    keys = [call.args[1] for call in attend.call_args_list if call.kwargs["attn_mask"] is not None]
    assert [(key.shape[1], key.shape[3]) for key in keys] == [(4, 16), (4, 32)] * 2  # the second has one of its own
    assert all(key.stride(1) > 0 for key in keys)


@torch.no_grad()
def test_samples_are_not_rounded_to_bfloat16(family, noise):
    """A quiet voice on an offset of 0.5, which bfloat16 would round to steps of 0.004; in training as in scoring."""
    quiet = (0.5 + 0.005 * noise(RATE)).astype(np.float32)
    short, long = (loaded(family.folder, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert short.network.embed_audio.embedding_projection.weight.dtype == torch.float32
    found, expected = (own.project(own.encode_audio(own.prepare_clips([quiet]))) for own in (short, long))
    with torch.autocast("cpu", torch.bfloat16):
        trained = short.project(short.encode_audio(short.prepare_clips([quiet])))
    assert torch.equal(trained, found)
    assert (found - expected).norm() < 1e-6 * expected.norm()
    voice = expected - expected.mean(0)
    rounded = long.project(torch.from_numpy(quiet).bfloat16().float().view(-1, 640))
    assert (rounded - expected).norm() > 0.1 * voice.norm()
