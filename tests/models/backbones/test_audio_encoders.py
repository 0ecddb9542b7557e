"""Encoders in the builds that their miniatures are not, and what may stand on top of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.models.backbones.inputs import Clips
from safetensors.torch import load_file
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

from .conftest import loaded, refused
from .tools import louder

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
