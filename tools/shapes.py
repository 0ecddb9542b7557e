"""Writes `configs/shapes/`: the configurations of the backbones of the shipped recipes, so that `train --dry-run` needs
no hub. Run it as `python tools/shapes.py` where a family or a recipe is new.

Files are those of the miniatures that the tests build (`tests/models/backbones/families`), without weights, with the
sizes of the real models in their place. The vocabulary is that of the miniature: it knows the words of our question, so
that a text has about as many tokens as with the real one. Sizes are those that papers and the defaults of transformers'
classes state, not read off the hub; `tests/train/test_dry_run.py` compares what they add up to with the known number of
parameters.
"""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "configs" / "shapes"
DEFAULT = "as the class has it"

WHISPER_LARGE = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120}
NAMED_LARGE = {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 20, "intermediate_size": 5120}
WINDOW = {"max_source_positions": 1500, "num_mel_bins": 128}
QWEN_7B = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "layer_types": ["full_attention"] * 28, "max_window_layers": 28,
}  # fmt: skip
CHUNK = {"chunk_length": 30, "n_samples": 480_000, "nb_max_frames": 3000}
WAVE = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    "conv_dim": [512] * 7, "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16,
    "do_stable_layer_norm": True, "feat_extract_norm": "layer", "output_hidden_size": 1024,
}  # fmt: skip
SIZES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Qwen/Qwen2-Audio-7B-Instruct": (
        "qwen2_audio",
        {
            "audio_config": WHISPER_LARGE | WINDOW,
            "text_config": {
                "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 32, "vocab_size": 156_032, "layer_types": ["full_attention"] * 32,
                "max_position_embeddings": 8192,
            },
        },
        CHUNK | {"feature_size": 128, "hop_length": 160, "n_fft": 400},
    ),
    "Qwen/Qwen2.5-Omni-7B": (
        "qwen2_5_omni",
        {
            "thinker_config": {
                "audio_config": WHISPER_LARGE | WINDOW | {"n_window": 100, "output_dim": 3584},
                "text_config": QWEN_7B
                | {"vocab_size": 152_064, "max_position_embeddings": 32_768}
                | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}},
            },
        },
        {"chunk_length": 300, "n_samples": 4_800_000, "nb_max_frames": 30_000},
    ),
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": (
        "qwen3_omni_moe",
        {
            "thinker_config": {
                "audio_config": WHISPER_LARGE
                | WINDOW
                | {"n_window": 50, "n_window_infer": 800, "output_dim": 2048, "downsample_hidden_size": 480},
                "text_config": {
                    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
                    "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                    "vocab_size": 152_064, "max_position_embeddings": 65_536, "intermediate_size": 768,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20],
                        "mrope_interleaved": True,
                    },
                },
            },
        },
        {},
    ),
    "Qwen/Qwen3-ASR-1.7B-hf": (
        "qwen3_asr",
        {
            "audio_config": {
                "d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
                "n_window_infer": 800, "output_dim": 2048, "downsample_hidden_size": 480,
            },
            "text_config": {
                "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 65_536,
                "layer_types": ["full_attention"] * 28, "max_window_layers": 28,
            },
        },
        {},
    ),
    "nvidia/audio-flamingo-3-hf": (
        "audioflamingo3",
        {"audio_config": NAMED_LARGE | WINDOW, "text_config": QWEN_7B | {"vocab_size": 151_672}},
        {**CHUNK, "max_audio_len": 600},
    ),
    "nvidia/audio-flamingo-next-hf": (
        "musicflamingo",
        {"audio_config": NAMED_LARGE | WINDOW, "text_config": QWEN_7B | {"vocab_size": 151_672}},
        {**CHUNK, "max_audio_len": 1800},
    ),
    "mistralai/Voxtral-Mini-3B-2507": (
        "voxtral",
        {
            "audio_config": NAMED_LARGE | WINDOW,
            "text_config": {
                "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30, "num_attention_heads": 32,
                "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131_072,
            },
            "hidden_size": 3072,
        },
        CHUNK,
    ),
    "google/gemma-3n-E4B-it": (
        "gemma3n",
        {"text_config": DEFAULT, "audio_config": DEFAULT, "audio_soft_tokens_per_image": 188},
        {},
    ),
    "google/gemma-4-E4B-it": (
        "gemma4",
        {
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 42, "num_attention_heads": 8,
                "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
                "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
                "num_kv_shared_layers": 18, "use_double_wide_mlp": False,
                "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
                "per_layer_config": None,  # which transformers makes of `global_head_dim`
            },
            "audio_config": DEFAULT,
        },
        {"feature_size": 128},
    ),
    "facebook/hubert-large-ll60k": ("hubert", WAVE | {"conv_bias": True}, {}),
    "facebook/wav2vec2-xls-r-300m": ("wav2vec2", WAVE | {"conv_bias": True}, {}),
    "microsoft/wavlm-large": ("wavlm", WAVE | {"conv_bias": False}, {}),
    "facebook/w2v-bert-2.0": (
        "wav2vec2_bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        {},
    ),
    "openai/whisper-base": (
        "whisper",
        {
            "d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
            "max_source_positions": 1500, "num_mel_bins": 80,
        },
        {**CHUNK, "feature_size": 80},
    ),
    "openai/whisper-small": (
        "whisper",
        {
            "d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
            "max_source_positions": 1500, "num_mel_bins": 80,
        },
        {**CHUNK, "feature_size": 80},
    ),
}  # fmt: skip
"""Hub id -> family, values of `config.json`, values of the feature extractor; DEFAULT = those of the class."""


def main() -> None:
    """Write all of them."""
    for hub_id, (family, sizes, extractor) in SIZES.items():
        folder = OUT / hub_id.replace("/", "--")
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            built = Path(scratch)
            importlib.import_module(f"empathy_judge.tests.models.backbones.families.{family}").build(built)
            folder.mkdir(parents=True)
            for path in built.glob("*"):
                if path.suffix in (".json", ".jinja") and "safetensors" not in path.name:
                    shutil.copyfile(path, folder / path.name)
        if family == "qwen2_audio":  # the miniature's template is shorter than the hub's, which is that of Omni
            omni = importlib.import_module("empathy_judge.tests.models.backbones.families.qwen2_5_omni").CHAT_TEMPLATE
            (folder / "chat_template.jinja").write_text(omni, encoding="utf-8")
        _change(folder / "config.json", sizes)
        for path in folder.glob("*processor_config.json"):
            _change(path, extractor)
        print(folder.name, sum(path.stat().st_size for path in folder.iterdir()))


def _change(path: Path, values: Mapping[str, Any]) -> None:
    tree = json.loads(path.read_text(encoding="utf-8"))
    _lay_over(tree, values)
    path.write_text(json.dumps(tree, separators=(",", ":")) + "\n", encoding="utf-8")


def _lay_over(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value == DEFAULT:
            tree[name] = {"model_type": tree[name]["model_type"]}
        elif value is None:
            tree.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(tree.get(name), dict):
            _lay_over(tree[name], value)
        else:
            tree[name] = value
    extractor = tree.get("feature_extractor")
    if isinstance(extractor, dict):  # a processor keeps its feature extractor in its own file
        _lay_over(extractor, {name: value for name, value in values.items() if name != "max_audio_len"})


if __name__ == "__main__":
    main()
