"""A backbone in a folder of its own, in the layout of the hub: written here, and checked before it is read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from ...data_modules.errors import UserError, shown
from .. import JUDGE_FILE
from ..backbones import DEPTH, read_config
from ..backbones.base import Backbone
from ..description import BACKBONE
from ..weight_files import check_hash, file_hash

_SHARD = "5GB"
_INDEX = "model.safetensors.index.json"
# of where it came from: paths, code that is never run, how its weights were stored there
_LEFT_OUT = ("_name_or_path", "auto_map", "quantization_config", "torch_dtype", "transformers_version")


def write_backbone(backbone: Backbone, revision: str | None, dtype: str, folder: Path, quantized: bool = False) -> None:
    """Write weights, configuration and processor so that `load_backbone` reads them back.

    The backbone has no adapters, and what it was loaded from (at this `revision`) must still be there. `dtype` is for
    whoever loads the new folder without asking for one; `quantized` = as `transformers` did when it was loaded.
    """
    folder.mkdir()
    config = {key: value for key, value in read_config(backbone.name, revision).items() if key not in _LEFT_OUT}
    config |= {**backbone.layout.config, "dtype": dtype}
    if backbone.depth is not None:
        config[DEPTH] = backbone.depth
    quantization = _quantization(backbone) if quantized else None
    if quantization is not None:
        config["quantization_config"] = quantization
    backbone.save_processor(str(folder))
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    weights = {}  # under the names that they have in a checkpoint
    for name, weight in backbone.network.state_dict().items():
        if (stored := backbone.layout.stored(name)) is not None:
            weights[stored] = weight.detach()
    _write_weights(weights, quantization, folder)


def _quantization(backbone: Backbone) -> dict[str, Any]:
    """How the weights are quantized, as config.json says it."""
    for module in backbone.network.modules():
        settings = getattr(getattr(module, "config", None), "quantization_config", None)
        if settings is not None:
            return json.loads(settings.to_json_string(use_diff=False))
    raise RuntimeError(f"backbone {backbone.name}: transformers does not say how it was quantized")


def _write_weights(weights: dict[str, Tensor], quantization: Mapping[str, Any] | None, folder: Path) -> None:
    metadata: dict[str, str] = {}
    if quantization is not None and quantization["quant_method"] == "torchao":
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

        weights, metadata = flatten_tensor_state_dict(weights)  # pyright: ignore[reportArgumentType]
    shards = split_torch_state_dict_into_shards(weights, max_shard_size=_SHARD)
    for file, names in shards.filename_to_tensors.items():
        save_file({name: _whole(weights[name]) for name in names}, folder / file, metadata={"format": "pt", **metadata})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _whole(weight: Tensor) -> Tensor:
    """The values alone, where they are a view of something larger."""
    alone = weight.is_contiguous() and weight.untyped_storage().nbytes() == weight.nbytes
    return weight if alone else weight.contiguous().clone()


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of the backbone of a judge, by its name in the judge's folder."""
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in _files(folder)}


def check_backbone(folder: Path, expected: Mapping[str, str]) -> Path:
    """The backbone in the folder of a judge is the one that was exported (SHA-256 by name), and all of it lies there.

    Returns:
        The folder of the backbone.

    Raises:
        UserError: If a file is missing, is another one or was not there, or the folder or its index leads elsewhere.
    """
    own = folder / BACKBONE
    if not own.is_dir() or own.is_symlink():
        raise UserError(f"{own}: no folder; expected the backbone that was exported with this judge")
    found = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    wanted = {name for name in expected if name.startswith(f"{BACKBONE}/")}
    if missing := sorted(wanted - found.keys()):
        raise UserError(f"{folder / missing[0]}: missing; {JUDGE_FILE} names this file")
    if surplus := sorted(found.keys() - wanted):
        raise UserError(f"{folder / surplus[0]}: {JUDGE_FILE} names no such file; expected only what was exported")
    for name in sorted(wanted):
        check_hash(found[name], expected[name])
    _check_index(own / _INDEX)
    return own


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / BACKBONE).rglob("*") if not path.is_dir() or path.is_symlink())


def _check_index(path: Path) -> None:
    """Weights are read from files beside the index, and from nowhere else."""
    if not path.is_file():
        return
    try:
        places = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not an index of weight files") from None
    for place in places:
        if not isinstance(place, str) or "/" in place or "\\" in place or not (path.parent / place).is_file():
            raise UserError(f"{path}: weights in {shown(place)}; expected files beside it")
