"""The dataset folder: what is written loads, what was tampered with does not; hashes follow the content."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from empathy_judge.audio.stored_clips import StoredClip
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.audit import read_column, tag_columns
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, PairDataset
from empathy_judge.data_modules.writing import write_dataset, write_splits

CARD = DatasetCard("tones", (Dimension("empathy", 1, 5, 1), Dimension("noise", 0, 1, None, False)), "test", "none")


@pytest.fixture
def tables(source) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Three pairs with two turns, one turn and none; ratings of the first two."""
    clip = (source.folder / "clips/000-0.wav").read_bytes()
    pairs = pd.DataFrame(
        {
            "pair_id": ["a", "b", "c"],
            "group_id": ["g", "g", "h"],
            "response_audio": ["clips/000-0.wav", "clips/000-1.wav", clip],
            "context_audio": [
                [{"role": "user", "audio": "clips/context0.wav"}, {"role": "assistant", "audio": clip}],
                "clips/context1.wav",
                None,
            ],
            "situation": ["lost\nkeys", None, np.nan],
            "split": ["train", "train", "test"],
        }
    )
    ratings = pd.DataFrame(
        {
            "pair_id": ["a", "a", "b", "b"],
            "rater_id": ["1", "2", "1", "1"],
            "dimension": ["empathy", "empathy", "empathy", "noise"],
            "score": [1, 4, 5, 0.25],
        }
    )
    return pairs, ratings


@pytest.fixture
def written(source, tables) -> Path:
    write_dataset(source.folder, CARD, *tables)
    return source.folder


def edit(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def set_column(name: str, values: list[Any], kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, pa.array(values, kind or table.schema.field(name).type))

    return change


def tags_of_first(*tags: tuple[str | None, str]) -> Callable[[pa.Table], pa.Table]:
    return set_column("tags", [[{"name": name, "value": value} for name, value in tags], None, None])


def test_round_trip(written):
    dataset = PairDataset.load(written)
    first, second, third = dataset.pairs
    kinds = [(turn.role, type(turn.audio)) for turn in first.context]
    assert kinds == [("user", type(written)), ("assistant", StoredClip)]
    assert first.response == (written / "clips/000-0.wav").resolve()
    assert (first.situation, second.situation, third.situation) == ("lost\nkeys", None, None)
    assert [len(pair.context) for pair in dataset.pairs] == [2, 1, 0]
    assert isinstance(third.response, StoredClip)
    assert third.response.read() == (written / "clips/000-0.wav").read_bytes()
    assert {third.response: 1}[first.context[1].audio] == 1  # the same content, though it lies elsewhere
    sha = {
        name: hashlib.sha256((written / f"clips/{name}.wav").read_bytes()).hexdigest()
        for name in ("000-0", "000-1", "context0", "context1")
    }
    assert dataset.fingerprints == {
        "a": (sha["context0"], sha["000-0"], sha["000-0"]),
        "b": (sha["context1"], sha["000-1"]),
        "c": (sha["000-0"],),
    }
    assert dataclasses.replace(dataset.card, content_hash="") == CARD


def test_each_file_is_looked_up_once(written, monkeypatch):
    """Where that is a question to a network, and every process asks it."""
    asked: Counter[str] = Counter()
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: [asked.update([str(path)]), stat(path, **how)][1])
    pairs = PairDataset.load(written).pairs
    every = [clip for pair in pairs for clip in (pair.response, *(turn.audio for turn in pair.context))]
    clips = {str(clip) for clip in every if isinstance(clip, Path)}
    assert len(clips) > 2
    assert {asked[clip] for clip in clips} == {1}
    assert asked.total() < len(clips) + 10


def test_mean_scores(written):
    means = PairDataset.load(written).mean_scores()
    assert means.index.tolist() == ["a", "b", "c"]
    assert means.columns.tolist() == ["empathy", "noise"]
    np.testing.assert_array_equal(means.to_numpy(), [[2.5, np.nan], [5, 0.25], [np.nan, np.nan]])


