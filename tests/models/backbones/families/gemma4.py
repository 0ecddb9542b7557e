"""Gemma 4 E2B in miniature: its tower's clipping at work, its last layers with shared keys and values."""

import sys
from unittest import mock

import torch
from transformers import (
    AutoTokenizer,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessorPil,
)
from transformers.models.gemma4 import image_processing_pil_gemma4

from ..tools import gemma_tokenizer, louder, processed, uneven

# transformers 5.17 imports two names for it from a module that needs torchvision; they lie in this one too
with mock.patch.dict(sys.modules, {"transformers.models.gemma4.image_processing_gemma4": image_processing_pil_gemma4}):
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

MAX_SECONDS = 30.0
# the last two of four layers share keys and values and have no layers of their own for them
LORA_LAYERS = {"language_model": 4 * 7 - 2 * 2, "projector": 1, "audio_tower": 2 * 11}

SPECIAL = {
    "image_token": "<|image|>", "audio_token": "<|audio|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
# What the hub's template makes of messages of a user.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|turn>' + message['role'] + '\n' }}"
    "{% for item in message['content'] %}{% if item['type'] == 'audio' %}{{ '<|audio|>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{{ '<turn|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
BINS = 32


def build(folder):
    tokenizer = gemma_tokenizer([*SPECIAL.values()], SPECIAL, TEMPLATE, ["<|turn>", "<turn|>", "<|video|>"])
    config = Gemma4Config(
        text_config={
            "vocab_size": len(tokenizer), "vocab_size_per_layer_input": len(tokenizer), "hidden_size": 48,
            "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 16, "global_head_dim": 32, "sliding_window": 30,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        },
        audio_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "subsampling_conv_channels": [BINS, 8], "output_proj_dims": 40,
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "head_dim": 16, "position_embedding_size": 16,
        },
        audio_token_id=tokenizer.convert_tokens_to_ids("<|audio|>"),
        image_token_id=tokenizer.convert_tokens_to_ids("<|image|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
    )  # fmt: skip
    model = Gemma4ForConditionalGeneration(config)
    louder(model)
    uneven(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("q_norm.weight"):  # or else softmax makes a large difference of the last bit
                weight.mul_(0.2)
        for name, bound in model.named_buffers():
            if name.endswith(("put_min", "put_max")):
                bound.fill_(-1.0 if name.endswith("min") else 1.0)
            elif name.endswith("layer_scalar"):
                bound.fill_(0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Gemma4AudioFeatureExtractor(feature_size=BINS).save_pretrained(folder)


def official(folder):
    model = Gemma4ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = Gemma4AudioFeatureExtractor.from_pretrained(folder)
    # its video processor cannot be made without torchvision
    with mock.patch.object(Gemma4Processor, "check_argument_for_proper_class"):
        processor = Gemma4Processor(extractor, Gemma4ImageProcessorPil(), tokenizer, None, tokenizer.chat_template)

    def run(pair):
        inputs = processed(processor, pair, add_special_tokens=False)
        return inputs["input_ids"], model.model(**inputs).last_hidden_state

    return model, run
