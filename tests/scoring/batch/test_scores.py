"""Tables in memory: one row in, one row out."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Audio, Dataset
from empathy_judge import score_table
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.batch.scores import print_scores


@pytest.fixture
def clips(clips) -> list[str]:
    return [str(clips / f"r{number}.wav") for number in range(3)]


def test_a_data_frame_keeps_its_index_and_names_what_cannot_be_scored(scorer, clips, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    table = pd.DataFrame(
        {
            "response_audio": [
                clips[0], Path(clips[1]).read_bytes(), str(tmp_path / "bad.wav"), (np.ones(8_000, np.int16), 16_000),
            ],
            "context_audio": [clips[2], None, np.nan, clips[2]],
            "situation": [None, "Late.", np.nan, None],
            "mine": [1, 2, 3, 4],
        },
        index=["a", "b", "c", "d"],
    )  # fmt: skip
    found = score_table(scorer, table)
    assert list(found.index) == ["a", "b", "c", "d"]
    assert list(found["pair_id"]) == ["1", "2", "3", "4"]
    assert list(found["status"][:2]) == ["ok", "ok"]
    assert "bad.wav: not a sound file" in found["status"]["c"]
    assert "expected one-dimensional float samples" in found["status"]["d"]
    assert found.loc[["c", "d"], ["empathy", "warmth"]].isna().all(None)
    expected = [scorer.score(clips[2], clips[0]), scorer.score(None, clips[1], situation="Late.")]
    for row, scores in zip(("a", "b"), expected, strict=True):
        assert found.loc[row, list(scores)].tolist() == pytest.approx(list(scores.values()), abs=1e-5)
    assert found["empathy_label"]["a"] in ("very poor", "poor", "fair", "good", "excellent")


@pytest.mark.parametrize("kind", ["float64", "Int64"])
def test_ids_are_those_that_a_manifest_of_the_same_table_has(kind, scorer, clips, tmp_path):
    table = pd.DataFrame({"pair_id": pd.array([7, None, 0], kind), "response_audio": clips})
    table.to_parquet(tmp_path / "table.parquet")
    written = io.StringIO()
    print_scores(scorer, tmp_path / "table.parquet", written, None, Path(clips[0]).parent, False)
    ids = [row["pair_id"] for row in csv.DictReader(io.StringIO(written.getvalue()))]
    assert list(score_table(scorer, table)["pair_id"]) == ids == ["7", "2", "0"]


def test_a_data_set_of_hugging_face_is_scored_without_decoding_it_there(scorer, clips):
    rows = Dataset.from_dict({"pair_id": ["x", "y"], "response_audio": clips[:2], "context_audio": [clips[2]] * 2})
    expected = [scorer.score(clips[2], clip)["warmth"] for clip in clips[:2]]
    with_audio = rows.cast_column("response_audio", Audio()).cast_column("context_audio", Audio(sampling_rate=8_000))
    for table in (rows, with_audio, with_audio.to_iterable_dataset()):
        found = score_table(scorer, table)
        assert list(found["pair_id"]) == ["x", "y"]
        assert found["warmth"].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_table_without_responses_is_refused(scorer, clips):
    for table in (pd.DataFrame({"audio": clips}), pd.DataFrame({"response_audio": [None]})):
        with pytest.raises(UserError, match="row 1: no response_audio; expected columns pair_id, context_audio"):
            score_table(scorer, table)
    with pytest.raises(UserError, match="row 2: clip of type int"):
        score_table(scorer, pd.DataFrame({"response_audio": [clips[0], 5]}))
    with pytest.raises(UserError, match="table of type list; expected a DataFrame of pandas, or a Dataset"):
        score_table(scorer, [{"response_audio": clips[0]}])


def test_printed_scores_say_context_and_system(scorer, clips, tmp_path):
    table = pd.DataFrame({"response_audio": clips[:2], "system_id": ["a", None], "group_id": [3, 3]})
    table.to_parquet(tmp_path / "table.parquet")
    written = io.StringIO()
    print_scores(scorer, tmp_path / "table.parquet", written, None, Path(clips[0]).parent, False)
    found = list(csv.DictReader(io.StringIO(written.getvalue())))
    assert [(row["pair_id"], row["group_id"], row["system_id"]) for row in found] == [("1", "3", "a"), ("2", "3", "")]