def test_subset(written):
    dataset = PairDataset.load(written)
    assert dataset.subset(None) is dataset
    train, test = dataset.subset("train"), dataset.subset("test")
    assert [pair.pair_id for pair in train.pairs] == ["a", "b"]
    assert (len(train.ratings), len(test.ratings)) == (4, 0)
    assert test.mean_scores().to_numpy().tolist() == [[pytest.approx(np.nan, nan_ok=True)] * 2]
    assert list(test.fingerprints) == ["c"]
    with pytest.raises(DataError, match="no pair is in split 'dev'; it has test, train"):
        dataset.subset("dev")
    write_splits(written, [None, None, None])
    with pytest.raises(DataError, match="it has no splits yet, make them with `empathy-judge split`"):
        PairDataset.load(written).subset("train")


def test_split_hash(written):
    expected = hashlib.sha256(b"a\ttrain\nb\ttrain\nc\ttest").hexdigest()
    assert PairDataset.load(written).split_hash() == expected
    write_splits(written, ["train", None, "test"])
    assert PairDataset.load(written).split_hash() == hashlib.sha256(b"a\ttrain\nb\t\nc\ttest").hexdigest()


def test_content_hash(source, tables):
    pairs, ratings = tables

    def content(pairs: pd.DataFrame = pairs, ratings: pd.DataFrame = ratings, card: DatasetCard = CARD) -> str:
        return write_dataset(source.folder, card, pairs, ratings).content_hash

    start = content()
    assert content(pairs=pairs.iloc[::-1], ratings=ratings.iloc[::-1]) == start
    assert content(pairs=pairs.drop(columns="split")) == start
    assert content(card=dataclasses.replace(CARD, name="other")) == start
    copy = pairs.assign(response_audio=["clips/copy.wav", *pairs["response_audio"][1:]])
    (source.folder / "clips/copy.wav").write_bytes((source.folder / "clips/000-0.wav").read_bytes())
    assert content(pairs=copy) == start
    others = [
        content(ratings=ratings.assign(score=[1, 4, 5, 0.5])),
        content(ratings=ratings.iloc[:3]),
        content(pairs=pairs.assign(situation=["lost\nkey", None, None])),
        content(pairs=pairs.assign(group_id=["g", "h", "h"])),
        content(pairs=pairs.assign(response_audio=["clips/000-1.wav", *pairs["response_audio"][1:]])),
        content(card=dataclasses.replace(CARD, dimensions=(Dimension("empathy", 1, 7, 1), CARD.dimensions[1]))),
    ]
    assert len({start, *others}) == 7


TIMES = pd.Series([2.5, None, 0, 10], dtype="float64")


class TestTimes:
    # Of the tables of this test without times.
    UNTIMED = "36a5fa86cc50e363b4d196e4a4e86f66af49eb3d24328e4b4aeae4c7000fa032"

    def content(self, folder: Path, seconds: Any = None) -> str:
        """Hash of two pairs with fixed audio, three ratings and a preference."""
        pairs = pd.DataFrame({"pair_id": ["b", "a"], "group_id": ["g", "g"], "response_audio": [b"RIFF", b"OggS"]})
        columns = ["pair_id", "rater_id", "dimension", "score"]
        rows = [("b", "1", "empathy", 4), ("a", "é2", "noise", 1 / 3), ("a", "1", "empathy", 5.0)]
        ratings = pd.DataFrame(rows, columns=columns)
        if seconds is not None:
            ratings["seconds"] = seconds
        preferences = pd.DataFrame(
            [("a", "b", "1", "noise", 0.5)], columns=["chosen_id", "rejected_id", *columns[1:3], "strength"]
        )
        return write_dataset(folder, CARD, pairs, ratings, preferences).content_hash

    def test_where_no_time_is_known_there_is_no_column(self, tmp_path):
        assert self.content(tmp_path) == self.UNTIMED
        assert self.content(tmp_path, [None, None, None]) == self.UNTIMED  # no time is known: nothing to store
        assert pq.read_schema(tmp_path / "ratings.parquet").names == ["pair_id", "rater_id", "dimension", "score"]
        assert list(PairDataset.load(tmp_path).ratings) == ["pair_id", "rater_id", "dimension", "score"]

    def test_the_hash_covers_them(self, tmp_path):
        times = [[1, 2, None], [2, 1, None], [1, 2, 0], [1, None, 2], [None, None, 1e-9]]
        assert len({self.UNTIMED, *(self.content(tmp_path, seconds) for seconds in times)}) == 6

    def test_round_trip(self, source, tables):
        pairs, ratings = tables
        write_dataset(source.folder, CARD, pairs, ratings.assign(seconds=TIMES))
        dataset = PairDataset.load(source.folder)
        pd.testing.assert_series_equal(dataset.ratings["seconds"], TIMES, check_names=False)
        pd.testing.assert_series_equal(dataset.subset("train").ratings["seconds"], TIMES, check_names=False)
        assert pq.read_table(source.folder / "ratings.parquet")["seconds"].null_count == 1
        assert dataset.mean_scores()["empathy"].tolist()[:2] == [2.5, 5]
        edit(source.folder / "ratings.parquet", set_column("seconds", [2.5, None, 0, 11]))
        with pytest.raises(DataError, match="a file was changed after the import"):
            PairDataset.load(source.folder)

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [
            ([1, -0.5, 1, 1], "row 2, column 'seconds': value -0.5"),
            ([1, 1, np.inf, np.inf], "row 3, column 'seconds': value inf"),
            ([1, 1, 1, "2"], "row 4, column 'seconds': value '2'"),
            ([True, 1, None, 1], "row 1, column 'seconds': value True"),
        ],
    )
    def test_bad_times(self, source, tables, seconds, shown):
        pairs, ratings = tables
        expected = "expected a finite number of seconds, at least 0, or none where the time is unknown"
        with pytest.raises(DataError, match=rf"ratings\.parquet, {re.escape(shown)}; {expected}"):
            write_dataset(source.folder, CARD, pairs, ratings.assign(seconds=pd.Series(seconds, dtype=object)))


