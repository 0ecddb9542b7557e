"""Zip archives from outside, read without unpacking: no member can leave a folder, because none is written to one.

An archive is checked as a whole before anything of it is used. What macOS drops into archives is passed over; names
with ``..`` and the like, double names, links, encrypted members and zip bombs are refused. Colons in names are
fine.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PureWindowsPath

from ..errors import AudioError, DataError, shown

MAX_MEMBER_BYTES = 512 << 20
"""Larger members are refused; a clip of this size lasts more than an hour."""
MAX_RATIO = 200
"""A member that is larger than `BOMB_BYTES` and was packed tighter than this is refused as a zip bomb."""
BOMB_BYTES = 64 << 20
_OPEN_ARCHIVES = 16
_LOCAL_HEADER_BYTES = 30  # and the name, which follows it
_ENCRYPTED = 0x1 | 0x40  # flag bits: of the old kind, of the strong kind
# What zipfile raises on damaged archives; EOFError, struct.error and zlib.error are not in its documentation.
_DAMAGE = (OSError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError, IndexError, struct.error, zlib.error)


@dataclass(frozen=True)
class ArchiveMember:
    """One file in a zip archive.

    Attributes:
        archive: The zip file.
        name: Of the member, as the archive has it.
    """

    archive: Path
    name: str

    def read(self) -> bytes:
        """The content. Threads and forked processes may read at the same time.

        Raises:
            AudioError: If this member is damaged or not there.
            DataError: If the archive as a whole cannot be used.
        """
        return _opened(self.archive).read(self.name)


def archive_members(path: Path) -> list[ArchiveMember]:
    """The files of a zip archive in its order, without folders and without what macOS drops into archives.

    Raises:
        DataError: If it is no zip file or cut off, or has a member with an unsafe or a double name, a link, an
            encrypted one, one packed in another way than deflate, a zip bomb, or members that overlap.
    """
    return [ArchiveMember(path, name) for name in _opened(path).members]


def is_dropping(name: str) -> bool:
    """Whether a posix path is what macOS leaves behind: ``__MACOSX/``, ``._*``, ``.DS_Store``."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1].startswith("._") or parts[-1] == ".DS_Store"


class _OpenArchive:
    """An open archive whose members are checked. Threads may share it; processes must not share its file position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
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
            # The lock keeps zipfile's count of readers right; seeks and reads have zipfile's own.
            with self._lock:
                stream = self._zip.open(info)
            try:
                data = stream.read(info.file_size)
            finally:
                with self._lock:
                    stream.close()
        except _DAMAGE as error:
            raise AudioError(f"{self._path.name}/{name}: cannot be read ({error})") from None
        if len(data) != info.file_size:
            raise AudioError(
                f"{self._path.name}/{name}: the archive is damaged, {len(data)} of {info.file_size} bytes are there"
            )
        return data


def _opened(path: Path) -> _OpenArchive:
    """The archive, opened once per process: to parse a directory of 10,000 for each member would take 0.1 s each."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return _open(path, os.getpid(), (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(_OPEN_ARCHIVES)
def _open(path: Path, process: int, version: tuple[int, ...]) -> _OpenArchive:
    del process, version  # a forked process needs a file position of its own, a replaced file its own directory
    return _OpenArchive(path)


def _checked(infos: Iterable[zipfile.ZipInfo], path: Path) -> dict[str, zipfile.ZipInfo]:
    """Name -> member for every usable member."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.orig_filename
        refusal = _unsafe_name(name)
        if refusal is None and (info.is_dir() or is_dropping(name)):
            continue
        if refusal is None and name in members:
            refusal = "stands twice in the archive; accepted: each name once"
        refusal = refusal or _unsafe_content(info)
        if refusal is not None:
            raise DataError(f"{path}: member {shown(name)} {refusal}")
        members[name] = info
    _check_overlap(members, path)
    return members


def _unsafe_name(name: str) -> str | None:
    parts = name.removesuffix("/").split("/")
    if "\\" in name or "\0" in name or PureWindowsPath(name).anchor or {"", ".", ".."} & set(parts):
        return "has an unsafe name; accepted: a relative path with '/' and without '..'"
    return None


def _unsafe_content(info: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link; accepted: files"
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted; accepted: an archive without a password, or its unpacked folder"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is packed by method {info.compress_type}; accepted: stored, deflated, or the unpacked folder"
    if info.file_size > MAX_MEMBER_BYTES:
        return f"holds {info.file_size} bytes; accepted: at most {MAX_MEMBER_BYTES}, or the unpacked folder"
    if info.file_size > BOMB_BYTES and info.file_size > MAX_RATIO * info.compress_size:
        return f"is a zip bomb: {info.compress_size} bytes become {info.file_size}; accepted: at most {MAX_RATIO}-fold"
    return None


def _check_overlap(members: dict[str, zipfile.ZipInfo], path: Path) -> None:
    """Refuses members that share bytes, as in zip bombs; zipfile does from Python 3.11.8 and 3.12.2 on (gh-109858)."""
    ordered = sorted(members.values(), key=lambda info: info.header_offset)
    for info, following in pairwise(ordered):
        if info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size > following.header_offset:
            name = shown(following.orig_filename)
            raise DataError(f"{path}: member {name} overlaps with {shown(info.orig_filename)}; accepted: none does")
