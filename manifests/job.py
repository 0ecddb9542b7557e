"""What is to be scored by whom, and how to tell whether that is what was begun."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..data_modules.errors import UserError
from ..models.file_names import BEST, CALIBRATION_FILE, CHECKPOINTS, JUDGE_FILE
from .changes import backbone_mark
from .formats import format_of

if TYPE_CHECKING:
    from ..models.backbones.base import Quantization
    from ..scorer import Scorer

WORDS = {
    "manifest": "manifest (SHA-256",
    "judge": "judge (SHA-256",
    "level": "level of intervals (",
    "backbone": "backbone (",
    "quantization": "quantization (",
    "files": "way to tell files apart (",
    "format": "format (",
    "version": "version of this program (",
}
"""Parts of `Job.identity`, for messages."""


@dataclass(frozen=True)
class Job:
    """A manifest, a judge and a file for the scores.

    Attributes:
        judge: Judge folder, run folder or checkpoint.
        manifest: The table.
        out: The file.
        level: Of the intervals; None = the usual one, and no matter if there are none.
        backbone: As `Scorer.from_pretrained` has it.
        quantization: As `Scorer.from_pretrained` has it.
        batch_size: As `Scorer.from_pretrained` has it.
        cache: As `Scorer.from_pretrained` has it.
        checksums: Files that changed are known by their content instead of size and modification time.
    """

    judge: Path
    manifest: Path
    out: Path
    level: float | None = None
    backbone: str | None = None
    quantization: Quantization | None = None
    batch_size: int | None = None
    cache: str | None = None
    checksums: bool = False

    def __post_init__(self) -> None:
        format_of(self.out)
        if self.out.exists() and self.manifest.exists() and os.path.samefile(self.out, self.manifest):
            raise UserError(f"{self.out}: is the manifest; accepted: another file for the scores")

    def load(self, device: str | None) -> Scorer:
        """The judge on a device.

        Raises:
            UserError: As `Scorer.from_pretrained`; also if intervals are asked for and there are none.
        """
        from ..scorer import Scorer

        scorer = Scorer.from_pretrained(
            self.judge,
            backbone=self.backbone,
            device=device,
            quantization=self.quantization,
            batch_size=self.batch_size,
            cache=self.cache,
        )
        if self.level is not None:
            scorer.require_calibration()
        return scorer

    def identity(self, manifest: str) -> dict[str, str]:
        """All that scores depend on, given the hash of the manifest, but for audio files: those that a part was made
        of are noted with it (`Parts.write`).

        Raises:
            UserError: If there is no judge.
        """
        return {
            "manifest": manifest,
            "judge": judge_hash(self.judge),
            "level": "usual" if self.level is None else f"{self.level:g}",
            "backbone": "as in training" if self.backbone is None else backbone_mark(self.backbone, self.checksums),
            "quantization": self.quantization or "as in training",
            "files": "by content" if self.checksums else "by size and time",
            "format": self.out.suffix.lower(),
            "version": __version__,
        }


def judge_hash(path: Path) -> str:
    """SHA-256 of what names a judge: `judge.json`, which holds the hashes of its weights and its calibration; of a run
    its checkpoint and its calibration.

    Raises:
        UserError: If there is neither.
    """
    checkpoint = path / CHECKPOINTS / BEST if path.is_dir() else path
    files = [path / JUDGE_FILE]
    if not files[0].is_file():
        files = [checkpoint, checkpoint.parent.parent / CALIBRATION_FILE]
    digest = hashlib.sha256()
    try:
        for file in files:
            if file == files[0] or file.is_file():
                with open(file, "rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
    except OSError:
        raise UserError(f"{path}: accepted: a judge folder (with {JUDGE_FILE}), a run folder or a checkpoint") from None
    return digest.hexdigest()


def first_difference(begun: dict[str, str], now: dict[str, str]) -> str | None:
    """In words, what differs; None = nothing."""
    for name, word in WORDS.items():
        if begun.get(name) != now[name]:
            old, new = (str(value)[:12] for value in (begun.get(name), now[name]))
            separator = "" if word.endswith("(") else " "
            return f"another {word}{separator}{old}, now {new})"
    return None
