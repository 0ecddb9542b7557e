"""Locks between processes, on one machine or on several that share a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UserError
from .parallel import say

_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a file system that knows no locks, such as Lustre mounted without them."""


@contextmanager
def locked(path: Path, taken: str, without_locks: str) -> Iterator[None]:
    """Hold a lock file, which is made with the folders above it and deleted at the end.

    It is a POSIX lock: the system releases it when this process dies, other machines see it through a network file
    system, and processes that began as a copy of this one (data loaders), which live on for seconds after a kill, do
    not hold it. It does not tell threads of one process apart.

    Args:
        path: The lock file.
        taken: What the error says if another process holds it.
        without_locks: What standard error says where the file system knows no locks; the block runs all the same.

    Raises:
        UserError: If another process holds it.
        OSError: If the file cannot be written.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(path, "a")  # noqa: SIM115 it is held until the end
        except FileNotFoundError:  # another process has deleted the folder, which was empty
            continue
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                lock.close()
                raise UserError(taken) from None
            if error.errno not in _NO_LOCKS:
                lock.close()
                raise
            say(without_locks, "yellow")
            break
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                break
        lock.close()  # the process that held the lock has deleted its file meanwhile
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.close()
