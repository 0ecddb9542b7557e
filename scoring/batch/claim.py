"""Whose job is done in a folder: while a process works on one, no other begins there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from ...core.errors import UserError, system_errors
from ...core.files import check_writable
from ...core.locks import is_file_of, open_lock, try_lock
from .job import Parts, first_difference

_LOCK = "lock"
_PAUSE, _PAUSES = 0.05, 200  # seconds; a process that plans holds the lock alone for milliseconds


class Claim:
    """A lock in `OUT.parts`, shared by all processes at work there, on any machine.

    Only who holds it alone may write the plan of another job. The system releases it when a process dies. Where the
    file system knows no locks, the plan of another job stays until `--restart`, as nobody can tell who is at work.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._path = parts.folder / _LOCK
        self._file: IO[str] | None = None

    def take(self, rows: int, replaces: Mapping[str, str | int] | None, restart: bool) -> None:
        """Begin the job, or join those who are at work on it.

        Args:
            rows: How many the manifest has.
            replaces: What the file of scores is known by that may be replaced at the end; None = there is none.
            restart: Whether what is done is deleted, and another job gives way at which nobody works.

        Raises:
            UserError: If another job is in the folder, or it cannot be written.
        """
        check_writable(self._parts.folder)
        self.close()
        with system_errors(self._parts.folder, "written"):
            for _ in range(_PAUSES):
                lock = open_lock(self._path)
                try:
                    taken = self._taken(lock, rows, replaces, restart)
                except BaseException:
                    lock.close()
                    raise
                if taken:
                    self._file, self._parts.rows = lock, rows
                    return
                lock.close()
                time.sleep(_PAUSE)
        raise self._busy("a plan that cannot be read")

    def refuse_another(self) -> None:
        """Raise the `UserError` of `take` if another job has done something in the folder."""
        if (different := self._different()) is not None and self._parts.entries():
            raise self._begun(different)

    def close(self) -> None:
        """Let others begin another job."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with suppress(OSError):  # a network file system kept it while the lock in it was open
                self._parts.folder.rmdir()

    def _taken(self, lock: IO[str], rows: int, replaces: Mapping[str, str | int] | None, restart: bool) -> bool:
        """Whether the lock is held and the plan is that of this job; False = look again."""
        # True = nobody is at work here, False = others are, None = the file system knows no locks
        alone = try_lock(lock)
        if alone is False and not try_lock(lock, shared=True):
            return False  # another process plans
        # A job that ended meanwhile has deleted the file, and a lock on it would stop nobody
        if alone is not None and not is_file_of(lock, self._path):
            return False
        different = self._different()
        if different is not None:
            if alone is False:
                raise self._busy(different)
            if not restart and (alone is None or self._parts.entries()):
                raise self._begun(different)
        if restart:
            # The plan stays: a process at work on the same job does it again
            for path in self._parts.entries():
                path.unlink(missing_ok=True)
        if alone is False:
            return self._parts.under_way()  # else whoever held the lock has just finished
        if not self._parts.under_way():
            self._parts.plan(rows, replaces)
        # The plan is written: others may join from now on
        if alone:
            try_lock(lock, shared=True)
        return True

    def _different(self) -> str | None:
        plan = self._parts.begun()
        return None if plan is None else first_difference(plan["identity"], self._parts.identity)

    def _busy(self, different: str) -> UserError:
        out = self._parts.job.out
        return UserError(
            f"{out}: another process is scoring into it with {different}; expected another --out, or wait for its end"
        )

    def _begun(self, different: str) -> UserError:
        return UserError(
            f"{self._parts.folder}: begun with {different}; expected the same command as before, or --restart to "
            "delete what is done"
        )
