"""Qwen2.5-Omni whole: talker and vocoder lie in the same file as the thinker. Hears 5 s, 300 s on the hub."""

import json

from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2Tokenizer,
    WhisperFeatureExtractor,
)

from ..tools import louder, omni_processor, processed, small_tokenizer

MAX_SECONDS = 5.0
LORA_LAYERS = {"language_model": 2 * 7, "projector": 1, "audio_tower": 2 * 6}
NAMED = {
    "audio_token": "<|AUDIO|>", "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>", "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())
# What the hub's template makes of text and audio: a default system message, markers around each clip
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}


def build(folder):
    tokenizer = small_tokenizer(Qwen2Tokenizer, SPECIAL, eos_token="<|im_end|>", extra_special_tokens=NAMED)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, chunk_length=5, return_attention_mask=True).save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))  # as on the hub
    ids = tokenizer.convert_tokens_to_ids
    tokens = {"audio_token_index": ids("<|AUDIO|>"), "audio_start_token_id": ids("<|audio_bos|>")}
    tokens |= {"audio_end_token_id": ids("<|audio_eos|>"), "vision_start_token_id": ids("<|vision_bos|>")}
    tokens |= {"image_token_index": ids("<|IMAGE|>"), "video_token_index": ids("<|VIDEO|>")}
    small = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    encoder = {"enc_channels": [16, 16, 16, 16, 48], "enc_attention_channels": 8, "enc_se_channels": 8, "enc_dim": 16}
    model = Qwen2_5OmniForConditionalGeneration(
        Qwen2_5OmniConfig(
            thinker_config={
                "audio_config": {
                    "d_model": 48,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 96,
                    "n_window": 25,  # blocks of half a second
                    "output_dim": 64,
                },
                "vision_config": {
                    "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
                    "fullatt_block_indexes": [0],
                },
                "text_config": {
                    "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": ROPE,
                },
                **tokens,
            },
            talker_config=small
            | {"vocab_size": 64, "embedding_size": 64, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
            | {"rope_parameters": ROPE, "pad_token_id": 0},
            token2wav_config={
                "dit_config": encoder
                | {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "emb_dim": 16, "head_dim": 16}
                | {"num_embeds": 17, "enc_emb_dim": 16, "mel_dim": 20},
                "bigvgan_config": {"mel_dim": 20, "upsample_initial_channel": 64},
            },
        )
    )  # fmt: skip
    louder(model.thinker, 6)
    model.save_pretrained(folder)


def official(folder):
    whole = Qwen2_5OmniConfig.from_pretrained(folder)
    model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(folder, config=whole.thinker_config).eval()
    processor = omni_processor(Qwen2_5OmniProcessor, folder, CHAT_TEMPLATE)

    def run(pair):
        inputs = processed(processor, pair, sampling_rate=16_000)
        return inputs["input_ids"], model(**inputs, output_hidden_states=True).hidden_states[-1]

    return model, run
