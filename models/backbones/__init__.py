"""Backbones: one file per family, named after the `model_type` of its `transformers` configuration.

Such a file defines `load(name, revision, dtype, attention) -> Backbone`. Nothing else needs to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import torch
from transformers import AutoConfig

from ...data_modules.errors import UserError
from .base import Backbone

NANO = "nano"
NANO_FOLDER = Path(__file__).parents[2] / "checkpoints" / "nano"


def load_backbone(
    name: str, revision: str | None = None, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
) -> Backbone:
    """Load the backbone that `name` stands for, in evaluation mode and frozen.

    Args:
        name: "nano" (shipped with this package), a hub id, or a folder in the hub's layout.
        revision: Commit, tag or branch on the hub.
        dtype: Of the weights.
        attention: Attention kernel: "eager", "sdpa" or "flash_attention_2".

    Raises:
        UserError: If there is no such checkpoint, or no file for its family.
    """
    path = str(NANO_FOLDER) if name == NANO else name
    try:
        model_type = AutoConfig.from_pretrained(path, revision=revision).model_type
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"backbone {name!r}: accepted are {NANO!r}, a hub id or a folder with config.json: {reason}"
        ) from None
    families = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("base", "prompt"))
    if model_type not in families:
        raise UserError(f"backbone {name!r}: no file for family {model_type!r}; there are {', '.join(families)}")
    backbone: Backbone = importlib.import_module(f".{model_type}", __name__).load(path, revision, dtype, attention)
    backbone.name = name
    backbone.network.requires_grad_(False).eval()
    return backbone
