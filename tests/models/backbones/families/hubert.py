"""HuBERT: the miniature is built like hubert-base: group norm in the convolutions, layer norms behind each layer."""

from transformers import HubertModel

OFFICIAL = HubertModel
SETTINGS = {"return_attention_mask": False, "feat_extract_norm": "group", "do_stable_layer_norm": False}
