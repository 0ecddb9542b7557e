"""HuBERT: the miniature is built like hubert-base: group norm in the convolutions, layer norms behind each layer."""

from transformers import HubertModel

from ..tools import official_encoder, wave_encoder

MAX_SECONDS, LORA_LAYERS = 30.0, {"audio_tower": 2 * 6}


def build(folder):
    wave_encoder(
        folder, HubertModel, return_attention_mask=False, feat_extract_norm="group", do_stable_layer_norm=False
    )


def official(folder):
    return official_encoder(HubertModel, folder)
