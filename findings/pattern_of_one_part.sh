#!/usr/bin/env bash
# PEFT puts LoRA into the audio tower of Qwen3-Omni where a regular expression names its language model alone.
#
# One would guess: target_modules as a text is a regular expression that must match the whole name of a module, so that
#   `.*language_model.*\.(q_proj|v_proj)` reaches the language model and nothing else, as it does in Qwen2.5-Omni.
# What happens: for model types that PEFT knows as mixtures of experts it rewrites target_modules for fused weights, and the regular
#   expression becomes the set {q_proj, v_proj}, which the audio tower has, too. There is no message; `print_trainable_parameters` shows a
#   sum. A tower that was to stay frozen is trained, and cached states of it are wrong.
# Who meets it: LoRA on Qwen3-Omni. Count the layers that have an adapter by their names before you train.
# Versions: peft 0.21.2, transformers 5.23.0, torch 2.11.0; source: _resolve_string_target_modules in peft/utils/transformers_weight_conversion.py, and a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet peft==0.21.2 transformers==5.23.0 torch==2.11.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PYTHON'
from collections import Counter
from importlib.metadata import version

from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

print("peft", version("peft"), "transformers", version("transformers"))
pattern = r".*language_model.*\.(q_proj|v_proj)"
text = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
audio = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 32}
vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
experts = {"head_dim": 16, "moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32}
dense = Qwen2_5OmniThinkerConfig(
    text_config=text | {"intermediate_size": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}},
    audio_config=audio, vision_config=vision | {"fullatt_block_indexes": [0]},
)
sparse = Qwen3OmniMoeThinkerConfig(
    text_config=text | experts | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}},
    audio_config=audio | {"downsample_hidden_size": 8},
    vision_config=vision | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
)
found = {}
for kind, config in ((Qwen2_5OmniThinkerForConditionalGeneration, dense), (Qwen3OmniMoeThinkerForConditionalGeneration, sparse)):
    adapted = get_peft_model(kind(config), LoraConfig(target_modules=pattern))
    names = [name for name, module in adapted.named_modules() if isinstance(module, LoraLayer)]
    found[config.model_type] = Counter(part for name in names for part in ("language_model", "audio_tower", "visual") if f".{part}." in name)
    print(f"{config.model_type}: {dict(found[config.model_type])}, target_modules now {adapted.peft_config['default'].target_modules}")
    stated = adapted.peft_config["default"].target_modules
    found[config.model_type, "kept"] = stated == pattern
assert found["qwen2_5_omni_thinker"] == {"language_model": 4} and found["qwen2_5_omni_thinker", "kept"]
assert found["qwen3_omni_moe_thinker"]["audio_tower"] == 4 and not found["qwen3_omni_moe_thinker", "kept"], "the pattern is kept now"
print("as found")
PYTHON
