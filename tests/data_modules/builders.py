"""Small sources as people bring them, and what tests ask of the datasets that are made of them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from empathy_judge.audio.decode import audio_hash
from empathy_judge.commands.options import OneLineParser, add_options
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.importers.clips import find_clip
from empathy_judge.data_modules.importers.table import NAMES, read_pairs
from empathy_judge.data_modules.layouts import read_rating_tables
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.data_modules.tables import TableMapping, read_table

EMPATHY = Dimension("empathy", 1, 5, 1)
STORING = ("overwrite", "embed_audio", "shard_rows", "max_skipped")


class Given:
    """What somebody brings in a folder, and where it is imported to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder.parent / "dataset"

    def load(self, *given: Any, **options: Any) -> PairDataset:
        """Writes what is given into the folder and imports it."""
        raise NotImplementedError

    def refuses(self, message: str, *given: Any, **options: Any) -> None:
        """An import that is refused; neither a dataset nor anything that was to become one is left."""
        before = sorted(self.folder.parent.iterdir()) if self.folder.exists() else [self.folder]
        with pytest.raises(UserError, match=message):
            self.load(*given, **options)
        assert sorted(self.folder.parent.iterdir()) == before


class Source(Given):
    """A folder with ``pairs.csv``, ``ratings.csv`` and clips. Change the rows, then import."""

    def __init__(self, folder: Path, groups: int = 2, per_group: int = 2) -> None:
        super().__init__(folder)
        self.pairs: list[dict[str, Any]] = []
        self.ratings: list[dict[str, Any]] = []
        for group in range(groups):
            context = self.tone(f"clips/context{group}.wav", hertz=100 + group)
            for member in range(per_group):
                name = f"{group:03d}-{member}"
                response = self.tone(f"clips/{name}.wav", hertz=300 + 10 * group + member)
                row = {"pair_id": name, "context_audio": context, "response_audio": response}
                self.pairs.append(row | {"group_id": f"g{group}", "system_id": f"s{member}"})
                for rater in range(2):
                    score = 1 + (group + member + rater) % 5
                    self.ratings.append(
                        {"pair_id": name, "rater_id": f"0{rater}", "dimension": "empathy", "score": score}
                    )

    def load(self, *tables: Path | None, **options: Any) -> PairDataset:
        """Imports the tables of pairs and ratings that are given, by default its own. Options are those of
        `TableMapping` and of `assemble`."""
        pairs, ratings = tables or (self.table("pairs.csv", self.pairs), self.table("ratings.csv", self.ratings))
        storing = {name: options.pop(name) for name in STORING if name in options}
        mapping = {"columns": {}, "rating_columns": {}, "dimensions": [EMPATHY], **options}
        find = partial(find_clip, folder=self.folder.resolve(), may_name=True)  # as `import table`
        rated = read_rating_tables([ratings] if ratings else [], NAMES)
        return assemble(read_pairs(read_table(pairs), rated, TableMapping(**mapping), find), self.out, **storing)

    def tone(self, name: str, seconds: float = 0.3, hertz: float = 220.0, rate: int = 16_000, **how: Any) -> str:
        """Writes a sine of half of full scale into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
        soundfile.write(path, samples, rate, **how)
        return name

    def table(self, name: str, rows: list[dict[str, Any]]) -> Path:
        """Writes a CSV, TSV or JSONL table into the folder; a CSV of no rows has a header all the same."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(row) + "\n" for row in rows)
                return path
            header = list(rows[0]) if rows else ["pair_id", "response_audio", "rater_id", "dimension", "score"]
            writer = csv.DictWriter(file, header, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
        return path


class Download(Source):
    """What somebody published, in a folder without pairs of ours. Change it, then import."""

    importer: ClassVar[ModuleType]
    path: ClassVar[str] = ""  # of what is imported, in the folder

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, groups=0)
        self.rows: list[dict[str, Any]] = []

    def clip(self, audio: Any) -> str:
        """What the clip of this content is called in the folder ``clips``."""
        return {audio_hash(path): path.stem for path in (self.folder / "clips").iterdir()}[audio_hash(audio)]

    def write(self) -> None:
        """Puts the tables into the folder."""
        self.table("rows.jsonl", self.rows)

    def load(
        self, path: str | None = None, max_skipped: float = 0.0, fresh: bool = True, **options: object
    ) -> PairDataset:
        """Imports the file or folder of this name; options are those of the command. Not `fresh`: what lies there."""
        if fresh:
            self.write()
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        imported = self.importer.read(self.folder / (path or self.path), parsed(self.importer, words))
        return assemble(imported, self.out, overwrite=True, max_skipped=max_skipped)

    def skips(self, where: str, reason: str, path: str | None = None) -> PairDataset:
        """The dataset of all but one row, or part of a row, which is listed: where it begins so, and why."""
        dataset = self.load(path, max_skipped=0.5)
        ((place, found),) = reasons(dataset)
        assert place.startswith(where)
        assert reason in f"{place}: {found}"
        return dataset


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Makes the folder anew of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def set_cell(path: Path, column: str, row: int, value: Any, **how: Any) -> None:
    """Changes a cell of a Parquet file, whose rows are counted from 0."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[row][column] = value
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path, **how)


def preferences(
    dataset: PairDataset, name: Callable[[Pair], str | None], dimension: str | None = None
) -> list[tuple[str | None, str | None, str, float]]:
    """What was chosen and what was rejected, by name, rater and strength; of one dimension or of all."""
    pairs = by_id(dataset)
    return [
        (name(pairs[row["chosen_id"]]), name(pairs[row["rejected_id"]]), row["rater_id"], row["strength"])
        for row in dataset.preferences.to_dict("records")
        if dimension in (None, row["dimension"])
    ]


def reasons(dataset: PairDataset) -> list[tuple[str, str]]:
    """What was skipped: its place, without the folder, and why."""
    with Path(str(dataset.root), "skipped.csv").open(encoding="utf-8", newline="") as file:
        return [(row["where"].rpartition("/")[2], row["reason"]) for row in csv.DictReader(file)]


def contents(dataset: PairDataset) -> dict[str, bytes]:
    """Name -> content of every file of the dataset."""
    return {path.name: path.read_bytes() for path in Path(str(dataset.root)).rglob("*") if path.is_file()}


def by_id(dataset: PairDataset) -> dict[str, Pair]:
    return {pair.pair_id: pair for pair in dataset.pairs}


def scores(dataset: PairDataset) -> dict[tuple[str, str, str], float]:
    """(Pair, rater, dimension) -> score."""
    columns = (dataset.ratings[name] for name in ("pair_id", "rater_id", "dimension", "score"))
    return {(pair, rater, dimension): score for pair, rater, dimension, score in zip(*columns, strict=True)}


def parsed(importer: ModuleType, words: list[str]) -> Any:
    """The options of an importer."""
    parser = OneLineParser()
    add_options(parser, importer.Options)
    return importer.Options(**parser.read(words))


def wav(hertz: float, seconds: float = 0.1) -> bytes:
    """A sine."""
    buffer = io.BytesIO()
    samples = 0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * 8000)) / 8000)
    soundfile.write(buffer, samples, 8000, format="WAV")
    return buffer.getvalue()


def hertz(source: Any) -> int:
    """The pitch of a sine."""
    samples, rate = soundfile.read(source)
    return round(float(np.abs(np.fft.rfft(samples, 80_000)).argmax()) * rate / 80_000)
