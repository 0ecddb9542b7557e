"""How many audio tokens a clip makes in each family, and where LoRA lands: on the miniatures of the tests."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones import FAMILIES, NANO_FOLDER, load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.lora import adapt, part_of
from empathy_judge.models.settings import LoraSettings, PartName
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import (
    AutoProcessor,
    Gemma3nProcessor,
    Qwen2_5OmniProcessor,
    Qwen3OmniMoeProcessor,
    VoxtralConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperModel,
)

LENGTHS = (800, 16_000, 16_001, 32_000, 32_001, 160_000, 480_000, 480_001)
"""Samples: the shortest clip that is accepted, and around 1, 2, 10 and 30 s."""
LONGER = (
    "audioflamingo3", "musicflamingo", "nemotron_h_omni", "qwen2_5_omni", "qwen3_asr", "qwen3_omni_moe", "voxtral"
)  # fmt: skip
"""Families that hear more than 30 s in one clip."""
TINY: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "vocab_size": 64,
}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "pad_token_id": 0}
SHORT = {"language_model": "LM", "projector": "projector", "audio_tower": "tower", "fusion": "fusion"}
NAMED = {
    "LM": r"(^|[.])language_model[.]|^model[.]layers[.]",
    "tower": r"audio_tower[.]",
    "projector": r"multi_modal_projector|embed_audio",
    "vision": r"vis(ion|ual)",
    "decoder": r"decoder[.]",
}
"""What the page calls a part of an official class, and how names of its modules look."""
PATTERNS: dict[str, dict[str, Any]] = {
    '`["q_proj", "v_proj"]`': {"target_modules": ["q_proj", "v_proj"]},
    '`"all-linear"`': {"target_modules": "all-linear"},
    "none given": {},
    r"`.*language_model.*\.(q_proj\|v_proj)`": {"target_modules": r".*language_model.*\.(q_proj|v_proj)"},
}
"""As the page writes it -> arguments of `LoraConfig`."""


def of_hub_size(name: str, folder: Path, module: Any) -> None:
    """Gives a miniature the front end of the hub's checkpoint: windows of 30 s, clips up to its maximum."""
    if name in ("audioflamingo3", "musicflamingo"):
        extractor = WhisperFeatureExtractor(feature_size=128, return_attention_mask=True)
        processor: Any = AutoProcessor.from_pretrained(folder)
        sizes = {"chat_template": processor.chat_template, "max_audio_len": 600 if name == "audioflamingo3" else 1_800}
        type(processor)(extractor, processor.tokenizer, **sizes).save_pretrained(folder)
    elif name == "qwen2_5_omni":
        WhisperFeatureExtractor(feature_size=128, chunk_length=300, return_attention_mask=True).save_pretrained(folder)


def miniature(name: str, folder: Path, full_size: bool) -> tuple[Any, Any, Path]:
    """The tests' module of a family, its backbone, and its folder; nano in place of Qwen2-Audio's miniature of 10 s."""
    module: Any = importlib.import_module(f"empathy_judge.tests.models.backbones.families.{name}")
    if name == "qwen2_audio":
        folder = NANO_FOLDER
    else:
        # of the window of Voxtral and of Whisper, of a clip of Gemma 3n
        sizes = {"SECONDS": 30, "TOKENS": 188} if full_size else {}
        with torch.random.fork_rng(devices=[]), patch.dict(vars(module), sizes):
            torch.manual_seed(0)
            module.build(folder)
        if full_size:
            of_hub_size(name, folder, module)
    return module, load_backbone(Checkpoint(str(folder))), folder


