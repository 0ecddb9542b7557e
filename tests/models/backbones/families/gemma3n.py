"""Gemma 3n: 32 audio tokens for each clip (5.12 s) in the miniature, 188 (30 s) on the hub."""

from types import SimpleNamespace
from unittest import mock

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    Gemma3nVisionConfig,
    SiglipImageProcessorPil,
)
from transformers.models.gemma3n import modeling_gemma3n

from ..tools import gemma_tokenizer, louder, processed, uneven

MAX_SECONDS = 5.12
# the last two of four layers share keys and values and have no layers of their own for them
LORA_LAYERS = {"language_model": 4 * 7 - 2 * 2, "projector": 1, "audio_tower": 2 * 10}

TOKENS = 32
TEXT, HARD = 400, 8
"""Tokens of text, and hard tokens of vision and of audio each (262,144 and 128 on the hub)."""
SPECIAL = {
    "image_token": "<image_soft_token>", "audio_token": "<audio_soft_token>", "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>", "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>",
}  # fmt: skip
# As transformers' convert_gemma3n_weights.py has it, for messages of a user.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{% for item in message['content'] %}{% if item['type'] == 'audio' %}{{ '<audio_soft_token>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{{ '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


class _Vision(nn.Module):
    """Stands where the vision tower is, which needs the package timm; its weight is not to be read."""

    def __init__(self):
        super().__init__()
        self.timm_model = nn.Linear(4, 4)


def _from_config(config):
    return _Vision() if isinstance(config, Gemma3nVisionConfig) else AutoModel.from_config(config)


def official_class(run):
    """What `run` makes of the true class, without its vision tower."""
    with mock.patch.object(modeling_gemma3n, "AutoModel", SimpleNamespace(from_config=_from_config)):
        return run(Gemma3nForConditionalGeneration)


def build(folder):
    # the hub's order: text (360 tokens before these), then the hard tokens of vision, then those of audio
    further = ["<start_of_image>", "<start_of_audio>", *(f"<unused{n}>" for n in range(TEXT - 362))]
    for few in (["<end_of_image>", "<image_soft_token>"], ["<end_of_audio>", "<audio_soft_token>"]):
        further += [*few, *(f"{few[0]}{n}" for n in range(HARD - len(few)))]
    tokenizer = gemma_tokenizer(further, SPECIAL, TEMPLATE, ["<start_of_turn>", "<end_of_turn>"])
    assert len(tokenizer) == TEXT + 2 * HARD
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in SPECIAL.items()}
    config = Gemma3nConfig(
        text_config={
            "vocab_size": len(tokenizer), "vocab_size_per_layer_input": TEXT, "hidden_size": 48,
            "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "sliding_window": 50, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "laurel_rank": 8,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        },
        audio_config={
            "vocab_size": HARD, "vocab_offset": TEXT + HARD, "hidden_size": 32, "conf_num_attention_heads": 4,
            "conf_num_hidden_layers": 2, "sscp_conv_channel_size": [8, 4],
        },
        vision_config={"vocab_size": HARD, "vocab_offset": TEXT, "hidden_size": 16},
        audio_soft_tokens_per_image=TOKENS,
        **ids,
    )  # fmt: skip
    model = official_class(lambda kind: kind(config))
    louder(model, 3.0)
    uneven(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Gemma3nAudioFeatureExtractor().save_pretrained(folder)


def official(folder):
    model = official_class(lambda kind: kind.from_pretrained(folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = Gemma3nAudioFeatureExtractor.from_pretrained(folder)
    processor = Gemma3nProcessor(
        extractor, SiglipImageProcessorPil(), tokenizer, tokenizer.chat_template, audio_seq_length=TOKENS
    )

    def run(pair):
        inputs = processed(processor, pair, add_special_tokens=False)
        if not pair.context:
            return inputs["input_ids"], model.model(**inputs).last_hidden_state
        # together, frames that only padding made would count as heard: each clip goes through the encoder alone
        heard = [_heard(model.model, extractor, clip.samples) for clip in pair.clips]
        longest = max(states.shape[1] for states in heard)
        rows = [nn.functional.pad(states, (0, 0, 0, longest - states.shape[1])) for states in heard]
        left_over = torch.arange(longest) >= torch.tensor([states.shape[1] for states in heard])[:, None]
        result = SimpleNamespace(pooler_output=torch.cat(rows), audio_mel_mask=left_over)
        with mock.patch.object(model.model, "get_audio_features", return_value=result):
            return inputs["input_ids"], model.model(**inputs).last_hidden_state

    return model, run


def _heard(model, extractor, clip):
    made = extractor([clip], return_tensors="pt")
    found = model.get_audio_features(made["input_features"], ~made["input_features_mask"], return_dict=True)
    assert not found.audio_mel_mask.any()
    return found.pooler_output
