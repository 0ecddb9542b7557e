"""A pair as everything else sees it, and how pairs come out of the files of a dataset folder."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .audio import AudioSource
from .errors import DataError, locate_in, place
from .folders import resolve_inside, resolve_remote
from .pairs_file import SPLITS_FILE, RowBatch, pairs_files, read_pairs, read_splits
from .ratings import is_name
from .rows import NAME_COLUMNS, TAGS, TEXT_COLUMNS, Tags, bad_cell, check_pair_rows, hash_order, repeated_id
from .storage import DataPath, RemotePath
from .stored_clips import StoredClip, StoredFile


@dataclass(frozen=True, slots=True)
class Turn:
    """One context turn: who speaks (``user``, ``assistant``) and the clip."""

    role: str
    audio: AudioSource


@dataclass(frozen=True, slots=True)
class Pair:
    """A context and the spoken response that people rate.

    Attributes:
        pair_id: Unique in the dataset.
        response: The clip that is judged.
        context: Turns before it, oldest first; the last one is answered. May be empty.
        situation: Text that the raters were given about the situation; the judge reads it too.
        group_id: Same context or script; a group is never split apart. Never empty in a loaded dataset.
        system_id: Who made the response.
        context_speaker: Who speaks in the turn that is answered.
        response_speaker: Who speaks in the response.
        setting: ``context_variant``, ``tone_variant`` or free text.
        language: Language tag.
        split: ``train``, ``validation``, ``test`` or another name; None = not split.
        context_text: Transcript, for baselines and reports only.
        response_text: Transcript, for baselines and reports only.
        tags: Name and value of whatever else is known, such as the cue or the sex of a speaker; sorted. Reports are
            sliced and splits made by them; no judge is told.
    """

    pair_id: str
    response: AudioSource
    context: tuple[Turn, ...] = ()
    situation: str | None = None
    group_id: str = ""
    system_id: str | None = None
    context_speaker: str | None = None
    response_speaker: str | None = None
    setting: str | None = None
    language: str | None = None
    split: str | None = None
    context_text: str | None = None
    response_text: str | None = None
    tags: Tags = ()

    def tag(self, name: str) -> str | None:
        """The value of a tag, or None."""
        return next((value for tag, value in self.tags if tag == name), None)


def load_pairs(root: DataPath) -> tuple[tuple[Pair, ...], dict[str, tuple[str, ...]]]:
    """Pairs and the hashes of their clips, from one file or shard after the other."""
    files = pairs_files(root)
    splits = read_splits(root, files)
    find = _Finder(root)
    pairs: list[Pair] = []
    prints: dict[str, tuple[str, ...]] = {}
    starts: list[int] = []
    for file in files:
        starts.append(len(pairs))
        for batch in read_pairs(file):
            locate = locate_in(file)
            check_pair_rows(batch.rows, file, lambda n, column, locate=locate, at=batch.start: locate(at + n, column))
            for position, row in enumerate(batch.rows):
                pair_id = row["pair_id"]
                if pair_id in prints:
                    first = next(number for number, pair in enumerate(pairs) if pair.pair_id == pair_id)
                    shard = bisect.bisect_right(starts, first) - 1
                    already = place(files[shard], first - starts[shard] + 1, "pair_id")
                    raise repeated_id(locate(batch.start + position, "pair_id"), pair_id, already)
                if splits is not None:
                    row["split"] = _next_split(splits, pair_id, root)
                pairs.append(_to_pair(row, batch, position, find))
                clips = (*(row["context_audio"] or ()), row["response_audio"])
                prints[pair_id] = tuple(clip["sha256"] for clip in clips)
    if splits is not None and next(splits, None) is not None:
        raise _foreign_splits(root)
    if not pairs:
        raise DataError(f"{files[0]}: the table holds no pairs")
    return tuple(pairs), prints


def _next_split(splits: Iterator[tuple[str, str | None]], pair_id: str, root: DataPath) -> str | None:
    known, split = next(splits, (None, None))
    if known != pair_id or not (split is None or is_name(split)):
        raise _foreign_splits(root)
    return split


def _foreign_splits(root: DataPath) -> DataError:
    return DataError(f"{root / SPLITS_FILE}: belongs to other pairs; run `empathy-judge split --overwrite`")


class _Finder:
    """Looks up each path of audio once."""

    def __init__(self, root: DataPath) -> None:
        self._root = root if isinstance(root, RemotePath) else root.resolve()
        self._found: dict[str, Path | StoredFile] = {}
        self._folders: dict[Path, Path] = {}
        self._files: frozenset[str] | None = None

    def find(self, path: str, where: str) -> Path | StoredFile:
        if path not in self._found:
            if isinstance(self._root, RemotePath):
                self._files = frozenset(self._root.files()) if self._files is None else self._files
                self._found[path] = StoredFile(resolve_remote(self._root, path, self._files, where), "")
            else:
                self._found[path] = resolve_inside(self._root, path, where, self._folders)
        return self._found[path]


def _to_pair(row: Mapping[str, Any], batch: RowBatch, position: int, finder: _Finder) -> Pair:
    file = batch.file

    def source(clip: Mapping[str, Any] | None, column: str, turn: int | None) -> AudioSource:
        if clip is not None and clip["path"] is None:
            group = batch.groups[position]
            return StoredClip(clip["sha256"], file, group, batch.start + position - file.starts[group], turn)
        where = place(file.path, batch.start + position + 1, column)
        if clip is None:
            raise bad_cell(where, clip, "either a path or bytes")
        found = finder.find(clip["path"], where)
        return StoredClip(clip["sha256"], found) if isinstance(found, StoredFile) else found

    turns = row["context_audio"] or ()
    return Pair(
        pair_id=row["pair_id"],
        response=source(row["response_audio"], "response_audio", None),
        context=tuple(Turn(turn["role"], source(turn, "context_audio", n)) for n, turn in enumerate(turns)),
        group_id=row["group_id"],
        **{name: row[name] for name in NAME_COLUMNS + TEXT_COLUMNS},
        tags=row[TAGS],
    )


def hashed_rows(pairs: Sequence[Pair], prints: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """What `content_hash` takes, made one at a time."""
    for pair in sorted(pairs, key=lambda pair: hash_order(pair.pair_id)):
        *context, response = prints[pair.pair_id]
        turns = [{"role": turn.role, "sha256": sha256} for turn, sha256 in zip(pair.context, context, strict=True)]
        names = ("pair_id", "group_id", *NAME_COLUMNS, *TEXT_COLUMNS, TAGS)
        row: dict[str, Any] = {name: getattr(pair, name) for name in names}
        yield {**row, "context_audio": turns, "response_audio": {"sha256": response}}
