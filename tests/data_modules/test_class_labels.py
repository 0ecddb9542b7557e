"""Class labels of Hugging Face datasets count as their names; a negative one is a missing value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets import ClassLabel, Features, LargeList, List, Value
from datasets.table import InMemoryTable
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.class_labels import described_columns, name_labels
from empathy_judge.data_modules.importers import hugging_face, table
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.frame import read_frame

from .builders import parsed

pytestmark = pytest.mark.usefixtures("hub_cache")

FIVE = ClassLabel(names=["1", "2", "3", "4", "5"])
WORDS = ["--column", "response_audio=clip", "--dimension", "warmth=1:5:1"]


def stored(folder: Path, columns: dict[str, list[Any]], features: dict[str, Any], as_parquet: bool) -> Path:
    """As the library stores numbers that it was given as Arrow: hidden labels are not always -1."""
    folder.mkdir(parents=True)
    names = [f"{number}.wav" for number in range(len(next(iter(columns.values()))))]
    for number, name in enumerate(names):
        soundfile.write(folder / name, 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number)), 16_000)
    described = Features({"clip": Value("string"), **features})
    values = InMemoryTable.from_pydict({"clip": names, **columns}, described.arrow_schema)
    made = datasets.Dataset(values)
    if as_parquet:
        made.to_parquet(str(folder / "train.parquet"))
    else:
        made.save_to_disk(str(folder))
    return folder


def load(folder: Path, *words: str) -> PairDataset:
    return assemble(hugging_face.read(folder, parsed(hugging_face, [*WORDS, *words])), folder / "data")


@pytest.mark.parametrize("as_parquet", [False, True])
@pytest.mark.parametrize("missing", [-1, -3, -100])
def test_negative_labels_are_missing(tmp_path, as_parquet, missing):
    columns = {
        "warmth:anna": [0, 3, missing], "emotion": [missing, 0, 1], "response_speaker": [0, missing, 1],
        "system_id": [0, 1, missing], "split": [0, 1, missing],
    }  # fmt: skip
    two = {"emotion": ["angry", "sad"], "response_speaker": ["s1", "s2"], "system_id": ["a", "b"], "split": ["x", "y"]}
    features = {"warmth:anna": FIVE, **{name: ClassLabel(names=names) for name, names in two.items()}}
    dataset = load(stored(tmp_path / "saved", columns, features, as_parquet), "--column", "tag:emotion=emotion")
    assert dataset.ratings[["pair_id", "score"]].to_numpy().tolist() == [["0", 1.0], ["1", 4.0]]
    assert [pair.tag("emotion") for pair in dataset.pairs] == [None, "angry", "sad"]
    assert [pair.response_speaker for pair in dataset.pairs] == ["s1", None, "s2"]
    assert [pair.system_id for pair in dataset.pairs] == ["a", "b", None]
    assert [pair.split for pair in dataset.pairs] == ["x", "y", None]


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_missing_label_where_a_value_is_required(tmp_path, as_parquet):
    columns = {"rater_id": [0, -1, 0], "score": [0, 4, 2]}
    features = {"rater_id": ClassLabel(names=["anna"]), "score": FIVE}
    folder = stored(tmp_path / "saved", columns, features, as_parquet)
    with pytest.raises(DataError, match=r"saved, row 2, column 'rater_id': value None; expected text without"):
        load(folder)


@pytest.mark.parametrize("as_parquet", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
def test_a_row_without_a_label_as_its_score_is_not_rated(tmp_path, as_parquet, with_ids):
    """Hidden test rows of a table with a row for each rating; who would have rated them is hidden too."""
    columns = {"who": [0, 1, -1, 0], "points": [0, -1, -100, None]}
    features = {"who": ClassLabel(names=["anna", "ben"]), "points": FIVE}
    if with_ids:
        columns, features = columns | {"pair_id": list("0123")}, features | {"pair_id": Value("string")}
    folder = stored(tmp_path / "saved", columns, features, as_parquet)
    dataset = load(folder, "--rating-column", "rater_id=who", "--rating-column", "score=points")
    assert [pair.pair_id for pair in sorted(dataset.pairs, key=lambda pair: pair.pair_id)] == ["0", "1", "2", "3"]
    assert dataset.ratings[["pair_id", "rater_id", "score"]].to_numpy().tolist() == [["0", "anna", 1.0]]
    assert dataset.card.description == "3 rows with no score: not rated."


@pytest.mark.parametrize("as_parquet", [False, True])
def test_ratings_inside_pairs_without_a_label(tmp_path, as_parquet):
    rating = {"rater_id": Value("string"), "score": FIVE}
    ratings = [[{"rater_id": "a", "score": 4}], [{"rater_id": "a", "score": -1}, {"rater_id": "b", "score": 0}], []]
    dataset = load(stored(tmp_path / "saved", {"ratings": ratings}, {"ratings": List(rating)}, as_parquet))
    assert dataset.ratings[["pair_id", "rater_id", "score"]].to_numpy().tolist() == [["0", "a", 5.0], ["1", "b", 1.0]]
    assert dataset.card.description == "1 row with no score: not rated."


def test_labels_that_are_all_hidden(tmp_path):
    folder = stored(tmp_path / "saved", {"rater_id": ["a", "a"], "score": [-1, -1]},
                    {"rater_id": Value("string"), "score": FIVE}, False)  # fmt: skip
    with pytest.raises(DataError, match=r"saved: the table holds no ratings: 2 rows with no score"):
        load(folder)


def test_a_missing_number_in_a_long_table_is_not_rated(tmp_path):
    columns, features = {"rater_id": ["a", "a"], "score": [4.0, None]}, {"rater_id": Value("string")}
    folder = stored(tmp_path / "saved", columns, features | {"score": Value("float32")}, False)
    dataset = load(folder)
    assert dataset.ratings["score"].tolist() == [4.0]
    assert dataset.card.description == "1 row with no score: not rated."


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_label_beyond_the_classes(tmp_path, as_parquet):
    folder = stored(tmp_path / "saved", {"warmth:anna": [0, 4, 5]}, {"warmth:anna": FIVE}, as_parquet)
    expected = r"saved, row 3, column 'warmth:anna': value 5; expected a class label from 0 to 4, or -1"
    with pytest.raises(DataError, match=expected):
        load(folder)


@pytest.mark.parametrize("as_parquet", [False, True])
@pytest.mark.parametrize("a_list", [List, LargeList])
def test_labels_inside_lists_and_structures(tmp_path, as_parquet, a_list):
    score = ClassLabel(names=["2", "3", "4", "5"])
    rating = {"rater_id": ClassLabel(names=["anna", "ben"]), "dimension": ClassLabel(names=["warmth"]), "score": score}
    ratings = [[{"rater_id": rater, "dimension": 0, "score": value}] for rater, value in [(0, 0), (1, 1), (1, 3)]]
    features = {"ratings": a_list(rating), "tags": a_list({"name": Value("string"), "value": ClassLabel(names=["x"])})}
    tags = [[{"name": "cue", "value": value}] for value in (0, -1, 0)]
    columns = {"ratings": ratings, "tags": tags}
    dataset = load(stored(tmp_path / "saved", columns, features, as_parquet))
    assert dataset.ratings[["pair_id", "rater_id", "dimension", "score"]].to_numpy().tolist() == [
        ["0", "anna", "warmth", 2.0], ["1", "ben", "warmth", 3.0], ["2", "ben", "warmth", 5.0],
    ]  # fmt: skip
    assert [pair.tag("cue") for pair in dataset.pairs] == ["x", None, "x"]
    ratings[1][0]["score"] = 4
    wrong = stored(tmp_path / "wrong", {"ratings": ratings}, {"ratings": a_list(rating)}, as_parquet)
    with pytest.raises(DataError, match=r"wrong, row 2, column 'ratings\.score': value 4; .* from 0 to 3"):
        load(wrong)


def test_descriptions_of_all_versions():
    """As the library reads them: the values that it decodes to are the right ones."""
    two = {"names": ["a", "b"], "_type": "ClassLabel"}
    features = {
        "plain": two, "old": {"num_classes": 2, **two, "id": None}, "listed": [two],
        "deep": {"x": {"y": {"feature": {"feature": two, "_type": "List"}, "_type": "LargeList"}}},
        "columns": {"feature": {"score": two}, "length": -1, "_type": "Sequence"},
        "fixed": {"feature": two, "length": 2, "_type": "Sequence"},
        "text": {"dtype": "string", "_type": "Value"}, "clip": {"_type": "Audio"}, "broken": 3,
    }  # fmt: skip
    row = {
        "plain": 1, "old": 0, "listed": [0, -1, 1], "deep": {"x": {"y": [[0], None, [1, None]]}, "z": 1},
        "columns": {"score": [1, -1], "other": [5]}, "fixed": [1, 1], "text": "1", "clip": {"path": "x"}, "broken": 7,
    }  # fmt: skip
    rows = [row, {"plain": None, "columns": None, "deep": {"x": None}}]
    name_labels(rows, features, "t")
    assert rows[0] == {
        "plain": "b", "old": "a", "listed": ["a", None, "b"], "deep": {"x": {"y": [["a"], None, ["b", None]]}, "z": 1},
        "columns": {"score": ["b", None], "other": [5]}, "fixed": ["b", "b"], "text": "1", "clip": {"path": "x"},
        "broken": 7,
    }  # fmt: skip
    assert rows[1]["plain"] is None
    assert rows[1]["deep"] == {"x": None}


@pytest.mark.parametrize("value", [True, 0.5, "c", {"a": 1}, [0]])
def test_what_is_no_label(value):
    with pytest.raises(DataError, match=r"t, row 1, column 'x': value .*; expected a class label from 0 to 1"):
        name_labels([{"x": value}], {"x": {"names": ["a", "b"], "_type": "ClassLabel"}}, "t")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"info": {"features": [1]}}', '{"info": null}'])
def test_other_descriptions_are_none(text):
    assert described_columns(pa.schema([], {b"huggingface": text.encode()})) == {}
    assert described_columns(pa.schema([])) == {}


def test_parquet_files_as_tables(tmp_path):
    """Every command that reads a table reads such a file: stored 0 to 2 are scores from 3 on."""
    score = {"names": ["3", "4", "5"], "_type": "ClassLabel"}
    note = {"info": {"features": {"score": score}}}
    clip = tmp_path / "x.wav"
    soundfile.write(clip, 0.5 * np.sin(np.arange(4_000) * 0.1), 16_000)
    rows = pd.DataFrame({"item": ["i", "j"], "annotator": "anna", "dimension": "warmth", "score": [1, -1]})
    rows = rows.assign(pair_id=["p", "q"], response_audio="x.wav", rater_id="anna")
    written = pa.Table.from_pandas(rows).replace_schema_metadata({"huggingface": json.dumps(note)})
    pq.write_table(written, tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet", {}).rows["score"].tolist() == pytest.approx(
        [4.0, float("nan")], nan_ok=True
    )
    imported = table.read(tmp_path / "t.parquet", parsed(table, ["--dimension", "warmth=1:5:1"]))
    assert imported.ratings is not None
    assert imported.ratings[["pair_id", "score"]].to_numpy().tolist() == [["p", 4.0]]
    assert "1 row with no score: not rated." in imported.card.description
