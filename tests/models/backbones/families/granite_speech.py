"""Granite Speech 3: hears 32 s in the miniature, as long as its language model has positions for; LoRA of its own."""

import pytest
import torch
from empathy_judge.models.backbones.audio_language_model import messages
from peft import LoraConfig
from transformers import (
    AutoProcessor,
    GPT2Tokenizer,
    GraniteSpeechFeatureExtractor,
    GraniteSpeechForConditionalGeneration,
    GraniteSpeechProcessor,
    PreTrainedModel,
)

from ..tools import joined, louder, small_tokenizer

MAX_SECONDS = 32.0
# Q-Former layer: self-attention 4, cross-attention 4, feed-forward 2; encoder layer: 2 * 2 and 3, and 3 outside
LORA_LAYERS = {"language_model": 2 * 7, "projector": 2 * 10 + 1, "audio_tower": 2 * 7 + 3}

SPECIAL = ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>", "<|audio|>")
SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
# What the hub's template makes of system and user; without a system message it writes today's date.
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\n"
    "Today's Date: {{ strftime_now('%B %d, %Y') }}.\nYou are Granite, developed by IBM. You are a helpful AI assistant."
    "<|end_of_text|>\n{% endif %}"
    "{% for m in messages %}{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] }}<|end_of_text|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)


def build(folder, model_class=GraniteSpeechForConditionalGeneration, encoder=None):
    pytest.importorskip("torchaudio")  # the official features are made by it
    ends = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "<|end_of_text|>")
    tokenizer = small_tokenizer(GPT2Tokenizer, SPECIAL, **ends)
    tokenizer.chat_template = TEMPLATE
    encoder = encoder or {}
    config = model_class.config_class(
        encoder_config={
            "input_dim": 160, "num_layers": 2, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 4,
            "output_dim": 20, "context_size": 20, "max_pos_emb": 32, **encoder,
        },
        projector_config={
            "model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "encoder_hidden_size": 32 * (1 + len(encoder.get("cat_hidden_layers", []))),
            "cross_attention_frequency": 1,
        },
        text_config={
            "model_type": "granite", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 640, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.25, "tie_word_embeddings": True,
        },
        audio_token_index=tokenizer.convert_tokens_to_ids("<|audio|>"),
        has_lora_adapter=True,
    )  # fmt: skip
    model = model_class(config).float()
    louder(model)
    for layer in model.model.encoder.layers:  # as trained, not as made
        layer.conv.batch_norm.running_mean.normal_(std=0.2)
        layer.conv.batch_norm.running_var.uniform_(0.5, 2)
    model.save_pretrained(folder)
    model.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    PreTrainedModel.save_pretrained(model, folder)  # the adapter alone
    GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), tokenizer).save_pretrained(folder)


def official(folder, model_class=GraniteSpeechForConditionalGeneration):
    model = model_class.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)

    def run(pair):
        content = joined(*messages(pair), "<|audio|>")
        chat = processor.tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
        )
        clips = [clip.samples for clip in pair.clips]
        inputs = processor(chat, clips, return_tensors="pt")
        if len(clips) == 1:
            return inputs["input_ids"], model.model(**inputs).last_hidden_state
        # in one call the shorter clips would hear the padding of the longest
        alone = [processor("<|audio|>", [clip], return_tensors="pt")["input_features"] for clip in clips]
        features = torch.cat([model.get_audio_features(one).pooler_output[0] for one in alone])
        embeddings = model.model.get_merged_audio_embeddings(inputs["input_ids"], features)
        states = model.model.language_model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"])
        return inputs["input_ids"], states.last_hidden_state

    return model, run
