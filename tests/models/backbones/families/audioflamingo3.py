"""Audio Flamingo 3: at most three windows of 1 s in the miniature, twenty of 30 s on the hub."""

from typing import Any

import torch
from empathy_judge.models.backbones.audio_language_model import messages
from transformers import (
    AudioFlamingo3Config,
    AudioFlamingo3ForConditionalGeneration,
    AudioFlamingo3Processor,
    AutoProcessor,
    Qwen2Tokenizer,
    WhisperFeatureExtractor,
)

from ..tools import joined, louder, small_tokenizer, with_spans

MAX_SECONDS = 3.0
LORA_LAYERS = {"language_model": 2 * 7, "projector": 2, "audio_tower": 2 * 6}

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<sound>")
# As transformers' convert_audioflamingo3_to_hf.py writes it: one <sound> in front of all the text of a message.
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages if m['content'] is not none %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% set found = namespace(audio=False, text='') %}{% for c in m['content'] %}"
    "{% if c['type'] == 'audio' %}{% set found.audio = True %}{% else %}{% set found.text = found.text + c['text'] %}"
    "{% endif %}{% endfor %}{% if found.audio %}<sound>{% endif %}{{ found.text }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder):
    small(folder, SPECIAL, AudioFlamingo3Config, AudioFlamingo3ForConditionalGeneration, AudioFlamingo3Processor)


def small(folder, special, config_class, model_class, processor_class, **further):
    """A checkpoint of one of the Audio Flamingos; `further` are values of its configuration."""
    ends = dict.fromkeys(("unk_token", "pad_token"), "<|endoftext|>")
    tokenizer = small_tokenizer(Qwen2Tokenizer, special, **ends, eos_token="<|im_end|>")
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=1, return_attention_mask=True)
    config = config_class(
        audio_config={
            "model_type": "audioflamingo3_encoder", "num_mel_bins": 128, "hidden_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 96, "max_source_positions": 50,
        },
        text_config={
            "model_type": "qwen2", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
        },
        audio_token_id=tokenizer.convert_tokens_to_ids("<sound>"),
        **further,
    )  # fmt: skip
    model = model_class(config).float()
    louder(model)
    model.save_pretrained(folder)
    processor_class(extractor, tokenizer, chat_template=TEMPLATE, max_audio_len=3).save_pretrained(folder)


def official(folder, model_class: Any = AudioFlamingo3ForConditionalGeneration):
    model = model_class.from_pretrained(folder).eval()
    processor: Any = AutoProcessor.from_pretrained(folder)

    def run(pair):
        content = joined(*messages(pair), "<sound>")
        chat = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        clips = [clip.samples for clip in pair.clips]
        if len(clips) == 1:
            inputs = processor(text=chat, audio=clips)
            return inputs["input_ids"], model.model(**inputs).last_hidden_state
        # it takes one clip for each text: it hears them one by one and then reads the text that has all their tokens
        heard = [processor(text="<sound>", audio=[clip]) for clip in clips]
        spans = [processor.tokenizer.decode(one["input_ids"][0]) for one in heard]
        inputs = processor.tokenizer(with_spans(chat, "<sound>", spans), return_tensors="pt")
        for name in ("input_features", "input_features_mask"):
            inputs[name] = torch.cat([one[name] for one in heard])
        return inputs["input_ids"], model.model(**inputs).last_hidden_state

    return model, run
