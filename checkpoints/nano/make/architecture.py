"""The nano backbone: Qwen2-Audio in miniature, with random weights.

Differences from the 7B model are configuration only. The spectrogram has a 64 ms window (harmonics of low voices stay
apart) and a 20 ms hop (half the audio tokens), because it models delivery and not words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AddedToken,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2Tokenizer,
    WhisperFeatureExtractor,
)

MEL_BINS = 128
SECONDS = 30
HOP = 320
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen's chat markup without its default system prompt and audio numbering."""


def build_processor(texts: Iterable[str], seconds: int = SECONDS) -> Qwen2AudioProcessor:
    """Processor with a byte-level BPE tokenizer learned from `texts`; any other text still splits into bytes.

    `seconds` = the longest clip that a model of this processor takes at once.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512 - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)

    state = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=state["vocab"],
        merges=[tuple(pair) for pair in state["merges"]],  # pyright: ignore[reportArgumentType] pairs, as in the file
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
    special: list[str | AddedToken] = [AddedToken(token, special=True) for token in SPECIAL_TOKENS]
    tokenizer.add_tokens(special)
    extractor = WhisperFeatureExtractor(
        feature_size=MEL_BINS, hop_length=HOP, chunk_length=seconds, n_fft=1024, return_attention_mask=True
    )
    return Qwen2AudioProcessor(feature_extractor=extractor, tokenizer=tokenizer, chat_template=CHAT_TEMPLATE)


def build_model(processor: Qwen2AudioProcessor) -> Qwen2AudioForConditionalGeneration:
    """The model with random weights (seed it with `torch.manual_seed`), about 3 million parameters."""
    ids = processor.tokenizer.convert_tokens_to_ids
    config = Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": MEL_BINS,
            "d_model": 160,
            "encoder_layers": 4,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 480,
            "max_source_positions": processor.feature_extractor.nb_max_frames // 2,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(processor.tokenizer),
            "hidden_size": 192,
            "intermediate_size": 416,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "max_position_embeddings": 2048,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": True,
            "pad_token_id": ids("<|endoftext|>"),
            "eos_token_id": ids("<|im_end|>"),
            "bos_token_id": ids("<|endoftext|>"),
        },
        audio_token_index=ids("<|AUDIO|>"),
        tie_word_embeddings=True,  # pyright: ignore[reportCallIssue] a field of every configuration
    )
    model = Qwen2AudioForConditionalGeneration(config)
    positions = model.model.audio_tower.embed_positions.weight
    with torch.no_grad():
        positions.copy_(_sinusoids(*positions.shape))
    return model.float()


def _sinusoids(length: int, channels: int) -> torch.Tensor:
    """Fixed sinusoidal positions `(length, channels)`, as in Whisper (Radford et al., 2023)."""
    steps = np.exp(-np.log(10_000) / (channels // 2 - 1) * np.arange(channels // 2))
    angles = np.arange(length)[:, None] * steps[None]
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).float()
