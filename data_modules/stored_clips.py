"""Clips that stay in the dataset until they are decoded: inside a Parquet file, or in a file behind an address."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import AudioError, DataError, os_reason, place
from .parquet import PARQUET_DAMAGE, open_parquet
from .storage import DataPath

RESPONSE, CONTEXT = "response_audio", "context_audio"
_OPEN_FILES = 32
_KEPT_BYTES = 128 * 2**20
"""Per process, of encoded audio. Row groups hold at most 4 MiB per column (`pairs_file`), so that the 16 that a
shuffled epoch reads from at a time (`sampling.WINDOW_BLOCKS`) fit."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a dataset, shared by the clips in it.

    Attributes:
        path: Of the Parquet file, or of a file of audio.
        version: `storage.path_version` when the dataset was loaded.
        starts: First row of each row group (from 0) of a Parquet file.
    """

    path: DataPath
    version: str
    starts: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class StoredClip:
    """Where a clip lies and what it is; `read` gets it. Small, and fit for other processes, forked or spawned.

    Two of the same content are equal, wherever they lie.

    Attributes:
        sha256: Of the encoded bytes, in hexadecimal digits.
        file: Where it lies.
        row_group: Of the Parquet file; None = the whole file is the clip.
        row: In the row group, from 0.
        turn: Turn of the context, from 0; None = the response.
    """

    sha256: str
    file: StoredFile
    row_group: int | None = None
    row: int = 0
    turn: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredClip) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.row_group is None:
            return str(self.file.path)
        row = self.file.starts[self.row_group] + self.row + 1
        return place(self.file.path, row, RESPONSE if self.turn is None else CONTEXT)

    def read(self) -> bytes:
        """The encoded bytes, whatever they are by now.

        Raises:
            AudioError: If the file cannot be read or has no bytes there.
        """
        try:
            data = self.file.path.read_bytes() if self.row_group is None else _columns.clip(self, self.row_group)
        except FileNotFoundError:
            raise AudioError(f"{self.name}: no such file", "no such file") from None
        except PermissionError as error:
            raise AudioError(f"{self.name}: cannot be read ({os_reason(error)})", "cannot be read") from None
        except DataError as error:
            raise AudioError(str(error), "cannot be read") from None
        except (*PARQUET_DAMAGE, IndexError, TypeError, KeyError) as error:
            reason = f" ({error})" if isinstance(error, pa.ArrowException) else ""
            text = f"{self.name}: not readable as Parquet{reason}; was the file changed?"
            raise AudioError(text, "cannot be read") from None
        if data is None:
            raise AudioError(f"{self.name}: neither a path nor bytes; expected either a path or bytes")
        return data

    def read_checked(self) -> bytes:
        """The encoded bytes that were imported: a clip stands for its hash wherever scores are kept.

        Raises:
            AudioError: If they cannot be read or have another hash.
        """
        data = self.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AudioError(f"{self.name}: the content is not what was imported", "not what was imported")
        return data


class _Columns:
    """The columns of audio that were read last, and the files they are in. Safe for threads, not for forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[StoredFile, pq.ParquetFile] = OrderedDict()
        self._arrays: OrderedDict[tuple[StoredFile, int, str], pa.ChunkedArray] = OrderedDict()
        self._bytes = 0

    def clip(self, clip: StoredClip, row_group: int) -> bytes | None:
        with self._lock:
            column = self._column(clip.file, row_group, RESPONSE if clip.turn is None else CONTEXT)
        cell = column[clip.row] if clip.turn is None else column[clip.row].values[clip.turn]
        return cell["bytes"].as_py() if cell.is_valid else None

    def _column(self, file: StoredFile, row_group: int, name: str) -> pa.ChunkedArray:
        key = (file, row_group, name)
        if key not in self._arrays:
            opened = self._open(file)
            table = opened.read_row_group(row_group, columns=[bytes_leaf(opened, name)], use_threads=False)
            self._arrays[key] = table.column(name)
            self._bytes += table.nbytes
            while self._bytes > _KEPT_BYTES and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        self._arrays.move_to_end(key)
        return self._arrays[key]

    def _open(self, file: StoredFile) -> pq.ParquetFile:
        if file not in self._files:
            self._files[file] = open_parquet(file.path, dictionaries=False)
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close(force=True)
        self._files.move_to_end(file)
        return self._files[file]


def bytes_leaf(file: pq.ParquetFile, column: str) -> str:
    """Path of the bytes of `RESPONSE` or `CONTEXT` as the file calls it: the middle part differs between writers.

    Raises:
        pa.ArrowInvalid: If there is none.
    """
    for index in range(len(file.schema)):
        path: str = file.schema.column(index).path
        if path.startswith(f"{column}.") and path.endswith(".bytes"):
            return path
    raise pa.ArrowInvalid(f"no column {column} with bytes")


_columns = _Columns()


def _forget() -> None:
    """A child process opens files of its own: a lock may be held, and a file has one position, in all that share it."""
    global _columns
    _columns = _Columns()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