class TestTags:
    def test_round_trip(self, source, tables):
        pairs, ratings = tables
        tags = [{"sex": "f", "cue": "sad"}, None, {"cue": "glad"}]
        write_dataset(source.folder, CARD, pairs.assign(tags=tags), ratings)
        dataset = PairDataset.load(source.folder)
        expected = [(("cue", "sad"), ("sex", "f")), (), (("cue", "glad"),)]
        assert [pair.tags for pair in dataset.pairs] == expected
        assert [pair.tag("cue") for pair in dataset.pairs] == ["sad", None, "glad"]
        assert [read_column(pair, "tag:sex") for pair in dataset.pairs] == ["f", None, None]
        assert tag_columns(dataset.pairs) == ["tag:cue", "tag:sex"]
        write_splits(source.folder, ["train", "test", "test"])
        again = PairDataset.load(source.folder).pairs
        assert [(pair.tags, pair.split) for pair in again] == list(
            zip(expected, ["train", "test", "test"], strict=True)
        )

    def test_tags_without_values_are_none_and_all_others_are_hashed(self, source, tables):
        pairs, ratings = tables

        def content(tags: list[Any]) -> str:
            return write_dataset(source.folder, CARD, pairs.assign(tags=tags), ratings).content_hash

        plain = write_dataset(source.folder, CARD, pairs, ratings).content_hash
        assert content([{}, None, {"cue": None}]) == plain
        changed = {content([tags, {}, {}]) for tags in ({"cue": "sad"}, {"cue": "glad"}, {"sex": "sad"})}
        assert len({plain, *changed}) == 4


