"""Nemotron 3 Nano Omni: the state without a frame, padding before Mamba, and what of it is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from transformers import NemotronH_Omni_Reasoning_V3, ParakeetFeatureExtractor
from transformers.models.nemotron_h_omni.processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3Processor

from .conftest import RATE, judge_of, loaded, refused


@pytest.fixture
def family(make_family):
    return make_family("nemotron_h_omni")


def test_there_are_as_many_audio_tokens_as_the_official_processor_counts(family):
    backbone = loaded(family.folder)
    processor = mock.Mock(audio_hop_length=160, audio_subsampling_factor=8, spec_set=[
        "audio_hop_length", "audio_subsampling_factor"
    ])  # fmt: skip
    for samples in [*range(800, 5_121), 16_000, 32_000, 319_999, 320_000]:
        counted = NemotronH_Omni_Reasoning_V3Processor._estimate_audio_num_embeddings(processor, samples)
        assert backbone.audio_tokens(samples) == counted, samples
        # one for eight frames begun; where these are used up, the last token has none
        frames = samples // 160
        assert backbone.real_audio_tokens(samples) == counted - (frames % 8 == 0), samples


@torch.no_grad()
def test_the_last_state_of_a_clip_in_an_official_batch_is_a_mean_over_the_padding(family, noise):
    """transformers 5.23: a row of the attention that is masked as a whole has equal shares of all positions."""
    official: Any = NemotronH_Omni_Reasoning_V3.from_pretrained(family.folder).eval()
    extractor, backbone = ParakeetFeatureExtractor.from_pretrained(family.folder), loaded(family.folder)
    for samples, differs in ((32_000, True), (32_159, True), (32_160, False), (31_999, False)):
        clips = [noise(samples), noise(3 * RATE, 1)]
        count = backbone.audio_tokens(samples)
        alone, beside = (
            official.get_audio_features(made["input_features"], made["attention_mask"]).last_hidden_state[0, :count]
            for made in (extractor(some, sampling_rate=RATE, return_tensors="pt") for some in (clips[:1], clips))
        )
        assert (alone[:-1] - beside[:-1]).abs().max() < 1e-5
        assert ((alone[-1] - beside[-1]).abs().max() > 0.01) == differs
        ours = backbone.encode_audio(backbone.prepare_clips(clips))[:count]
        assert (ours - alone).abs().max() < 1e-5


@torch.no_grad()
def test_silence_and_the_shortest_clip_have_finite_states(family, noise):
    backbone = loaded(family.folder)
    clips = [0 * noise(800), noise(800), 0 * noise(RATE)]
    together = backbone.encode_audio(backbone.prepare_clips(clips))
    assert together.isfinite().all()
    alone = [backbone.encode_audio(backbone.prepare_clips([clip])) for clip in clips]
    assert (together - torch.cat(alone)).abs().max() < 1e-5


def test_what_is_not_this_model_is_refused_in_one_line(family, with_config):
    def biased(config):
        config["text_config"]["use_bias"] = True

    refused(with_config(family.folder, biased), r"has a bias in Mamba, .*; expected Nemotron 3 Nano Omni$")


def test_a_checkpoint_that_does_not_hear_is_refused(family, with_config):
    refused(with_config(family.folder, {"audio_config": None}), "has no audio tower; expected Nemotron 3 Nano Omni$")


def test_code_of_a_repository_is_named_and_never_run(family, with_config):
    own = {"model_type": "NemotronH_Nano_Omni_Reasoning_V3", "auto_map": {"AutoModel": "modeling.Nemotron"}}
    folder = with_config(family.folder, own)
    (folder / "modeling.py").write_text("raise SystemExit('this was run')\n")
    message = (
        r"^backbone '.*': no class for family 'NemotronH_Nano_Omni_Reasoning_V3', whose code is in its repository "
    )
    refused(folder, message + r"\(auto_map\) and is never run; expected audioflamingo3, .*$")


def test_no_adapter_is_where_a_kernel_reads_past_it_or_experts_are_stacked(family):
    names = {name.split(".lora_A")[0].rsplit(".", 1)[1] for name in judge_of(family, ["language_model"]).trainable()
             if ".lora_A" in name}  # fmt: skip
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "up_proj", "down_proj"}
