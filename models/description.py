"""What `judge.json` says, checked; and whether two judges differ in their trained weights alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..data_modules.errors import UserError, shown
from ..data_modules.schema import Dimension
from .file_names import JUDGE_FILE
from .judge import JudgeSettings
from .lora import LoraSettings
from .weight_files import scales_text

SCHEMA_VERSION = 1
MEMBERS = "members"
"""In `judge.json` of an ensemble: the folders of its members, each a judge folder. Its own weights are theirs."""
EXPORT = "export"
"""In `judge.json` of a judge that has its backbone in its own folder: the form, and what became of its scores."""


def read_description(folder: Path) -> dict[str, Any]:
    """`judge.json` of a judge folder.

    Raises:
        UserError: If there is none, or it is none of this program.
    """
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


def parse(path: Path, description: Mapping[str, Any]) -> tuple[JudgeSettings, tuple[Dimension, ...]]:
    """Settings and dimensions out of a description.

    Args:
        path: Where it stands, for messages.
        description: `judge.json` or what a checkpoint says.

    Raises:
        UserError: If a field is missing, unknown or not one of its values.
    """
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


def check_alike(first: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    """The weights of the other judge mean in the first what they mean in their own.

    Args:
        first: Description of the first.
        path: Where the other's stands.
        other: Description of the other.

    Raises:
        UserError: If not, or the other is no single judge of adapter and head.
    """
    if EXPORT in other:
        raise UserError(f"{path}: its adapter was merged into its backbone; accepted: the judge that it was made of")
    if MEMBERS in other:
        raise UserError(f"{path}: an ensemble itself; accepted: single judges, such as its members")
    (ours, dimensions), (theirs, others) = parse(path, first), parse(path, other)
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