def test_preferences(source, tables):
    row = {"chosen_id": "a", "rejected_id": "b", "rater_id": "1", "dimension": "empathy", "strength": 2}
    tie = {**row, "rejected_id": "c", "strength": 0}
    plain = write_dataset(source.folder, CARD, *tables).content_hash
    card = write_dataset(source.folder, CARD, *tables, pd.DataFrame([row, tie]))
    assert card.content_hash != plain
    dataset = PairDataset.load(source.folder)
    assert dataset.preferences["strength"].tolist() == [2.0, 0.0]
    train = dataset.subset("train").preferences
    assert train["rejected_id"].tolist() == ["b"]
    for change, message in [
        ({"chosen_id": "x"}, "column 'chosen_id': value 'x'; no such pair"),
        ({"rejected_id": "a"}, "column 'rejected_id': value 'a'; expected another pair"),
        ({"strength": -1}, "column 'strength': value -1; expected 0"),
        ({"strength": None}, "column 'strength': value None; expected a finite number"),
        ({"dimension": "x"}, "column 'dimension': value 'x'; expected empathy, noise"),
    ]:
        with pytest.raises(DataError, match=rf"preferences\.parquet, row 2, {message}"):
            write_dataset(source.folder, CARD, *tables, pd.DataFrame([tie, {**row, **change}], dtype=object))
    write_dataset(source.folder, CARD, *tables)
    assert PairDataset.load(source.folder).preferences is None


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("pair_id", ["a", "b", "a"], r"row 3, column 'pair_id': value 'a'; .* row 1"),
        ("pair_id", ["a", "b", 3], r"row 3, column 'pair_id': value 3; expected text"),
        ("group_id", ["g", "", "h"], r"row 2, column 'group_id': value ''; expected text"),
        ("split", ["train", "te\tst", None], r"row 2, column 'split': value 'te\\tst'"),
        ("situation", ["x", 5, None], r"row 2, column 'situation': value 5"),
        ("response_audio", ["clips/000-0.wav", None, b"x"], r"row 2, column 'response_audio': value None"),
        ("response_audio", ["clips/000-0.wav", "../x.wav", b"x"], r"row 2, .*'\.\./x\.wav' leaves the folder"),
        ("context_audio", [None, [{"audio": b"x"}], None], r"row 2, column 'context_audio': .*expected .* per turn"),
        ("context_audio", [None, [{"role": "", "audio": b"x"}], None], "row 2, column 'context_audio': .*a role"),
        ("mood", ["x", "y", "z"], "unknown column 'mood'; expected pair_id, group_id, context_audio"),
    ],
)
def test_bad_pairs_are_not_written(source, tables, column, values, message):
    pairs, ratings = tables
    with pytest.raises(DataError, match=message):
        write_dataset(source.folder, CARD, pairs.assign(**{column: values}), ratings)
    assert [path.name for path in source.folder.iterdir()] == ["clips"]


def test_a_folder_that_is_no_dataset(tmp_path):
    with pytest.raises(DataError, match=r"not a pair dataset, it has no dataset\.yaml"):
        PairDataset.load(tmp_path)
    with pytest.raises(DataError, match="not a pair dataset"):
        PairDataset.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version 2; expected 1"),
        ({"colour": "red"}, "colour.*expected schema_version, name, dimensions, source"),
        ({"licence": 4}, "licence 4: Input should be a valid string"),
        ({"dimensions": []}, "at least one"),
        ({"dimensions": [{"name": "x", "minimum": 5, "maximum": 1}]}, "dimension x: scale 5 to 1"),
        ({"dimensions": [{"name": "x", "minimum": 10**400, "maximum": 1}]}, "expected"),
        ({"dimensions": [{"name": "empathy", "minimum": 1, "maximum": 4}]}, r"value 5; expected for empathy: 1 to 4"),
        ({"content_hash": "0" * 64}, "content_hash 000000000000... is not that of the tables"),
    ],
)
def test_bad_cards(source, tables, change, message):
    pairs, ratings = tables
    write_dataset(source.folder, CARD, pairs, ratings.iloc[:3])
    path = source.folder / "dataset.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        PairDataset.load(source.folder)


@pytest.mark.parametrize("text", ["- 1", "when: 2020-13-45", "a: *b", "", "!!python/object/apply:os.mkdir ['made']"])
def test_other_yaml_is_refused(written, text):
    (written / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=r"dataset\.yaml: (schema_version is missing; expected 1|not readable as YAML)"):
        PairDataset.load(written)


