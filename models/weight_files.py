"""Trained weights on disk: `adapter/`, `head.safetensors`, and `backbone.safetensors` where parts of the backbone were
fully fine-tuned; and training checkpoints. Reading is strict. Also hashes that say which weights these are, and of
which backbone."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import UserError, shown
from ..core.files import file_hash
from . import JUDGE_FILE
from .backbones.deferred import weight_of
from .description import BACKBONE, read_json, scales_text
from .judge import OWN, EmpathyJudge
from .lora import PeftModel, get_peft_model_state_dict, part_of, set_peft_model_state_dict

HEAD_FILE = "head.safetensors"
BACKBONE_FILE = "backbone.safetensors"
ADAPTER_FILE = "adapter/adapter_model.safetensors"
ADAPTER_CONFIG = "adapter/adapter_config.json"
BACKBONE_INDEX = "model.safetensors.index.json"
"""Beside the weights of an exported backbone in several files."""

_STORED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of trained weights: torch would convert others without a word, and lose what they hold."""
_ADAPTER, _AT_ITS_START = "adapter", "at its start"
"""Metadata of the head of a judge whose best checkpoint is the start of training: its adapter changes nothing."""


def write_weights(judge: EmpathyJudge, folder: Path) -> dict[str, str]:
    """Write what was trained; the frozen backbone is not written.

    Returns:
        SHA-256 of each file, by its name in the folder.
    """
    (adapter,), trained, files = judge.adapter, judge.trained_in_full(), [HEAD_FILE]
    if adapter is not None:
        files.append(ADAPTER_FILE)
        adapter.peft_config["default"].base_model_name_or_path = judge.settings.backbone
        adapter.peft_config["default"].inference_mode = True
        # embedding layers are never trained, and to find that out PEFT would ask the hub for the base model
        adapter.save_pretrained(str(folder / "adapter"), save_embedding_layers=False)
        (folder / "adapter" / "README.md").unlink(missing_ok=True)  # PEFT's empty template
    # the scale is in both files: a head is useless on another scale, and an edit of one file is noticed
    metadata = {"dimensions": scales_text(judge.dimensions)}
    # `read_weights` refuses an adapter that does nothing, so the one honest case is marked
    if adapter is not None and not any(weight.any() for name, weight in judge.trained().items() if "lora_B" in name):
        metadata[_ADAPTER] = _AT_ITS_START
    save_file(_on_cpu(_head_state(judge)), folder / HEAD_FILE, metadata=metadata)
    if trained:
        files.append(BACKBONE_FILE)
        save_file(_on_cpu(trained), folder / BACKBONE_FILE)
    return {name: file_hash(folder / name) for name in files}


def read_weights(judge: EmpathyJudge, folder: Path, hashes: Mapping[str, str]) -> None:
    """Read the trained weights of a judge folder into a judge of its description.

    Raises:
        UserError: If a file is missing or broken, lacks a tensor or has one too many, was made for other scales,
            changes nothing, or is not the one of this hash.
    """
    (adapter,), in_full, files = judge.adapter, judge.trained_in_full(), [HEAD_FILE]
    head, metadata = _read(folder / HEAD_FILE, _head_state(judge))
    if adapter is not None:
        files.append(ADAPTER_FILE)
        _check_adapter_config(adapter, folder / ADAPTER_CONFIG)
        path = folder / ADAPTER_FILE
        tensors, _ = _read(path, get_peft_model_state_dict(adapter, save_embedding_layers=False))
        # PEFT warns where it should refuse: with wrong keys every lora_B stays zero and the adapter does nothing
        trained = metadata.get(_ADAPTER) != _AT_ITS_START
        if trained and not any(tensor.any() for key, tensor in tensors.items() if "lora_B" in key):
            raise UserError(f"{path}: every lora_B is zero: the adapter changes nothing")
        set_peft_model_state_dict(adapter, tensors)
    if in_full:
        files.append(BACKBONE_FILE)
        tensors, _ = _read(folder / BACKBONE_FILE, in_full)
        with torch.no_grad():
            for name, weight in in_full.items():
                weight.copy_(tensors[name])
    scales, expected = metadata.get("dimensions", "nothing"), scales_text(judge.dimensions)
    # A score of 0.8 on 1 to 5 is 4.2, on 0 to 100 it is 80: weights say nothing of the scale
    if scales != expected:
        raise UserError(
            f"{folder / HEAD_FILE}: trained for {scales}, but {JUDGE_FILE} says {expected}: scales must be the same"
        )
    # Frozen weights are not in the file; `_read` was strict about the others
    judge.load_state_dict(head, strict=False)
    if surplus := [name for name in hashes if name not in files and not name.startswith(f"{BACKBONE}/")]:
        raise UserError(f"{folder / surplus[0]}: {JUDGE_FILE} describes a judge without this file")
    for name in files:
        check_hash(folder / name, hashes.get(name))


def _read(path: Path, expected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors, of these names and shapes and all finite, and the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path}: missing; a judge folder has {JUDGE_FILE}, {HEAD_FILE} and adapter/") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a readable safetensors file: {error}") from None
    # Before any weight is copied: a judge is read whole or not at all
    check_keys(path, tensors, expected)
    for key, tensor in tensors.items():
        if tensor.dtype not in _STORED:
            raise UserError(f"{path}: {key!r} is stored as {tensor.dtype}; expected floats of 16 bits or more")
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {key!r} has values that are not finite")
    return tensors, metadata or {}


