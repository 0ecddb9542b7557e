"""Files of a source that is a folder, a zip archive, or a folder with zip archives in it: importers need not care.

Archives are read without unpacking: no member can leave a folder, because none is written to one. An archive is checked
as a whole before anything of it is used. What macOS leaves behind is passed over; names with ``..`` and the like,
double names, links, encrypted members and zip bombs are refused. Colons in names are fine.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PureWindowsPath

from ..errors import AudioError, DataError, os_reason, shown, system_errors
from ..storage import path_version
from ..tables import SourceTable, json_table

MAX_MEMBER_BYTES = 512 << 20
"""Larger members are refused; a clip of this size lasts more than an hour."""
MAX_RATIO = 200
"""A member that is larger than `BOMB_BYTES` and was packed tighter than this is refused as a zip bomb."""
BOMB_BYTES = 64 << 20
_OPEN_ARCHIVES = 16
_LOCAL_HEADER_BYTES = 30  # and the name, which follows it
_ENCRYPTED = 0x1 | 0x40  # flag bits: traditional and strong encryption
# What zipfile raises on damaged archives; EOFError, struct.error and zlib.error are not in its documentation.
_DAMAGE = (OSError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError, IndexError, struct.error, zlib.error)


@dataclass(frozen=True)
class ArchiveMember:
    """One file in a zip archive: the archive, and the name of the member in it."""

    archive: Path
    name: str

    def read(self) -> bytes:
        """The content. Threads and forked processes may read at the same time.

        Raises:
            AudioError: If this member is damaged or not there.
            DataError: If the archive as a whole cannot be used.
        """
        return _opened(self.archive).read(self.name)


SourceFile = Path | ArchiveMember


def read_file(file: SourceFile) -> bytes:
    """The content of a file; an `AudioError` if it cannot be read."""
    if isinstance(file, ArchiveMember):
        return file.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise AudioError(f"{file.name}: cannot be read ({os_reason(error)})", "cannot be read") from None


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
        """A JSON file that holds a list of objects.

        Raises:
            DataError: If the file is damaged, not UTF-8, not JSON or something else.
        """
        file = Path(self.place(name))
        try:
            return json_table(read_file(self.files[name]), file)
        except AudioError as error:
            raise DataError(f"{file}: not readable as JSON ({error})") from None


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
        return FileTree(path, _unwrapped({member.name: member for member in archive_members(path)}, path.stem))
    raise DataError(f"{path}: no such folder or zip archive")


def archive_members(path: Path) -> list[ArchiveMember]:
    """The files of a zip archive in its order, without folders and without what macOS leaves behind.

    Raises:
        DataError: If the archive is unsafe or damaged, see above.
    """
    return [ArchiveMember(path, name) for name in _opened(path).members]


def _folder_files(root: Path) -> dict[str, SourceFile]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({os_reason(error)})")

    found: dict[str, SourceFile] = {}
    archives: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        for name in folders:
            if (Path(folder) / name).is_symlink():
                raise DataError(f"{Path(folder) / name}: a link to a folder; expected the folder itself")
        for name in names:
            path = Path(folder) / name
            if name.startswith(".") or name == "__MACOSX":
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise DataError(
                    f"{path}: a link that leaves the folder {root}; expected the file itself "
                    "(`hf download --local-dir` makes no links)"
                )
            found[path.relative_to(root).as_posix()] = path
            if path.suffix.lower() == ".zip":
                archives.append(path)
    for archive in archives:
        mount = archive.relative_to(root).with_suffix("").as_posix()
        found.update({f"{mount}/{name}": file for name, file in open_tree(archive).files.items()})
    return found


def _unwrapped(files: dict[str, SourceFile], name: str) -> dict[str, SourceFile]:
    """Paths in order, without the one folder called `name` that holds all of them."""
    head = f"{name}/"
    cut = len(head) if all(path.startswith(head) for path in files) else 0
    return {path[cut:]: files[path] for path in sorted(files)}


class _OpenArchive:
    """An open archive whose members are checked. Threads may share it; processes must not share its file position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            reason = os_reason(error) if isinstance(error, OSError) else error
            raise DataError(f"{path}: not readable as a zip archive ({reason})") from None
        try:
            self.members = _checked(self._zip.infolist(), path)
        except DataError:
            self._zip.close()
            raise

    def read(self, name: str) -> bytes:
        info = self.members.get(name)
        if info is None:
            raise AudioError(f"{self._path.name}/{name}: no such file in the archive")
        try:
            with self._lock, self._zip.open(info) as stream:
                data = stream.read(info.file_size)
        except _DAMAGE as error:
            raise AudioError(f"{self._path.name}/{name}: cannot be read ({error})") from None
        if len(data) != info.file_size:
            raise AudioError(
                f"{self._path.name}/{name}: the archive is damaged, {len(data)} of {info.file_size} bytes are there"
            )
        return data


def _opened(path: Path) -> _OpenArchive:
    """The archive, opened once per process: to parse a directory of 10,000 for each member would take 0.1 s each."""
    with system_errors(path, "read"):
        return _open(path, os.getpid(), path_version(path))


@lru_cache(_OPEN_ARCHIVES)
def _open(path: Path, process: int, version: str) -> _OpenArchive:
    del process, version  # a forked process needs a file position of its own, a replaced file its own directory
    return _OpenArchive(path)


def _checked(infos: Iterable[zipfile.ZipInfo], path: Path) -> dict[str, zipfile.ZipInfo]:
    """Name -> member for every usable member."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.orig_filename
        problem = _unsafe_name(name)
        *folders, file = name.split("/")
        from_macos = "__MACOSX" in (*folders, file) or file.startswith("._") or file == ".DS_Store"
        if problem is None and (info.is_dir() or from_macos):
            continue
        if problem is None and name in members:
            problem = "stands twice in the archive; expected each name once"
        problem = problem or _unsafe_content(info)
        if problem is not None:
            raise DataError(f"{path}: member {shown(name)} {problem}")
        members[name] = info
    # Members that share bytes, as in zip bombs; zipfile refuses them from Python 3.11.8 and 3.12.2 on (gh-109858).
    for info, following in pairwise(sorted(members.values(), key=lambda info: info.header_offset)):
        if info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size > following.header_offset:
            name = shown(following.orig_filename)
            raise DataError(
                f"{path}: member {name} overlaps with {shown(info.orig_filename)}; expected members side by side"
            )
    return members


def _unsafe_name(name: str) -> str | None:
    parts = name.removesuffix("/").split("/")
    if "\\" in name or "\0" in name or PureWindowsPath(name).anchor or {"", ".", ".."} & set(parts):
        return "has an unsafe name; expected a relative path with '/' and without '..'"
    return None


def _unsafe_content(info: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link; expected files"
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted; expected an archive without a password, or its unpacked folder"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is packed by method {info.compress_type}; expected stored, deflated, or the unpacked folder"
    if info.file_size > MAX_MEMBER_BYTES:
        return f"holds {info.file_size} bytes; expected at most {MAX_MEMBER_BYTES}, or the unpacked folder"
    if info.file_size > BOMB_BYTES and info.file_size > MAX_RATIO * info.compress_size:
        return f"is a zip bomb: {info.compress_size} bytes become {info.file_size}; expected at most {MAX_RATIO}-fold"
    return None
