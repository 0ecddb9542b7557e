"""The judge on disk: `judge.json`, `adapter/`, `backbone.safetensors` where parts of it were fully fine-tuned,
`head.safetensors`, processor files, `README.md`. Loading is strict. Folders that hold the whole backbone are written in
`export/`, and read here."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.quiet import silence_libraries
from ..core.staging import check_new, staged_folder
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS, JUDGE_FILE
from ..models.backbones.configuration import configuration, difference
from ..models.description import (
    BACKBONE,
    EXPORT,
    SCHEMA_VERSION,
    Description,
    Provenance,
    check_alike,
    parse,
    read_json,
)
from ..models.hub import check_judge, judge_folder
from ..models.judge import EmpathyJudge
from ..models.lora import trained_in_full
from ..models.settings import BuiltSettings, Quantization
from ..models.shapes import without_hub
from ..models.weight_files import (
    check_backbone,
    check_hash,
    check_keys,
    fingerprint,
    fingerprints,
    read_checkpoint,
    read_weights,
    weights_hash,
    write_weights,
)
from .calibration import Calibration, from_json

_LIBRARIES = ("torch", "transformers", "peft", "lightning", "numpy")


def describe(judge: EmpathyJudge, provenance: Provenance, frozen: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The content of `judge.json`: everything but weights, in plain values. `frozen` = `fingerprints` of the backbone,
    where they were taken before its weights were sharded."""
    return {
        "schema_version": SCHEMA_VERSION,
        "settings": asdict(judge.settings),
        **(frozen or fingerprints(judge)),
        "backbone_configuration": configuration(judge.backbone),
        "reads_text": judge.backbone.reads_text,
        "trained_in_full": trained_in_full(judge.backbone, judge.settings.lora),
        "sampling_rate": judge.backbone.sampling_rate,
        "max_seconds": judge.backbone.max_seconds,
        "dimensions": [asdict(dimension) for dimension in judge.dimensions],
        "head": {"type": judge.settings.head, "output": judge.head.OUTPUT},
        "calibration": None,
        "provenance": asdict(provenance),
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def save_judge(loaded: LoadedJudge, folder: Path, report: Mapping[str, Any] | None = None) -> None:
    """Write a judge into a folder that appears complete or not at all; an agreement `report` is for its card.

    Frozen backbone weights are not written, only their fingerprints.

    Raises:
        UserError: If the folder exists and is not empty, the disk is full or may not be written, or the judge was
            loaded with a backbone of its own.
    """
    with staged(folder) as stage:
        write_judge(loaded, stage, report)


def write_judge(loaded: LoadedJudge, folder: Path, report: Mapping[str, Any] | None = None) -> None:
    """As `save_judge`, into an empty folder."""
    if EXPORT in loaded.description:
        raise UserError("a judge with its backbone in its folder is not written again; copy it instead")
    hashes = write_weights(loaded.judge, folder)
    loaded.judge.backbone.save_processor(str(folder / "processor"))
    write_description({**loaded.description, "sha256": hashes}, folder, report)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A new folder next to this one that takes its place when the block ends well and vanishes when it fails.

    Raises:
        UserError: If the folder exists and is not empty, or the disk is full or may not be written.
    """
    with writing(folder):
        check_new(folder)
        with staged_folder(folder) as stage:
            yield stage
            # safetensors writes files that other users cannot read
            for path in (stage, *stage.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within this context, a failed write becomes an error of one line.

    Raises:
        UserError: If the disk is full, or this place may not be written.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # libraries in Rust (safetensors, tokenizers) have errors of their own with the text of the system
        in_words = re.search(r"([^:]+) \(os error \d+\)", str(error))
        if in_words is None and not isinstance(error, OSError):
            raise
        reason = in_words[1].strip() if in_words else getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be written ({reason}); nothing was changed") from None


def write_description(description: Mapping[str, Any], folder: Path, report: Mapping[str, Any] | None = None) -> None:
    """Write `judge.json`, and the card as `README.md`."""
    from .model_card import render_card  # whoever loads a judge writes no card

    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    (folder / JUDGE_FILE).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(render_card(description, report), encoding="utf-8")


@dataclass(frozen=True)
class LoadedJudge:
    """A judge and what its folder says of it."""

    judge: EmpathyJudge  # the judge
    description: dict[str, Any]  # `judge.json`, parsed
    calibration: Calibration | None = None  # what its field `calibration` says, if it belongs to these weights
    # why there is none, for whoever asks for intervals
    not_calibrated: str = "the judge is not calibrated; `empathy-judge calibrate` does it"


@dataclass(frozen=True)
class Placement:
    """How the backbone of a judge is loaded, where that differs from how it was trained."""

    backbone: str | None = None  # where it lies now; None = where the judge found it
    # of its language model; None = as in training. With "nf4" a judge that was trained without needs a quarter of the
    # memory, and its scores change a little.
    quantization: Quantization | None = None
    spread: bool = False  # over all GPUs that there are, then main memory, layer by layer (`device_map="auto"`)


AS_TRAINED = Placement()


def load_any(path: Path, placement: Placement = AS_TRAINED, revision: str | None = None) -> LoadedJudge:
    """Read a judge folder, the best checkpoint of a run folder, a checkpoint, or a judge on the hub (`OWNER/NAME`; a
    folder of that name goes before the hub), in evaluation mode, on the CPU unless it is spread. The calibration of a
    run is used if it was fitted to this checkpoint.

    Raises:
        UserError: If it is none of these, a file is missing or broken, if adapter or head lack a tensor or have one too
            many, if the adapter changes nothing, if scales disagree, if the backbone is not the one it was trained on,
            or if the calibration is broken or that of other weights.
    """
    silence_libraries()
    path = judge_folder(path, revision)
    try:
        return _load(_opened(path), placement)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_settings(path: Path) -> BuiltSettings:
    """The settings from which the judge of a judge folder, a run folder or a checkpoint was built.

    Raises:
        UserError: If it is none of these, or the judge has its backbone in its folder, into which it was merged.
    """
    stored = _opened(path)
    if EXPORT in stored.description:
        where = f"{stored.file}: its adapter was merged into its backbone"
        raise UserError(f"{where}; expected the judge that it was made of")
    return stored.parsed.settings


def described(path: Path, backbone: str | None = None) -> LoadedJudge:
    """A judge as `load_any` reads it, but without weights: its shapes, and what its folder says. A backbone on the hub
    gives way to the shapes that come with the package, if it is among these.

    Raises:
        UserError: If there is no such judge, its description or calibration is broken, or a file of its folder is
            missing.
    """
    silence_libraries()
    stored = _opened(judge_folder(path))
    parsed, folder = stored.parsed, stored.file.parent
    for name in parsed.sha256 if stored.weights is None else ():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: missing; {stored.file} names this file")
    backbone = str(folder / BACKBONE) if parsed.export is not None else backbone or parsed.settings.backbone
    settings = without_hub(replace(parsed.settings, backbone=backbone, quantization="none"))
    judge = EmpathyJudge(settings, parsed.dimensions, weights=False)
    values, where = stored.calibration()
    calibration = None if values is None else from_json(values, where, judge.dimensions)
    return LoadedJudge(judge, stored.description, calibration)


def read_into(loaded: LoadedJudge, path: Path) -> dict[str, Any]:
    """Put the trained weights of another judge folder, run folder or checkpoint into a judge of the same settings; its
    frozen weights stay.

    Returns:
        The description of the other judge.

    Raises:
        UserError: If it is broken, or differs from the judge in backbone, dimensions or a setting that scores depend
            on.
    """
    stored = _opened(path)
    check_alike(loaded.description, stored.file, stored.description)
    stored.put_into(loaded.judge)
    return stored.description


@dataclass(frozen=True)
class _Stored:
    """A judge on disk."""

    file: Path  # that describes it
    description: dict[str, Any]  # what that says, as this version writes it
    parsed: Description  # the same, checked
    weights: Mapping[str, Tensor] | None = None  # trained weights of a checkpoint; None = they lie in the folder

    def put_into(self, judge: EmpathyJudge) -> None:
        if self.weights is None:
            read_weights(judge, self.file.parent, self.description.get("sha256", {}))
        else:
            check_keys(self.file, self.weights, judge.trained())
            # Frozen weights are not there; `check_keys` was strict about the others
            judge.load_state_dict(self.weights, strict=False)

    def calibration(self) -> tuple[Any, str]:
        """The values of its calibration, None = there is none, and where they stand."""
        path = self.file.parent.parent / CALIBRATION_FILE
        if self.weights is not None and path.is_file():
            return read_json(path), str(path)
        return self.description.get("calibration"), f"{self.file}: calibration"


def _opened(path: Path) -> _Stored:
    file, weights = path / JUDGE_FILE, None
    if file.is_file():
        description = read_json(file)
    else:
        check_judge(path)
        file = path / CHECKPOINTS / BEST if path.is_dir() else path
        checkpoint = read_checkpoint(file)
        if "description" not in checkpoint:
            raise UserError(f"{file}: not a checkpoint of this program: it does not describe a judge")
        # weights of raters and campaigns are used in training only
        state, description = checkpoint["state_dict"].items(), checkpoint["description"]
        weights = {key.removeprefix("judge."): value for key, value in state if key.startswith("judge.")}
    return _Stored(file, description, parse(file, description), weights)


def _load(stored: _Stored, placement: Placement) -> LoadedJudge:
    file, description, parsed, in_run = stored.file, stored.description, stored.parsed, stored.weights is not None
    judge = _build(file, parsed, placement)
    if parsed.members is None:
        stored.put_into(judge)
    # Each member is read into one judge in turn and what was trained is copied: the backbone is in memory once
    for name in parsed.members or ():  # an ensemble: its weights are those of its members
        member = file.parent / name / JUDGE_FILE
        if not member.is_file():
            raise UserError(f"{member}: missing; {file} names this member")
        check_hash(member, parsed.sha256.get(f"{name}/{JUDGE_FILE}"))
        read_into(LoadedJudge(judge, description), member.parent)
        judge.members.append({key: weight.detach().clone() for key, weight in judge.trained().items()})
    judge.eval().requires_grad_(False)
    values, where = stored.calibration()
    if values is None:
        return LoadedJudge(judge, description)
    calibration = from_json(values, where, judge.dimensions)
    if any(one.uses_deviation for one in calibration.dimensions.values()) and not _has_deviation(judge):
        raise UserError(f"{where}: uses_deviation true, but the head gives none; `empathy-judge calibrate` fits it")
    # Errors of other weights would pass for those of these
    if calibration.weights == weights_hash(judge):
        return LoadedJudge(judge, {**description, "calibration": values}, calibration)
    if in_run:
        reason = f"{where} was fitted to other weights than those of {file}; `empathy-judge calibrate` fits it anew"
        return LoadedJudge(judge, description, not_calibrated=reason)
    raise UserError(
        f"{where}: fitted to other weights; expected that of this judge (`empathy-judge calibrate` fits it), or null"
    )


@torch.no_grad()
def _has_deviation(judge: EmpathyJudge) -> bool:
    """Whether scores come with a deviation: that of the head, or between the members of an ensemble."""
    nothing = torch.zeros(1, judge.head_input.size, device=judge.device)
    return bool(judge.members) or judge.head(nothing).deviation is not None


def _build(path: Path, description: Description, placement: Placement) -> EmpathyJudge:
    """A judge on the backbone that it was trained on, with fresh weights of its own."""
    trained, stored = description.settings, "none"
    backbone = placement.backbone or trained.backbone
    if description.export is not None:
        if placement.backbone is not None:
            raise UserError(f"{path}: has its backbone in its own folder; {placement.backbone} cannot take its place")
        backbone, stored = str(check_backbone(path.parent, description.sha256)), description.export.quantization
        if stored != "none" and placement.quantization not in (None, "none"):
            raise UserError(f"{path}: its weights are stored as {stored}; expected no other quantization")
    quantization = placement.quantization or trained.quantization
    settings = replace(trained, backbone=backbone, quantization=quantization)
    judge = EmpathyJudge(settings, description.dimensions, device_map="auto" if placement.spread else None)
    # In another form, quantized layers have other values: only the others can be compared
    same_form = stored == "none" and quantization == trained.quantization
    actual = fingerprint(judge, quantizable=same_form)
    expected = description.backbone_fingerprint if same_form else description.unquantized_fingerprint
    if actual != expected:
        raise UserError(
            f"{path}: backbone {backbone!r} has other weights than the judge was trained on "
            f"(fingerprint {actual[:12]}, expected {expected[:12]})"
        )
    # an export has the files of its backbone next to it, with hashes
    known = description.backbone_configuration
    if description.export is None and (differing := difference(configuration(judge.backbone), known)) is not None:
        raise UserError(
            f"{path}: backbone {backbone!r} has the weights that the judge was trained on, but is configured in "
            f"another way: {differing}"
        )
    return judge
