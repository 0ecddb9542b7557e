"""HuBERT and WavLM in the builds that their miniatures are not, and what may stand on top of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.common.base import Checkpoint
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    HubertForCTC,
    HubertModel,
    Wav2Vec2BertForCTC,
    WavLMForCTC,
    WavLMForSequenceClassification,
    WavLMForXVector,
    WavLMModel,
)

OFFICIAL = {"hubert": HubertModel, "wavlm": WavLMModel}


def rebuilt(family, folder, model_class, **changes) -> Path:
    """A checkpoint of another class, with random weights and a changed configuration."""
    config = AutoConfig.from_pretrained(family.folder)
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "feature_projection" not in name:
                weight.mul_(5.0)
    model.save_pretrained(folder)
    AutoFeatureExtractor.from_pretrained(family.folder).save_pretrained(folder)
    return folder


def encode(folder, samples) -> list[torch.Tensor]:
    backbone = load_backbone(Checkpoint(str(folder)))
    states = backbone.encode_audio(backbone.prepare_clips(samples))
    return list(states.split([backbone.audio_tokens(len(clip)) for clip in samples]))


@torch.no_grad()
@pytest.mark.parametrize("name", ["hubert", "wavlm"])
@pytest.mark.parametrize("norm", ["group", "layer"])
@pytest.mark.parametrize("stable", [False, True])
def test_states_equal_the_official_ones_whatever_the_norms(make_family, name, norm, stable, noise, same, tmp_path):
    folder = rebuilt(
        make_family(name),
        tmp_path,
        OFFICIAL[name],
        feat_extract_norm=norm,
        do_stable_layer_norm=stable,
        conv_bias=True,
        num_conv_pos_embeddings=15,
    )
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
        (
            "wav2vec2_bert",
            Wav2Vec2BertForCTC,
            {"add_adapter": True, "use_intermediate_ffn_before_adapter": True, "vocab_size": 9, "mask_time_prob": 0.0},
        ),
    ],
)
def test_heads_and_adapters_are_left_behind(make_family, name, model_class, changes, noise, same, tmp_path):
    folder = rebuilt(make_family(name), tmp_path, model_class, **changes)
    model, extractor = model_class.from_pretrained(folder).eval(), AutoFeatureExtractor.from_pretrained(folder)
    (found,) = encode(folder, [noise(8_000)])
    features = extractor(noise(8_000), sampling_rate=16_000, return_tensors="pt")
    tower = getattr(model, model.base_model_prefix)
    expected = torch.cat(tower(**features, output_hidden_states=True).hidden_states, -1)[0, : len(found)]
    assert same(found, expected)


def test_a_weight_that_only_pretraining_reads_may_be_there_or_not(make_family, tmp_path):
    family = make_family("hubert")
    folder = Path(shutil.copytree(family.folder, tmp_path / "plain"))
    config = json.loads((folder / "config.json").read_text())
    assert config["mask_time_prob"] > 0  # so that the official model has it
    network = load_backbone(Checkpoint(str(folder))).network
    assert not [name for name, _ in network.named_parameters() if "masked_spec_embed" in name]


def test_positions_through_a_batch_norm_are_refused(make_family, tmp_path):
    folder = rebuilt(make_family("hubert"), tmp_path, HubertModel, conv_pos_batch_norm=True)
    with pytest.raises(UserError, match=r"conv_pos_batch_norm .* accepted: false"):
        load_backbone(Checkpoint(str(folder)))


def test_flash_attention_is_refused_where_positions_are_in_the_scores(make_family):
    with pytest.raises(UserError, match=r"(?i)flash"):
        load_backbone(Checkpoint(str(make_family("wavlm").folder), attention="flash_attention_2"))
