"""HuBERT: the miniature is built like hubert-base: group norm in the convolutions, layer norms behind each layer."""

from __future__ import annotations

from transformers import HubertConfig, HubertModel

MAX_SECONDS = 30.0
LORA_LAYERS = {"audio_tower": 2 * 6}
OFFICIAL, PREFIX = HubertModel, "hubert."


def build(folder, tools):
    tools.wave_encoder(
        folder, HubertConfig, HubertModel, return_attention_mask=False, feat_extract_norm="group",
        do_stable_layer_norm=False,
    )  # fmt: skip
