"""A tree of files that is a folder, a zip archive, or a folder with zip archives in it: importers need not care."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AudioError, DataError, place, shown
from .archives import ArchiveMember, archive_members, is_dropping
from .clips import read_clip
from .tables import SourceTable, unique_object

SourceFile = Path | ArchiveMember


@dataclass(frozen=True)
class FileTree:
    """Files that can be looked up; nothing outside the tree can be reached through it.

    Attributes:
        root: The folder or the archive.
        files: Relative path with ``/`` -> the file, in the order of the paths. Those of an archive ``NAME.zip`` in a
            folder stand there as if it were unpacked to ``NAME/``.
    """

    root: Path
    files: Mapping[str, SourceFile]

    def place(self, name: str) -> str:
        """What messages call a file of the tree."""
        return f"{self.root}/{name}"

    def read_json_table(self, name: str) -> SourceTable:
        """A JSON file that holds a list of objects, as a table without lines.

        Raises:
            DataError: If the file is damaged, not UTF-8, not JSON or something else.
        """
        file = self.place(name)
        try:
            rows = json.loads(read_clip(self.files[name]).decode("utf-8-sig"), object_pairs_hook=unique_object)
        except (AudioError, ValueError, RecursionError) as error:
            raise DataError(f"{file}: not readable as JSON ({error})") from None
        if not isinstance(rows, list):
            raise DataError(f"{file}: value {shown(rows)}; accepted: a list of JSON objects")
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                raise DataError(f"{place(file, number)}: value {shown(row)}; accepted: a JSON object")
        return SourceTable(Path(file), tuple({column: None for row in rows for column in row}), rows, None)


def open_tree(path: Path) -> FileTree:
    """The files of a folder or of a zip archive. Hidden files and what macOS leaves behind are passed over.

    Where all files lie in one folder that is called like the tree (``NAME.zip`` with ``NAME/...``), paths start below
    it. Where a folder has both ``NAME.zip`` and its unpacked ``NAME/``, a file that is in both is read from the
    archive.

    Raises:
        DataError: If there is no such folder or archive, an archive is unsafe or damaged, or the folder has a link
            that leaves it.
    """
    path = path.absolute()
    if path.is_dir():
        return FileTree(path, _unwrapped(_folder_files(path.resolve()), path.name))
    if path.exists():
        return FileTree(path, _archive_files(path))
    raise DataError(f"{path}: no such folder or zip archive")


def text_of(value: Any) -> str | None:
    """The value if it is text and not blank, else None."""
    return value if isinstance(value, str) and value.strip() else None


def _archive_files(path: Path) -> dict[str, SourceFile]:
    return _unwrapped({member.name: member for member in archive_members(path)}, path.stem)


def _folder_files(root: Path) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    archives: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in folders:
            if (Path(folder) / name).is_symlink():
                raise DataError(f"{Path(folder) / name}: a link to a folder; accepted: the folder itself")
        for name in names:
            path = Path(folder) / name
            if _is_hidden(name):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise DataError(
                    f"{path}: a link that leaves the folder {root}; accepted: the file itself "
                    "(`hf download --local-dir` makes no links)"
                )
            found[path.relative_to(root).as_posix()] = path
            if path.suffix.lower() == ".zip":
                archives.append(path)
    for archive in archives:
        mount = archive.relative_to(root).with_suffix("").as_posix()
        found.update({f"{mount}/{name}": member for name, member in _archive_files(archive).items()})
    return found


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or is_dropping(name)


def _unwrapped(files: dict[str, SourceFile], name: str) -> dict[str, SourceFile]:
    """Paths in order, without the one folder called `name` that holds all of them."""
    head = f"{name}/"
    cut = len(head) if all(path.startswith(head) for path in files) else 0
    return {path[cut:]: files[path] for path in sorted(files)}


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")
