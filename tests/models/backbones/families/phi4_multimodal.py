"""Phi-4-multimodal with a speech adapter; pairs of more than 150 tokens (4,096 on the hub) count as long."""

import copy
import json

import torch
from empathy_judge.models.backbones.audio_language_model import messages
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoTokenizer,
    GPT2Tokenizer,
    Phi4MultimodalConfig,
    Phi4MultimodalFeatureExtractor,
    Phi4MultimodalForCausalLM,
    Phi4MultimodalProcessor,
)
from transformers.image_processing_utils import BaseImageProcessor

from ..tools import joined, louder, small_tokenizer

MAX_SECONDS = 1800.0
LORA_LAYERS = {"language_model": 2 * 4, "projector": 2, "audio_tower": 2 * 8}

SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", "<|image|>", "<|audio|>")
# That of the tokenizer: it takes the message as one text.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
LONG = 150


def build(folder):
    ends = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    named = {"image_token": "<|image|>", "audio_token": "<|audio|>"}
    tokenizer = small_tokenizer(GPT2Tokenizer, SPECIAL, **ends, extra_special_tokens=named, chat_template=TEMPLATE)
    config = Phi4MultimodalConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8 * LONG,
        original_max_position_embeddings=LONG,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]},
        partial_rotary_factor=0.75,
        audio_config={
            "hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 4,
            "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8,
            "audio_token_id": tokenizer.convert_tokens_to_ids("<|audio|>"),
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 28, "crop_size": 28, "image_token_id": tokenizer.convert_tokens_to_ids("<|image|>"),
        },
    )  # fmt: skip
    model = Phi4MultimodalForCausalLM(config)
    louder(model, 4.0)
    with torch.no_grad():
        audio = model.model.embed_tokens_extend.audio_embed.encoder
        audio.encoder_embedding.global_mean.fill_(15.0)
        audio.encoder_embedding.global_invstd.fill_(1.0)
        for name, weight in audio.named_parameters():
            if weight.ndim == 1 or name.endswith((".b1", ".b2")):
                weight.add_(0.2 * torch.randn(weight.shape))
            elif "bias_values" in name:
                weight.copy_(torch.randn(weight.shape))
            elif "embed.conv" in name:
                weight.mul_(6.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Phi4MultimodalFeatureExtractor().save_pretrained(folder)
    save_adapter(model, folder / "speech-lora")


def save_adapter(model, folder):
    """Weights on the decoder alone, and a configuration whose names are also those of layers of the tower."""
    names = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=rf"model\.layers\..*\.({'|'.join(names)})")
    adapted = get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=0.05)
    adapted.save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": names}))


def official(folder):
    model = Phi4MultimodalForCausalLM.from_pretrained(folder)
    model.load_adapter(str(folder / "speech-lora"), adapter_name="speech")
    model.set_adapter("speech")
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = Phi4MultimodalFeatureExtractor.from_pretrained(folder)
    # its image processor cannot be made without torchvision
    processor = Phi4MultimodalProcessor(BaseImageProcessor(), extractor, tokenizer, chat_template=TEMPLATE)
    embedding = model.model.embed_tokens_extend.audio_embed

    def run(pair):
        content = joined(*messages(pair), "<|audio|>")
        chat = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        clips = [clip.samples for clip in pair.clips]
        inputs = processor(text=chat, audio=clips, sampling_rate=16_000, return_tensors="pt")
        if len(clips) == 1:
            return inputs["input_ids"], model.model(**inputs).last_hidden_state
        # together, the shorter would hear the silence that fills it up: each clip goes through the tower alone
        heard = [extractor(clip, sampling_rate=16_000)["audio_input_features"] for clip in clips]
        encoder, embedding.encoder = embedding.encoder, _Alone(embedding.encoder, heard)
        try:
            return inputs["input_ids"], model.model(**inputs).last_hidden_state
        finally:
            embedding.encoder = encoder

    return model, run


class _Alone(nn.Module):
    """The official tower on one clip after the other, filled up only afterwards."""

    def __init__(self, tower, clips):
        super().__init__()
        self.tower, self.clips = tower, clips

    def forward(self, features, mask):
        states = [self.tower(clip, None)[0] for clip in self.clips]
        return nn.utils.rnn.pad_sequence(states, batch_first=True)
