"""A table with a row for each rating, in which a pair stands as often as it was rated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from datasets.table import InMemoryTable
from empathy_judge import PairDataset, dataset_from_frames
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.importers import hugging_face, table
from empathy_judge.data_modules.importers.assemble import assemble

from ..builders import parsed

SCORES = [("p", "anna", 1), ("q", "anna", 4), ("p", "ben", 2), ("q", "ben", 5), ("p", "cem", 3)]
CONSTANT = ("response_audio", "context_audio", "group_id", "system_id", "response_speaker", "situation", "tag:cue")
SCALE = ["--dimension", "w=1:5:1"]


@pytest.fixture
def rows(tmp_path) -> list[dict[str, Any]]:
    for number, name in enumerate(["p", "q", "c"]):
        soundfile.write(tmp_path / f"{name}.wav", 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number)), 16_000)
    return [
        {
            "pair_id": pair, "response_audio": f"{pair}.wav", "context_audio": "c.wav", "group_id": f"g-{pair}",
            "system_id": f"s-{pair}", "response_speaker": f"v-{pair}", "situation": "Late.", "tag:cue": f"t-{pair}",
            "rater_id": rater, "score": score,
        }
        for pair, rater, score in SCORES
    ]  # fmt: skip


def load(folder: Path, rows: list[dict[str, Any]], *words: str, suffix: str = "csv") -> PairDataset:
    frame, path = pd.DataFrame(rows), folder / f"t.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    made = table.read(path, parsed(table, [*SCALE, *words]))
    return assemble(made, folder / "data", overwrite=True)


def two_tables(folder: Path, rows: list[dict[str, Any]]) -> PairDataset:
    """The same data in two tables, as pandas makes them."""
    frame = pd.DataFrame(rows)
    pairs, ratings = (
        frame.drop(columns=["rater_id", "score"]).drop_duplicates(),
        frame[["pair_id", "rater_id", "score"]],
    )
    pairs.to_csv(folder / "pairs.csv", index=False)
    ratings.to_csv(folder / "ratings.csv", index=False)
    words = [*SCALE, "--ratings", str(folder / "ratings.csv")]
    return assemble(table.read(folder / "pairs.csv", parsed(table, words)), folder / "two")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_it_is_the_same_as_two_tables(tmp_path, rows, suffix):
    dataset = load(tmp_path, rows, suffix=suffix)
    assert dataset.card.content_hash == two_tables(tmp_path, rows).card.content_hash
    assert [pair.pair_id for pair in dataset.pairs] == ["p", "q"]
    found = dataset.ratings[["pair_id", "rater_id", "score"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(SCORES)
    assert dataset.card.description == ""


def test_without_ids_rows_with_the_same_clips_and_situation_are_one_pair(tmp_path, rows):
    plain = [{name: value for name, value in row.items() if name not in ("pair_id", "group_id")} for row in rows]
    dataset = load(tmp_path, plain)
    assert [pair.pair_id for pair in dataset.pairs] == ["0", "1"]
    names = [{"0": "p", "1": "q"}[pair_id] for pair_id in dataset.ratings["pair_id"]]
    assert sorted(zip(names, dataset.ratings["rater_id"], dataset.ratings["score"], strict=True)) == sorted(SCORES)
    assert len({pair.group_id for pair in dataset.pairs}) == 1  # the same context
    plain[2]["situation"] = "Early."
    assert [pair.pair_id for pair in load(tmp_path, plain).pairs] == ["0", "1", "2"]
    bare = [{"response_audio": row["response_audio"], "who": row["rater_id"], "score": row["score"]} for row in rows]
    dataset = load(tmp_path, bare, "--rating-column", "rater_id=who")
    assert (len(dataset.pairs), len(dataset.ratings)) == (2, 5)


def test_a_column_for_each_dimension(tmp_path, rows):
    wide = [{**row, "w": row["score"], "v": 3} for row in rows]
    for row in wide:
        del row["score"]
    dataset = load(tmp_path, wide, "--dimension", "v=1:5:1")
    assert (len(dataset.pairs), len(dataset.ratings)) == (2, 10)
    assert dataset.mean_scores()["w"].tolist() == [2, 4.5]


@pytest.mark.parametrize("column", CONSTANT)
@pytest.mark.parametrize("value", ["q.wav", None])
def test_rows_that_disagree_about_their_pair_are_both_named(tmp_path, rows, column, value):
    rows[2][column] = value
    expected = (
        rf"t\.csv, row 3 \(line 4\), column '{column}': value {value!r}; expected what stands at .*t\.csv, row 1 "
        rf"\(line 2\), column '{column}', since both are pair 'p'"
    )
    with pytest.raises(DataError, match=expected):
        load(tmp_path, rows)
    assert not (tmp_path / "data").exists()


def test_the_same_rater_twice(tmp_path, rows):
    rows[4]["rater_id"] = "ben"
    with pytest.raises(UserError) as beside:
        load(tmp_path, rows)
    with pytest.raises(UserError) as apart:
        two_tables(tmp_path, rows)
    message = re.sub(r"\S*/(t|ratings)\.csv", "FILE", str(beside.value))
    assert message == re.sub(r"\S*/(t|ratings)\.csv", "FILE", str(apart.value))
    assert message.startswith("FILE, row 5 (line 6), column 'pair_id': value 'p'; expected each pair_id, rater_id")


def test_without_raters_an_id_stands_once(tmp_path, rows):
    for row in rows:
        row["w:anna"] = row.pop("score")
        del row["rater_id"]
    with pytest.raises(DataError, match=r"row 3 \(line 4\), column 'pair_id': value 'p'; expected each id once"):
        load(tmp_path, rows)


def test_an_unusable_clip_is_told_once(tmp_path, rows):
    (tmp_path / "q.wav").write_bytes(b"no sound")
    with pytest.raises(DataError, match=r"row 2 \(line 3\), column 'response_audio': .*not a sound file"):
        load(tmp_path, rows)
    rows = [{**row, "response_audio": "gone.wav"} if row["pair_id"] == "q" else row for row in rows]
    with pytest.raises(DataError, match=r"row 2 \(line 3\), column 'response_audio': .*no such file"):
        load(tmp_path, rows)


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("as_parquet", [True, False])
def test_hugging_face_with_the_bytes_in_each_row(tmp_path, hub_cache, rows, with_ids, as_parquet):
    def audio(name: str) -> dict[str, Any]:
        return {"bytes": (tmp_path / name).read_bytes(), "path": None}

    text, clip = datasets.Value("string"), datasets.Audio()
    features = datasets.Features(
        {
            "id": text,
            "response_audio": clip,
            "context_audio": clip,
            "rater_id": text,
            "score": datasets.Value("float32"),
        }
    )
    columns = {
        "id": [row["pair_id"] for row in rows], "response_audio": [audio(row["response_audio"]) for row in rows],
        "context_audio": [audio("c.wav")] * len(rows), "rater_id": [row["rater_id"] for row in rows],
        "score": [float(row["score"]) for row in rows],
    }  # fmt: skip
    made = datasets.Dataset(InMemoryTable.from_pydict(columns, features.arrow_schema))
    folder = tmp_path / "made"
    folder.mkdir()
    made.to_parquet(str(folder / "train.parquet")) if as_parquet else made.save_to_disk(str(folder))
    words = [*SCALE, *(["--column", "pair_id=id"] if with_ids else [])]
    dataset = assemble(hugging_face.read(folder, parsed(hugging_face, words)), tmp_path / "data")
    assert [pair.pair_id for pair in dataset.pairs] == (["p", "q"] if with_ids else ["0", "1"])
    assert dataset.mean_scores()["w"].tolist() == [2, 4.5]
    columns["response_audio"][2] = audio("q.wav")
    wrong = datasets.Dataset(InMemoryTable.from_pydict(columns, features.arrow_schema))
    wrong.save_to_disk(str(tmp_path / "wrong"))
    if with_ids:
        with pytest.raises(
            DataError, match=r"wrong, row 3, column 'response_audio': .*wrong, row 1, column 'response_"
        ):
            hugging_face.read(tmp_path / "wrong", parsed(hugging_face, words))


def test_one_frame_of_both(tmp_path, rows):
    frame = pd.DataFrame(rows)
    for column in ("response_audio", "context_audio"):
        frame[column] = [(tmp_path / name).read_bytes() for name in frame[column]]
    dataset = dataset_from_frames(frame, frame, dimensions=["w=1:5:1"], folder=tmp_path / "data")
    assert [pair.pair_id for pair in dataset.pairs] == ["p", "q"]
    assert dataset.mean_scores()["w"].tolist() == [2, 4.5]
    frame.loc[4, "response_speaker"] = "v-q"
    with pytest.raises(
        DataError, match=r"^pairs, row 5, column 'response_speaker': value 'v-q'; .*pairs, row 1, column"
    ):
        dataset_from_frames(frame, frame, dimensions=["w=1:5:1"])