def official(name: str, module: Any, backbone: Any, folder: Path) -> Callable[[np.ndarray], int]:
    """What counts a clip's audio tokens by the official processor, or its states by the official encoder."""
    if name == "gemma3n":
        always = inspect.signature(Gemma3nProcessor).parameters["audio_seq_length"].default
        return lambda samples: always
    if name == "voxtral":
        audio: Any = VoxtralConfig().audio_config
        window = audio.max_source_positions // 4  # four states make a token
        return lambda samples: -(-len(samples) // 480_000) * window
    if name == "whisper":
        model, extractor = WhisperModel(WhisperConfig(**TINY)).eval(), WhisperFeatureExtractor(feature_size=80)
        return lambda samples: len(
            model.encoder(**extractor(samples, sampling_rate=16_000, return_tensors="pt")).last_hidden_state[0]
        )
    if name in ("gemma4", "gemma4_unified", "nemotron_h_omni", "qwen3_asr") or not backbone.reads_text:
        run = module.official(folder)[1]
        if not backbone.reads_text:
            return lambda samples: len(run(samples))
        return lambda samples: int((run(Pair("pair", Clip(samples, 16_000)))[0] == backbone.audio_token_id).sum())
    kind = {"qwen2_5_omni": Qwen2_5OmniProcessor, "qwen3_omni_moe": Qwen3OmniMoeProcessor}.get(name)
    if kind is None:
        processor = AutoProcessor.from_pretrained(folder)
    else:
        processor = module.omni_processor(kind, folder, module.CHAT_TEMPLATE)
    options = {} if name in ("audioflamingo3", "musicflamingo") else {"sampling_rate": 16_000}

    def count(samples: np.ndarray) -> int:
        ids = processor(text=backbone.audio_token, audio=[samples], return_tensors="pt", **options)["input_ids"]
        return int((ids == backbone.audio_token_id).sum())

    return count


@torch.no_grad()
def tokens() -> dict[str, Any]:
    """Audio states that the head reads of a clip, "of" so many audio tokens of the official class."""
    rows = []
    for name in sorted(FAMILIES):
        with tempfile.TemporaryDirectory() as made:
            module, backbone, folder = miniature(name, Path(made), full_size=True)
            theirs = official(name, module, backbone, folder)
            row = [f"`{name}`"]
            for count in LENGTHS:
                if count > 480_000 and name not in LONGER:
                    row.append("")
                    continue
                heard = backbone.real_audio_tokens(count)
                samples = np.random.default_rng(0).normal(0, 0.1, count).astype(np.float32)
                whole = theirs(samples)
                if name != "whisper" and whole != backbone.audio_tokens(count):
                    raise RuntimeError(f"{name}: {backbone.audio_tokens(count)} tokens of {count}, not {whole}")
                row.append(f"{heard:,}" if heard == whole else f"{heard:,} of {whole:,}")
            rows.append(row)
    versions = {"transformers": version("transformers")}
    return {"versions": versions, "columns": ["family", *(f"{count:,}" for count in LENGTHS)], "rows": together(rows)}


def together(rows: list[list[str]]) -> list[list[str]]:
    """Families with the same cells in one row."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return [[", ".join(some), *cells] for cells, some in names.items()]


def part(name: str, encoder: bool, vision: str = "") -> str:
    """What a module of an official class belongs to, by its name; `vision` = another name of what sees."""
    if encoder:
        return "decoder" if "decoder." in name else "tower"
    if vision and vision in name:
        return "vision"
    return next((word for word, pattern in NAMED.items() if re.search(pattern, name)), "elsewhere")


def reached(network: nn.Module, part_of_layer: Callable[[str], str]) -> str:
    """How many linear layers of each part have an adapter."""
    layers = [name for name, module in network.named_modules() if isinstance(module, LoraLayer)]
    counts = Counter(map(part_of_layer, layers))
    return ", ".join(f"{word} {counts[word]}" for word in (*NAMED, "elsewhere") if counts[word]) or "none"


def targets() -> dict[str, Any]:
    """Linear layers of the official class that get LoRA by a pattern of PEFT, and those that the recipes adapt."""
    rows = []
    for name in sorted(FAMILIES):
        with tempfile.TemporaryDirectory() as made:
            module, backbone, folder = miniature(name, Path(made), full_size=False)
            encoder, row = not backbone.reads_text, [f"`{name}`"]
            theirs = module.official(folder)[0]
            vision = "multi_modal_projector" if name == "nemotron_h_omni" else ""
            for arguments in PATTERNS.values():
                network = copy.deepcopy(theirs)
                try:
                    get_peft_model(network, LoraConfig(**arguments))  # pyright: ignore[reportArgumentType]
                    row.append(reached(network, partial(part, encoder=encoder, vision=vision)))
                except ValueError:
                    row.append("error")
            own: PartName = "audio_tower" if encoder else "language_model"
            adapt(backbone, LoraSettings(parts=[own]))
            row.append(reached(backbone.network, lambda layer, own=backbone: SHORT[part_of(own, layer) or "fusion"]))
            rows.append(row)
    versions = {"peft": version("peft"), "transformers": version("transformers")}
    return {"versions": versions, "columns": ["family", *PATTERNS, "this package"], "rows": together(rows)}
