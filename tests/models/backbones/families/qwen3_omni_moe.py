"""Qwen3-Omni whole: talker and vocoder lie in the same file as the thinker. Hears 20 s, as half its positions allow."""

import json

import torch
from empathy_judge.models.backbones.audio_language_model import messages
from transformers import (
    Qwen2Tokenizer,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from ..tools import louder, omni_processor, small_tokenizer, with_spans

MAX_SECONDS = 20.0
LORA_LAYERS = {"language_model": 2 * 4, "projector": 2, "audio_tower": 1 + 2 * 6}
NAMED = {
    "audio_token": "<|audio_pad|>", "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>", "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())
# What the hub's template makes of a user's text and audio; it has no default system message
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}{%- for part in message.content %}"
    "{%- if part.type == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}"
    "{%- elif part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}


def build(folder):
    tokenizer = small_tokenizer(Qwen2Tokenizer, SPECIAL, eos_token="<|im_end|>", extra_special_tokens=NAMED)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, return_attention_mask=True).save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))  # as on the hub
    ids = tokenizer.convert_tokens_to_ids
    tokens = {f"{kind}_token_id": ids(f"<|{kind}_pad|>") for kind in ("audio", "image", "video")}
    tokens |= {f"{kind}_start_token_id": ids(f"<|{kind}_start|>") for kind in ("audio", "vision")}
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
    model = Qwen3OmniMoeForConditionalGeneration(
        Qwen3OmniMoeConfig(
            thinker_config={
                "audio_config": {
                    "d_model": 48,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 96,
                    "n_window_infer": 100,  # attention within 1 s
                    "output_dim": 64,
                    "downsample_hidden_size": 8,
                },
                "vision_config": small
                | {"depth": 1, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
                | {"deepstack_visual_indexes": [0]},
                "text_config": {
                    "vocab_size": len(tokenizer), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4,
                    "num_experts_per_tok": 2, "max_position_embeddings": 2 * 20 * 13,
                    "rope_parameters": ROPE | {"mrope_interleaved": True},
                },
                **tokens,
            },
            talker_config={
                "text_config": small
                | experts
                | {"vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16, "rope_parameters": ROPE}
                | {"shared_expert_intermediate_size": 16},
                "code_predictor_config": small
                | {"vocab_size": 32, "num_key_value_heads": 1, "head_dim": 16, "num_code_groups": 2},
                "num_code_groups": 2, "thinker_hidden_size": 64, "spatial_merge_size": 2,
            },
            code2wav_config=small
            | {"codebook_size": 16, "num_key_value_heads": 2, "num_quantizers": 2, "decoder_dim": 16}
            | {"upsample_rates": [2, 2], "upsampling_ratios": [2]},
        )
    )  # fmt: skip
    louder(model.thinker, 6)
    model.save_pretrained(folder)


def official(folder):
    whole = Qwen3OmniMoeConfig.from_pretrained(folder)
    thinker = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(folder, config=whole.thinker_config).eval()
    language_model = getattr(thinker.model, "language_model", thinker.model)  # as in transformers 5.23, as in 5.17
    processor = omni_processor(Qwen3OmniMoeProcessor, folder, CHAT_TEMPLATE)
    tokenizer = processor.tokenizer

    def run(pair):
        chat = processor.apply_chat_template(messages(pair), tokenize=False, add_generation_prompt=True)
        # each clip alone: together the official processor and encoder let them into each other
        spans, states = [], []
        for clip in pair.clips:
            alone = processor(text="<|audio_pad|>", audio=[clip.samples], sampling_rate=16_000, return_tensors="pt")
            spans.append("<|audio_pad|>" * alone["input_ids"].shape[1])
            heard = thinker.get_audio_features(alone["input_features"], alone["feature_attention_mask"])
            states.append(heard.last_hidden_state)
        inputs = tokenizer(with_spans(chat, "<|audio_pad|>", spans), return_tensors="pt")
        embeddings = thinker.get_input_embeddings()(inputs["input_ids"])
        is_audio = (inputs["input_ids"] == tokenizer.convert_tokens_to_ids("<|audio_pad|>"))[..., None]
        embeddings = embeddings.masked_scatter(is_audio, torch.cat(states))
        positions, _ = thinker.get_rope_index(**inputs)
        read = language_model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"], position_ids=positions)
        return inputs["input_ids"], read.last_hidden_state

    return thinker, run
