"""A job: what is scored with which judge, what its scores depend on, and the folder that keeps finished parts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ...core.errors import AudioError, UserError, shown
from ...core.files import check_writable, file_hash, replace_file
from ...core.version import __version__
from ...models import BEST, CALIBRATION_FILE, CHECKPOINTS, JUDGE_FILE
from ..score_table import Column, Value, row_columns
from .manifest import SUFFIXES, Manifest, Row, RowReader
from .scores import ScoredRow, write_scores
from .tally import Tally

if TYPE_CHECKING:
    from ..scorer import Scorer

_PLAN, _SCHEMA_VERSION = "plan.json", 3
_STEP, _MOST_STEPS, _CHUNKS = 64, 16, 128
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of reading JSON that is not as it should be."""


@dataclass(frozen=True)
class Job:
    """A manifest, a judge and a file for the scores."""

    judge: Path  # judge folder, run folder or checkpoint
    manifest: Path
    out: Path
    level: float | None = None  # of the intervals; None = the usual one, and no matter if there are none
    checksums: bool = False  # files that changed are known by their content instead of size and modification time
    audio_root: Path | None = None  # a second folder in which clips may lie, besides that of the manifest
    # arguments of `Scorer.from_pretrained` beyond the judge and the device
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.out.suffix.lower() not in SUFFIXES:
            raise UserError(f"{self.out}: suffix {shown(self.out.suffix)}; expected {', '.join(SUFFIXES)}")
        if self.out.exists() and self.manifest.exists() and os.path.samefile(self.out, self.manifest):
            raise UserError(f"{self.out}: is the manifest; expected another file for the scores")
        # At once, and not after hours of scoring
        check_writable(self.out, is_folder=False)

    def reader(self, columns: Sequence[Column] = ()) -> RowReader:
        """The reader that makes pairs of the rows of the manifest; `columns` are those of scores."""
        taken = {column.name for column in row_columns(columns)}
        copied = Manifest(self.manifest).copied(taken)
        return RowReader(self.manifest.parent, self.audio_root, copied, may_name=True)

    def load(self, device: str | None) -> Scorer:
        """The judge on a device.

        Raises:
            UserError: As `Scorer.from_pretrained`; also if intervals are asked for and there are none.
        """
        from ..scorer import Scorer

        scorer = Scorer.from_pretrained(self.judge, device=device, **self.settings)
        # Without a level a judge without calibration scores, too
        if self.level is not None:
            scorer.require_calibration()
        return scorer

    def identity(self) -> dict[str, str]:
        """All that scores depend on, except audio files: those of a chunk are noted in its part (`audio_mark`).

        Raises:
            UserError: If there is no manifest or no judge.
        """
        backbone = self.settings.get("backbone")
        named = {} if self.audio_root is None else {"audio root": str(self.audio_root.resolve())}
        return {
            **named,
            "manifest": Manifest(self.manifest).sha256(self.checksums),
            "judge": _judge_hash(self.judge),
            "level": "usual" if self.level is None else f"{self.level:g}",
            "backbone": "as in training" if backbone is None else _backbone_mark(backbone, self.checksums),
            "quantization": self.settings.get("quantization") or "as in training",
            "long clips": "in windows" if self.settings.get("windows", True) else "refused",
            "files": "by content" if self.checksums else "by size and time",
            "format": self.out.suffix.lower(),
            # Another version may score differently in the last digits, and one file must not mix them
            "version": __version__,
        }


