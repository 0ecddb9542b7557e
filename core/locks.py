"""Locks between processes, on one machine or on several that share a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .errors import UserError
from .processes import say

_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a file system that knows no locks, such as Lustre mounted without them."""
_TRIES = 100


def try_lock(file: IO[str], shared: bool = False) -> bool | None:
    """Lock a file that is open, for this process alone or shared with others, until it is closed; do not wait.

    It is a POSIX lock: the system releases it when this process dies, other machines see it through a network file
    system, and processes that began as a copy of this one (data loaders), which live on for seconds after a kill, do
    not hold it. It does not tell threads of one process apart, and ends when the process closes the file anywhere.

    Returns:
        Whether this process holds it; None where the file system knows no locks.

    Raises:
        OSError: If it fails for another reason.
    """
    try:
        fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def open_lock(path: Path) -> IO[str]:
    """Open a lock file, which is made with the folders above it.

    Raises:
        OSError: If it cannot be written.
    """
    for _ in range(_TRIES):
        # Another process may have deleted the folder between the two calls, since it was empty.
        with suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return open(path, "a+")
    # It is no other process: nothing can be made there, as below /proc. The system says why.
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "a+")


def is_file_of(file: IO[str], path: Path) -> bool:
    """Whether an open file still is the one of this name: who held the lock may have deleted it meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, taken: str, without_locks: str) -> Iterator[None]:
    """Hold a lock file, which is made with the folders above it and deleted at the end.

    Args:
        path: The lock file; see `try_lock`.
        taken: What the error says if another process holds it.
        without_locks: What standard error says where the file system knows no locks; the block runs all the same.

    Raises:
        UserError: If another process holds it.
        OSError: If the file cannot be written.
    """
    while True:
        lock = open_lock(path)
        try:
            alone = try_lock(lock)
        except OSError:
            lock.close()
            raise
        if alone is False:
            lock.close()
            raise UserError(taken)
        if alone is None:
            say(without_locks, "yellow")
        if alone is None or is_file_of(lock, path):
            break
        lock.close()
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.close()
