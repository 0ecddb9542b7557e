"""What `judge.json` says of a backbone that lies in the folder of the judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ...data_modules.errors import UserError, shown
from ..backbones.common.base import WeightForm
from ..description import EXPORT
from ..file_names import JUDGE_FILE
from .backbone_folder import BACKBONE, check_backbone

OwnForm = Literal["merged", "huggingface"]
"""Forms of a judge with its backbone in its folder. Both are the same; the second once opened with `transformers`."""


@dataclass(frozen=True)
class OwnBackbone:
    """A backbone in the folder of a judge, checked.

    Attributes:
        folder: Where it is.
        quantization: How its language model is stored.
    """

    folder: Path
    quantization: WeightForm


def own_backbone(folder: Path, description: Mapping[str, Any]) -> OwnBackbone | None:
    """The backbone in the folder of a judge; None where the judge has adapter and head alone.

    Args:
        folder: Of the judge.
        description: Its `judge.json`.

    Raises:
        UserError: If a field is broken, leads out of the folder, or a file is not the one that was exported.
    """
    if EXPORT not in description:
        return None
    path, export, settings = folder / JUDGE_FILE, description[EXPORT], description.get("settings")
    for name, values, accepted in (
        ("form", export, get_args(OwnForm)),
        ("quantization", export, get_args(WeightForm)),
        ("backbone", settings, (BACKBONE,)),
    ):
        found = values.get(name) if isinstance(values, dict) else values
        if not isinstance(values, dict) or found not in accepted:
            raise UserError(f"{path}: {name} {shown(found)}; accepted: {', '.join(accepted)}")
    hashes = description.get("sha256")
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise UserError(f"{path}: sha256 {shown(hashes)}; accepted: a hash for each file")
    return OwnBackbone(check_backbone(folder, hashes), export["quantization"])
