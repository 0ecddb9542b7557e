"""Gemma 3n: clips that leave tokens over, and keys and values that layers share. Gemma 4: the tower's clipping, and
sizes without an audio tower."""

from unittest import mock

import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from torch.nn import functional

from .conftest import judge_of, loaded, refused

RATE, WINDOW = 16_000, 81_920


def test_what_a_short_clip_leaves_over_is_the_embedding_of_one_token(make_family, noise):
    backbone = loaded(make_family("gemma3n").folder)
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


def test_keys_and_values_of_layers_that_share_them_are_passed_over(make_family, with_weights):
    """Checkpoints may hold them; the official class does not read them either."""
    name = "model.language_model.layers.{}.self_attn.k_proj.weight"
    copy = with_weights(make_family("gemma3n").folder, lambda own: {**own, name.format(3): own[name.format(1)].clone()})
    loaded(copy)


@torch.no_grad()
def test_the_tower_of_gemma_4_clips_what_its_linear_layers_read_and_return(make_family):
    backbone = loaded(make_family("gemma4").folder)
    assert backbone.real_audio_tokens(480_000) == 750  # what the official processor says 30 s make
    layer = backbone.network.get_submodule("audio_tower.layers.0.self_attn.q_proj")
    assert layer.input_max == 1.0
    assert layer(torch.full((1, 32), 5.0)).abs().max() <= 1.0
    assert torch.equal(layer(torch.full((1, 32), 5.0)), layer(torch.full((1, 32), 1.0)))


@torch.no_grad()
def test_a_key_head_that_all_queries_of_gemma_4_share_is_copied_where_there_is_a_mask(make_family, noise, device):
    """Without, 65 tokens have wrong states on a GPU."""
    judge = judge_of(make_family("gemma4"))
    context = Turn("user", Clip(noise(9_999, 3), RATE))
    inputs = judge.build_inputs([Pair("p", Clip(noise(4_000, 10), RATE), (context,), situation="Late.")])
    assert inputs.input_ids.shape == (1, 65)
    plain = functional.scaled_dot_product_attention
    with mock.patch.object(functional, "scaled_dot_product_attention", side_effect=plain) as attend:
        expected = judge(inputs)
    keys = [call.args[1] for call in attend.call_args_list if call.kwargs["attn_mask"] is not None]
    assert [(key.shape[1], key.stride(1)) for key in keys] == [(4, 65 * 16)] * 2, "two layers with a sliding window"
    found = judge.to(device)(inputs.to(device)).cpu()
    assert (found - expected).abs().max() <= 1e-4


def test_a_size_of_gemma_4_without_audio_tower_is_refused(make_family, with_config):
    deaf = with_config(make_family("gemma4").folder, {"audio_config": None})
    refused(deaf, "has no audio tower; expected Gemma 4 E2B or E4B")
