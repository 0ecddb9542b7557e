"""WavLM: the miniature is built like wavlm-large, with layer norms in the convolutions and in front of each layer."""

from transformers import WavLMModel

from ..tools import official_encoder, wave_encoder

MAX_SECONDS, LORA_LAYERS = 30.0, {"audio_tower": 2 * 6}


def build(folder):
    wave_encoder(
        folder,
        WavLMModel,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        but=("feature_projection",),
        num_buckets=32,
        max_bucket_distance=80,
    )


def official(folder):
    return official_encoder(WavLMModel, folder)
