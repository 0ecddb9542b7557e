"""Gemma 4 12B in miniature: no towers, one key head in layers of full attention, whose keys are their values."""

from typing import Any
from unittest import mock

import torch
from transformers import (
    AutoTokenizer,
    Gemma4ImageProcessorPil,
    Gemma4UnifiedAudioFeatureExtractor,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
)
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor

from ..tools import gemma_tokenizer, louder, processed, uneven
from .gemma4 import SPECIAL, TEMPLATE

MAX_SECONDS = 30.0
# two of four layers have no layer for values
LORA_LAYERS = {"language_model": 4 * 7 - 2, "projector": 1}


def build(folder):
    tokenizer = gemma_tokenizer([*SPECIAL.values()], SPECIAL, TEMPLATE, ["<|turn>", "<turn|>", "<|video|>"])
    config = Gemma4UnifiedConfig(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
            "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 30,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "use_bidirectional_attention": "vision",
        },
        audio_config={},
        vision_config={"patch_size": 4, "mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 16},
        **{f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("audio", "image", "video")},
    )  # fmt: skip
    model = Gemma4UnifiedForConditionalGeneration(config)
    louder(model)
    uneven(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("q_norm.weight"):  # or else softmax makes a large difference of the last bit
                weight.mul_(0.2)
        for name, bound in model.named_buffers():
            if name.endswith("layer_scalar"):
                bound.fill_(0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Gemma4UnifiedAudioFeatureExtractor().save_pretrained(folder)


def official(folder):
    model: Any = Gemma4UnifiedForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = Gemma4UnifiedAudioFeatureExtractor.from_pretrained(folder)
    # its image and video processors cannot be made without torchvision
    with mock.patch.object(Gemma4UnifiedProcessor, "check_argument_for_proper_class"):
        images = Gemma4ImageProcessorPil()
        processor = Gemma4UnifiedProcessor(extractor, images, tokenizer, None, tokenizer.chat_template)

    def run(pair):
        inputs = processed(processor, pair, add_special_tokens=False)
        return inputs["input_ids"], model.model(**inputs).last_hidden_state

    return model, run
