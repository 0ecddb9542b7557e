"""Whisper: hears 5 s in the miniature, 30 s on the hub."""

import torch
from transformers import AutoFeatureExtractor, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from ..tools import louder

SECONDS = 5
MAX_SECONDS = float(SECONDS)
LORA_LAYERS = {"audio_tower": 2 * 6}


def build(folder):
    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=80, max_source_positions=50 * SECONDS, vocab_size=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    louder(model, 3.0)
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS).save_pretrained(folder)


def official(folder):
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = AutoFeatureExtractor.from_pretrained(folder)

    def run(samples):
        inputs = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        states = torch.cat(model.model.encoder(**inputs, output_hidden_states=True).hidden_states, -1)[0]
        assert len(states) == 250
        return states[: -(-len(samples) // 320)]  # the rest is silence

    return model, run
