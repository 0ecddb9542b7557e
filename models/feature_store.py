"""Tensors by name, in memory or on disk: what frozen layers computed once."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..data_modules.errors import UserError

GIGABYTES = 100.0
"""Most that a folder takes by default."""
_SUFFIX = ".safetensors"
_UNFINISHED = ".unfinished"
_ABANDONED = 3_600.0  # seconds after which a file that was never finished is taken for that of a killed process
_SEEN_ANEW = 3_600.0  # seconds between two notes that a file is still in use
_ROOM = 0.9  # share of the limit that is left when old files have been deleted


class FeatureStore(Protocol):
    """Keeps tensors by name. A name stands for one content: what is there is never written again."""

    def get(self, name: str) -> dict[str, Tensor] | None:
        """What is kept under a name, on the CPU; None = nothing."""
        ...

    def put(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors."""
        ...

    def __contains__(self, name: str) -> bool: ...


class DiskStore:
    """`FeatureStore` in a folder that any number of processes and machines may share.

    A file is written beside its place and renamed, so that there is a whole one or none; two that write the same write
    the same content. Beyond the limit, the files that were used longest ago are deleted; who misses one computes it
    again. Where the disk is full nothing more is kept, and work goes on without.
    """

    def __init__(self, folder: Path, gigabytes: float = GIGABYTES) -> None:
        """Open, or make, a folder.

        Args:
            folder: Of the files.
            gigabytes: Most that they may take (10^9 bytes).

        Raises:
            UserError: If the folder cannot be made or the limit is not above 0.
        """
        if not gigabytes > 0:
            raise UserError(f"cache of {gigabytes:g} GB; accepted: more than 0")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: no folder for a cache can be made here ({error.strerror})") from None
        self.folder, self._limit = folder, gigabytes * 1e9
        self._bytes: float | None = None
        self._full = False

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def get(self, name: str) -> dict[str, Tensor] | None:
        """What is kept under a name; a file that is damaged counts as none and is deleted."""
        path = self._path(name)
        try:
            found = load_file(path)
            if time.time() - path.stat().st_mtime > _SEEN_ANEW:
                os.utime(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError):
            with suppress(OSError):
                path.unlink()
            return None
        return found

    def put(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors, unless the disk is full."""
        path = self._path(name)
        if self._full or path.exists():
            return
        unfinished = path.with_name(f".{name}.{os.getpid()}{_UNFINISHED}")
        try:
            path.parent.mkdir(exist_ok=True)
            # safetensors would write a file, too, but what it raises does not say why
            unfinished.write_bytes(save({key: tensor.contiguous() for key, tensor in tensors.items()}))
            self._make_room(unfinished.stat().st_size)
            os.replace(unfinished, path)
        except OSError as error:
            self._give_up(error)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists()

    def _give_up(self, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error)
        message = f"{self.folder}: nothing more is kept here: {reason}; what is missing is computed each time"
        Console(stderr=True).print(message, style="yellow", soft_wrap=True, markup=False)
        self._full = True

    def _make_room(self, size: int) -> None:
        """Delete the files that were used longest ago, if there are too many with another of so many bytes."""
        if self._bytes is None:
            self._bytes = sum(facts.st_size for _, facts in self._files())
        self._bytes += size
        if self._bytes <= self._limit:
            return
        files = sorted(self._files(), key=lambda file: file[1].st_mtime)  # others may have written and deleted
        self._bytes = size + sum(facts.st_size for _, facts in files)
        for path, facts in files:
            if self._bytes <= _ROOM * self._limit:
                break
            with suppress(OSError):
                path.unlink()
            self._bytes -= facts.st_size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Whole files; on the way, what killed processes left is deleted."""
        for part in self.folder.glob("??"):
            for path in part.iterdir():
                with suppress(OSError):
                    facts = path.stat()
                    if path.suffix == _SUFFIX:
                        yield path, facts
                    elif path.suffix == _UNFINISHED and time.time() - facts.st_mtime > _ABANDONED:
                        path.unlink()
