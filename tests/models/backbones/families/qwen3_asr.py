"""Qwen3-ASR: hears 20 s, as half its positions allow. The hub's template, which drops the text of a user's message."""

from typing import Any

import torch
from empathy_judge.models.backbones.audio_language_model import messages
from transformers import (
    AutoProcessor,
    Qwen2Tokenizer,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
)

from ..tools import joined, louder, small_tokenizer, with_spans

MAX_SECONDS = 20.0
LORA_LAYERS = {"language_model": 2 * 7, "projector": 2, "audio_tower": 1 + 2 * 6}
NAMED = {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())
# What transformers' convert_qwen3_asr_to_hf.py writes makes of a user's message
TEMPLATE = (
    "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>{% endif %}{% endfor %}{% endfor %}"
    "<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CLIP = "".join(NAMED[f"audio_{name}token"] for name in ("bos_", "", "eos_"))


def build(folder):
    tokenizer = small_tokenizer(Qwen2Tokenizer, SPECIAL, eos_token="<|im_end|>", extra_special_tokens=NAMED)
    config = Qwen3ASRConfig(
        audio_config={
            "model_type": "qwen3_asr_encoder", "d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 96, "n_window_infer": 200, "output_dim": 64, "downsample_hidden_size": 8,
        },
        text_config={
            "model_type": "qwen3", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 2 * 20 * 13, "tie_word_embeddings": True,
        },
        audio_token_id=tokenizer.convert_tokens_to_ids("<|audio_pad|>"),
    )  # fmt: skip
    model = Qwen3ASRForConditionalGeneration(config)
    louder(model, 4)
    model.save_pretrained(folder)
    Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer, chat_template=TEMPLATE).save_pretrained(folder)


def official(folder):
    model: Any = Qwen3ASRForConditionalGeneration.from_pretrained(folder).eval()
    processor: Any = AutoProcessor.from_pretrained(folder)

    def run(pair):
        # what the template writes around the clips of a message, with the whole message in it
        chat = processor.apply_chat_template(messages(pair), tokenize=False, add_generation_prompt=True)
        chat = joined(*messages(pair), CLIP).join(chat.split(CLIP * len(pair.clips)))
        # each clip alone: together the official processor rounds their lengths in another way
        heard = [processor(text="<|audio_pad|>", audio=[clip.samples]) for clip in pair.clips]
        spans = ["<|audio_pad|>" * one["input_ids"].numel() for one in heard]
        ids = processor.tokenizer(with_spans(chat, "<|audio_pad|>", spans), return_tensors="pt")["input_ids"]
        names = "input_features", "input_features_mask"
        states = [model.model.get_audio_features(**{name: one[name] for name in names}).pooler_output for one in heard]
        embeddings = model.get_input_embeddings()(ids)
        is_audio = (ids == model.config.audio_token_id)[..., None]
        embeddings = embeddings.masked_scatter(is_audio, torch.cat(states))
        return ids, model.model.language_model(inputs_embeds=embeddings).last_hidden_state

    return model, run
