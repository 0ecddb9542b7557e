"""Nemotron 3 Nano Omni in miniature, written with the names of the hub's files: RADIO and MTP lie beside what hears.

Its language model has layers of all four kinds. Hears 20 s, as half its positions allow.
"""

from typing import Any
from unittest import mock

import torch
from empathy_judge.models.backbones.audio_language_model import messages
from transformers import (
    AutoTokenizer,
    NemotronH_Omni_Reasoning_V3,
    NemotronH_Omni_Reasoning_V3_Config,
    ParakeetFeatureExtractor,
    Qwen2Tokenizer,
)
from transformers.models.nemotron_h_omni.processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3Processor

from ..tools import joined, louder, small_tokenizer, uneven, with_spans

MAX_SECONDS = 20.0
# of Mamba what reads (4 layers), of attention all (2), of the mixture of experts what all tokens share (1), and the MLP
LORA_LAYERS = {"language_model": 4 + 2 * 4 + 2 + 2, "projector": 2, "audio_tower": 1 + 2 * 9}
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<video>", "<img>", "</img>",
           "<so_embedding>", "<so_start>", "<so_end>")  # fmt: skip
# A template reads a content that is a text, whatever it makes of lists
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)


def build(folder):
    tokenizer = small_tokenizer(Qwen2Tokenizer, SPECIAL, eos_token="<|im_end|>", chat_template=CHAT_TEMPLATE)
    tokenizer.save_pretrained(folder)
    ParakeetFeatureExtractor(feature_size=32).save_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_img_size": 32, "patch_size": 8}
    config = NemotronH_Omni_Reasoning_V3_Config(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
            "ssm_state_size": 16, "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "n_shared_experts": 1,
            "routed_scaling_factor": 2.5, "max_position_embeddings": 500,
            "layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "linear_attention",
                                  "mlp", "linear_attention", "full_attention"],
        },
        audio_config={
            "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
            "num_mel_bins": 32, "subsampling_conv_channels": 8, "projection_hidden_size": 96,
            "projection_bias": False, "convolution_bias": False,
        },
        vision_config=vision | {"image_size": 16, "video_temporal_patch_size": 2},
        vision_hidden_size=16, projector_hidden_size=32,
        image_token_id=ids("<image>"), video_token_id=ids("<video>"), audio_token_id=ids("<so_embedding>"),
    )  # fmt: skip
    model = NemotronH_Omni_Reasoning_V3(config)
    louder(model, 3.0)
    uneven(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("bias_u", "bias_v")):
                weight.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.1)
    model.save_pretrained(folder)


def official(folder):
    model: Any = NemotronH_Omni_Reasoning_V3.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    extractor = ParakeetFeatureExtractor.from_pretrained(folder)
    # its image and video processors cannot be made without torchvision
    with mock.patch.object(NemotronH_Omni_Reasoning_V3Processor, "check_argument_for_proper_class"):
        processor: Any = NemotronH_Omni_Reasoning_V3Processor(None, None, tokenizer, extractor)

    def run(pair):
        chat = [{"role": own["role"], "content": joined(own, "<so_embedding>")} for own in messages(pair)]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        # each clip alone: in a batch the last state of a clip may read the padding behind it
        spans, states = [], []
        for clip in pair.clips:
            alone = processor(text="<so_embedding>", audio=[clip.samples], return_tensors="pt")
            spans.append(tokenizer.decode(alone["input_ids"][0]))
            heard = model.get_audio_features(alone["input_features"], alone["input_features_mask"])
            states.append(heard.pooler_output)
        inputs = tokenizer(with_spans(text, "<so_embedding>", spans), return_tensors="pt")
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        is_audio = (inputs["input_ids"] == model.config.audio_token_id)[..., None]
        embeddings = embeddings.masked_scatter(is_audio, torch.cat(states))
        read = model.language_model.model(inputs_embeds=embeddings, attention_mask=inputs["attention_mask"])
        return inputs["input_ids"], read.last_hidden_state

    return model, run
