"""The folder `OUT.parts`, where a job keeps what is done until all is: any number of processes write into it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from ..data_modules.errors import UserError
from ..data_modules.folders import replace_file
from .columns import Column, Value, row_columns
from .formats import format_of
from .index import Chunk, Index
from .job import Job, first_difference
from .records import Start

_PLAN, _COLUMNS, _LOCK = "plan.json", "columns.json", "plan.lock"
_SCHEMA_VERSION = 1


class Parts:
    """Parts of a file of scores. A part is written beside its place and renamed: it is there as a whole or not at all.

    The first line of a part is JSON with its counts, the rest is a piece as `formats` makes it.
    """

    def __init__(self, job: Job) -> None:
        """Name the folder; nothing is read or written yet."""
        self.job = job
        self.folder = job.out.with_name(f"{job.out.name}.parts")
        self._format = format_of(job.out)

    def exist(self) -> bool:
        """Whether the job was begun and is not finished."""
        return (self.folder / _PLAN).is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes: to plan, and to put parts together."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be made ({error.strerror})") from None
        with FileLock(self.folder / _LOCK):
            yield

    def plan(self, index: Index) -> None:
        """Begin, or go on with what was begun.

        Raises:
            UserError: If something is done already for another manifest, judge or way of scoring.
        """
        identity = self.job.identity(index.sha256)
        if self.exist():
            different = first_difference(self._read(_PLAN).get("identity", {}), identity)
            if different is None:
                return
            if self.hold_something():
                raise UserError(
                    f"{self.folder}: begun with {different}; accepted: the same command as before, or --restart to "
                    "delete what is done"
                )
        self.clear()
        chunks = [[chunk.rows, *chunk.start] for chunk in index.chunks]
        self._write(_PLAN, {"schema_version": _SCHEMA_VERSION, "identity": identity, "chunks": chunks})

    def hold_something(self) -> bool:
        """Whether a part is done, or somebody works on one."""
        return any(self.folder.glob("part-*")) or self.in_use()

    def in_use(self) -> bool:
        """Whether a process is at work here."""
        for path in self.folder.glob("lock-*"):
            try:
                with FileLock(path, blocking=False):
                    pass
            except Timeout:
                return True
        return False

    def clear(self) -> None:
        """Delete what is done, the plan first.

        Raises:
            UserError: If somebody works on it.
        """
        if self.in_use():
            raise UserError(f"{self.folder}: other processes are at work; accepted: stop them first")
        (self.folder / _PLAN).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name != _LOCK:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder, the plan first: who misses a part then sees that the job is over."""
        (self.folder / _PLAN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def identity(self) -> dict[str, str]:
        """Of what was begun."""
        return self._read(_PLAN)["identity"]

    def chunks(self) -> tuple[Chunk, ...]:
        """All of them."""
        return tuple(
            Chunk(number, rows, Start(*start)) for number, (rows, *start) in enumerate(self._read(_PLAN)["chunks"])
        )

    def path(self, chunk: Chunk, kind: str = "part") -> Path:
        """The file of a chunk, or one that belongs to it: a lock, notes."""
        return self.folder / f"{kind}-{chunk.number:06d}"

    def done(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Those of some chunks whose parts are there."""
        names = {entry.name for entry in os.scandir(self.folder)} if self.folder.is_dir() else set()
        return [chunk for chunk in chunks if self.path(chunk).name in names]

    def left(self) -> list[Chunk]:
        """Chunks whose parts are not there; none where another process has put everything together."""
        if not self.exist():
            return []
        chunks = self.chunks()
        done = {chunk.number for chunk in self.done(chunks)}
        return [chunk for chunk in chunks if chunk.number not in done]

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Say what a judge's scores are, before the first part is written. All workers say the same."""
        self._write(_COLUMNS, [column._asdict() for column in columns])

    def write(
        self,
        chunk: Chunk,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Value]],
        failed: Mapping[str, int],
        audio: str,
    ) -> None:
        """The part of a chunk.

        Args:
            chunk: Whose.
            columns: Of scores.
            rows: Values of `row_columns`.
            failed: How many rows have no score, by kind.
            audio: The files that it was made of, as `AudioMarks` has them.
        """
        head = json.dumps({"rows": len(rows), "failed": dict(failed), "audio": audio}, ensure_ascii=False)
        piece = self._format.piece(row_columns(columns), rows)
        self._replace(self.path(chunk), f"{head}\n".encode() + piece)

    def audio(self, chunk: Chunk) -> str | None:
        """What `write` was told of the files that a part was made of; None = nothing, by an earlier version."""
        with open(self.path(chunk), "rb") as part:
            return json.loads(part.readline()).get("audio")

    def drop(self, chunk: Chunk) -> None:
        """Delete a part."""
        self.path(chunk).unlink(missing_ok=True)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, other processes see that somebody is at work here."""
        path = self.folder / f"lock-{uuid.uuid4().hex}"
        with FileLock(path):
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()

    def join(self, chunks: Sequence[Chunk]) -> Counter[str]:
        """Put all parts together; `out` appears when it is complete.

        Returns:
            How many rows have no score, by kind.
        """
        columns = [Column(**column) for column in self._read(_COLUMNS)]
        failed: Counter[str] = Counter()

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                self._format.join(row_columns(columns), self._pieces(chunks, failed), file)

        replace_file(self.job.out, write)
        return failed

    def _pieces(self, chunks: Sequence[Chunk], failed: Counter[str]) -> Iterator[BinaryIO]:
        for chunk in chunks:
            with open(self.path(chunk), "rb") as piece:
                failed.update(json.loads(piece.readline())["failed"])
                yield piece

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); accepted: the same command with --restart") from None

    def _write(self, name: str, content: Any) -> None:
        self._replace(self.folder / name, json.dumps(content).encode())

    def _replace(self, path: Path, content: bytes) -> None:
        try:
            replace_file(path, lambda temporary: temporary.write_bytes(content))
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); accepted: the same command goes on where it can be"
            ) from None
