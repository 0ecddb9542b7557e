"""Encoders without a language model: what holds for every one, what joins their clips, the builds that their miniatures
are not, and what may stand on top of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones.audio_encoders import OTHER, PADDING, RESPONSE, USER, WIDTH, CrossAttentionFusion
from empathy_judge.models.backbones.inputs import Clips
from empathy_judge.models.settings import HeadInputSettings
from safetensors.torch import load_file
from torch.nn.functional import pad
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    HubertForCTC,
    HubertModel,
    Wav2Vec2BertForCTC,
    Wav2Vec2Model,
    WavLMForCTC,
    WavLMForSequenceClassification,
    WavLMForXVector,
    WavLMModel,
)

from . import conftest
from .conftest import RATE, loaded, refused
from .tools import louder

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
    assert all(weight.dtype == torch.float32 for weight in rough.network.fusion.parameters())


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
    names = {f"network.fusion.{name}" for name, _ in CrossAttentionFusion(3, 32).named_parameters()}
    for parts in ([], ["audio_tower"]):
        judge = judge_of(encoder, parts)
        assert {name for name in judge.trainable() if name.startswith("network.fusion.")} == names
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
            return loaded(encoder.folder).network.fusion.input.weight

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
    judge = judge_of(encoder)
    judge.settings = replace(judge.settings, padding_side="left")
    pairs = [replace(pairs[1], situation="Late."), pairs[2]]
    ids, mask, is_audio = judge.ask(pairs, [[2], [1, 2, 3]])
    assert ids.tolist() == [[PADDING] * 4 + [RESPONSE] * 2, [USER] + [OTHER] * 2 + [RESPONSE] * 3]
    assert torch.equal(mask, (ids > 0).long())
    assert torch.equal(is_audio, ids > 0)
    judge.settings = replace(judge.settings, padding_side="right")
    right, _, _ = judge.ask(pairs, [[2], [1, 2, 3]])
    assert right[0].tolist() == [RESPONSE] * 2 + [PADDING] * 4


# ---------------------------------------------------------------- builds that the miniatures are not

OFFICIAL = {"hubert": HubertModel, "wavlm": WavLMModel, "wav2vec2": Wav2Vec2Model}


def rebuilt(family, folder, model_class, **changes) -> Path:
    """A checkpoint of another class, with random weights and a changed configuration."""
    config = AutoConfig.from_pretrained(family.folder)
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    louder(model, 5.0, ("feature_projection",))
    model.save_pretrained(folder)
    AutoFeatureExtractor.from_pretrained(family.folder).save_pretrained(folder)
    return folder


def encode(folder, samples) -> list[torch.Tensor]:
    backbone = loaded(folder)
    states = backbone.encode_audio(backbone.prepare_clips(samples))
    return list(states.split([backbone.audio_tokens(len(clip)) for clip in samples]))


@torch.no_grad()
@pytest.mark.parametrize("name", ["hubert", "wavlm"])
@pytest.mark.parametrize("norm", ["group", "layer"])
@pytest.mark.parametrize("stable", [False, True])
def test_states_equal_the_official_ones_whatever_the_norms(make_family, name, norm, stable, noise, same, tmp_path):
    folder = rebuilt(
        make_family(name), tmp_path, OFFICIAL[name], feat_extract_norm=norm, do_stable_layer_norm=stable,
        conv_bias=True, num_conv_pos_embeddings=15,
    )  # fmt: skip
    extractor = AutoFeatureExtractor.from_pretrained(folder)
    extractor.do_normalize = False
    extractor.save_pretrained(folder)
    clips = [noise(12_345), noise(5_000, 1), noise(801, 2)]
    model = OFFICIAL[name].from_pretrained(folder).eval()
    for clip, found in zip(clips, encode(folder, clips), strict=True):
        inputs = extractor(clip, sampling_rate=16_000, return_tensors="pt")
        layers = model(inputs["input_values"], output_hidden_states=True).hidden_states
        for layer, expected in zip(found.chunk(3, -1), layers, strict=True):
            assert same(layer, expected[0])


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "model_class", "changes"),
    [
        ("hubert", HubertForCTC, {}),
        ("wavlm", WavLMForCTC, {"add_adapter": True, "mask_time_prob": 0.0}),
        ("wavlm", WavLMForSequenceClassification, {"use_weighted_layer_sum": True}),
        ("wavlm", WavLMForXVector, {"tdnn_dim": (8,) * 5, "xvector_output_dim": 8}),
        ("wav2vec2_bert", Wav2Vec2BertForCTC,
         {"add_adapter": True, "use_intermediate_ffn_before_adapter": True, "vocab_size": 9, "mask_time_prob": 0.0}),
    ],
)  # fmt: skip
def test_heads_and_adapters_are_left_behind(make_family, name, model_class, changes, noise, same, tmp_path):
    folder = rebuilt(make_family(name), tmp_path, model_class, **changes)
    model, extractor = model_class.from_pretrained(folder).eval(), AutoFeatureExtractor.from_pretrained(folder)
    (found,) = encode(folder, [noise(8_000)])
    features = extractor(noise(8_000), sampling_rate=16_000, return_tensors="pt")
    tower = getattr(model, model.base_model_prefix)
    expected = torch.cat(tower(**features, output_hidden_states=True).hidden_states, -1)[0, : len(found)]
    assert same(found, expected)


def test_a_weight_that_only_pretraining_reads_may_be_there_or_not(make_family):
    folder = make_family("hubert").folder
    assert AutoConfig.from_pretrained(folder).mask_time_prob > 0  # so that the official model has it
    network = loaded(folder).network
    assert not [name for name, _ in network.named_parameters() if "masked_spec_embed" in name]


def test_positions_through_a_batch_norm_are_refused(make_family, tmp_path):
    folder = rebuilt(make_family("hubert"), tmp_path, HubertModel, conv_pos_batch_norm=True)
    refused(folder, r"conv_pos_batch_norm .* expected false")


def test_flash_attention_is_refused_where_positions_are_in_the_scores(make_family):
    refused(make_family("wavlm").folder, attention="flash_attention_2", match=r"(?i)flash")


# ---------------------------------------------------------------- samples in float32, whatever the precision


def half(folder) -> tuple[Any, Any]:
    """A backbone in float32 whose transformer has the weights of the second, which is in bfloat16."""
    exact = loaded(folder)
    rounded = loaded(folder, dtype=torch.bfloat16)
    weights = {name: weight.float() for name, weight in rounded.network.state_dict().items()}
    exact.network.load_state_dict(weights)
    return exact, rounded


@torch.no_grad()
@pytest.mark.parametrize("name", ["wav2vec2", "hubert", "wavlm"])
def test_the_convolutions_over_the_waveform_are_float32_as_they_are_stored(make_family, name):
    folder = make_family(name).folder
    exact = loaded(folder).network["encoder"]
    for weights in (True, False):
        tower = loaded(folder, dtype=torch.bfloat16, weights=weights).network["encoder"]
        convolutions = dict(tower.feature_extractor.named_parameters())
        assert {weight.dtype for weight in convolutions.values()} == {torch.float32}
        assert {weight.dtype for weight in tower.encoder.parameters()} == {torch.bfloat16}
        for key, weight in exact.feature_extractor.named_parameters() if weights else ():
            assert torch.equal(weight, convolutions[key])
    assert any((weight != weight.bfloat16()).any() for weight in exact.feature_extractor.parameters())


@torch.no_grad()
@pytest.mark.parametrize("name", ["wav2vec2", "hubert", "wavlm"])
def test_a_quiet_clip_on_top_of_a_constant_is_heard_in_bfloat16(make_family, name, noise, tmp_path):
    """As the base sizes are built, whose first group norm takes the constant away and makes the rest loud. What the
    states lose is what the bfloat16 of the layers above costs any clip; of rounded samples they lose far more."""
    exact, rounded = half(
        rebuilt(make_family(name), tmp_path, OFFICIAL[name], feat_extract_norm="group", do_stable_layer_norm=False)
    )
    quiet = torch.from_numpy(0.5 + 1e-2 * noise(16_000))[None]  # bfloat16 has steps of 1/512 there
    loud = torch.from_numpy(noise(16_000))[None]

    def lost(samples: torch.Tensor, heard: torch.Tensor) -> float:
        """Root mean square of what the states of `heard` differ by from those of `samples`, as a share of theirs."""
        expected = exact.encode_audio(Clips(samples, [samples.shape[1]]))
        states = rounded.encode_audio(Clips(heard, [samples.shape[1]])).float()
        return float((states - expected).norm() / (expected - expected.mean(0)).norm())

    usual = lost(loud, loud)
    assert lost(quiet, quiet) < 2 * usual
    assert lost(quiet, quiet.bfloat16()) > 4 * usual


@torch.no_grad()
@pytest.mark.parametrize("name", ["wav2vec2", "hubert", "wavlm"])
def test_autocast_leaves_the_samples_of_a_tower_that_is_trained_alone(make_family, name, noise):
    backbone = loaded(make_family(name).folder)
    read = []
    backbone.network["encoder"].feature_extractor.register_forward_hook(lambda _, args, made: read.append(made))
    clips = backbone.prepare_clips([noise(8_000), noise(5_000, 1)])
    backbone.encode_audio(clips)
    plain = list(read)
    read.clear()
    with torch.autocast("cpu", torch.bfloat16):
        backbone.encode_audio(clips)
    assert all(torch.equal(one, other) for one, other in zip(plain, read, strict=True))


def test_the_decoder_of_whisper_is_not_there_whatever_its_shape(make_family, with_weights):
    folder = make_family("whisper").folder
    network = loaded(folder).network
    tensors = load_file(folder / "model.safetensors")
    encoder = sum(tensor.numel() for key, tensor in tensors.items() if key.startswith("model.encoder."))
    assert sum(weight.numel() for weight in network.encoder.parameters()) == encoder
    nothing = torch.full((1,), float("nan"))
    shrunk = with_weights(folder, lambda own: {k: nothing.clone() if ".decoder." in k else v for k, v in own.items()})
    weights = loaded(shrunk).network.encoder.state_dict()
    assert all(torch.equal(weights[key], weight) for key, weight in network.encoder.state_dict().items())
