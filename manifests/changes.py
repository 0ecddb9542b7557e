"""Which files scores were made of, and how to tell whether these have changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .rows import Row


def file_mark(path: Path, checksums: bool) -> str:
    """What a file is known by: its size and modification time, or the SHA-256 of its content; "" = not readable."""
    try:
        if not checksums:
            facts = path.stat()
            return f"{facts.st_size} {facts.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def backbone_mark(backbone: str, checksums: bool) -> str:
    """Of a folder a hash over its files, wherever it lies; a hub id is its own."""
    folder = Path(backbone)
    if not folder.is_dir():
        return backbone
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    marks = [f"{path.relative_to(folder).as_posix()} {file_mark(path, checksums)}" for path in files]
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


class AudioMarks:
    """Which audio files rows were made of, in their order; clips inside the manifest are known by the manifest's hash.

    A row that could not be used counts too: it can be, once its file is there.
    """

    def __init__(self, checksums: bool) -> None:
        """Say whether files are known by their content."""
        self._checksums = checksums
        self._known: dict[Path, str] = {}
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        """Take note of the next row."""
        if row.pair is None:
            self._digest.update(b"none\n")
            return
        for clip in (row.pair.response, *(turn.audio for turn in row.pair.context)):
            if isinstance(clip, Path):
                if clip not in self._known:
                    self._known[clip] = file_mark(clip, self._checksums)
                self._digest.update(f"{clip.name} {self._known[clip]}\n".encode())

    def hexdigest(self) -> str:
        """Of all rows so far."""
        return self._digest.hexdigest()
