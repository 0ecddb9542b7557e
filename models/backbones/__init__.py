"""Backbones: one file per family, named after the `model_type` of its `transformers` configuration.

Such a file defines `load(checkpoint) -> Backbone`. Nothing else needs to know of it. What families share is in
`common/`.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from ...data_modules.errors import UserError
from .common.base import Backbone, Checkpoint
from .common.loading import one_line

NANO = "nano"
NANO_FOLDER = Path(__file__).parents[2] / "checkpoints" / "nano"
TRANSFORMERS = "transformers>=5.17,<6"
"""What every family here can be used with."""


def load_backbone(checkpoint: Checkpoint) -> Backbone:
    """Load a backbone, in evaluation mode and frozen.

    Args:
        checkpoint: Its `name` is "nano" (shipped with this package), a hub id, or a folder in the hub's layout.

    Raises:
        UserError: If there is no such checkpoint, no file for its family, the installed transformers lacks the family,
            or a value of config.json is not what the family takes.
    """
    name = checkpoint.name
    found = replace(checkpoint, name=str(NANO_FOLDER)) if name == NANO else checkpoint
    config = read_config(name, found.revision)
    model_type = str(config.get("model_type"))
    if module_name(model_type) not in families():
        raise UserError(f"backbone {name!r}: no file for family {model_type!r}; there are {', '.join(families())}")
    family = _family(name, model_type)
    try:
        backbone: Backbone = family.load(found)
    except StrictDataclassError as error:
        raise UserError(f"backbone {name!r}: config.json: {one_line(error)}") from None
    backbone.name = name
    backbone.network.requires_grad_(False).eval()
    return backbone


def read_config(name: str, revision: str | None) -> dict[str, Any]:
    """What config.json of a backbone says.

    Args:
        name: "nano", a hub id or a folder.
        revision: Commit, tag or branch on the hub.

    Raises:
        UserError: If there is none.
    """
    try:
        # not AutoConfig: it would ask whether to run code out of the repository
        config, _ = PreTrainedConfig.get_config_dict(str(NANO_FOLDER) if name == NANO else name, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"backbone {name!r}: accepted are {NANO!r}, a hub id or a folder with config.json: {reason}"
        ) from None
    return config


def _family(name: str, model_type: str) -> Any:
    """The file of a family, imported.

    Raises:
        UserError: If it needs what the installed `transformers` does not have.
    """
    try:
        return importlib.import_module(f".{module_name(model_type)}", __name__)
    except ImportError as error:
        if error.name is not None and error.name.startswith(__name__.partition(".")[0]):
            raise  # a name of ours: a bug
        raise UserError(
            f"backbone {name!r}: family {model_type!r} cannot be used with the installed transformers "
            f"{transformers.__version__}; accepted: {TRANSFORMERS}: {one_line(error)}"
        ) from None


def families() -> list[str]:
    """Names of the files in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def module_name(model_type: str) -> str:
    """The file of a family; some model types have a hyphen, and an Omni thinker may have been saved alone."""
    if model_type == "phi4mm":  # the layout of the authors, whose own code it needs: its file says what to use instead
        return "phi4_multimodal"
    return model_type.removesuffix("_thinker").replace("-", "_")