def check_keys(path: Path | str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that both have the same names and shapes.

    Raises:
        UserError: Naming what is missing, unexpected or of another shape.
    """
    problems = [f"missing {key!r}" for key in sorted(expected.keys() - found.keys())]
    problems += [f"unexpected {key!r}" for key in sorted(found.keys() - expected.keys())]
    problems += [
        f"{key!r} has shape {tuple(found[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in sorted(expected.keys() & found.keys())
        if found[key].shape != expected[key].shape
    ]
    if problems:
        rest = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(f"{path}: {', '.join(problems[:3])}{rest}")


def _check_adapter_config(adapter: PeftModel, path: Path) -> None:
    """Check that two files agree on the strength of an adapter, which is in no tensor."""
    try:
        stored = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    config = adapter.peft_config["default"].to_dict()
    for key in ("r", "lora_alpha", "use_rslora", "use_dora", "target_modules"):
        value = stored.get(key) if isinstance(stored, dict) else stored
        if value != config[key]:
            raise UserError(f"{path}: {key} is {shown(value)}; expected what {JUDGE_FILE} says, {shown(config[key])}")


def _head_state(judge: EmpathyJudge) -> dict[str, Tensor]:
    return {name: value for name, value in judge.state_dict().items() if name.startswith(OWN)}


def _on_cpu(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().contiguous().cpu() for name, weight in weights.items()}


def check_hash(path: Path, expected: str | None) -> None:
    """Check that a file is the one that `judge.json` means.

    Raises:
        UserError: If not.
    """
    if file_hash(path) != expected:
        raise UserError(f"{path}: not the file that was exported: its content differs from {JUDGE_FILE}'s hash")


def fingerprints(judge: EmpathyJudge) -> dict[str, str]:
    """Fingerprints of the frozen backbone for `judge.json`: of all weights, and of those that quantization leaves as
    they are. Weights must be whole: call it before a strategy shards them."""
    whole, unquantized = fingerprint(judge), fingerprint(judge, quantizable=False)
    return {"backbone_fingerprint": whole, "unquantized_fingerprint": unquantized}


def fingerprint(judge: EmpathyJudge, quantizable: bool = True) -> str:
    """Hash over name, shape and first values of every frozen backbone weight, the same for every dtype it is loaded in;
    `quantizable` False leaves out the weights that quantization changes: the language model's matrices."""
    digest = hashlib.sha256()
    trained = judge.trained_in_full()
    for name, weight in sorted(judge.network.named_parameters()):
        changed = not quantizable and weight.ndim > 1 and part_of(judge.backbone, name) == "language_model"
        if "lora_" not in name and name not in trained and not changed:
            values = weight_of(judge.network, name) if weight.is_meta else weight.detach()
            # In bfloat16, the least precise that a backbone is loaded in: the same weights then have the same hash
            sample = values.flatten()[:16].to(torch.bfloat16).float()
            plain = name.replace(".base_layer", "")
            digest.update(f"{plain} {tuple(weight.shape)} {sample.tolist()}\n".encode())
    return digest.hexdigest()


def weights_hash(judge: EmpathyJudge) -> str:
    """SHA-256 over name, shape and values of all that was trained, of every member of an ensemble: the same in a
    checkpoint and in a judge folder."""
    return hash_of(judge.members or [judge.trained()])


def hash_of(members: Sequence[Mapping[str, Tensor]]) -> str:
    """As `weights_hash`, given the trained weights of each member; a judge that is no ensemble is its only member."""
    digest = hashlib.sha256()
    for weights in members:
        for name, weight in sorted(weights.items()):
            digest.update(f"{name} {tuple(weight.shape)}\n".encode())
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint after checking that it is whole.

    Raises:
        UserError: If it is missing, cut off, damaged, or holds anything but tensors and plain values.
    """
    reason = damage(path)
    if reason is not None:
        raise UserError(f"{path}: {reason}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path}: not a checkpoint of this program: {str(error).splitlines()[0]}") from None


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be read, or None if it is whole (checksums of all its members are compared)."""
    if not path.is_file():
        return "no such checkpoint"
    try:
        with zipfile.ZipFile(path) as archive:
            # `torch.load` compares no checksums (2.11): a flipped bit would become a weight
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return f"half-written or damaged checkpoint ({error})"
    return None if bad is None else f"damaged checkpoint (member {bad})"


def check_backbone(folder: Path, expected: Mapping[str, str]) -> Path:
    """Check that the backbone in the folder of a judge is complete and the one that was exported (SHA-256 by name).

    Returns:
        The folder of the backbone.

    Raises:
        UserError: If a file is missing, is another one or was not there, or the folder or its index leads elsewhere.
    """
    backbone = folder / BACKBONE
    if not backbone.is_dir() or backbone.is_symlink():
        raise UserError(f"{backbone}: no folder; expected the backbone that was exported with this judge")
    files = backbone_files(folder)
    wanted = {name for name in expected if name.startswith(f"{BACKBONE}/")}
    if missing := sorted(wanted - files.keys()):
        raise UserError(f"{folder / missing[0]}: missing; {JUDGE_FILE} names this file")
    if surplus := sorted(files.keys() - wanted):
        raise UserError(f"{folder / surplus[0]}: {JUDGE_FILE} names no such file; expected only what was exported")
    for name in sorted(wanted):
        check_hash(files[name], expected[name])
    index = backbone / BACKBONE_INDEX
    if index.is_file():
        try:
            parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{index}: not an index of weight files") from None
        # transformers reads whatever file the index names, also one that lies elsewhere
        for part in parts:
            if not isinstance(part, str) or "/" in part or "\\" in part or not (backbone / part).is_file():
                raise UserError(f"{index}: weights in {shown(part)}; expected files beside it")
    return backbone


def backbone_files(folder: Path) -> dict[str, Path]:
    """Files of the backbone of a judge, by their names in the judge's folder."""
    paths = sorted(path for path in (folder / BACKBONE).rglob("*") if not path.is_dir() or path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in paths}
