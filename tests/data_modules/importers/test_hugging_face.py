"""Importing Hugging Face datasets from folders and from the cache of the Hub, without a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.audio.decode import audio_hash
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.importers import hugging_face
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.schema import PairDataset

from ..builders import by_id, parsed

pytestmark = pytest.mark.usefixtures("hub_cache")

MAPPING = [
    "--column", "pair_id=id", "--column", "response_audio=audio", "--column", "context_audio=prompt",
    "--column", "system_id=model", "--dimension", "empathy=1:5:1",
]  # fmt: skip
SCORES = {("x", "anna", 2.0), ("x", "ben", 3.0), ("y", "anna", 5.0), ("z", "ben", 1.0)}


def clip(path: Path, number: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number)), 16_000)
    return str(path)


def columns(folder: Path) -> dict[str, list[Any]]:
    return {
        "id": ["x", "y", "z"], "audio": [clip(folder / f"{name}.wav", number) for number, name in enumerate("xyz")],
        "prompt": [clip(folder / "prompt.wav", 9)] * 3, "model": [0, 1, 0], "empathy:anna": [2, 5, None],
        "empathy:ben": [3, None, 1],
    }  # fmt: skip


def table(folder: Path) -> Any:
    """Audio undecoded: the library would otherwise want torchcodec."""
    features = datasets.Features(
        {
            "id": datasets.Value("string"), "audio": datasets.Audio(decode=False),
            "prompt": datasets.Audio(decode=False), "model": datasets.ClassLabel(names=["flat", "warm"]),
            "empathy:anna": datasets.Value("int64"), "empathy:ben": datasets.Value("int64"),
        }
    )  # fmt: skip
    values = columns(folder)
    for name in ("audio", "prompt"):
        values[name] = [{"bytes": Path(path).read_bytes(), "path": None} for path in values[name]]
    made = datasets.Dataset(datasets.table.InMemoryTable.from_pydict(values, features.arrow_schema))
    made = made.cast_column("audio", datasets.Audio())  # as people store it: to be decoded
    return made.cast_column("prompt", datasets.Audio())


def load(path: Path, out: Path, *words: str, mapping: list[str] | None = None, **storing: Any) -> PairDataset:
    options = parsed(hugging_face, [*(MAPPING if mapping is None else mapping), *words])
    return assemble(hugging_face.read(path, options), out, **storing)


def check(dataset: PairDataset, folder: Path) -> None:
    assert [pair.pair_id for pair in dataset.pairs] == ["x", "y", "z"]
    assert [pair.system_id for pair in dataset.pairs] == ["flat", "warm", "flat"]
    assert len({pair.group_id for pair in dataset.pairs}) == 1
    for pair in dataset.pairs:
        assert audio_hash(pair.response) == audio_hash(folder / f"{pair.pair_id}.wav")
        assert audio_hash(pair.context[0].audio) == audio_hash(folder / "prompt.wav")
    found = {(p, r, s) for p, r, _, s in dataset.ratings.itertuples(index=False, name=None)}
    assert found == SCORES


@pytest.fixture
def clips(tmp_path) -> Path:
    return tmp_path / "clips"


def test_save_to_disk_with_splits(tmp_path, clips):
    made = table(clips)
    datasets.DatasetDict({"train": made.select([0]), "test": made}).save_to_disk(str(tmp_path / "saved"))
    check(load(tmp_path / "saved", tmp_path / "out", "--split", "test"), clips)
    for word, shown in [(["--split", "dev"], "'dev'"), ([], "None")]:
        with pytest.raises(UserError, match=rf"saved: --split {shown}; expected train, test"):
            load(tmp_path / "saved", tmp_path / "other", *word)


def test_folder_of_parquet_files(tmp_path, clips):
    made = table(clips)
    (tmp_path / "data").mkdir()
    for number in range(3):
        made.select([number]).to_parquet(str(tmp_path / f"data/train-0000{number}-of-00003.parquet"))
    dataset = load(tmp_path / "data", tmp_path / "out")
    check(dataset, clips)
    embedded = load(tmp_path / "data", tmp_path / "embedded", embed_audio=True)
    assert embedded.card.content_hash == dataset.card.content_hash


def audio_folder(folder: Path) -> Path:
    """Clips with ``metadata.csv``, the usual layout."""
    values = columns(folder / "train")
    header = "file_name,prompt_file_name,id,model,empathy:anna,empathy:ben"
    rows = [
        f"{name}.wav,prompt.wav,{name},{['flat', 'warm'][values['model'][n]]},"
        f"{values['empathy:anna'][n] or ''},{values['empathy:ben'][n] or ''}"
        for n, name in enumerate("xyz")
    ]
    (folder / "train/metadata.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def test_audio_folder(tmp_path):
    folder = audio_folder(tmp_path / "folder")
    check(load(folder, tmp_path / "out"), folder / "train")


def test_paths_in_json(tmp_path):
    """A path is relative to the folder; without an id the rows are numbered."""
    folder = tmp_path / "folder"
    clip(folder / "clips/a.wav", 1)
    (folder / "data.jsonl").write_text(
        '{"audio": "clips/a.wav", "empathy:anna": 3}\n{"audio": "../secret.wav", "empathy:anna": 1}\n'
        f'{{"audio": "{clip(tmp_path / "secret.wav", 2)}", "empathy:anna": 1}}\n'
    )
    words = ["--column", "response_audio=audio", "--dimension", "empathy=1:5"]
    with pytest.raises(DataError, match=r"folder, row 2, column 'audio': value '\.\./secret\.wav' leaves .*1 more"):
        load(folder, tmp_path / "out", mapping=words)
    dataset = load(folder, tmp_path / "out", mapping=words, max_skipped=0.7)
    assert [pair.pair_id for pair in dataset.pairs] == ["0"]
    assert list(dataset.ratings.itertuples(index=False, name=None)) == [("0", "anna", "empathy", 3.0)]


def test_ratings_in_a_table_beside(tmp_path, clips):
    made = table(clips).remove_columns(["empathy:anna", "empathy:ben"])
    made.save_to_disk(str(tmp_path / "saved"))
    lines = [f"{pair},{rater},{score:g}" for pair, rater, score in sorted(SCORES)]
    (tmp_path / "ratings.csv").write_text("\n".join(["pair_id,rater_id,score", *lines]))
    check(load(tmp_path / "saved", tmp_path / "out", "--ratings", str(tmp_path / "ratings.csv")), clips)


def test_id_in_the_cache(tmp_path):
    """Files of a snapshot are links to blobs beside it."""
    repo = tmp_path / "hub/datasets--org--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    source = audio_folder(tmp_path / "source")
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("0" * 40)
    (repo / "blobs").mkdir()
    for number, file in enumerate(sorted((source / "train").iterdir())):
        blob = repo / "blobs" / f"{number:040d}"
        blob.write_bytes(file.read_bytes())
        link = snapshot / "train" / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    check(load(Path("org/name"), tmp_path / "out"), source / "train")


def with_ratings(folder: Path) -> Path:
    values = {"audio": [clip(folder / "x.wav", 1)], "other": [clip(folder / "y.wav", 2)]}
    datasets.Dataset.from_dict({**values, "ratings": [[{"rater_id": "a", "score": 3.0}]]}).save_to_disk(str(folder))
    return folder


def test_ratings_beside_preferences_are_left_out(tmp_path):
    words = ["--column", "chosen=audio", "--column", "rejected=other"]
    dataset = load(with_ratings(tmp_path / "saved"), tmp_path / "out", mapping=words)
    assert dataset.preferences is not None
    assert (len(dataset.preferences), len(dataset.ratings)) == (1, 0)
    assert "Columns not imported: ratings." in dataset.card.description


class TestRefused:
    @pytest.mark.parametrize("name", ["org/missing", "missing", "/nowhere/at/all", "a/b/c", "../up", "hf://x/y"])
    def test_no_folder_and_no_id(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        message = (
            "neither a folder nor to be had from the Hub" if "missing" in name else "no such folder, and not an id"
        )
        with pytest.raises(UserError, match=rf"{message}"):
            load(Path(name), tmp_path / "out")

    def test_empty_and_foreign_folders(self, tmp_path):
        folder = tmp_path / "folder"
        folder.mkdir()
        for name in ("", "thesis.tex", "train.parquet"):
            if name:
                (folder / name).write_text("years of work")
            with pytest.raises(DataError, match=r"folder: .*cannot be read"):
                load(folder, tmp_path / "out")

    def test_cut_files(self, tmp_path, clips):
        table(clips).save_to_disk(str(tmp_path / "saved"))
        (tmp_path / "data").mkdir()
        table(clips).to_parquet(str(tmp_path / "data/train.parquet"))
        for file in [*(tmp_path / "saved").glob("*.arrow"), tmp_path / "data/train.parquet"]:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            with pytest.raises(DataError, match=rf"{file.parent.name}: .*cannot be read"):
                load(file.parent, tmp_path / "out")

    def test_columns(self, tmp_path, clips):
        table(clips).save_to_disk(str(tmp_path / "saved"))
        with pytest.raises(DataError, match=r"saved: no column 'speech' \(mapped to response_audio\); it has 'id'"):
            load(tmp_path / "saved", tmp_path / "out", mapping=[word.replace("=audio", "=speech") for word in MAPPING])
        rated, words = with_ratings(tmp_path / "rated"), ["--column", "pair_id=speech", *MAPPING[2:4], *MAPPING[-2:]]
        with pytest.raises(DataError, match=r"no column 'speech' \(mapped to pair_id\)"):
            load(rated, tmp_path / "out", mapping=words)
        with pytest.raises(UserError, match="--revision or --files with the folder"):
            load(tmp_path / "saved", tmp_path / "out", "--files", "*.parquet")

    def test_text_in_place_of_audio(self, tmp_path, clips):
        made = table(clips).to_dict()
        made["audio"][1]["bytes"] = b"not audio at all"
        features = table(clips).features
        changed = datasets.table.InMemoryTable.from_pydict(made, features.arrow_schema)
        datasets.Dataset(changed).save_to_disk(str(tmp_path / "saved"))
        with pytest.raises(DataError, match=r"saved, row 2, column 'audio': .*not a sound file"):
            load(tmp_path / "saved", tmp_path / "out")
        assert list(by_id(load(tmp_path / "saved", tmp_path / "out", max_skipped=0.4))) == ["x", "z"]


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