def first_difference(begun: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """What differs between two identities, in words; None = nothing."""
    for name in {**now, **begun}:
        if begun.get(name) != now.get(name):
            return f"another {name} ({begun.get(name, 'none')[:16]}, now {now.get(name, 'none')[:16]})"
    return None


def _judge_hash(path: Path) -> str:
    """Hash of what identifies a judge: `judge.json`, which holds the hashes of its weights and its calibration; of a
    run its checkpoint and its calibration."""
    checkpoint = path / CHECKPOINTS / BEST if path.is_dir() else path
    # A run has no `judge.json`, and need not have a calibration
    of_run = [checkpoint, checkpoint.parent.parent / CALIBRATION_FILE]
    marks = [_file_mark(file, True) for file in ([path / JUDGE_FILE] if (path / JUDGE_FILE).is_file() else of_run)]
    if not marks[0]:
        raise UserError(f"{path}: expected a judge folder (with {JUDGE_FILE}), a run folder or a checkpoint")
    return hashlib.sha256(b"".join(map(bytes.fromhex, marks))).hexdigest()


def _backbone_mark(backbone: str, checksums: bool) -> str:
    """What a backbone is known by: a hash over the files of a folder, wherever it lies; a hub id is its own mark."""
    folder = Path(backbone)
    if not folder.is_dir():
        return backbone
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    marks = [f"{path.relative_to(folder).as_posix()} {_file_mark(path, checksums)}" for path in files]
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


def _file_mark(path: Path, checksums: bool) -> str:
    """What a file is known by: its size and modification time, or the SHA-256 of its content; "" = not readable."""
    try:
        if not checksums:
            facts = path.stat()
            return f"{facts.st_size} {facts.st_mtime_ns}"
        return file_hash(path)
    except OSError:
        return ""


def audio_mark(rows: Iterable[Row], checksums: bool) -> str:
    """A hash of the audio files that rows are made of. Clips inside a manifest are covered by its hash.

    A row that cannot be used counts too: it can be, once its file is there.
    """
    marks: dict[Path, str] = {}
    digest = hashlib.sha256()
    for row in rows:
        if isinstance(row.pair, AudioError):
            digest.update(b"none\n")
            continue
        for clip in (row.pair.response, *(turn.audio for turn in row.pair.context)):
            if isinstance(clip, Path):
                if clip not in marks:
                    # A context of many responses is looked at once
                    marks[clip] = _file_mark(clip, checksums)
                digest.update(f"{clip.name} {marks[clip]}\n".encode())
    return digest.hexdigest()


class Chunk(NamedTuple):
    """Consecutive rows that are scored together."""

    number: int  # from 0
    first: int  # position of the first row
    rows: int


class Part(NamedTuple):
    """The scores of a chunk."""

    columns: tuple[Column, ...]  # those that are copied from the manifest, then `score_columns` of the judge
    rows: list[list[Value]]  # values of `row_columns`
    failed: dict[str, int]  # how many rows have no scores, by kind
    audio: str  # `audio_mark` of the files that it was made of


class DamagedError(Exception):
    """A part is missing or not as it was written."""


class Parts:
    """The folder `OUT.parts`. Any number of processes on any number of machines write into it.

    Nothing is locked but the plan (`claim.Claim`). A file is written under another name and renamed: it is there as a
    whole or not at all. Two processes that score one chunk write the same part. A part holds its number of rows
    and their hash: what was damaged since, by a disk or a person, is scored again. Names of parts carry the identity of
    the job, so that a process that did not notice that another job was begun here does no harm.
    """

    def __init__(self, job: Job) -> None:
        """Name the folder; nothing is written yet.

        Raises:
            UserError: If there is no manifest or no judge.
        """
        self.job, self.identity, self.rows = job, job.identity(), 0
        self.folder = job.out.with_name(f"{job.out.name}.parts")
        self._key = _hash(self.identity)[:12]

    def begun(self) -> dict[str, Any] | None:
        """What the plan says: `identity`, `rows`, what it `replaces` and `writes`; None = none, or a damaged one."""
        try:
            plan = json.loads((self.folder / _PLAN).read_text(encoding="utf-8"))
            return plan if plan.pop("sha256") == _hash(plan) and plan["schema_version"] == _SCHEMA_VERSION else None
        except _UNREADABLE:
            return None

    def own_plan(self) -> dict[str, Any] | None:
        """The plan, if it is of this very job."""
        plan = self.begun()
        return plan if plan is not None and plan["identity"] == self.identity else None

    def under_way(self) -> bool:
        """Whether this very job was begun and is not finished."""
        return self.own_plan() is not None

    def plan(
        self,
        rows: int,
        replaces: Mapping[str, str | int] | None = None,
        writes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Begin with a manifest of so many rows, and a file of scores that may be replaced at the end
        (None = there is none); at the end, with what the scores are known by that are about to take their place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = {"schema_version": _SCHEMA_VERSION, "identity": self.identity, "rows": rows}
        plan |= {"replaces": replaces, "writes": writes}
        _replace(self.folder / _PLAN, lambda file: file.write(_signed(plan)))
        self.rows = rows

    def chunks(self) -> list[Chunk]:
        """All chunks; they follow from the number of rows alone. They are small where there are few rows, so that
        several workers have something to do."""
        # By the number of rows alone, so that any number of workers, at any time, means the same chunk by its number
        size = _STEP * min(max(-(-self.rows // (_STEP * _CHUNKS)), 1), _MOST_STEPS)
        starts = range(0, self.rows, size)
        return [Chunk(number, start, min(size, self.rows - start)) for number, start in enumerate(starts)]

    def path(self, chunk: Chunk, kind: str = "part") -> Path:
        """The part of a chunk, or a file that belongs to it."""
        return self.folder / f"{kind}-{chunk.number:06d}-{self._key}"

    def done(self) -> list[Chunk]:
        """Chunks whose parts are there, whole or damaged."""
        # One listing, since to ask for each file takes minutes on a network file system
        names = {entry.name for entry in os.scandir(self.folder)} if self.folder.is_dir() else set()
        return [chunk for chunk in self.chunks() if self.path(chunk).name in names]

    def missing(self) -> list[Chunk]:
        """Chunks whose parts are not there; none where another process has finished the job."""
        done = set(self.done())
        return [chunk for chunk in self.chunks() if chunk not in done] if self.under_way() else []

    def write(self, chunk: Chunk, columns: Sequence[Column], scored: Sequence[ScoredRow], audio: str) -> None:
        """Write the part of a chunk, with the columns between id and status and `audio_mark` of its rows; nothing
        happens where another process has finished the job."""
        # Counts and columns stand in the head, so that whoever joins need load neither judge nor manifest
        failed = Counter(row.error.kind for row in scored if row.error is not None)
        name = self.path(chunk).name  # a part of equally many rows may not take its place
        head = {"part": name, "rows": len(scored), "failed": failed, "audio": audio, "columns": columns}
        content = "".join(f"{json.dumps(row.values, allow_nan=False)}\n" for row in scored).encode()
        with suppress(FileNotFoundError):
            _replace(self.path(chunk), lambda file: file.writelines([_signed(head, content), content]))

    def read(self, chunk: Chunk) -> Part | None:
        """The part of a chunk; None = it is missing, or not as it was written."""
        try:
            first, _, content = self.path(chunk).read_bytes().partition(b"\n")
            head = json.loads(first)
            if head.pop("sha256") != _hash(head, content) or head["part"] != self.path(chunk).name:
                return None
            columns = tuple(Column(*column) for column in head["columns"])
            return Part(columns, [json.loads(row) for row in content.splitlines()], head["failed"], head["audio"])
        except _UNREADABLE:
            return None

    def join(self, check: Callable[[Path], object]) -> tuple[Counter[str], Tally, str]:
        """Put all parts together; `Job.out` appears when it is complete.

        Args:
            check: Called with the complete file before it takes its place; what it raises leaves all as it is.

        Returns:
            How many rows have no scores, by kind; what the scores say together; and a hash over the `audio_mark` of
            all chunks, in order.

        Raises:
            DamagedError: If a part is missing or damaged. It is deleted.
        """
        failed: Counter[str] = Counter()
        audio = hashlib.sha256()

        def whole(chunk: Chunk) -> Part:
            part = self.read(chunk)
            if part is None:
                # So that whoever goes on finds the chunk missing, and scores it again
                self.path(chunk).unlink(missing_ok=True)
                raise DamagedError
            return part

        def pieces() -> Iterator[list[list[Value]]]:
            for chunk in chunks:
                part = whole(chunk)
                failed.update(part.failed)
                tally.add(part.rows)
                audio.update(part.audio.encode())
                yield part.rows

        chunks, out = self.chunks(), self.job.out
        # Whoever puts the parts together need not load the judge: the parts say which columns there are
        columns = row_columns(whole(chunks[0]).columns)
        tally = Tally(columns)
        _replace(out, lambda file: write_scores(out.suffix.lower(), columns, pieces(), file), check)
        return failed, tally, audio.hexdigest()

    def entries(self) -> list[Path]:
        """Parts and what belongs to them, of this job or another."""
        return [*self.folder.glob("part-*"), *self.folder.glob("tries-*")]

    def remove(self) -> None:
        """Delete the folder, the plan first: who misses a part then sees that the job is over."""
        if self.under_way():
            (self.folder / _PLAN).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)


def _hash(head: Mapping[str, Any], content: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(head).encode() + content).hexdigest()


def _signed(head: Mapping[str, Any], content: bytes = b"") -> bytes:
    """A line of JSON with the hash of itself and of what follows."""
    return f"{json.dumps({**head, 'sha256': _hash(head, content)})}\n".encode()


def _replace(path: Path, write: Callable[[BinaryIO], object], check: Callable[[Path], object] = lambda _: None) -> None:
    """Write a file, make sure that it is on the disk, check it, and rename it into place."""

    def write_through(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        check(temporary)

    try:
        replace_file(path, write_through)
    except FileNotFoundError:  # the folder is gone: the job is over
        raise
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); the same command goes on from there once it can be"
        ) from None
