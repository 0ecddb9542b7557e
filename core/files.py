"""Paths of data: a local folder, or any address that fsspec knows (``hf://``, ``s3://``, ``memory://``, ...). Checks
that paths stay in their folder, and writes files that appear complete or not at all (folders: `staging`)."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from platformdirs import user_cache_path

from .errors import AccessError, DataError, OutsideError, UserError, os_reason, shown, system_error
from .spellings import spelling_hint

if TYPE_CHECKING:
    import fsspec  # takes a tenth of a second: not for the help of the importers

CARD_FILE = "dataset.yaml"
_BESIDE = 20
"""Characters by which the names of temporary files and folders beside a path are longer than its own."""


@dataclass(frozen=True, repr=False)
class RemotePath:
    """A file or folder behind an fsspec address; offers what this package needs of `pathlib.Path`.

    It can be pickled and be used after a fork: the connection is made anew in each process. What it prints holds no
    passwords and no signatures."""

    address: str  # of the dataset folder, as the user gave it
    relative: str = ""  # path below it with `/`; empty = the folder itself

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.address, f"{self.relative}/{name}" if self.relative else name)

    def __str__(self) -> str:
        # without ``user:password@`` or ``token@`` and without what follows ``?``, where signatures stand
        folder = re.sub(r"(?<=://)[^/@]*@", "", self.address).partition("?")[0].rstrip("/")
        return f"{folder}/{self.relative}" if self.relative else folder

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return str(self).rpartition("/")[2]

    def exists(self) -> bool:
        """Whether there is a file or folder."""
        return self._ask("exists")

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self._ask("isfile")

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        return self._ask("isdir")

    def read_bytes(self) -> bytes:
        """The content of a file."""
        return bytes(self._ask("cat_file"))

    def open(self) -> Any:
        """A file to seek and read in. Nothing is read ahead: of Parquet only the columns that are asked for."""
        return self._ask("open", mode="rb", cache_type="none")

    def files(self) -> list[str]:
        """All files below this folder, relative to it, in the order of their names."""
        return self._ask("find")

    def version(self) -> str:
        """Changes when the file does, as far as the file system tells."""
        return self._ask("ukey")

    def _ask(self, method: str, **how: Any) -> Any:
        """What the file system says of this path; paths that it finds become relative to this one."""
        with _reached(self):
            # fsspec keeps the connection: there is one in each process, and threads may share it.
            system, folder = _url_to_fs(self.address)
            path = f"{folder.rstrip('/')}/{self.relative}".rstrip("/")
            result = getattr(system, method)(path, **how)
            return sorted(file[len(path) + 1 :] for file in result) if method == "find" else result


DataPath = Path | RemotePath


def data_path(address: str | Path | RemotePath) -> DataPath:
    """A local path, or an address with ``://``.

    Raises:
        DataError: If fsspec knows no such protocol, or the package that it needs for it is not installed.
    """
    if isinstance(address, RemotePath):
        return address
    text = str(address)
    if text.lower().startswith(("file://", "local://")):
        return Path(unquote(urlsplit(text).path))
    if isinstance(address, Path) or not ("://" in text or "::" in text):
        return Path(address)
    path = RemotePath(text)
    with _reached(path):
        _url_to_fs(text)
    return path


def path_version(path: DataPath) -> str:
    """Changes when the file does: for a local one by size and time of change."""
    if isinstance(path, RemotePath):
        return path.version()
    status = path.stat()
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def _url_to_fs(address: str) -> tuple[fsspec.AbstractFileSystem, str]:
    from fsspec.core import url_to_fs

    return url_to_fs(address)


@contextmanager
def _reached(path: RemotePath) -> Iterator[Any]:
    """Turns errors of file systems into a `DataError` that shows their type alone: texts may hold signed addresses."""
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except ImportError as error:
        raise DataError(f"{path}: {error}; expected a local folder, or an address whose package is there") from None
    except ValueError:
        from fsspec.registry import available_protocols

        protocols = [part.partition("://")[0] for part in path.address.split("::") if "://" in part]
        unknown = [protocol for protocol in protocols if protocol not in available_protocols()]
        reason = f"Protocol not known: {unknown[0]}" if unknown else "not an address"
        raise DataError(
            f"{path}: {reason}; expected a local folder, hf://datasets/..., s3://... and the like"
        ) from None
    except Exception as error:
        raise DataError(f"{path}: cannot be reached ({type(error).__name__})") from None


def resolve_inside(
    root: Path, relative: str, where: str, also: str | Path | None = None, may_name: bool = False
) -> Path:
    """The absolute path of a file in `root`, or in `also` where `root` has none; symlinks are followed.

    Args:
        root: A folder, already resolved.
        relative: Path with ``/``, relative to it, or absolute and in it or in `also`.
        where: Head of the message (file, row, column).
        also: Another folder, which the user has named: what its symlinks lead to is followed, wherever it is.
        may_name: Whether the command has ``--audio-root`` for it; a message says so where that would help.

    Raises:
        OutsideError: If the path leaves the folder (``..``, or a symlink that is not in `also`).
        AccessError: If the system does not let it be looked up.
        DataError: If it is no file.
    """
    path, exists, reason, here, there = root, False, "", True, also is not None
    roots = [root] if also is None else [root, Path(also).resolve()]
    given = Path(relative)
    if whole := given.is_absolute() and ".." not in given.parts:
        # Below one of the folders it says no more than the path from there. The folder may also have another name, by
        # a link above it, as /tmp has on some systems
        known, below = (*roots, Path(also or root)), given
        if not any(given.is_relative_to(folder) for folder in known):
            with suppress(OSError, RuntimeError, ValueError):
                below = given.parent.resolve() / given.name
        named = next((folder for folder in known if below.is_relative_to(folder)), None)
        if named is not None:  # and no other, where another file may have that path
            relative, here, there = str(below.relative_to(named)), named == root, named != root
    if not stays_inside(relative):
        helps = False
        with suppress(OSError, ValueError):  # no permission, a zero byte
            helps = may_name and also is None and whole and given.is_file()
        raise _outside(where, relative, root, _or_named(given.parent) * helps)
    try:
        path, exists = _resolved(root / relative) if here else (root, False)
    except (FileNotFoundError, NotADirectoryError, RuntimeError, ValueError):  # a loop of links, a zero byte
        pass
    except OSError as error:  # no permission, too long a name
        reason = os_reason(error)
    if exists and path.is_relative_to(root):
        return path
    if also is not None and exists and _passes_through(root / relative, roots[1]):
        return path
    if there:
        with suppress(OSError, ValueError):
            if (roots[1] / relative).is_file():
                return (roots[1] / relative).resolve()
    if not path.is_relative_to(root):
        cure = "expected the file itself (cp -L)" + _or_named(path.parent) * may_name
        raise OutsideError(f"{where}: value {shown(relative)} leaves the folder {root} by a link to {path}; {cure}")
    if reason:
        raise AccessError(f"{where}: value {shown(relative)}: cannot be read ({reason})")
    if "://" in relative:
        raise DataError(f"{where}: value {shown(relative)} is an address; expected a file: download it first")
    hint = spelling_hint(relative, lambda other: any((folder / other).is_file() for folder in roots))
    raise DataError(f"{where}: value {shown(relative)}: no such file in {' and '.join(map(str, roots))}{hint}")


def _or_named(folder: Path) -> str:
    """How to name another folder of audio, to be copied; nothing where a terminal would not show its name as it is."""
    name = str(folder)
    return f", or the folder named: --audio-root {shlex.quote(name)}" if name.isprintable() else ""


def _outside(where: str, relative: str, root: DataPath, more: str = "") -> OutsideError:
    return OutsideError(
        f"{where}: value {shown(relative)} leaves the folder {root}; expected a path relative to it{more}"
    )


def _passes_through(path: Path, folder: Path) -> bool:
    """Whether a part of the path, or a symlink that it passes through, lies in a folder; the path leads to a file."""
    for step in (*reversed(path.parents), path):
        while True:
            # Only the last part may be a symlink: that is the one to look at.
            step = Path(os.path.normpath(step.parent.resolve() / step.name))
            if step.is_relative_to(folder):
                return True
            if not step.is_symlink():
                break
            step = step.parent / step.readlink()
    return False


def _resolved(path: Path) -> tuple[Path, bool]:
    """A path with symlinks followed, and whether it is a file."""
    path = path.parent.resolve() / path.name
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        path = path.resolve()
        return path, path.is_file()
    return path, stat.S_ISREG(mode)


def files_inside(root: Path, relatives: Iterable[str]) -> dict[str, Path]:
    """The absolute paths of many files in `root`, a folder that is resolved; those that `resolve_inside` would refuse
    are left out. Takes one system call for most files, where `Path.resolve` looks at every folder above as well."""
    # A data set of a million clips has few folders, and each of these is resolved once
    found: dict[str, Path] = {}
    folders: dict[Path, Path] = {}
    for relative in relatives:
        split, path = PureWindowsPath(relative), root / relative
        if not split.parts or split.anchor or ".." in split.parts:  # `stays_inside`
            continue
        with suppress(OSError, RuntimeError, ValueError):  # no such file, a loop of links, a zero byte
            if path.parent not in folders:
                folders[path.parent] = path.parent.resolve()
            path = folders[path.parent] / path.name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                path = path.resolve()
                mode = path.stat().st_mode
            if stat.S_ISREG(mode) and path.is_relative_to(root):
                found[relative] = path
    return found


def resolve_remote(root: RemotePath, relative: str, files: Collection[str], where: str) -> RemotePath:
    """The file of a remote folder, as `resolve_inside` finds local ones; `files` are all that it has: one listing
    instead of a question for each.

    Raises:
        OutsideError: If the path is absolute or leaves the folder.
        DataError: If it is no file.
    """
    if not stays_inside(relative):
        raise _outside(where, relative, root)
    if relative not in files:
        hint = spelling_hint(relative, files.__contains__)
        raise DataError(f"{where}: value {shown(relative)}: no such file in {root}{hint}")
    return root / relative


def stays_inside(relative: str) -> bool:
    """Whether a path is relative and has no ``..``."""
    # As a Windows path, which splits at both kinds of slash: a table may come from there.
    path = PureWindowsPath(relative)
    return bool(path.parts) and not path.anchor and ".." not in path.parts


def check_writable(out: Path, is_folder: bool = True) -> None:
    """Checks that a folder (made with those above it if there is none) or a file can be written, as far as this can be
    known before the long work.

    Raises:
        UserError: If it is taken by the other kind, lies in a file, may not be written, or has too long a name.
    """
    folder = out if is_folder else out.parent
    try:
        wrong_kind = out.exists() and out.is_dir() != is_folder
        Path(f"{out.absolute()}{'x' * _BESIDE}").exists()
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}; expected another place") from None
    if wrong_kind or not existing.is_dir():
        blocked = out if wrong_kind else existing
        kind, expected = ("folder", "file") if blocked.is_dir() else ("file", "folder")
        raise UserError(f"{blocked}: is a {kind}; expected a {expected}, or a place that is not taken")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{out}: cannot be written, {existing} is read-only; expected another place")


def kept_file(root: DataPath, content_hash: str, name: str) -> Path:
    """Where a result about a dataset is stored: in its folder or, where that is remote or read-only, under its content
    hash in the user's cache."""
    if not isinstance(root, RemotePath) and os.access(root, os.W_OK):
        return root / name
    try:
        folder = user_cache_path("empathy-judge", ensure_exists=True)
    except OSError:  # no home either, as in some containers
        folder = Path(tempfile.gettempdir())
    return folder / f"{content_hash[:32]}-{name.removeprefix('.')}"


def file_hash(path: str | Path) -> str:
    """SHA-256 (hex) of the content of a file.

    Raises:
        OSError: If it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_text(path: Path, text: str) -> None:
    """As `replace_file`, of a text in UTF-8."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write(temporary path beside path)``, then renames: readers see the old file or the new one.

    Raises:
        OSError: If it cannot be written, with the name of the file.
    """
    # No longer than most names: the limit of the file system holds for it, too.
    # Beside the file, since a rename is atomic only within one file system
    temporary = path.with_name(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    except Exception as error:
        os_error = system_error(error)
        if os_error is None or os_error.filename not in (None, str(temporary)):
            raise
        raise OSError(os_error.errno, os_error.strerror, str(path)) from error
    finally:
        # The disk may have become read-only; what was raised above says more.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
