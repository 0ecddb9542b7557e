"""Where a dataset lies: a local folder, or any address that fsspec knows (``hf://``, ``s3://``, ``memory://``, ...)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from .errors import DataError, UserError

if TYPE_CHECKING:
    import fsspec  # takes a tenth of a second: not for the help of the importers

_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class RemotePath:
    """A file or folder behind an fsspec address; offers what this package needs of `pathlib.Path`.

    It can be pickled and be used after a fork: the connection is made anew in each process. What it prints holds no
    passwords and no signatures.

    Attributes:
        address: Of the dataset folder, as the user gave it.
        relative: Path below it with ``/``; empty = the folder itself.
    """

    address: str
    relative: str = ""

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
        with _reached(self):
            return self._filesystem.exists(self._path)

    def is_file(self) -> bool:
        """Whether there is a file."""
        with _reached(self):
            return self._filesystem.isfile(self._path)

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        with _reached(self):
            return self._filesystem.isdir(self._path)

    def read_bytes(self) -> bytes:
        """The content of a file."""
        with _reached(self):
            return bytes(self._filesystem.cat_file(self._path))  # pyright: ignore[reportArgumentType] never str

    def open(self) -> Any:
        """A file to seek and read in. Nothing is read ahead: of Parquet only the columns that are asked for."""
        with _reached(self):
            return self._filesystem.open(self._path, "rb", cache_type="none")

    def files(self) -> list[str]:
        """All files below this folder, relative to it, in the order of their names."""
        with _reached(self):
            start = len(self._path.rstrip("/")) + 1
            return sorted(path[start:] for path in self._filesystem.find(self._path))

    def version(self) -> str:
        """Changes when the file does, as far as the file system tells."""
        with _reached(self):
            return self._filesystem.ukey(self._path)

    @property
    def _filesystem(self) -> fsspec.AbstractFileSystem:
        return _url_to_fs(self.address)[0]  # fsspec keeps the connection, one per process and thread-safe

    @property
    def _path(self) -> str:
        folder = _url_to_fs(self.address)[1].rstrip("/")
        return f"{folder}/{self.relative}" if self.relative else folder


DataPath = Path | RemotePath


def data_path(address: str | Path | RemotePath) -> DataPath:
    """A local path, or an address with ``://``.

    Raises:
        DataError: If fsspec knows no such protocol, or the package that it needs for it is not installed.
    """
    if isinstance(address, RemotePath):
        return address
    text = str(address)
    if _LOCAL.match(text):
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
    facts = path.stat()
    return f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"


def _url_to_fs(address: str) -> tuple[fsspec.AbstractFileSystem, str]:
    from fsspec.core import url_to_fs

    return url_to_fs(address)


@contextmanager
def _reached(path: RemotePath) -> Iterator[Any]:
    """Every file system has errors of its own, and their texts may hold signed addresses: only their kind is shown."""
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
