"""Tags of pairs: from any table to slices and splits; data without them stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules.audit import read_column, tag_columns
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.importers.table import TableMapping, read_tables
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, PairDataset, write_dataset, write_splits
from empathy_judge.data_modules.splits import leave_one_out, split_dataset

CARD = DatasetCard("tones", (Dimension("empathy", 1, 5, 1),), "test", "none")
RATINGS = pd.DataFrame({"pair_id": ["a"], "rater_id": ["1"], "dimension": ["empathy"], "score": [3.0]})


def pairs(source: Any, tags: list[Any] | None) -> pd.DataFrame:
    clips = ["clips/000-0.wav", "clips/000-1.wav", "clips/001-0.wav"]
    columns: dict[str, Any] = {"pair_id": ["a", "b", "c"], "group_id": ["g", "h", "i"], "response_audio": clips}
    return pd.DataFrame(columns if tags is None else columns | {"tags": tags})


def tagged(source: Any) -> Path:
    write_dataset(source.folder, CARD, pairs(source, [{"sex": "f", "cue": "sad"}, None, {"cue": "glad"}]), RATINGS)
    return source.folder


def test_round_trip(source):
    dataset = PairDataset.load(tagged(source))
    assert [pair.tags for pair in dataset.pairs] == [(("cue", "sad"), ("sex", "f")), (), (("cue", "glad"),)]
    assert [pair.tag("cue") for pair in dataset.pairs] == ["sad", None, "glad"]
    assert [read_column(pair, "tag:sex") for pair in dataset.pairs] == ["f", None, None]
    assert tag_columns(dataset.pairs) == ["tag:cue", "tag:sex"]
    write_splits(source.folder, ["train", "train", "test"])
    again = PairDataset.load(source.folder)
    assert [pair.tags for pair in again.pairs] == [pair.tags for pair in dataset.pairs]
    assert [pair.split for pair in again.pairs] == ["train", "train", "test"]


def test_data_without_tags_keep_their_hash_and_older_files_load(source):
    plain = write_dataset(source.folder, CARD, pairs(source, None), RATINGS).content_hash
    path = source.folder / "pairs.parquet"
    pq.write_table(pq.read_table(path).drop_columns("tags"), path)  # as it was written before there were tags
    assert [pair.tags for pair in PairDataset.load(source.folder).pairs] == [(), (), ()]
    write_splits(source.folder, ["train", "train", "test"])
    assert PairDataset.load(source.folder).card.content_hash == plain
    empty = write_dataset(source.folder, CARD, pairs(source, [{}, None, {"cue": None}]), RATINGS)
    assert empty.content_hash == plain
    changed = {
        write_dataset(source.folder, CARD, pairs(source, tags), RATINGS).content_hash
        for tags in ([{"cue": "sad"}, {}, {}], [{"cue": "glad"}, {}, {}], [{"sex": "sad"}, {}, {}])
    }
    assert len({plain, *changed}) == 4


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([("cue", "sad"), ("cue", "glad")], r"column 'tags': value .*; expected each name once, sorted"),
        ([("cue", "two\nlines")], "expected text without line breaks, not empty, as name and value"),
        ([("", "sad")], "expected text without line breaks"),
        ([(None, "sad")], "expected text without line breaks"),
        ([("sex", "f"), ("cue", "sad")], "expected each name once, sorted"),
    ],
)
def test_tags_that_are_none_are_named(source, tags, message):
    path = tagged(source) / "pairs.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("tags")
    cells = [[{"name": name, "value": value} for name, value in tags], None, None]
    pq.write_table(table.set_column(index, "tags", pa.array(cells, table.schema.field("tags").type)), path)
    with pytest.raises(DataError, match=message) as caught:
        PairDataset.load(source.folder)
    assert str(caught.value).startswith(f"{path}, row 1, column 'tags'")


def imported(source: Any, name: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> PairDataset:
    mapping = TableMapping(columns, {}, CARD.dimensions)
    tables = read_tables(source.table(name, rows), source.table("ratings.csv", source.ratings), mapping)
    return assemble(tables, source.out, overwrite=True, embed_audio=name.endswith("jsonl"))


def test_tags_of_a_table(source):
    emotions = ["sad", "glad", "", "sad"]
    rows = [row | {"tag:age": str(20 + n), "emotion": emotions[n]} for n, row in enumerate(source.pairs)]
    dataset = imported(source, "pairs.csv", rows, {"tag:cue": "emotion"})
    assert [pair.tags for pair in dataset.pairs][1:3] == [(("age", "21"), ("cue", "glad")), (("age", "22"),)]
    assert dataset.card.description == ""
    rows = [row | {"tags": {"age": str(20 + n), "cue": emotions[n] or None}} for n, row in enumerate(source.pairs)]
    same = imported(source, "pairs.jsonl", rows, {})
    assert same.card.content_hash == dataset.card.content_hash
    own = [row | {"tags": [{"name": "cue", "value": "sad"}], "tag:cue": "glad"} for row in source.pairs]
    assert {pair.tags for pair in imported(source, "own.jsonl", own, {}).pairs} == {(("cue", "glad"),)}


@pytest.mark.parametrize("value", ["sad", ["sad"], 3, {"cue": 1.5}, {"cue": "two\nlines"}, [{"value": "sad"}]])
def test_tags_of_a_table_that_are_none(source, value):
    rows = [row | {"tags": value} for row in source.pairs]
    with pytest.raises(DataError, match=r"pairs.jsonl, row 1 \(line 1\), column 'tags': value .*; expected text"):
        imported(source, "pairs.jsonl", rows, {})


def test_splits_by_a_tag(source):
    folder = tagged(source)
    with pytest.raises(DataError, match=r"split by 'tag:age'; expected .*response_text, tag:cue, tag:sex"):
        split_dataset(folder, by=("group_id", "tag:age"))
    with pytest.raises(DataError, match=r"row 2, column 'tag:cue': empty"):
        leave_one_out(folder, "tag:cue")
    write_dataset(folder, CARD, pairs(source, [{"cue": "sad"}, {"cue": "glad"}, {"cue": "glad"}]), RATINGS)
    audit = leave_one_out(folder, "tag:cue")
    assert [pair.split for pair in PairDataset.load(folder).pairs] == ["tag:cue=sad", "tag:cue=glad", "tag:cue=glad"]
    assert audit.by == ("tag:cue",)
