"""wav2vec 2.0: the miniature is built like XLS-R: layer norms in the convolutions and in front of each layer."""

from __future__ import annotations

import torch
from transformers import AutoFeatureExtractor, Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

IS_ENCODER = True
MAX_SECONDS = 30.0
LORA_LAYERS = {"audio_tower": 2 * 6}


def build(folder, tools):
    config = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        conv_dim=(16,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )
    model = Wav2Vec2Model(config)
    tools.louder(model, 5.0)
    model.save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True).save_pretrained(folder)


def official(folder):
    model = Wav2Vec2Model.from_pretrained(folder).eval()
    extractor = AutoFeatureExtractor.from_pretrained(folder)

    @torch.no_grad()
    def run(samples):
        inputs = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        return torch.cat(model(**inputs, output_hidden_states=True).hidden_states, -1)[0]

    return run


def other_layout(key):
    """The hub's older files: weight norm by its former names, and the prefix of a model with a head."""
    key = key.replace("parametrizations.weight.original0", "weight_g")
    return "wav2vec2." + key.replace("parametrizations.weight.original1", "weight_v")
