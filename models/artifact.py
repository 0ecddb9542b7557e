"""The judge on disk: `judge.json`, `adapter/`, `backbone.safetensors` where parts of it were trained in full,
`head.safetensors`, processor files, `README.md`. Loading is strict."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor

from ..data_modules.errors import UserError, shown
from ..data_modules.schema import Dimension
from .backbones.common.base import Quantization
from .calibration import Calibration
from .calibration_files import from_json, read_calibration, to_json, weights_hash
from .checkpoints import read_checkpoint
from .file_names import BEST, CALIBRATION_FILE, CHECKPOINTS, JUDGE_FILE
from .judge import EmpathyJudge, JudgeSettings
from .lora import LoraSettings, trained_in_full
from .weight_files import (
    Fingerprints,
    check_keys,
    file_hash,
    fingerprint,
    fingerprints,
    read_weights,
    scales_text,
    write_weights,
)

SCHEMA_VERSION = 1
MEMBERS = "members"
"""In `judge.json` of an ensemble: the folders of its members, each a judge folder. Its own weights are theirs."""
_LIBRARIES = ("torch", "transformers", "peft", "lightning", "numpy")


@dataclass(frozen=True)
class Provenance:
    """Where a judge comes from.

    Attributes:
        dataset: Name of the training data.
        synthetic: True if its ratings were not given by people.
        content_hash: Hash of the training data.
        split_hash: Hash of the assignment of pairs to splits.
        validation: Spearman on the validation split per dimension, of the weights that were exported.
        train_splits: What it was trained on.
        validation_splits: What chose its checkpoint.
        target: How several ratings of a pair became what it was trained to predict.
        preferences_met: Share of the preferences of the validation split that its scores meet, per dimension.
        losses: Weight of each loss that was minimised.
        shares: Of ratings, preferences and counterfactual pairs among the training items.
    """

    dataset: str
    synthetic: bool
    content_hash: str
    split_hash: str
    validation: dict[str, float | None]
    train_splits: list[str]
    validation_splits: list[str]
    target: str
    preferences_met: dict[str, float | None] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def describe(judge: EmpathyJudge, provenance: Provenance, frozen: Fingerprints | None = None) -> dict[str, Any]:
    """What `judge.json` says: everything but weights, in plain values.

    Args:
        judge: The judge.
        provenance: Where it comes from.
        frozen: Of its backbone, where they were taken before its weights were sharded.
    """
    frozen = frozen or fingerprints(judge)
    return {
        "schema_version": SCHEMA_VERSION,
        "settings": asdict(judge.settings),
        "backbone_fingerprint": frozen.whole,
        "unquantized_fingerprint": frozen.unquantized,
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


def save_judge(loaded: LoadedJudge, folder: Path, card: str) -> None:
    """Write a judge. Frozen backbone weights are not written, only which they are.

    Args:
        loaded: What to write.
        folder: Appears complete or not at all.
        card: Text of the model card, `README.md`.

    Raises:
        UserError: If the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists; accepted: a folder that does not exist yet")
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(loaded, stage, card)
        stage.chmod(0o755)  # mkdtemp keeps others out
        os.replace(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _write(loaded: LoadedJudge, folder: Path, card: str) -> None:
    hashes = write_weights(loaded.judge, folder)
    loaded.judge.backbone.save_processor(str(folder / "processor"))
    (folder / "README.md").write_text(card, encoding="utf-8")
    text = json.dumps({**loaded.description, "sha256": hashes}, indent=2, allow_nan=False)
    (folder / JUDGE_FILE).write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class LoadedJudge:
    """A judge and what its folder says of it.

    Attributes:
        judge: The judge.
        description: `judge.json`, parsed.
        calibration: What its field `calibration` says, if it belongs to these weights.
        not_calibrated: Why there is none, for whoever asks for intervals.
    """

    judge: EmpathyJudge
    description: dict[str, Any]
    calibration: Calibration | None = None
    not_calibrated: str = "the judge is not calibrated; `empathy-judge calibrate` does it"


@dataclass(frozen=True)
class Placement:
    """How the backbone of a judge is loaded, where that differs from how it was trained.

    Attributes:
        backbone: Where it lies now; None = where the judge found it.
        quantization: Of its language model; None = as in training. With "nf4" a judge that was trained without needs a
            quarter of the memory, and its scores change a little.
        spread: Over all GPUs that there are, then main memory, layer by layer (`device_map="auto"`).
    """

    backbone: str | None = None
    quantization: Quantization | None = None
    spread: bool = False


AS_TRAINED = Placement()


def load_judge(folder: Path, placement: Placement = AS_TRAINED) -> LoadedJudge:
    """Read a judge that `save_judge` wrote, in evaluation mode, on the CPU unless it is spread.

    Args:
        folder: The artifact.
        placement: How its backbone is loaded.

    Raises:
        UserError: If a file is missing or broken, if adapter or head lack a tensor or have one too many, if the adapter
            changes nothing, if scales disagree, if the backbone is not the one it was trained on, or if the calibration
            is broken or that of other weights.
    """
    description = _read_description(folder)
    if MEMBERS in description:
        judge = _build_ensemble(folder, description, placement)
    else:
        judge = _build(folder / JUDGE_FILE, description, placement)
        read_weights(judge, folder, description.get("sha256", {}))
    judge.eval().requires_grad_(False)
    if description.get("calibration") is None:
        return LoadedJudge(judge, description)
    where = f"{folder / JUDGE_FILE}: calibration"
    calibration = from_json(description["calibration"], where, judge.dimensions)
    if calibration.weights != weights_hash(judge):
        raise UserError(
            f"{where}: fitted to other weights; accepted: one of this judge (`empathy-judge calibrate`), or null"
        )
    return LoadedJudge(judge, description, calibration)


def load_run(path: Path, placement: Placement = AS_TRAINED) -> LoadedJudge:
    """Read a judge out of a training checkpoint, in evaluation mode, on the CPU unless it is spread.

    The calibration of the run comes along if it was fitted to this checkpoint.

    Args:
        path: A checkpoint, or the folder of a run, whose best checkpoint is taken.
        placement: How its backbone is loaded.

    Raises:
        UserError: As `load_judge`; also if the checkpoint is half-written.
    """
    file, description, state = _read_run(path)
    judge = _build(file, description, placement)
    _load_state(judge, file, state)
    judge.eval().requires_grad_(False)
    kept = file.parent.parent / CALIBRATION_FILE
    if not kept.is_file():
        return LoadedJudge(judge, description)
    calibration = read_calibration(kept, judge.dimensions)
    if calibration.weights != weights_hash(judge):
        reason = f"{kept} was fitted to other weights than those of {file}; `empathy-judge calibrate` fits it anew"
        return LoadedJudge(judge, description, not_calibrated=reason)
    return LoadedJudge(judge, {**description, "calibration": to_json(calibration)}, calibration)


def load_any(path: Path, placement: Placement = AS_TRAINED) -> LoadedJudge:
    """Read a judge folder, a run folder or a checkpoint.

    Raises:
        UserError: If it is none of these, or broken.
    """
    if (path / JUDGE_FILE).is_file():
        return load_judge(path, placement)
    if path.is_file() or (path / CHECKPOINTS).is_dir():
        return load_run(path, placement)
    raise UserError(f"{path}: accepted: a judge folder (with {JUDGE_FILE}), a run folder or a checkpoint")


def read_into(loaded: LoadedJudge, path: Path) -> dict[str, Any]:
    """Put the trained weights of another judge folder, run folder or checkpoint into a judge that was made alike.

    Args:
        loaded: From `load_any`; its frozen weights stay.
        path: The other one.

    Returns:
        What the other one's folder says of it.

    Raises:
        UserError: If it is broken, or differs from the judge in backbone, dimensions or a setting that scores depend
            on.
    """
    if (path / JUDGE_FILE).is_file():
        description = _read_description(path)
        _check_alike(loaded.description, path / JUDGE_FILE, description)
        read_weights(loaded.judge, path, description.get("sha256", {}))
        return description
    file, description, state = _read_run(path)
    _check_alike(loaded.description, file, description)
    _load_state(loaded.judge, file, state)
    return description


def _check_alike(first: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    """The weights of the other judge mean in the first what they mean in their own."""
    if MEMBERS in other:
        raise UserError(f"{path}: an ensemble itself; accepted: single judges, such as its members")
    (ours, dimensions), (theirs, others) = _parse(path, first), _parse(path, other)
    if others != dimensions:
        raise UserError(
            f"{path}: scores {scales_text(others)}, the first judge {scales_text(dimensions)}; accepted: the same"
        )
    one, two = _compared(ours), _compared(theirs)
    for key in two:
        if two[key] != one[key]:
            values = f"{key} {shown(two[key])}, of the first judge {shown(one[key])}"
            raise UserError(f"{path}: {values}; accepted: the same")
    found, expected = (description["backbone_fingerprint"] for description in (other, first))
    if found != expected:
        raise UserError(
            f"{path}: backbone with fingerprint {found[:12]}, of the first judge {expected[:12]}; accepted: the same"
        )


def _compared(settings: JudgeSettings) -> dict[str, Any]:
    """Settings by name, without those that scores do not depend on, and without the place of the backbone: it may lie
    elsewhere, and its fingerprint says whether it is the same."""
    values = asdict(settings)
    lora = {f"lora {name}": value for name, value in values.pop("lora").items() if name != "dropout"}
    unread = ("backbone", "revision", "attention", "padding_side")
    return {**{name: value for name, value in values.items() if name not in unread}, **lora}


def _build_ensemble(folder: Path, description: dict[str, Any], placement: Placement) -> EmpathyJudge:
    """A judge with the weights of all its members."""
    path = folder / JUDGE_FILE
    names = description[MEMBERS]
    if not isinstance(names, list) or len(names) < 2 or not all(re.fullmatch(r"members/\d+", str(n)) for n in names):
        raise UserError(f"{path}: {MEMBERS} {shown(names)}; accepted: a list of at least two, such as members/01")
    loaded = LoadedJudge(_build(path, description, placement), description)
    for name in names:
        file = folder / name / JUDGE_FILE
        if not file.is_file():
            raise UserError(f"{file}: missing; {path} names this member")
        if file_hash(file) != description.get("sha256", {}).get(f"{name}/{JUDGE_FILE}"):
            raise UserError(f"{file}: not the file that was written: its content differs from {path}'s hash")
        read_into(loaded, folder / name)
        loaded.judge.members.add(loaded.judge.trained())
    return loaded.judge


def _read_run(path: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """File, description and trained weights of a checkpoint, or of the best one of a run."""
    file = path / CHECKPOINTS / BEST if path.is_dir() else path
    checkpoint = read_checkpoint(file)
    if "description" not in checkpoint:
        raise UserError(f"{file}: not a checkpoint of this program: it does not describe a judge")
    # what is learned of raters and campaigns serves training alone
    trained = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("judge.")}
    state = {key.removeprefix("judge."): value for key, value in trained.items()}
    return file, checkpoint["description"], state


def _load_state(judge: EmpathyJudge, file: Path, state: Mapping[str, Tensor]) -> None:
    check_keys(file, state, judge.trained())
    judge.load_state_dict(state, strict=False)  # frozen weights are not in the file; check_keys was strict


def _build(path: Path, description: Mapping[str, Any], placement: Placement) -> EmpathyJudge:
    trained, dimensions = _parse(path, description)
    settings = replace(
        trained,
        backbone=placement.backbone or trained.backbone,
        quantization=placement.quantization or trained.quantization,
    )
    judge = EmpathyJudge(settings, dimensions, device_map="auto" if placement.spread else None)
    same_form = settings.quantization == trained.quantization
    found = fingerprint(judge, quantizable=same_form)
    expected = description.get("backbone_fingerprint" if same_form else "unquantized_fingerprint")
    if expected is None:
        raise UserError(f"{path}: does not say which unquantized weights it was trained on; accepted: no quantization")
    if found != expected:
        raise UserError(
            f"{path}: backbone {settings.backbone!r} has other weights than the judge was trained on "
            f"(fingerprint {found[:12]}, expected {expected[:12]})"
        )
    return judge


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / JUDGE_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{folder}: not a judge folder: it has no {JUDGE_FILE}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(description, dict) or description.get("schema_version") != SCHEMA_VERSION:
        raise UserError(f"{path}: schema_version must be {SCHEMA_VERSION}")
    return description


def _parse(path: Path, description: Mapping[str, Any]) -> tuple[JudgeSettings, tuple[Dimension, ...]]:
    try:
        settings = dict(description["settings"])
        lora = dict(settings.pop("lora"))
        if lora.get("layers") is not None:
            lora["layers"] = tuple(lora["layers"])
        dimensions = tuple(Dimension(**dimension) for dimension in description["dimensions"])
        description["backbone_fingerprint"][:12]
        parsed = JudgeSettings(lora=LoraSettings(**lora), **settings)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: {error}") from None
    for values in (parsed, parsed.lora):
        for name, hint in get_type_hints(type(values)).items():
            accepted = get_args(hint) if get_origin(hint) is Literal else ()
            if accepted and getattr(values, name) not in accepted:
                raise UserError(f"{path}: {name} {getattr(values, name)!r}; accepted: {', '.join(accepted)}")
    return parsed, dimensions
