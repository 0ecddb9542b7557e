"""What must hold for every encoder without a language model, and for what joins its clips."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones.audio_encoders import OTHER, PADDING, RESPONSE, USER, WIDTH, CrossAttentionFusion
from empathy_judge.models.settings import HeadInputSettings
from torch.nn.functional import pad

from . import conftest
from .conftest import RATE, loaded, refused

judge_of = partial(conftest.judge_of, adapters=0.1, head_input=HeadInputSettings())


@pytest.fixture(scope="module")
def clips(noise) -> list[Clip]:
    return [Clip(noise(samples, seed), RATE) for seed, samples in enumerate([20_000, 9_999, 31_360, 7_001])]


@pytest.fixture(scope="module")
def pairs(clips) -> list[Pair]:
    """A context, none, two turns, the same two turns of other speakers; the response always the same."""
    first, second, third, response = clips
    return [
        Pair("context", response, (Turn("user", first),)),
        Pair("alone", response),
        Pair("turns", response, (Turn("user", second), Turn("assistant", third))),
        Pair("roles", response, (Turn("assistant", second), Turn("user", third))),
    ]


@torch.no_grad()
def test_weights_in_bfloat16_make_nearly_the_same_states(encoder, clips):
    samples = [clip.samples for clip in clips]
    exact = loaded(encoder.folder)
    rough = loaded(encoder.folder, dtype=torch.bfloat16)
    states = rough.encode_audio(rough.prepare_clips(samples))
    assert states.dtype == torch.bfloat16
    expected = exact.encode_audio(exact.prepare_clips(samples))
    assert torch.cosine_similarity(states.float(), expected, dim=-1).min() > 0.98
    assert all(weight.dtype == torch.float32 for weight in rough.network.joiner.parameters())


@torch.no_grad()
def test_a_pair_without_context_has_a_score_and_context_matters(encoder, pairs):
    judge = judge_of(encoder)
    scores = judge(judge.build_inputs(pairs))
    assert scores.isfinite().all()
    context, alone, turns, roles = scores[:, 0].tolist()
    assert min(abs(a - b) for a, b in [(context, alone), (context, turns), (turns, roles)]) > 1e-4


@torch.no_grad()
def test_turns_of_one_speaker_have_no_order(encoder, clips):
    judge = judge_of(encoder)
    turns = [Turn("user", clips[0]), Turn("user", clips[1])]
    forth, back = (Pair("pair", clips[3], tuple(order)) for order in (turns, turns[::-1]))
    assert (judge(judge.build_inputs([forth])) - judge(judge.build_inputs([back]))).abs().max() <= 1e-5


def test_the_fusion_is_trained_with_or_without_lora(encoder, pairs):
    names = {f"network.joiner.{name}" for name, _ in CrossAttentionFusion(3, 32).named_parameters()}
    for parts in ([], ["audio_tower"]):
        judge = judge_of(encoder, parts)
        assert {name for name in judge.trainable() if name.startswith("network.joiner.")} == names
        (judge(judge.build_inputs(pairs)) * torch.tensor([[1.0], [-0.7], [0.3], [0.9]])).sum().backward()
        for name, weight in judge.trainable().items():
            assert weight.grad is not None, name
            assert weight.grad.any(), name


@torch.no_grad()
def test_every_adapter_changes_the_states(encoder, clips):
    """Also where the official code reads the weights of a linear layer past what PEFT puts around it."""
    judge = judge_of(encoder, ["audio_tower"])
    prepared = judge.backbone.prepare_clips([clips[0].samples])
    before = judge.backbone.encode_audio(prepared)
    adapters = {name: weight for name, weight in judge.trainable().items() if "lora_B" in name}
    assert len(adapters) == encoder.lora_layers["audio_tower"]
    for name, weight in adapters.items():
        kept = weight.clone()
        weight.zero_()
        assert (judge.backbone.encode_audio(prepared) - before).abs().max() > 1e-3, name
        weight.copy_(kept)


def test_a_fusion_is_the_same_for_the_same_seed(encoder):
    def first(seed: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return loaded(encoder.folder).network.joiner.input.weight

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_a_pickle_is_not_opened(encoder, tmp_path):
    folder = Path(shutil.copytree(encoder.folder, tmp_path / "pickled"))
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, r"no file named model\.safetensors.*save_pretrained")


def test_a_file_cut_short_is_refused_in_one_line(encoder, tmp_path):
    folder = Path(shutil.copytree(encoder.folder, tmp_path / "cut"))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    refused(folder, r"deserializing header")


# the fusion by itself


@pytest.fixture
def fusion() -> CrossAttentionFusion:
    """Two layers of width 3; every weight off its first value."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        fusion = CrossAttentionFusion(2, 3)
        for weight in fusion.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    return fusion


