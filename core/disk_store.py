"""Tensors by name in a folder: what the feature cache is kept in."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from .errors import UserError, os_reason
from .processes import say

GIGABYTES = 100.0
"""Most that a folder takes by default."""
_SUFFIX = ".safetensors"
_UNFINISHED = ".unfinished"
_ABANDONED = 3_600.0  # seconds after which an unfinished file is taken for that of a killed process
_SEEN_ANEW = 3_600.0  # seconds between two updates of a file's time of last use
_REMAINING = 0.9  # fraction of the limit that remains when old files are deleted
_NAME, _CHECKSUM = "name", "crc32"
"""Metadata of a file."""


class DiskStore:
    """Tensors by name, in a folder that any number of processes and machines may share.

    A name stands for one content: a stored file is never written again.

    A file is written under another name, flushed to the disk and then renamed, so that there is a whole one or none;
    two processes that write the same file write the same content. It carries its name and a checksum over name, types,
    shapes and values, which are compared whenever it is read. A file that does not pass counts as none, is deleted, and
    is said once for the folder; whoever needs the content computes it and stores it again.

    Above the limit, the files that were used longest ago are deleted. Where the disk is full, nothing more is stored,
    and work goes on without.
    """

    def __init__(self, folder: Path, gigabytes: float = GIGABYTES) -> None:
        """Open, or make, a folder that holds so many gigabytes (10^9 bytes) at most."""
        if not gigabytes > 0:
            raise UserError(f"cache of {gigabytes:g} GB; expected more than 0")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: no folder for a cache can be made here ({error.strerror})") from None
        self.folder, self._limit = folder, gigabytes * 1e9
        self._bytes: float | None = None  # of all files; None = not counted yet
        self._full = self._said = False
        self._whole: set[str] = set()  # names whose files this process has read or written

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def get(self, name: str) -> dict[str, Tensor] | None:
        """What is stored under a name; a file that is damaged, or of another name, counts as none and is deleted."""
        path = self._path(name)
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):  # to open a pipe is to wait
                raise ValueError("not a file")
            # not mapped into memory: what is used later is what was checked
            tensors = _checked(path.read_bytes(), name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._discard(path, error)
            return None
        # The time of last use decides what is deleted first; once an hour, as a write for each read would be slow on
        # a network
        with suppress(OSError):  # a process that may only read
            if time.time() - facts.st_mtime > _SEEN_ANEW:
                os.utime(path)
        self._whole.add(name)
        return tensors

    def put(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors, unless the disk is full."""
        path = self._path(name)
        # One full disk would otherwise be a failed write for each clip
        if self._full:
            return
        # not by process number: on machines that share the folder, two may have the same
        unfinished = path.with_name(f".{name}.{uuid.uuid4().hex[:8]}{_UNFINISHED}")
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        try:
            if path.exists():  # an error in a folder that may not be entered
                return
            path.parent.mkdir(exist_ok=True)
            with unfinished.open("wb") as file:
                # `save_file` of safetensors does not say why it fails
                file.write(save(whole, {_NAME: name, _CHECKSUM: _checksum(name, whole)}))
                # otherwise the name may reach the disk before the content; that the name itself may be lost is no harm
                file.flush()
                os.fsync(file.fileno())
            self._make_room(unfinished.stat().st_size)
            os.replace(unfinished, path)
            self._whole.add(name)
        except OSError as error:
            self._full = True
            lost = "what is missing is computed each time"
            say(f"{self.folder}: nothing more is stored here: {os_reason(error)}; {lost}", "yellow")
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def __contains__(self, name: str) -> bool:
        """Whether `get` finds something; a file is read the first time."""
        return os.path.isfile(self._path(name)) if name in self._whole else self.get(name) is not None

    def _discard(self, path: Path, error: Exception) -> None:
        """Delete what cannot be used; a folder only if it is empty."""
        if not self._said:
            self._said = True
            reason = os_reason(error) if isinstance(error, OSError) else error
            say(f"{self.folder}: has files that cannot be used, first {path.name} ({reason}); computed anew", "yellow")
        with suppress(OSError):
            try:
                path.unlink()
            except OSError as failed:
                if failed.errno not in (errno.EISDIR, errno.EPERM):  # the latter on macOS
                    raise
                path.rmdir()

    def _make_room(self, size: int) -> None:
        """Delete the files that were used longest ago, if another file of `size` bytes exceeds the limit."""
        if self._bytes is None:
            self._bytes = sum(facts.st_size for _, facts in self._files())
        # Counted by this process alone: what others wrote meanwhile is seen when the limit seems reached
        self._bytes += size
        if self._bytes <= self._limit:
            return
        # Others may have written and deleted since the last look
        files = sorted(self._files(), key=lambda file: file[1].st_mtime)
        self._bytes = size + sum(facts.st_size for _, facts in files)
        for path, facts in files:
            # Some room more than is needed, so that not every further file lists the whole folder
            if self._bytes <= _REMAINING * self._limit:
                break
            with suppress(OSError):
                path.unlink()
            self._bytes -= facts.st_size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Whole files; unfinished ones that killed processes left are deleted."""
        for part in self.folder.glob("??"):
            for path in part.iterdir():
                with suppress(OSError):
                    facts = path.stat()
                    if path.suffix == _SUFFIX:
                        yield path, facts
                    elif path.suffix == _UNFINISHED and time.time() - facts.st_mtime > _ABANDONED:
                        path.unlink()


def _checked(data: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a file; a `ValueError` if it is damaged, or not what was stored under this name."""
    try:
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        of, checksum = metadata[_NAME], metadata[_CHECKSUM]
    # safetensors has no common base for what damaged files make it raise
    except Exception:
        raise ValueError("damaged, or not of this program") from None
    if of != name:
        raise ValueError("the content of another file")
    if checksum != _checksum(name, tensors):
        raise ValueError("damaged")
    return tensors


def _checksum(name: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over name, types, shapes and values of contiguous tensors: against damage, not against an attack. It is
    four times as fast as BLAKE2 and twice as fast as SHA-256 on a CPU that has instructions for that."""
    value = zlib.crc32(name.encode())
    for key, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"\n{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode(), value)
        value = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
