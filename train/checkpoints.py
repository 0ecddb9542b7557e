"""Checkpoints of a run: written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import CheckpointIO

from ..data_modules.errors import UserError
from ..models.checkpoints import damage, read_checkpoint
from ..models.file_names import LAST
from .durable import position_of


class AtomicCheckpoints(CheckpointIO):
    """Writes beside the target, flushes to disk and renames: a kill leaves the old checkpoint or the new one.

    Lightning's own writer goes through a temporary folder that may lie on another disk, where a rename is a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            UserError: If it cannot be written; what was there before stays.
        """
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except (OSError, RuntimeError) as error:
            refused = error if isinstance(error, OSError) else error.__context__  # torch complains of it in turn
            if not isinstance(refused, OSError):
                raise
            kept = "the one before it is whole" if path.exists() else "there is none before it"
            raise UserError(
                f"{path}: checkpoint not written ({refused.strerror or refused}), {kept}; accepted: a disk with room, "
                "then --resume auto"
            ) from None
        finally:
            unfinished.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; tensors and plain values only, whatever Lightning asks for."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def find_resumable(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run and, for the user, what was passed over and why."""
    passed_over = []
    files = [file for file in folder.glob("*.ckpt") if not file.is_symlink()]
    for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name == LAST), reverse=True):
        reason = damage(file)
        if reason is None:
            return file, passed_over
        passed_over.append(f"{file}: {reason}")
    return None, passed_over


def check_continues(
    checkpoint: Mapping[str, Any], description: Mapping[str, Any], order: Mapping[str, Any], data: str
) -> None:
    """Check that a run goes on from a checkpoint with the same backbone, data and, in mid-epoch, order.

    Args:
        checkpoint: What was kept.
        description: What the run would keep now.
        order: What decides now which items stand in which batch.
        data: Where the data is, for messages.

    Raises:
        UserError: If something differs.
    """
    then = checkpoint["description"]
    for key, name in (("backbone_fingerprint", "backbone"), ("dimensions", "rating scales")):
        if description[key] != then[key]:
            raise UserError(f"checkpoint: was trained with other {name}: {then[key]!r}, now {description[key]!r}")
    for key in ("content_hash", "split_hash", "train_splits", "validation_splits", "target"):
        if description["provenance"][key] != then["provenance"].get(key):
            raise UserError(f"checkpoint: was trained on other data: {key} differs from that of {data}")
    for name in order if position_of(checkpoint).batch else ():
        if order[name] != (before := checkpoint["order"].get(name)):
            raise UserError(
                f"checkpoint: was written in mid-epoch with {name} {before}, now {order[name]}; accepted: the same, so "
                "that no item is left out or read twice"
            )
