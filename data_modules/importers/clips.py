"""Looks clips up and takes them into a dataset folder: each is read once, decoded in full and stored by its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...audio.decode import load_clip
from ...audio.stored_clips import StoredClip
from ...core.errors import AudioError, DataError, os_reason, shown
from ...core.files import replace_file, resolve_inside
from ...core.processes import map_threads
from ...core.staging import STAGE_NOTES
from ..embedded_tables import EmbeddedClip
from ..tables import TableRow

AUDIO_FOLDER = "audio"
Content = Path | EmbeddedClip | StoredClip | AudioError
"""Absolute path of a file, bytes in a table, clip of a dataset, or why there is none of these."""
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".w64")


class ClipCell(NamedTuple):
    """A clip that a table refers to, and the place of the cell, for messages."""

    content: Content
    where: str


class CheckedClip(NamedTuple):
    """A clip that was decoded in full: the hash of its encoded bytes, and its path in the dataset folder; None = it is
    to be embedded."""

    sha256: str
    path: str | None


def find_clip(value: Any, where: str, folder: Path, root: str | Path | None = None, may_name: bool = False) -> ClipCell:
    """The clip that a cell refers to. If there is none, it holds an `AudioError`, so that only this pair is skipped.

    Args:
        value: A path relative to `folder`, bytes in a table, or ``{"bytes", "path"}`` as Hugging Face datasets store
            audio.
        where: The cell, for messages.
        folder: The folder of the table, resolved.
        root: Another folder in which audio may lie, see `resolve_inside`, as for `may_name`.
        may_name: Whether the command has an option for it.
    """
    value = path_or_bytes(value)
    if isinstance(value, EmbeddedClip):
        return ClipCell(value, where)
    if not isinstance(value, str) or not value:
        return ClipCell(AudioError(f"value {shown(value)}; expected the path of an audio file"), where)
    try:
        return ClipCell(resolve_inside(folder, value, where, also=root, may_name=may_name), where)
    except DataError as error:
        return ClipCell(AudioError(str(error).removeprefix(f"{where}: ")), where)


def path_or_bytes(value: Any) -> Any:
    """The path in a value as Hugging Face datasets store audio, or its bytes; any other value as it is."""
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        return value["path"] if value["bytes"] is None else value["bytes"]
    return value


class AudioFolder:
    """Where the clips of one table lie, also where its paths were written on another machine.

    ``speech_drame/finetuning/data/x.wav`` in a table beside ``x.wav`` names that file. Only folders that all paths of
    the table share are left off: two different paths never become one file.
    """

    def __init__(self, folder: Path, values: Iterable[Any], root: str | Path | None = None) -> None:
        """Finds out which leading folders to leave off: the fewest for which a file is found.

        Of `values`, all audio values of the table, those that are no paths (bytes, null) do not count, nor do paths
        that leave the folder, which `find` refuses. `root` is that of `find_clip`.
        """
        self._folder, self._root = folder.resolve(), root
        plain_values = (path_or_bytes(value) for value in values)
        paths = {PurePosixPath(value).parts for value in plain_values if isinstance(value, str)}
        inside = [path for path in paths if ".." not in path and path[:1] != ("/",)]
        levels = zip(*(path[:-1] for path in inside), strict=False)
        shared = tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        self._left_off = next(
            (
                shared[:count]
                for count in range(len(shared) + 1)
                if any(os.path.isfile(self._folder.joinpath(*path[count:])) for path in inside)
            ),
            (),
        )

    def find(self, value: Any, where: str) -> ClipCell:
        """The clip that a value refers to: all that `find_clip` takes."""
        value = path_or_bytes(value)
        if isinstance(value, str) and self._left_off:
            parts = PurePosixPath(value).parts
            if parts[: len(self._left_off)] == self._left_off:
                value = "/".join(parts[len(self._left_off) :])
        return find_clip(value, where, self._folder, self._root)

    def clip(self, row: TableRow, field: str) -> ClipCell:
        """The clip that a field of a row refers to."""
        return self.find(row.values.get(field), row.place(field))


def folder_files(root: Path) -> dict[str, Path]:
    """Relative path with ``/`` -> file of a folder, in the order of the paths; hidden files and what macOS leaves
    behind are skipped.

    Raises:
        DataError: If there is no such folder, or it has a link to a folder or one that leaves it.
    """
    if not root.is_dir():
        unpack = "; expected what it holds, unpacked" if root.suffix.lower() == ".zip" else ""
        raise DataError(f"{root}: no such folder{unpack}")
    root = root.resolve()

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({os_reason(error)})")

    files: dict[str, Path] = {}
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        for name in folders:
            if (Path(folder) / name).is_symlink():
                raise DataError(f"{Path(folder) / name}: a link to a folder; expected the folder itself")
        for path in (Path(folder) / name for name in names if not name.startswith(".")):
            # `Path.resolve` fails at a link to itself, which is a clip that cannot be read
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise DataError(
                    f"{path}: a link that leaves the folder {root}; expected the file itself "
                    "(`hf download --local-dir` makes no links)"
                )
            files[path.relative_to(root).as_posix()] = path
    return {name: files[name] for name in sorted(files)}


def read_clip(content: Content) -> bytes:
    """The encoded bytes.

    Raises:
        AudioError: If they cannot be read.
    """
    if isinstance(content, AudioError):
        raise content
    if isinstance(content, StoredClip):
        return content.read_checked()
    if isinstance(content, EmbeddedClip):
        return content.read()
    try:
        return content.read_bytes()
    except OSError as error:
        raise AudioError(f"{content.name}: cannot be read ({os_reason(error)})", "cannot be read") from None


def check_clips(cells: Iterable[ClipCell], stage: Path, embed: bool) -> dict[Content, CheckedClip | AudioError]:
    """Decodes every distinct content once and, unless it is to be embedded, stores it.

    A stored file is called by the hash of its content, so that its name tells nothing about system or rating. What is
    done is noted in the staged folder `stage`; a resumed import begins after it.

    Returns:
        `ClipCell.content` -> the clip, or why it is unusable.
    """
    contents = list(dict.fromkeys(cell.content for cell in cells))
    if not embed:
        (stage / AUDIO_FOLDER).mkdir(exist_ok=True)
    notes = stage / STAGE_NOTES / "clips.jsonl"
    results = _noted(notes)
    by_hash = {clip.sha256: clip for clip in results if isinstance(clip, CheckedClip)}

    def check(content: Content) -> CheckedClip | AudioError:
        try:
            data = read_clip(content)
            sha256 = hashlib.sha256(data).hexdigest()
            # Names differ, bytes do not: the same recording is decoded and stored once.
            if sha256 in by_hash:
                return by_hash[sha256]
            file = None  # of a clip that is a file; elsewhere it is embedded
            if isinstance(content, Path):
                file = content.name
            elif isinstance(content, StoredClip) and content.row_group is None:
                file = content.file.path.name
            name = f"{len(data)} bytes of audio" if file is None else file
            load_clip(data, name=name)
            path = None
            if not embed:
                suffix = PurePosixPath(file or "").suffix.lower()
                path = f"{AUDIO_FOLDER}/{sha256[:32]}{suffix if suffix in AUDIO_SUFFIXES else ''}"
                replace_file(stage / path, lambda temporary: temporary.write_bytes(data))
            return by_hash.setdefault(sha256, CheckedClip(sha256, path))
        except AudioError as error:
            return error

    with notes.open("ab") as file:
        remaining = contents[len(results) :]
        for result in map_threads(check, remaining, "Checking audio", len(contents), len(results)):
            failed = isinstance(result, AudioError)
            record = [None, None, str(result)] if failed else [result.sha256, result.path, None]
            file.write(json.dumps(record).encode() + b"\n")
            # After each clip: a kill costs the clips that are being decoded, and no more
            file.flush()
            results.append(result)
    return dict(zip(contents, results, strict=True))


def _noted(path: Path) -> list[CheckedClip | AudioError]:
    """Results of the clips that were checked before, a line each; a line that a kill cut off is removed."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    if lines and not lines[-1].endswith(b"\n"):
        path.write_bytes(b"".join(lines[:-1]))
        lines.pop()
    records = [json.loads(line) for line in lines]
    return [CheckedClip(sha256, stored) if error is None else AudioError(error) for sha256, stored, error in records]
