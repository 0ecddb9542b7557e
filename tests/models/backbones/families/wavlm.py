"""WavLM: the miniature is built like wavlm-large, with layer norms in the convolutions and in front of each layer."""

from transformers import WavLMModel

OFFICIAL = WavLMModel
SETTINGS = {
    "return_attention_mask": True, "feat_extract_norm": "layer", "do_stable_layer_norm": True,
    "but": ("feature_projection",), "num_buckets": 32, "max_bucket_distance": 80,
}  # fmt: skip
