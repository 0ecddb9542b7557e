"""Backbones by the `model_type` of their `transformers` configuration: one class per family (see `FAMILIES`).

A class names the official model class, the paths of its parts, its audio token and the number of audio tokens of a
clip, and overrides what is special in the family. The base classes are `AudioLanguageModel` and `PairEncoder`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from ...core.errors import UserError
from .. import NANO
from ..hub import expected_backbone, require_backbone
from .base import Backbone, Checkpoint
from .layers import fuse
from .loading import layers_read, load_model, one_line

NANO_FOLDER = Path(__file__).parents[2] / "checkpoints" / "nano"
TRANSFORMERS = "transformers>=5.17,<6"
"""Versions with which every family here can be used, but for these:"""
SINCE: Mapping[str, str] = {"nemotron_h_omni": "transformers>=5.18,<6"}
DEPTH = "empathy_judge_depth"
"""Key in config.json of an exported backbone: how many layers its files have, where these are not all."""
FAMILIES: Mapping[str, tuple[str, str]] = {
    "audioflamingo3": ("qwen2_audio", "AudioFlamingo3"),
    "gemma3n": ("gemma", "Gemma3n"),
    "gemma4": ("gemma", "Gemma4"),
    "gemma4_unified": ("gemma4_unified", "Gemma4Unified"),
    "hubert": ("audio_encoders", "Hubert"),
    "musicflamingo": ("qwen2_audio", "MusicFlamingo"),
    "nemotron_h_omni": ("nemotron_h_omni", "NemotronHOmni"),
    "qwen2_5_omni": ("qwen_omni", "Qwen2_5Omni"),
    "qwen2_audio": ("qwen2_audio", "Qwen2Audio"),
    "qwen3_asr": ("qwen3_asr", "Qwen3ASR"),
    "qwen3_omni_moe": ("qwen_omni", "Qwen3OmniMoe"),
    "voxtral": ("voxtral", "Voxtral"),
    "wav2vec2": ("audio_encoders", "Wav2Vec2"),
    "wav2vec2_bert": ("audio_encoders", "Wav2Vec2Bert"),
    "wavlm": ("audio_encoders", "WavLM"),
    "whisper": ("audio_encoders", "Whisper"),
}
"""Module and class of each family; imported on demand."""


def load_backbone(checkpoint: Checkpoint) -> Backbone:
    """Load a backbone, in evaluation mode and frozen: "nano" (shipped with this package), a hub id, or a folder in the
    hub's layout.

    Raises:
        UserError: If there is no such checkpoint, no class for its family, the installed transformers lacks the family,
            a value of config.json is not what the family takes, or the checkpoint lacks weights of the model or has
            weights that belong to none.
    """
    name = checkpoint.name
    config = read_config(name, checkpoint.revision)
    family = _family(name, config)
    depth = _depth(name, checkpoint.depth, config.get(DEPTH))
    if checkpoint.window_seconds is not None and not family.fixed_window:
        raise UserError(f"backbone {name!r} with judge.window_seconds: it has no fixed window; expected null")
    resolved = replace(checkpoint, name=str(NANO_FOLDER) if name == NANO else name, depth=depth)
    try:
        network = family.network_of(load_model(family, resolved))
        backbone: Backbone = family(network, family.processor_of(resolved), resolved)
    except StrictDataclassError as error:
        raise UserError(f"backbone {name!r}: config.json: {one_line(error)}") from None
    backbone.name, backbone.depth = name, None if depth is None else len(backbone.layers)
    fuse(backbone.network)
    backbone.network.requires_grad_(False).eval()
    return backbone


def _depth(name: str, asked: int | float | None, there: Any) -> int | float | None:
    """How many layers are read, where there are so many in the files of an export (None = all of the model)."""
    if there is None:
        return asked
    if type(there) is not int or there < 1:
        raise UserError(f"backbone {name!r}: config.json has {DEPTH} {there!r}; expected a number of layers")
    if asked is None:
        return there
    return layers_read(asked, there, name)  # `transformers` knows the number of the whole model alone


def read_config(name: str, revision: str | None) -> dict[str, Any]:
    """The content of config.json of a backbone ("nano", a hub id or a folder).

    Raises:
        UserError: If there is none, or the hub does not answer and no copy is in the cache.
    """
    require_backbone(name, revision)
    try:
        # not AutoConfig: it would ask whether to run code out of the repository
        config, _ = PreTrainedConfig.get_config_dict(str(NANO_FOLDER) if name == NANO else name, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{expected_backbone(name)}: {reason}") from None
    # transformers makes nothing of no file; that of another program, such as CTranslate2, names no family
    if "model_type" not in config:
        raise UserError(
            f"backbone {name!r}: no config.json, or one without model_type; expected a folder in the hub's layout, "
            "with the files that were published with the weights"
        )
    return config


def _family(name: str, config: Mapping[str, Any]) -> Any:
    """The class of the family that a config.json names, imported.

    Raises:
        UserError: If there is none, or it needs what the installed `transformers` does not have.
    """
    # some model types have a hyphen, and the thinker of an Omni checkpoint may have been saved alone
    model_type = str(config.get("model_type"))
    family = model_type.removesuffix("_thinker").replace("-", "_")
    if family not in FAMILIES:
        code = ", whose code is in its repository (auto_map) and is never run" if "auto_map" in config else ""
        raise UserError(f"backbone {name!r}: no class for family {model_type!r}{code}; expected {', '.join(FAMILIES)}")
    file, class_name = FAMILIES[family]
    try:
        return getattr(importlib.import_module(f".{file}", __name__), class_name)
    except ImportError as error:
        if error.name is not None and error.name.startswith(__name__.partition(".")[0]):
            raise  # a name of this package: a bug
        raise UserError(
            f"backbone {name!r}: family {model_type!r} cannot be used with the installed transformers "
            f"{transformers.__version__}; expected {SINCE.get(family, TRANSFORMERS)}: {one_line(error)}"
        ) from None
