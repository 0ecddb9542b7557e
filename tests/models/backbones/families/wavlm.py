"""WavLM: the miniature is built like wavlm-large, with layer norms in the convolutions and in front of each layer."""

from __future__ import annotations

from transformers import WavLMConfig, WavLMModel

MAX_SECONDS = 30.0
LORA_LAYERS = {"audio_tower": 2 * 6}
OFFICIAL, PREFIX = WavLMModel, "wavlm."


def build(folder, tools):
    tools.wave_encoder(
        folder, WavLMConfig, WavLMModel, but=("feature_projection",), return_attention_mask=True, num_buckets=32,
        max_bucket_distance=80, feat_extract_norm="layer", do_stable_layer_norm=True,
    )  # fmt: skip