@torch.no_grad()
def test_layers_are_summed_by_the_softmax_of_their_weights(fusion):
    states = torch.randn(5, 6)
    fusion.layer_weights.copy_(torch.tensor([0.0, 3.0]).log().clamp(min=-50.0))
    assert torch.allclose(fusion.project(states), fusion.input(fusion.input_norm(states[:, 3:])))
    fusion.layer_weights.copy_(torch.tensor([1.0, 3.0]).log())
    expected = fusion.input(fusion.input_norm(0.25 * states[:, :3] + 0.75 * states[:, 3:]))
    assert torch.allclose(fusion.project(states), expected, atol=1e-6)
    assert torch.equal(CrossAttentionFusion(4, 3).layer_weights.softmax(-1), torch.full((4,), 0.25))


@torch.no_grad()
def test_padding_changes_nothing_and_context_tokens_stay_what_they_were(fusion):
    segments = torch.tensor([[USER, USER, OTHER, RESPONSE, RESPONSE]])
    audio = torch.randn(1, 5, WIDTH)
    alone = fusion(audio, segments)
    assert torch.equal(alone[0, :3], (audio + fusion.segments(segments))[0, :3])
    for before, after in ((2, 1), (0, 3), (3, 0)):
        padded = pad(segments, (before, after), value=PADDING)
        noisy = torch.cat([1e3 * torch.randn(1, before, WIDTH), audio, 1e3 * torch.randn(1, after, WIDTH)], 1)
        assert (fusion(noisy, padded)[:, before : before + 5] - alone).abs().max() <= 1e-5


@torch.no_grad()
def test_without_context_only_the_learned_token_is_attended_to(fusion):
    segments = torch.tensor([[RESPONSE, RESPONSE, PADDING]])
    audio = torch.randn(1, 3, WIDTH)
    tokens = audio + fusion.segments(segments)
    only = fusion.attention.in_proj_weight[2 * WIDTH :] @ fusion.no_context + fusion.attention.in_proj_bias[2 * WIDTH :]
    joined = tokens + fusion.attention.out_proj(only)
    expected = fusion.output_norm(joined + fusion.feed_forward(joined))
    assert torch.allclose(fusion(audio, segments)[:, :2], expected[:, :2], atol=1e-5)


def test_one_response_frame_does_not_see_another(fusion):
    segments = torch.tensor([[USER, RESPONSE, RESPONSE]])
    audio = torch.randn(1, 3, WIDTH, requires_grad=True)
    fusion(audio, segments)[0, 1].sum().backward()
    assert audio.grad[0, 0].any()
    assert audio.grad[0, 1].any()
    assert not audio.grad[0, 2].any()


def test_it_computes_under_autocast(fusion):
    segments = torch.tensor([[USER, RESPONSE, RESPONSE], [RESPONSE, PADDING, PADDING]])
    states = torch.randn(6, 6)
    exact = fusion(fusion.project(states).unflatten(0, (2, 3)), segments)
    with torch.autocast("cpu", torch.bfloat16):
        rough = fusion(fusion.project(states).unflatten(0, (2, 3)), segments)
    assert (
        torch.cosine_similarity(rough.float()[segments == RESPONSE], exact[segments == RESPONSE], dim=-1).min() > 0.99
    )


def test_tokens_say_what_they_are_part_of(encoder, pairs):
    backbone = loaded(encoder.folder)
    pairs = [replace(pairs[1], situation="Late."), pairs[2]]
    ids, mask, is_audio = backbone.prepare_text(pairs, [[2], [1, 2, 3]], "left")
    assert ids.tolist() == [[PADDING] * 4 + [RESPONSE] * 2, [USER] + [OTHER] * 2 + [RESPONSE] * 3]
    assert torch.equal(mask, (ids > 0).long())
    assert torch.equal(is_audio, ids > 0)
    right, _, _ = backbone.prepare_text(pairs, [[2], [1, 2, 3]], "right")
    assert right[0].tolist() == [RESPONSE] * 2 + [PADDING] * 4
