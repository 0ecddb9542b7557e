"""w2v-BERT 2.0 with the positions and the front end of the hub's checkpoint."""

import torch
from transformers import AutoFeatureExtractor, SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

from ..tools import louder

MAX_SECONDS = 30.0
LORA_LAYERS = {"audio_tower": 2 * 8}


def build(folder):
    config = Wav2Vec2BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        feature_projection_input_dim=2 * 20, conv_depthwise_kernel_size=7, left_max_position_embeddings=16,
        right_max_position_embeddings=8,
    )  # fmt: skip
    model = Wav2Vec2BertModel(config)
    louder(model, 3.0)
    model.save_pretrained(folder)
    SeamlessM4TFeatureExtractor(feature_size=20, num_mel_bins=20, padding_value=1).save_pretrained(folder)


def official(folder):
    model = Wav2Vec2BertModel.from_pretrained(folder).eval()
    extractor = AutoFeatureExtractor.from_pretrained(folder)

    def run(samples):
        inputs = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        states = torch.cat(model(**inputs, output_hidden_states=True).hidden_states, -1)
        return states[inputs["attention_mask"].bool()]

    return model, run
