"""What a row of a manifest asks for: a pair to score, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..data_modules.audio import AudioSource
from ..data_modules.errors import DataError, OutsideError, shown
from ..data_modules.folders import resolve_inside
from ..data_modules.ratings import is_name
from ..data_modules.schema import Pair, Turn
from ..data_modules.tables import is_text, plain_text
from .records import Record, where

_CLIPS_KEPT = 4096  # one context is often answered several times
_CLIP_FIELDS = {"bytes", "path", "sha256"}  # as in Hugging Face datasets, and in ours


class Problem(NamedTuple):
    """Why a row has no score.

    Attributes:
        kind: The same for all rows that fail alike, for counting.
        text: One line: what was found and what is accepted.
    """

    kind: str
    text: str


class Row(NamedTuple):
    """A row, ready to be scored; one of `pair` and `problem` is None."""

    pair_id: str
    pair: Pair | None
    problem: Problem | None


class _Unusable(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(kind, text)


def row_id(record: Record, path: Path) -> str:
    """The id of a row; by default its number, from 1.

    Raises:
        DataError: If it cannot be one.
    """
    value = record.cells.get("pair_id")
    return str(record.start.position + 1) if value is None else checked_id(value, where(path, record.start, "pair_id"))


def checked_id(value: Any, place: str) -> str:
    """A cell with an id as text.

    Raises:
        DataError: If it cannot be one.
    """
    text = plain_text(value)
    if not is_name(text):
        raise DataError(f"{place}: value {shown(value)}; accepted: text without line breaks, or a whole number")
    return str(text)


class RowReader:
    """Makes pairs of rows. Paths are relative to one folder and stay in it."""

    def __init__(self, folder: Path | None) -> None:
        """Say where clips lie.

        Args:
            folder: What paths are relative to; None = rows hold the clips themselves, and a path is a problem.
        """
        self._folder = None if folder is None else folder.resolve()
        self._resolve = lru_cache(_CLIPS_KEPT)(self._resolved)

    def of_record(self, record: Record, path: Path) -> Row:
        """A row of a manifest.

        Raises:
            DataError: If its id cannot be one.
        """
        return self.row(row_id(record, path), record.cells, where(path, record.start))

    def row(self, pair_id: str, cells: Mapping[str, Any], place: str) -> Row:
        """A row of any table.

        Args:
            pair_id: Its id.
            cells: By column. A clip is a path, bytes, or a mapping of `bytes` and `path`, as Hugging Face datasets
                have it; a context also a list of turns, each a mapping of `role` and `audio`, or of `role` and what
                makes a clip, as in the pairs of a pair dataset.
            place: Where the row stands, for the head of messages.
        """
        try:
            turns = self._context(cells.get("context_audio"), f"{place}, column 'context_audio'")
            response = self._clip(cells.get("response_audio"), f"{place}, column 'response_audio'")
            situation = _text(cells.get("situation"), f"{place}, column 'situation'")
        except _Unusable as unusable:
            return Row(pair_id, None, unusable.problem)
        return Row(pair_id, Pair(pair_id, response, turns, situation=situation, group_id=pair_id), None)

    def _context(self, value: Any, place: str) -> tuple[Turn, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            return (Turn("user", self._clip(value, place)),)
        return tuple(self._turn(turn, place) for turn in value)

    def _turn(self, value: Any, place: str) -> Turn:
        if not isinstance(value, dict) or not is_name(value.get("role")):
            accepted = '{"role": "user", "audio": ...} per turn'
            raise _Unusable("not a turn", f"{place}: value {shown(value)}; accepted: {accepted}")
        clip = {name: part for name, part in value.items() if name != "role"}
        return Turn(value["role"], self._clip(clip["audio"] if set(clip) == {"audio"} else clip, place))

    def _clip(self, value: Any, place: str) -> AudioSource:
        if isinstance(value, Mapping) and set(value) <= _CLIP_FIELDS:
            value = value.get("bytes") or value.get("path")
        if value in (None, "", b""):
            raise _Unusable("empty cell", f"{place}: empty; accepted: a clip")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            accepted = "path of an audio file, or its bytes"
            raise _Unusable("not a clip", f"{place}: value {shown(value)}; accepted: {accepted}")
        if self._folder is None:
            raise _Unusable("a path", f"{place}: value {shown(value)} is a path; accepted: bytes, or name the folder")
        try:
            return self._resolve(value)
        except OutsideError as error:
            raise _Unusable("leaves the folder", f"{place}{error}") from None
        except DataError as error:
            raise _Unusable("no such file", f"{place}{error}") from None

    def _resolved(self, value: str) -> Path:
        assert self._folder is not None
        return resolve_inside(self._folder, value, "")


def _text(value: Any, place: str) -> str | None:
    if value is None or plain_text(value) is None:
        return None
    if not is_text(value):
        raise _Unusable("not text", f"{place}: value {shown(value)}; accepted: text")
    return value
