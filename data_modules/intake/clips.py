"""Takes clips into a dataset folder: each is read once, decoded in full and stored by its content."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.progress import track

from ..audio import decode, probe
from ..errors import AudioError, DataError, shown
from ..folders import replace_file, resolve_inside
from .archives import ArchiveMember

AUDIO_FOLDER = "audio"
_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".w64")


@dataclass(frozen=True)
class ClipCell:
    """A clip that a table refers to.

    Attributes:
        content: Absolute path of a file, file in an archive, or encoded bytes.
        where: The cell, for messages.
    """

    content: Path | ArchiveMember | bytes
    where: str


@dataclass(frozen=True)
class StoredClip:
    """A clip in the dataset.

    Attributes:
        content: Path relative to the dataset folder, or encoded bytes.
        sha256: Of the encoded bytes.
    """

    content: str | bytes
    sha256: str


def find_clip(value: Any, folder: Path, where: str) -> ClipCell:
    """The clip that a cell refers to.

    Args:
        value: A path relative to `folder`, encoded bytes, or ``{"bytes", "path"}`` as Hugging Face datasets
            store audio.
        folder: The folder of the table, resolved.
        where: The cell, for messages.

    Raises:
        DataError: If it is none of these, or the path leaves the folder or does not exist.
    """
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        value = value["path"] if value["bytes"] is None else value["bytes"]
    if isinstance(value, bytes) and value:
        return ClipCell(value, where)
    if isinstance(value, str) and value:
        return ClipCell(resolve_inside(folder, value, where), where)
    raise DataError(f"{where}: value {shown(value)}; accepted: the path of an audio file")


def store_clips(cells: Sequence[ClipCell], stage: Path, embed: bool) -> list[StoredClip | AudioError]:
    """Decodes every distinct clip once and stores it.

    A stored file is called by the hash of its content, so that its name tells nothing about system or rating.

    Args:
        cells: The clips; the same one may come often.
        stage: The dataset folder in the making.
        embed: Return the bytes instead of writing files.

    Returns:
        One per cell, in the same order: the stored clip, or why it is unusable.
    """
    first: dict[Path | ArchiveMember | bytes, ClipCell] = {}
    for cell in cells:
        first.setdefault(cell.content, cell)
    if not embed:
        (stage / AUDIO_FOLDER).mkdir(exist_ok=True)

    def store(cell: ClipCell) -> StoredClip | AudioError:
        try:
            return _store(cell, stage, embed)
        except AudioError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = track(
            pool.map(store, first.values()), "Checking audio", len(first),
            console=Console(stderr=True), disable=not sys.stderr.isatty(),
        )  # fmt: skip
        stored = dict(zip(first, results, strict=True))
    return [stored[cell.content] for cell in cells]


def _store(cell: ClipCell, stage: Path, embed: bool) -> StoredClip:
    if isinstance(cell.content, bytes):
        data, name, suffix = cell.content, f"{len(cell.content)} bytes of audio", ""
    elif isinstance(cell.content, ArchiveMember):
        data, name, suffix = cell.content.read(), cell.content.name, PurePosixPath(cell.content.name).suffix.lower()
    else:
        name, suffix = cell.content.name, cell.content.suffix.lower()
        try:
            data = cell.content.read_bytes()
        except OSError as error:
            raise AudioError(f"{name}: cannot be read ({error.strerror})") from None
    decode(data, probe(data, name).rate, name=name)
    sha256 = hashlib.sha256(data).hexdigest()
    if embed:
        return StoredClip(data, sha256)
    path = f"{AUDIO_FOLDER}/{sha256[:32]}{suffix if suffix in _SUFFIXES else ''}"
    replace_file(stage / path, lambda temporary: temporary.write_bytes(data))
    return StoredClip(path, sha256)
