"""Keeps weights mapped from their files, unchanged, until each layer is sharded.

Weights that are converted to float32 take memory in each process: every process of a machine would hold the whole
model. A strategy that shards weights calls `finish` layer by layer instead, just before it keeps its share of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from safetensors import safe_open
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from ...core.errors import UserError
from .base import Checkpoint

_SHORT = {"BF16": torch.bfloat16, "F16": torch.float16}  # as safetensors call them


def short_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """The 16-bit type of all floating-point weights in the files of a checkpoint; None where some have another type:
    these would lose digits."""
    dtypes: set[str] = set()
    for path in _weight_files(checkpoint):
        with safe_open(path, framework="pt") as tensors:
            dtypes |= {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    kinds = {kind for kind in dtypes if "F" in kind}
    return _SHORT.get(kinds.pop()) if len(kinds) == 1 else None


def _weight_files(checkpoint: Checkpoint) -> list[str]:
    """Files with the weights of a checkpoint; none where it has none, or a file that its index names is missing."""
    index, names = own_file(checkpoint, "model.safetensors.index.json"), {"model.safetensors"}
    if index is not None:
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    paths = [own_file(checkpoint, name) for name in sorted(names)]
    return [] if None in paths else [path for path in paths if path is not None]


def own_file(checkpoint: Checkpoint, name: str, **options: Any) -> str | None:
    """Path of a checkpoint's file on this machine, with further options of `cached_file`; None = there is none."""
    arguments = {"revision": checkpoint.revision, "_raise_exceptions_for_missing_entries": False, **options}
    return cached_file(checkpoint.name, name, **arguments)


def keeps(dtype: torch.dtype, model_class: type) -> dict[str, Any]:
    """Members of a subclass whose weights take `dtype` while they are loaded; buffers are made in float32."""

    def build(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(model, *args, **kwargs)  # pyright: ignore[reportArgumentType]
        for module in model.modules():
            vars(module)["widened_later"] = True
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.to(dtype)

    return {"__init__": build}


@contextmanager
def seen_as_float32(model: nn.Module) -> Iterator[None]:
    """Within this context, weights that are converted later appear as float32: new adapters take the dtype of their
    layer."""
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    originals = {module: module.weight for module in linears if hasattr(module, "widened_later")}
    for module, weight in originals.items():
        # It has shape and type of the weight, and the memory of one number
        module.weight = nn.Parameter(torch.empty(()).expand(weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for module, weight in originals.items():
            module.weight = weight


def finish(module: nn.Module) -> None:
    """Convert what was deferred in a module, in place, weight by weight."""
    for inner in module.modules():
        if vars(inner).pop("widened_later", False):
            for weight in inner.parameters(recurse=False):
                weight.data = weight.data.to(torch.float32) if weight.is_floating_point() else weight.data


def check_held(module: nn.Module, what: str) -> None:
    """Refuse a module of which accelerate keeps a layer in main memory, where its weights cannot be replaced: what
    computes would be what was loaded before. The message begins with `what`."""
    if any(map(has_offloaded_params, module.modules())):
        raise UserError(f"{what} does not fit the GPUs; expected larger ones")


def weight_of(network: nn.Module, name: str) -> Tensor:
    """A weight of the network, also where accelerate keeps it in main memory."""
    module: Any = network.get_submodule(name.rpartition(".")[0])
    if has_offloaded_params(module):  # in main memory, beside GPUs that are full (`Checkpoint.device_map`)
        return module._hf_hook.weights_map[name.rpartition(".")[2]]
    return network.get_parameter(name).detach()
