"""Cells of Hugging Face datasets that are kept in text files or in several files: each ends as it was written."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.importers import hugging_face
from empathy_judge.data_modules.importers.assemble import assemble

from .builders import parsed

pytestmark = pytest.mark.usefixtures("hub_cache")

COLUMNS = ("pair_id", "response_speaker", "rater_id", "e", "tag:x")
# What pandas would read as 7 twice, 1000 twice, missing raters, and 1.5
ROWS = [
    ("007", "04", "NA", "4", "1.50"),
    ("7", "4", "None", "5", "1.5"),
    ("1e3", "4.0", "nan", "1", "True"),
    ("1000", "NULL", "07", "", "2024-01-02"),
]


def csv_folder(folder: Path, audio: str) -> Path:
    """A table of the rows, in which `audio` names the column of clips."""
    folder.mkdir()
    lines = [",".join((audio, *COLUMNS))]
    for number, row in enumerate(ROWS):
        soundfile.write(folder / f"{number}.wav", 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number)), 16_000)
        lines.append(",".join((f"{number}.wav", *row)))
    name = "metadata.csv" if audio == "file_name" else "train.csv"
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(("audio", "column"), [("file_name", "audio"), ("response_audio", "response_audio")])
def test_csv_is_text(tmp_path, audio, column):
    folder = csv_folder(tmp_path / "folder", audio)
    words = ["--column", f"response_audio={column}", "--dimension", "e=1:5:1"]
    dataset = assemble(hugging_face.read(folder, parsed(hugging_face, words)), tmp_path / "out")
    pairs = [(pair.pair_id, pair.response_speaker, dict(pair.tags)["x"]) for pair in dataset.pairs]
    assert pairs == [(row[0], row[1], row[4]) for row in ROWS]
    ratings = dataset.ratings[["pair_id", "rater_id", "score"]].itertuples(index=False, name=None)
    assert list(ratings) == [(row[0], row[2], float(row[3])) for row in ROWS[:3]]


def rows_of(folder: Path, **files: str) -> list[dict[str, object]]:
    folder.mkdir()
    for name, text in files.items():
        suffix = ".md" if name == "README" else ".csv"
        (folder / f"{name.replace('_', '-')}{suffix}").write_text(text)
    return hugging_face._read_split(folder, folder, None, None).rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pair_id,score\n0,a,4\n1,b,5\n", r"row 1 \(line 2\): 3 values; expected 2"),  # pandas drops a column
        ("pair_id,score,score\na,4,5\n", "column 'score' stands twice"),  # and here
        ("pair_id,score\na,4\nb\n", r"row 2 \(line 3\): 1 value; expected 2"),
        ("pair_id;score\na;4\n", "columns are separated by ';'"),
    ],
)
def test_csv_that_pandas_would_mend_is_refused(tmp_path, text, expected):
    with pytest.raises(DataError, match=rf"^\S*train\.csv.*{expected}"):
        rows_of(tmp_path / "folder", train=text)


def test_options_of_the_card(tmp_path):
    card = "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  {}\n---\n"
    found = rows_of(tmp_path / "one", README=card.format('sep: ";"'), train="pair_id;score\n007;4,5\n")
    assert found == [{"pair_id": "007", "score": "4,5"}]
    with pytest.raises(DataError, match="its card reads CSV with decimal; expected UTF-8 with a header"):
        rows_of(tmp_path / "two", README=card.format('decimal: ","'), train="pair_id,score\na,4\n")


def test_class_labels_of_a_card_for_csv(tmp_path):
    kind = "  - name: kind\n    dtype:\n      class_label:\n        names:\n          '0': poor\n          '1': good\n"
    card = f"---\ndataset_info:\n  features:\n  - name: pair_id\n    dtype: string\n{kind}---\n"
    found = rows_of(tmp_path / "folder", README=card, train="pair_id,kind\n1,1\n2,0\n3,-1\n4,good\n5,\n")
    assert [row["kind"] for row in found] == ["good", "poor", None, "good", None]


def test_several_csv_files(tmp_path):
    text = "pair_id,score\n{}\n"
    one, two = "train_00000_of_00002", "train_00001_of_00002"
    found = rows_of(tmp_path / "same", **{one: text.format("07,4"), two: text.format("b7,4.50")})
    assert found == [{"pair_id": "07", "score": "4"}, {"pair_id": "b7", "score": "4.50"}]
    with pytest.raises(DataError, match=r"00001-of-00002\.csv: column 'who' is not in all files"):
        rows_of(tmp_path / "other", **{one: text.format("a,4"), two: "pair_id,score,who\nb,4,x\n"})


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_files_with_other_class_labels_are_refused(tmp_path, nested):
    """The library, and so this importer, would give the labels of the second file the names of the first."""
    for number, names in enumerate((["1", "2", "3"], ["3", "2", "1"])):
        label = datasets.ClassLabel(names=names)
        feature = datasets.List({"score": label}) if nested else label
        features = datasets.Features({"pair_id": datasets.Value("string"), "score": feature})
        values = {"pair_id": [f"p{number}"], "score": [[{"score": 0}] if nested else 0]}
        datasets.Dataset.from_dict(values, features).to_parquet(str(tmp_path / f"train-0000{number}-of-00002.parquet"))
    with pytest.raises(
        DataError, match=r"00001-of-00002\.parquet: column 'score' has other class labels than in train-0"
    ):
        hugging_face._read_split(tmp_path, tmp_path, None, None)


def test_parquet_files_with_other_columns_are_refused_and_other_types_are_not(tmp_path):
    folder = tmp_path / "data"  # a name without "test", which the library would take for a split
    folder.mkdir()
    pd.DataFrame({"pair_id": ["a"], "score": [4]}).to_parquet(folder / "train-00000-of-00002.parquet")
    second = folder / "train-00001-of-00002.parquet"
    pd.DataFrame({"pair_id": ["b"], "score": [4.5]}).to_parquet(second)
    rows = hugging_face._read_split(folder, folder, None, None).rows
    assert rows == [{"pair_id": "a", "score": 4}, {"pair_id": "b", "score": 4.5}]
    pd.DataFrame({"pair_id": ["b"]}).to_parquet(second)
    with pytest.raises(DataError, match=r"00001-of-00002\.parquet: column 'score' is not in all files"):
        hugging_face._read_split(folder, folder, None, None)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("storage", ["save_to_disk", "to_parquet"])
def test_narrow_numbers_in_a_list_of_ratings(tmp_path, kind, storage):
    """Inside structures as in columns of their own; lists of plain numbers may be samples, and stay."""
    scores = np.array([1.1, 2.3, 4.7, 1 / 3], kind)
    rating = {"rater_id": datasets.Value("string"), "score": datasets.Value(kind)}
    number = datasets.List(datasets.Value(kind))
    features = datasets.Features({"pair_id": datasets.Value("string"), "ratings": datasets.List(rating), "x": number})
    given = [{"rater_id": f"r{n}", "score": score} for n, score in enumerate([*scores, None])]
    table = datasets.table.InMemoryTable.from_pydict(
        {"pair_id": ["p"], "ratings": [given], "x": [list(scores)]}, features.arrow_schema
    )
    folder = tmp_path / "data"
    folder.mkdir()
    getattr(datasets.Dataset(table), storage)(str(folder / ("" if storage == "save_to_disk" else "train.parquet")))
    (row,) = hugging_face._read_split(folder, folder, None, None).rows
    assert [rating["score"] for rating in row["ratings"]] == [1.1, 2.3, 4.7, float(scores[3]), None]
    assert row["x"] == scores.astype(float).tolist()