GONE = [{"path": "clips/000-0.wav"}, {"path": "gone.wav"}, {"path": "clips/000-0.wav"}]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("ratings", set_column("score", [1, 4, 9, 0.25]),
         r"ratings\.parquet, row 3, column 'score': value 9; expected"),
        ("ratings", set_column("score", [1, 4, 2, 0.25]), "content_hash .* a file was changed after the import"),
        ("ratings", set_column("score", [1.00001, 4, 5, 0.25]), "a file was changed after the import"),
        ("ratings", set_column("score", [1, 4, 2, None]), r"row 4, column 'score': value nan"),
        ("ratings", set_column("pair_id", ["a", "a", "b", "z"]), r"row 4, column 'pair_id': value 'z'; no such pair"),
        ("ratings", set_column("pair_id", [1, 1, 2, 2], pa.int64()),
         "column 'pair_id' has type int64; expected string"),
        ("ratings", lambda table: table.drop_columns("rater_id"), "column 'rater_id' is missing; expected string"),
        ("ratings", lambda table: table.append_column("x", pa.array([1] * 4)), "unknown column 'x'; expected pair_id"),
        ("ratings", lambda table: table.append_column("seconds", pa.array([1] * 4)),
         "column 'seconds' has type int64; expected double"),
        ("ratings", lambda table: table.append_column("seconds", pa.array([1.0, None, None, float("-inf")])),
         r"row 4, column 'seconds': value -inf"),
        ("ratings", lambda table: table.append_column("seconds", pa.array([1.0] * 4)),
         "content_hash .* a file was changed after the import"),
        ("ratings", lambda table: table.slice(0, 0), "a file was changed after the import"),
        ("pairs", lambda table: table.slice(0, 0), "holds no pairs"),
        ("pairs", lambda table: table.slice(0, 2), "content_hash"),
        ("pairs", set_column("pair_id", ["a", "b", "b"]), r"pairs\.parquet, row 3, column 'pair_id': value 'b'"),
        ("pairs", set_column("pair_id", ["a", "b", None]), r"pairs\.parquet, row 3, column 'pair_id': value None"),
        ("pairs", set_column("context_audio", [[None], [], []]), "row 1, column 'context_audio': value None"),
        ("pairs", set_column("response_audio", [{"path": "/etc/passwd"}] * 3), "row 1, .*'/etc/passwd' leaves the"),
        ("pairs", set_column("response_audio", [{"path": "../../x"}] * 3), "row 1, .*'../../x' leaves the folder"),
        ("pairs", set_column("response_audio", [{"path": "link.wav"}] * 3), r"row 1, .*'link.wav' leaves .*\(cp -L\)$"),
        ("pairs", set_column("response_audio", [{"path": "gone.wav"}] * 3),
         r"pairs\.parquet, row 1, column 'response_audio': value 'gone.wav': no such file"),
        ("pairs", set_column("response_audio", [None] * 3), "row 1, column 'response_audio': value None"),
        ("pairs", lambda table: set_column("pair_id", ["a", "b", ""])(set_column("response_audio", GONE)(table)),
         "row 2, column 'response_audio': value 'gone.wav': no such file"),
        ("pairs", tags_of_first(("cue", "sad"), ("cue", "glad")), "value .*; expected each name once, sorted"),
        ("pairs", tags_of_first(("sex", "f"), ("cue", "sad")), "expected each name once, sorted"),
        *(("pairs", tags_of_first(tag), r"pairs\.parquet, row 1, column 'tags': value .*; expected text without line")
          for tag in (("cue", "two\nlines"), ("", "sad"), (None, "sad"))),
        ("pairs", set_column("response_audio", [{"path": "clips/000-0.wav", "bytes": b"x"}] * 3),
         r"pairs\.parquet, row 1, column 'response_audio': .*expected either a path or bytes"),
        ("pairs", set_column("response_audio", [{"path": "clips/000-0.wav"}, {"sha256": "0"}, {"bytes": b"x"}]),
         r"pairs\.parquet, row 2, column 'response_audio': .*expected either a path or bytes"),
    ],
)  # fmt: skip
def test_tampered_tables(written, file, change, message):
    os.symlink(Path(__file__).resolve(), written / "link.wav")
    edit(written / f"{file}.parquet", change)
    with pytest.raises(DataError, match=message):
        PairDataset.load(written)


def test_files_that_are_missing_or_broken(written):
    (written / "ratings.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"ratings\.parquet: not readable as Parquet"):
        PairDataset.load(written)
    (written / "pairs.parquet").unlink()
    with pytest.raises(DataError, match=r"pairs\.parquet: no such file"):
        PairDataset.load(written)


def test_float32_scores_keep_to_the_steps(source, tables):
    """3.3 as float32 is 3.2999999523; it is on a scale with steps of 0.1 all the same."""
    pairs, ratings = tables
    card = dataclasses.replace(CARD, dimensions=(Dimension("empathy", 1, 5, 0.1), CARD.dimensions[1]))
    scores = np.array([3.3, 1.1, 4.7, 0.25], np.float32)
    write_dataset(source.folder, card, pairs, ratings.assign(score=scores))
    with pytest.raises(DataError, match=r"row 2, column 'score': value 1\.149"):
        write_dataset(source.folder, card, pairs, ratings.assign(score=scores + np.array([0, 0.05, 0, 0], np.float32)))
