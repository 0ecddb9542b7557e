"""Training checkpoints, checked before they are read."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from ..data_modules.errors import UserError


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
            bad = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return f"half-written or damaged checkpoint ({error})"
    return None if bad is None else f"damaged checkpoint (member {bad})"
