"""Small tables with audio beside them, as people bring them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.importers.table import TableMapping, read_tables
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import PairDataset

EMPATHY = Dimension("empathy", 1, 5, 1)
STORING = ("overwrite", "embed_audio", "shard_rows", "max_skipped")


class Source:
    """A folder with ``pairs.csv``, ``ratings.csv`` and clips. Change the rows, then import."""

    def __init__(self, folder: Path, groups: int = 2, per_group: int = 2) -> None:
        self.folder = folder
        self.out = folder.parent / "dataset"
        self.pairs: list[dict[str, Any]] = []
        self.ratings: list[dict[str, Any]] = []
        for group in range(groups):
            context = self.tone(f"clips/context{group}.wav", hertz=100 + group)
            for member in range(per_group):
                name = f"{group:03d}-{member}"
                self.tone(f"clips/{name}.wav", hertz=300 + 10 * group + member)
                self.pairs.append(
                    {
                        "pair_id": name,
                        "context_audio": context,
                        "response_audio": f"clips/{name}.wav",
                        "group_id": f"g{group}",
                        "system_id": f"s{member}",
                    }
                )
                for rater in range(2):
                    score = 1 + (group + member + rater) % 5
                    self.ratings.append(
                        {"pair_id": name, "rater_id": f"0{rater}", "dimension": "empathy", "score": score}
                    )

    def load(self, **options: Any) -> PairDataset:
        """Writes both tables and imports them."""
        arguments: dict[str, Any] = {
            "columns": {}, "rating_columns": {}, "dimensions": [EMPATHY],
        }  # fmt: skip
        pairs = self.table("pairs.csv", self.pairs)
        ratings = self.table("ratings.csv", self.ratings)
        storing = {name: options.pop(name) for name in STORING if name in options}
        return assemble(read_tables(pairs, ratings, TableMapping(**(arguments | options))), self.out, **storing)

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
        with open(path, "w", newline="", encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(row) + "\n" for row in rows)
                return path
            header = list(rows[0]) if rows else ["pair_id", "response_audio", "rater_id", "dimension", "score"]
            writer = csv.DictWriter(file, header, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
        return path

    def assert_nothing_written(self) -> None:
        """Neither the dataset nor anything that was to become one."""
        assert sorted(path.name for path in self.folder.parent.iterdir()) == [self.folder.name]


@pytest.fixture(scope="session")
def source_type() -> type[Source]:
    return Source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")
