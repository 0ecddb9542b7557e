"""Clips of a dataset that stay where they are until they are decoded, inside a Parquet file or in a file behind an
address. They are read when they are needed and never held as a whole."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import AudioError, DataError, os_reason, place
from ..core.files import DataPath
from ..core.parquet import PARQUET_DAMAGE, open_parquet

# Columns of `pairs.parquet` that hold clips
RESPONSE, CONTEXT = "response_audio", "context_audio"

_OPEN_FILES = 32
_KEPT_BYTES = 128 * 2**20
"""Per process, of encoded audio. Row groups hold at most 4 MiB per column (`writing`), so that the 16 that a shuffled
epoch reads from at a time (`sampling.WINDOW_BLOCKS`) fit."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a dataset, shared by the clips in it."""

    path: DataPath  # of the Parquet file, or of a file of audio
    version: str  # `folders.path_version` when the dataset was loaded
    # first row of each row group (from 0) of a Parquet file
    starts: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class StoredClip:
    """Where a clip lies and the hash of its content; see `read`. Small, and fit for other processes, forked or spawned.

    Two of the same content are equal, wherever they lie."""

    sha256: str  # of the encoded bytes, in hexadecimal digits
    file: StoredFile  # where it lies
    row_group: int | None = None  # of the Parquet file; None = the whole file is the clip
    row: int = 0  # in the row group, from 0
    turn: int | None = None  # turn of the context, from 0; None = the response

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredClip) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def name(self) -> str:
        """The name of the clip in messages."""
        if self.row_group is None:
            return str(self.file.path)
        row = self.file.starts[self.row_group] + self.row + 1
        return place(self.file.path, row, RESPONSE if self.turn is None else CONTEXT)

    def read(self) -> bytes:
        """The encoded bytes as they are now, without a check of their hash.

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
            message = f"{self.name}: not readable as Parquet{reason}; was the file changed?"
            raise AudioError(message, "cannot be read") from None
        if data is None:
            raise AudioError(f"{self.name}: neither a path nor bytes; expected either a path or bytes")
        return data

    def read_checked(self) -> bytes:
        """The encoded bytes that were imported: scores are stored under the hash of a clip.

        Raises:
            AudioError: If they cannot be read or have another hash.
        """
        data = self.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise AudioError(f"{self.name}: the content is not what was imported", "not what was imported")
        return data


class _Columns:
    """The columns of audio that were read last. Safe for threads, not for forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            opened = _open(file)
            paths = [column.path for column in opened.metadata.schema]
            # what stands between differs between writers
            leaves = [path for path in paths if path.startswith(f"{name}.") and path.endswith(".bytes")]
            if not leaves:
                raise pa.ArrowInvalid(f"no column {name} with bytes")
            table = opened.read_row_group(row_group, columns=leaves[:1], use_threads=False)
            self._arrays[key] = table.column(name)
            self._bytes += table.nbytes
            while self._bytes > _KEPT_BYTES and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        # The least recently used column leaves first.
        self._arrays.move_to_end(key)
        return self._arrays[key]


@lru_cache(_OPEN_FILES)
def _open(file: StoredFile) -> pq.ParquetFile:
    return open_parquet(file.path, dictionaries=False)


_columns = _Columns()


def _forget() -> None:
    """A child process opens files of its own: a lock may be held, and processes that share a file share its offset."""
    global _columns
    _columns = _Columns()
    _open.cache_clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
