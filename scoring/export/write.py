"""Writes a judge with its backbone into one folder, and checks its scores before the folder appears. The backbone is in
the layout of the hub, and its files are checked before they are read again."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor, nn

from ...core.errors import UserError
from ...core.files import file_hash
from ...models.backbones import DEPTH, load_backbone, read_config
from ...models.backbones.base import Backbone, Checkpoint
from ...models.description import BACKBONE, EXPORT, MEMBERS
from ...models.judge import DTYPES, EmpathyJudge
from ...models.lora import FUSION, LoraLayer, part_of, trained_in_full
from ...models.settings import WeightForm
from ...models.weight_files import BACKBONE_INDEX, backbone_files, fingerprints, weights_hash, write_weights
from ..artifact import LoadedJudge, load_any, staged, write_description
from .check import CheckSet, ExportCheck, bounds_of, compare, score_all

WEIGHT_FORMS: Mapping[str, WeightForm] = {"none": "none", "int8": "int8", "int4": "nf4"}
"""Forms by the names that users give them."""
_LIBRARIES: Mapping[WeightForm, tuple[str, ...]] = {"none": (), "int8": ("torchao",), "nf4": ("bitsandbytes",)}
_WHOLE = "unquantized"
_SHARD = "5GB"
# fields about the origin of a checkpoint: paths, code that is never run, how its weights were stored there
_LEFT_OUT = ("_name_or_path", "auto_map", "quantization_config", "torch_dtype", "transformers_version")


class LossTooLarge(Exception):
    """The scores of an export are too far from those of its judge."""

    def __init__(self, check: ExportCheck) -> None:
        super().__init__("; ".join(check.beyond))
        self.check = check


def write_whole(
    loaded: LoadedJudge,
    out: Path,
    quantization: WeightForm,
    chosen: CheckSet,
    *,
    report: Mapping[str, Any] | None = None,
    device: str | None = None,
    accept_loss: bool = False,
) -> ExportCheck:
    """Write a judge that needs no other folder, and read it again to compare its scores.

    Args:
        loaded: A single judge of adapter and head; its weights are gone afterwards, so that there are never two copies
            of the backbone in memory.
        out: Appears complete and checked, or not at all.
        quantization: Of the language model's linear layers as they are stored.
        chosen: What scores are compared on.
        report: An agreement report, for the model card.
        device: Where it is scored; None = a GPU if there is one.
        accept_loss: Keep what is beyond the bounds.

    Raises:
        UserError: If the folder exists, the judge is an ensemble or whole already, or it has no language model to
            quantize.
        LossTooLarge: If scores changed more than is allowed; the folder is not there.
    """
    _check_single(loaded, out, quantization)
    judge = loaded.judge
    dimensions, bounds = judge.dimensions, bounds_of(judge.settings.dtype, quantization)
    with staged(out) as stage:
        # Scored before it is written, as writing consumes the judge
        before = score_all(loaded, chosen, device)
        description = _write(loaded, stage, quantization)
        # Written twice: to be scored it must be readable, and what that finds goes into it
        write_description(description, stage)
        after = score_all(load_any(stage), chosen, device)
        check = compare(before, after, chosen, dimensions, bounds)
        if check.beyond and not accept_loss:
            raise LossTooLarge(check)
        description[EXPORT]["check"] = check.to_json()
        write_description(description, stage, report)
    return check


def _check_single(loaded: LoadedJudge, out: Path, quantization: WeightForm) -> None:
    if MEMBERS in loaded.description:
        raise UserError(f"{out}: an ensemble has several adapters for one backbone; expected a single judge")
    if EXPORT in loaded.description:
        raise UserError(f"{out}: the judge has its backbone in its folder already; expected what it was made of")
    judge = loaded.judge
    if "quantization_config" in read_config(judge.settings.backbone, judge.settings.revision):
        raise UserError(f"{out}: backbone {judge.settings.backbone!r} was quantized before; expected one that was not")
    if quantization != "none" and "language_model" not in judge.backbone.parts:
        name = loaded.description["settings"]["backbone"]
        raise UserError(f"{out}: backbone {name!r} has no language model to quantize; export it without quantization")
    for library in _LIBRARIES[quantization]:
        if importlib.util.find_spec(library) is None:
            raise UserError(f"{quantization} needs {library}; pip install 'empathy-judge[quantization]'")


def _write(loaded: LoadedJudge, folder: Path, quantization: WeightForm) -> dict[str, Any]:
    """Write all but the card, and return what `judge.json` says. The weights of the judge are gone afterwards."""
    judge, revision = loaded.judge.cpu(), loaded.judge.settings.revision
    libraries = ("transformers", "safetensors", *_LIBRARIES[quantization])  # that write the weights
    merge_adapter(judge)
    settings = judge.settings
    frozen, written = fingerprints(judge), write_weights(judge, folder)
    description = {
        **loaded.description,
        "settings": {**asdict(settings), "backbone": BACKBONE, "revision": None},
        **frozen,
        "trained_in_full": trained_in_full(judge.backbone, settings.lora),
        EXPORT: {
            "form": "merged",
            "quantization": quantization,
            "origin": {
                "settings": loaded.description["settings"],
                "backbone_fingerprint": loaded.description["backbone_fingerprint"],
                "trained_in_full": loaded.description["trained_in_full"],
            },
            "versions": {name: importlib.metadata.version(name) for name in libraries},
        },
    }
    # It is valid for the same scores, though fewer weights are trained now
    if loaded.calibration is not None:
        description["calibration"] = {**loaded.description["calibration"], "weights": weights_hash(judge)}
    unquantized = folder / (BACKBONE if quantization == "none" else _WHOLE)
    write_backbone(judge.backbone, revision, settings.dtype, unquantized)
    # Frees the weights: the backbone is loaded again below, and never in memory twice
    judge.to("meta")
    if quantization != "none":
        # `transformers` quantizes while it loads: from the folder that was just written
        checkpoint = Checkpoint(str(unquantized), None, DTYPES[settings.dtype], settings.attention, quantization)
        write_backbone(load_backbone(checkpoint), None, settings.dtype, folder / BACKBONE, quantized=True)
        shutil.rmtree(unquantized)
    description["sha256"] = written | {name: file_hash(path) for name, path in backbone_files(folder).items()}
    return description


@torch.no_grad()
def merge_adapter(judge: EmpathyJudge) -> None:
    """Merge the trained adapter of a backbone into its weights, in place; the judge, on the CPU and without members,
    has no adapter afterwards.

    PEFT computes the update of each layer; sums are taken in float32 and rounded once to the dtype of the backbone.
    Weights in 4 bits are dequantized, since the adapter was trained on those values. Cross-attention fusion stays as it
    is, because no checkpoint has one.
    """
    dtype = DTYPES[judge.settings.dtype]
    # some parts are loaded in float32 whatever the dtype is, such as convolutions over a waveform
    strict_parts = (getattr(module, "_keep_in_fp32_modules_strict", None) or () for module in judge.network.modules())
    in_float32 = {part for parts in strict_parts for part in parts}
    for name, weight in judge.trained_in_full().items():
        if part_of(judge.backbone, name) != FUSION and in_float32.isdisjoint(name.split(".")):
            weight.data = weight.data.to(dtype)
    module: Any
    for name, module in list(judge.network.named_modules()):
        if isinstance(module, LoraLayer):
            layer: Any = module
            base, (adapter,) = layer.get_base_layer(), layer.active_adapters
            weight, variant = _values(base), layer.lora_variant.get(adapter)  # such as DoRA
            # not `layer.merge`, which would quantize weights in 4 bits again
            update = layer.get_delta_weight
            merged = weight + update(adapter) if variant is None else variant.merge_safe(layer, adapter, weight)
            judge.network.set_submodule(name, _with_weight(base, merged.to(dtype)))
        elif _in_4_bits(module) and not name.endswith(".base_layer"):
            judge.network.set_submodule(name, _with_weight(module, _values(module).to(dtype)))
    judge.adapter = (None,)
    nothing = replace(judge.settings.lora, parts=[], full_parts=[])
    judge.settings = replace(judge.settings, quantization="none", lora=nothing)


def _values(linear: Any) -> Tensor:
    """Weight of a linear layer `(out, in)` in float32, also where it is stored in 4 bits."""
    if not _in_4_bits(linear):
        return linear.weight.data.float()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(linear.weight.data, linear.weight.quant_state).float()


def _in_4_bits(module: nn.Module) -> bool:
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def _with_weight(base: Any, weight: Tensor) -> nn.Module:
    """The layer with another weight; a plain linear layer replaces one in 4 bits."""
    if not _in_4_bits(base):
        base.weight.data = weight
        return base
    plain = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = base.bias
    return plain


def write_backbone(backbone: Backbone, revision: str | None, dtype: str, folder: Path, quantized: bool = False) -> None:
    """Write weights, configuration and processor so that `load_backbone` reads them back.

    The backbone has no adapters, and what it was loaded from (at this `revision`) must still be there. `dtype` is for
    whoever loads the new folder without asking for one; `quantized` = as `transformers` did when it was loaded.
    """
    folder.mkdir()
    config = {key: value for key, value in read_config(backbone.name, revision).items() if key not in _LEFT_OUT}
    config["dtype"] = dtype
    if backbone.depth is not None:
        config[DEPTH] = backbone.depth
    quantization = _quantization(backbone) if quantized else None
    if quantization is not None:
        config["quantization_config"] = quantization
    backbone.save_processor(str(folder))
    text = json.dumps(_spelled_out(config), indent=2, allow_nan=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    weights = {}  # under the names that they have in a checkpoint
    for name, weight in backbone.network.state_dict().items():
        if (stored := backbone.layout.stored(name)) is not None:
            weights[stored] = weight.detach()
    _write_weights(weights, quantization, folder)


def _spelled_out(values: Any) -> Any:
    """Settings with infinities as `transformers` writes and reads them, since JSON has none."""
    if isinstance(values, dict):
        return {name: _spelled_out(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_spelled_out(value) for value in values]
    if isinstance(values, float) and math.isinf(values):
        return {"__float__": "Infinity" if values > 0 else "-Infinity"}
    return values


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
        # Files hold plain tensors: those of torchao are taken apart into several each
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

        weights, metadata = flatten_tensor_state_dict(weights)  # pyright: ignore[reportArgumentType]
    shards = split_torch_state_dict_into_shards(weights, max_shard_size=_SHARD)
    for file, names in shards.filename_to_tensors.items():
        save_file({name: _whole(weights[name]) for name in names}, folder / file, metadata={"format": "pt", **metadata})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / BACKBONE_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _whole(weight: Tensor) -> Tensor:
    """The weight with storage of its own, where it is a view of a larger one."""
    # safetensors refuses tensors that are not contiguous or share their memory
    alone = weight.is_contiguous() and weight.untyped_storage().nbytes() == weight.nbytes
    return weight if alone else weight.contiguous().clone()
