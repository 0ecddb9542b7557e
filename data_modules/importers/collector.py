"""Collects pairs, ratings and comparisons row by row; what cannot be used is listed with its place.

Ids that a source does not give are hashes of the content: they tell neither system nor label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...audio.decode import audio_hash
from ...core.errors import AudioError, DataError, bad_value, shown
from ...core.numerals import as_float
from ..ratings import A_NAME, PREFERENCE_COLUMNS, RATING_COLUMNS, Dimension, is_name
from ..schema import DatasetCard
from ..steps import on_scale
from ..tables import TableRow, read_records
from .assemble import Imported, Skipped
from .clips import AudioFolder, ClipCell, Content, read_clip

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

_ID_LENGTH = 16  # hexadecimal digits: 64 bits
_Labels = dict[tuple[str, ...], tuple[float, str]]  # pair or pairs, rater and dimension -> what was said, and where


class Collector:
    """Pairs of a source, and their labels.

    Attributes:
        skipped: What could not be used.
        ratings: (Pair id, rater, dimension) -> the score, and where it stands.
    """

    def __init__(self) -> None:
        self.skipped: list[Skipped] = []
        self.ratings: _Labels = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._links: dict[str, set[str]] = {}
        self._digests: dict[Content, str] = {}
        self._preferences: _Labels = {}

    @contextmanager
    def skipping(self, where: str) -> Iterator[None]:
        """If the block fails, lists `where` as skipped, with the place of the value if the error names one."""
        try:
            yield
        except (DataError, AudioError) as error:
            text = str(error)
            if text.startswith((f"{where}, ", f"{where}: ")):
                value, _, text = text[len(where) :].partition(": ")
                where += value
            self.skipped.append(Skipped(where, text))

    def digest(self, cell: ClipCell) -> str:
        """SHA-256 (hex) of the encoded bytes of a clip; each file is read once.

        Raises:
            AudioError: If there is no such file or it cannot be read, with the place of the cell.
        """
        if cell.content not in self._digests:
            try:
                self._digests[cell.content] = audio_hash(read_clip(cell.content))
            except AudioError as error:
                raise AudioError(f"{cell.where}: {error}") from None
        return self._digests[cell.content]

    def add_pair(self, row: Mapping[str, Any], links: Collection[str], pair_id: str | None = None) -> str:
        """Adds a pair. If its id was added before, the first row stays and the links are joined.

        Args:
            row: As `Imported.pairs` has them, without ``pair_id`` and ``group_id``.
            links: What the pair has in common with others (script, prompt, context). Pairs that share a link, directly
                or through other pairs, are one group.
            pair_id: The source's own id; None = a hash of system, situation and clips.

        Returns:
            The pair's id.

        Raises:
            AudioError: If a clip cannot be read.
        """
        if pair_id is None:
            context = [(turn["role"], self.digest(turn["audio"])) for turn in row.get("context_audio") or ()]
            key = [row.get("system_id"), row.get("situation"), context, self.digest(row["response_audio"])]
            pair_id = _short_hash(json.dumps(key))
        self._rows.setdefault(pair_id, {**row, "pair_id": pair_id})
        # Its own id is a link, so that a pair without others is a group
        self._links.setdefault(pair_id, {pair_id}).update(links)
        return pair_id

    def add_rating(
        self, pair_id: str, rater: Any, dimension: str, score: Any, where: str, scale: Dimension, whole: bool = False
    ) -> None:
        """Adds one score, as the source states it; `whole`: it has to be a whole number.

        Raises:
            DataError: If it is no score on the scale, the rater has no name, or has scored the same thing before.
        """
        value = as_float(score)
        ends = scale.minimum, scale.maximum
        # Beyond an end only by as much as rounding to a narrower type moves it
        is_score = ends[0] <= value <= ends[1] or np.isfinite(on_scale(np.array([value]), *ends, scale.step)).all()
        if not is_score or (whole and not value.is_integer()):
            number = "whole number" if whole else "number"
            raise bad_value(where, score, f"a {number} from {scale.minimum:g} to {scale.maximum:g}")
        _add_once(self.ratings, (pair_id, rater, dimension), value, where, "scored this")

    def add_preference(
        self, chosen: str, rejected: str, rater: Any, dimension: str, strength: float, where: str
    ) -> None:
        """Adds one comparison; strength 0 = tie.

        Raises:
            DataError: If both are the same pair, the rater has no name, or has said the same before.
        """
        if chosen == rejected:
            raise DataError(f"{where}: both clips are the same; expected two different clips")
        key = (chosen, rejected, rater, dimension)
        _add_once(self._preferences, key, strength, where, "compared these")

    def imported(
        self,
        card: DatasetCard,
        pairs: Sequence[Mapping[str, Any]] | None = None,
        *,
        rated: bool = False,
        compared: bool = False,
    ) -> Imported:
        """All that was read; `rated` and `compared`: the source has scores, and comparisons. `pairs` are given where
        they were not added by `add_pair`; those that were get a group that is named by what links them."""
        if pairs is None:
            links = list(self._links.values())
            groups: dict[int, str] = {}
            from ..near_duplicates import components

            # A group is called by its content, so that the order of pairs does not matter.
            for positions in components(links):
                name = _short_hash(min(link for position in positions for link in links[position]))
                groups.update(dict.fromkeys(positions, name))
            pairs = [{**row, "group_id": groups[position]} for position, row in enumerate(self._rows.values())]
        ratings = _frame(self.ratings, RATING_COLUMNS) if rated else None
        preferences = _frame(self._preferences, PREFERENCE_COLUMNS) if compared else None
        return Imported(card, pairs, ratings, preferences, self.skipped)


def _add_once(table: _Labels, key: tuple[str, ...], value: float, where: str, done: str) -> None:
    *_, rater, _ = key
    if not is_name(rater):
        raise DataError(f"{where}: rater {shown(rater)}; expected {A_NAME}")
    if key in table:
        raise DataError(f"{where}: rater {shown(rater)} has {done} at {table[key][1]} already")
    table[key] = (value, where)


def _frame(table: _Labels, columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    rows = [(*key, value) for key, (value, _) in table.items()]
    return pd.DataFrame(rows, columns=pd.Index(columns)).astype({columns[-1]: "float64"})


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


def source_files(path: Path, patterns: Sequence[str]) -> list[Path]:
    """The file `path`, or the files below the folder `path` that fit a pattern, in a fixed order.

    Hidden files and folders do not count: ``.cache`` of a download, ``._*`` of macOS.

    Raises:
        DataError: If there is no such file or none that fits.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    matches = {file for pattern in patterns for file in path.rglob(pattern) if file.is_file()}
    # Below the folder alone: it may itself lie in a hidden one, as in the cache of the hub
    visible = [file for file in matches if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not visible:
        raise DataError(f"{path}: holds no file {' or '.join(patterns)}; expected the folder as it was downloaded")
    return sorted(visible)


def source_rows(
    path: Path,
    patterns: Sequence[str],
    fields: Sequence[str],
    audio: Sequence[str] | Callable[[TableRow], Iterable[Any]],
    folder: str | Path | None = None,
    root: str | Path | None = None,
) -> Iterator[tuple[TableRow, AudioFolder]]:
    """The rows of all files of a source (`source_files`), each with the folder that finds its clips.

    Args:
        path: A file or a folder.
        patterns: What its files are called.
        fields: Fields of each file; one that is in no row means another layout.
        audio: Fields of audio, or all audio values of a row; what is no path does not count.
        folder: Where the clips are; None = beside each file.
        root: Another folder in which audio may lie, see `find_clip`.

    Raises:
        DataError: If there is no such file, or one has another layout.
    """
    values = audio if callable(audio) else lambda row: map(row.values.get, audio)
    for file in source_files(path, patterns):
        rows = read_records(file, fields)
        clips = AudioFolder(Path(folder or file.parent), (value for row in rows for value in values(row)), root)
        yield from ((row, clips) for row in rows)
