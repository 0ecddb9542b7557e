"""Reads corpora whose rows stand in tables by YAML files that map their columns, as far as a mapping can say it.

Keys of the YAML file are the attributes of `CorpusMapping`. In a template, ``{column}`` is a name in a column of the
row, and ``{file}`` is the name of its file without the suffix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ....audio.stored_clips import CONTEXT, RESPONSE
from ....core.errors import DataError
from ...ratings import Dimension
from ...schema import DatasetCard
from ...storage import TEXT_COLUMNS
from ...tables import TableRow
from ..clips import AudioFolder
from ..collector import Collector, source_rows

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class CorpusMapping:
    """What the YAML file of a corpus says.

    Attributes:
        help: Of ``empathy-judge import NAME``.
        example: Arguments that would work.
        name: Of the dataset.
        source: Where the corpus comes from.
        licence: Its terms of use.
        synthetic: True where its ratings were not given by people.
        dimensions: Name -> lowest score, highest score and, where there are steps, the step.
        files: Patterns of the files that hold the rows.
        fields: Columns of each file; one that is in no row means another layout.
        columns: Our column -> theirs. Audio and text are read from a column; text from several columns is a mapping of
            labels to columns, whose lines are put together. Any other value is a template.
        responses: For each response in a row the columns that it does not share with the others.
        other_audio: Columns of audio that are not in `columns`.
        groups: What the pairs of one group have in common: a template, ``clip`` with our column of audio, or ``text``
            with our column of text.
        answers: What a rater can answer who compares two responses -> number of the better one, and the strength.
        names: Names that only the module of the corpus reads.
    """

    help: str
    example: str
    name: str
    source: str
    licence: str
    dimensions: Mapping[str, Sequence[float]]
    synthetic: bool = False
    files: Sequence[str] = ()
    fields: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    responses: Sequence[Mapping[str, Any]] = ({},)
    other_audio: Sequence[str] = ()
    groups: Sequence[str] = ()
    answers: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: str) -> CorpusMapping:
        """The YAML file beside the module of a corpus, given the module's ``__file__``."""
        return cls(**yaml.safe_load(Path(module).with_suffix(".yaml").read_text(encoding="utf-8")))

    @property
    def audio(self) -> list[str]:
        """All columns of audio."""
        columns = (columns.get(ours) for columns in (self.columns, *self.responses) for ours in (CONTEXT, RESPONSE))
        # All are known before the first row is read: where clips lie is found from all values of these columns
        return [*(theirs for theirs in columns if theirs is not None), *self.other_audio]

    @property
    def scales(self) -> list[Dimension]:
        """The dimensions."""
        scales = self.dimensions.items()
        return [Dimension(name, low, high, step[0] if step else None) for name, (low, high, *step) in scales]

    def card(self, description: str, dimensions: Iterable[Dimension] | None = None) -> DatasetCard:
        """The card; `dimensions` if they are not all that the corpus can have."""
        scales = tuple(self.scales if dimensions is None else dimensions)
        return DatasetCard(self.name, scales, self.source, self.licence, self.synthetic, description)


class CorpusReader:
    """Reads the rows of a corpus by its mapping; the module of the corpus adds to `found` what they say."""

    def __init__(self, mapping: CorpusMapping, path: Path) -> None:
        self.mapping, self.path = mapping, path
        self.found = Collector()

    def rows(self, folder: str | Path | None = None, root: str | None = None) -> Iterator[tuple[TableRow, AudioFolder]]:
        """All rows, each with the folder that finds its clips, see `source_rows`."""
        mapping = self.mapping
        return source_rows(self.path, mapping.files, mapping.fields, mapping.audio, folder, root)

    def pairs(self, row: TableRow, clips: AudioFolder) -> list[dict[str, Any]]:
        """The columns of each response of a row, as the mapping has them."""
        mapping = self.mapping
        return [_pair(row, clips, {**mapping.columns, **response}) for response in mapping.responses]

    def add_compared(
        self, row: TableRow, pairs: Sequence[Mapping[str, Any]], links: Sequence[str] = (), **common: Any
    ) -> list[str]:
        """Adds the two pairs that a row compares; `links` and columns in `common` are those that the mapping has not.

        Returns:
            Their ids.

        Raises:
            DataError: If both responses are the same clip.
        """
        first, second = (self.found.digest(pair[RESPONSE]) for pair in pairs)
        if first == second:
            one, other = (response[RESPONSE] for response in self.mapping.responses)
            raise DataError(f"{row.place(other)}: the same clip as {one}; expected two different clips")
        return [self.found.add_pair({**pair, **common}, [*self.links(row, pair), *links]) for pair in pairs]

    def add_preference(self, pairs: Sequence[str], answer: str, rater: Any, dimension: str, where: str) -> None:
        """Adds what a rater answered who compared the two pairs of these ids."""
        better, strength = self.mapping.answers[answer]
        # Responses are counted from 1: of two, 2 less the number of the better one is the place of the other
        self.found.add_preference(pairs[better - 1], pairs[2 - better], rater, dimension, float(strength), where)

    def links(self, row: TableRow, pair: Mapping[str, Any]) -> list[str]:
        """What a pair has in common with those of its group, as the mapping has it."""
        links = []
        for link in self.mapping.groups:
            kind, _, ours = link.partition(" ")
            if kind == "text":
                # Without a text no link: all rows that lack it would become one group
                links += [f"text {pair[ours]}"] if pair[ours] else []
            elif kind == "clip":
                cells = [turn["audio"] for turn in pair[ours]] if ours == CONTEXT else [pair[ours]]
                links += [f"clip {self.found.digest(cell)}" for cell in cells]
            else:
                links.append(_filled(link, row))
        return links


def _pair(row: TableRow, clips: AudioFolder, columns: Mapping[str, Any]) -> dict[str, Any]:
    pair: dict[str, Any] = {}
    for ours, theirs in columns.items():
        if ours == CONTEXT:
            pair[ours] = [{"role": "user", "audio": clips.clip(row, theirs)}]
        elif ours == RESPONSE:
            pair[ours] = clips.clip(row, theirs)
        elif isinstance(theirs, Mapping):
            texts = [(label, row.text(column)) for label, column in theirs.items()]
            pair[ours] = "\n".join(f"{label}: {text}" for label, text in texts if text is not None) or None
        else:
            pair[ours] = row.text(theirs) if ours in TEXT_COLUMNS else _filled(theirs, row)
    return pair


def _filled(template: str, row: TableRow) -> str:
    """A template with the values of a row."""
    return _FIELD.sub(lambda field: row.table.path.stem if field[1] == "file" else row.name(field[1]), template)
