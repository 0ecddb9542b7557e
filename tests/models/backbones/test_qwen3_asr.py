"""Qwen3-ASR: what its official processor does to texts, to clips of a batch and to short ones."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones.audio_language_model import QUESTION, messages
from transformers import AutoProcessor

from .conftest import RATE, loaded


@pytest.fixture
def folder(make_family):
    return make_family("qwen3_asr").folder


def test_the_question_is_read_though_the_template_of_the_hub_drops_it(folder, noise):
    chat = messages(Pair("p", Clip(noise(RATE), RATE), situation="Late."))
    written = AutoProcessor.from_pretrained(folder).apply_chat_template(chat, tokenize=False)
    assert QUESTION not in written
    assert "Late." not in written
    read = loaded(folder).render(chat)
    assert f"Situation: Late.\nResponse: <|audio_start|><|audio_pad|><|audio_end|>\n{QUESTION}<|im_end|>" in read


def test_a_batch_of_the_official_processor_may_give_a_clip_one_token_more(folder, noise):
    """transformers 5.23, `Qwen3ASRFeatureExtractor`: every 160th value of a mask, rounded up where it pads."""
    processor, backbone, clip = AutoProcessor.from_pretrained(folder), loaded(folder), noise(56 * 160 + 1)
    batches = [clip], [clip, noise(RATE)]
    texts = [processor(text=["<|audio_pad|>"] * len(clips), audio=clips)["input_ids"][0] for clips in batches]
    tokens = [int((ids == backbone.audio_token_id).sum()) for ids in texts]
    assert tokens == [7, 8]
    assert backbone.audio_tokens(len(clip)) == 7
    alone, beside = (backbone.encode_audio(backbone.prepare_clips(clips)) for clips in batches)
    assert (alone - beside[:7]).abs().max() < 1e-5


@torch.no_grad()
def test_the_silence_that_pads_a_short_clip_is_not_pooled(folder, noise):
    backbone = loaded(folder)
    assert [backbone.audio_tokens(samples) for samples in (800, 7_999, 8_000, RATE)] == [7, 7, 7, 13]
    assert [backbone.real_audio_tokens(samples) for samples in (800, 1_440, 7_999, 8_000, RATE)] == [1, 2, 7, 7, 13]
    assert len(backbone.encode_audio(backbone.prepare_clips([noise(800)]))) == 7
