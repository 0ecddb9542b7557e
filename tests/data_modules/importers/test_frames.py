"""Pair datasets from pandas frames, and to a Hugging Face dataset and back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.audio.decode import load_clip
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.importers import hugging_face
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.importers.frames import dataset_from_frames, dataset_to_hugging_face
from empathy_judge.data_modules.ratings import Dimension

from ...decoders import Cell, Decoder
from ..builders import parsed

SCALE = ["empathy=1:5:1"]


@pytest.fixture
def frames(source) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As they stand in the tables, with absolute paths."""
    pairs = pd.DataFrame(source.pairs)
    for column in ("context_audio", "response_audio"):
        pairs[column] = [str(source.folder / path) for path in pairs[column]]
    return pairs, pd.DataFrame(source.ratings)


def samples(path: str) -> tuple[np.ndarray, int]:
    return soundfile.read(path, dtype="float32")


def test_frames_give_what_tables_give(source, frames, tmp_path, monkeypatch):
    pairs, ratings = frames
    expected = source.load()
    found = dataset_from_frames(pairs, ratings, dimensions=SCALE, folder=tmp_path / "out")
    assert found.root == tmp_path / "out"
    assert found.card.content_hash == expected.card.content_hash
    # relative to the current directory, which is no folder that they could leave
    monkeypatch.chdir(source.folder / "clips")
    pairs["response_audio"] = [Path(path).name for path in pairs["response_audio"]]
    pairs["context_audio"] = [Path(path).read_bytes() for path in pairs["context_audio"]]
    again = dataset_from_frames(pairs, ratings, dimensions=[Dimension("empathy", 1, 5, 1)])
    assert again.card.content_hash == expected.card.content_hash


def test_samples_are_kept_as_they_are_and_absent_cells_are_absent(frames):
    pairs, ratings = frames
    paths = list(pairs["response_audio"])
    first, *others = (samples(path) for path in paths)
    pairs["response_audio"] = pd.Series([Cell(*first), Decoder(*others[0]), *others[1:]], dtype=object)
    turns = [{"role": "user", "audio": samples(pairs["context_audio"][0])}, {"role": "assistant", "audio": paths[1]}]
    pairs["context_audio"] = pd.Series([None, turns, float("nan"), pairs["context_audio"][3]], dtype=object)
    pairs["pair_id"] = [0, 1, 2, 3]
    pairs["split"] = pd.Series(["train", None, "test", pd.NA], dtype="string")
    pairs["tag:cue"] = pd.Categorical(["joy", None, "joy", "grief"])
    ratings["pair_id"] = ratings["pair_id"].map(dict(zip(["000-0", "000-1", "001-0", "001-1"], range(4), strict=True)))
    ratings["seconds"] = [3, *[np.nan] * (len(ratings) - 1)]
    found = dataset_from_frames(pairs, ratings, dimensions=SCALE, synthetic=True)
    assert [pair.pair_id for pair in found.pairs] == ["0", "1", "2", "3"]
    assert [pair.split for pair in found.pairs] == ["train", None, "test", None]
    assert [pair.tag("cue") for pair in found.pairs] == ["joy", None, "joy", "grief"]
    assert [[turn.role for turn in pair.context] for pair in found.pairs] == [[], ["user", "assistant"], [], ["user"]]
    assert found.card.synthetic
    assert found.ratings["seconds"].tolist()[0] == 3.0
    for pair, path in zip(found.pairs, paths, strict=True):
        np.testing.assert_array_equal(load_clip(pair.response).samples, load_clip(path).samples)
    again = dataset_from_frames(pairs, ratings, dimensions=SCALE)
    assert again.card.content_hash == found.card.content_hash
    assert again.root != found.root


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("response_audio", "nowhere.wav", "value 'nowhere.wav': no such file"),
        ("response_audio", None, "no clip; expected a path"),
        ("response_audio", np.zeros((5, 2)), r"value of type ndarray; expected a path, .* \(samples, rate in Hz\)"),
        ("context_audio", np.zeros(5), "value of type ndarray"),
        ("response_audio", (16_000, np.zeros(9_000)), "value of type tuple"),
        ("response_audio", (np.zeros(9_000), float("nan")), "samples at nan Hz cannot be read"),
        (
            "response_audio",
            (np.zeros(9_000), 16_000.7),
            r"samples at 16000.7 Hz cannot be read \(expected a whole number of Hz\)",
        ),
        ("response_audio", (np.zeros(9_000), np.float32(np.inf)), r"samples at np.float32\(inf\) Hz cannot be read"),
        ("response_audio", (np.zeros(9_000, np.int16), 16_000), "type int16; expected one-dimensional float samples"),
        ("response_audio", (np.full(9_000, np.nan), 16_000), "sample 0 .* is nan"),
        ("response_audio", (np.zeros(10), 16_000), "lasts 0.001 s"),
        ("context_audio", b"nonsense", "<8 bytes of audio>: not a sound file"),
        ("context_audio", [{"role": "user"}], "expected .* per turn"),
        ("context_audio", [{"role": "user", "audio": "gone.wav"}], "value 'gone.wav': no such file"),
        ("pair_id", "000-0", "expected each id once"),
        ("group_id", 3.5, "value 3.5; expected text"),
    ],
)
def test_a_wrong_cell_is_named_by_row_and_column(frames, column, value, message):
    pairs, ratings = frames
    cells = list(pairs[column])
    cells[2] = value
    pairs[column] = pd.Series(cells, dtype=object)
    with pytest.raises(DataError, match=f"^pairs, row 3, column '{column}': .*{message}") as error:
        dataset_from_frames(pairs, ratings, dimensions=SCALE)
    assert "skipped" not in str(error.value)


def test_wrong_frames_are_refused(frames, tmp_path):
    pairs, ratings = frames
    for wrong, message in [
        (ratings.assign(score=9), "ratings, row 1, column 'score': value 9; expected for empathy: 1 to 5"),
        (ratings.assign(score=np.nan), "ratings: the table holds no ratings: .* rows with no score"),
        (ratings.assign(pair_id="who"), "ratings, row 1, column 'pair_id': value 'who'; no such pair"),
        (ratings.drop(columns="pair_id"), "ratings: no column 'pair_id'; it has 'rater_id'"),
        (ratings.iloc[:0], "ratings: the table holds no ratings"),
        (ratings.to_dict(), "ratings of type dict; expected a pandas DataFrame"),
    ]:
        with pytest.raises(UserError, match=message):
            dataset_from_frames(pairs, wrong, dimensions=SCALE, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_temporary_folder_is_gone_when_python_ends():
    program = (
        "import numpy as np, pandas as pd\nfrom empathy_judge import dataset_from_frames\n"
        "pairs = pd.DataFrame({'pair_id': ['a'], 'response_audio': [(np.zeros(8_000), 16_000)]})\n"
        "ratings = pd.DataFrame({'pair_id': ['a'], 'rater_id': ['r'], 'score': [3]})\n"
        "found = dataset_from_frames(pairs, ratings, dimensions=['empathy=1:5:1'])\n"
        "assert found.root.is_dir()\nprint(found.root)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    root = Path(ended.stdout.strip())
    assert root.is_absolute()
    assert not root.parent.exists()


@pytest.mark.parametrize("stored", ["save_to_disk", "to_parquet"])
@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.usefixtures("hub_cache")
def test_a_hugging_face_dataset_is_imported_as_the_same(frames, stored, simple, tmp_path):
    pairs, ratings = frames
    pairs["situation"] = ["Two lines\nof text", None, None, None]
    pairs["split"] = ["train", "train", "test", None]
    if not simple:
        turns = [{"role": role, "audio": pairs["response_audio"][0]} for role in ("user", "assistant", "user")]
        pairs["context_audio"] = pd.Series([turns, None, *pairs["context_audio"][2:]], dtype=object)
        pairs["tag:cue"] = ["joy", None, "joy", "grief"]
        ratings["seconds"] = [3.5, *[np.nan] * (len(ratings) - 1)]
    ratings = ratings[ratings["pair_id"] != "001-0"]  # not rated
    whole = dataset_from_frames(pairs, ratings, dimensions=SCALE)
    made = dataset_to_hugging_face(whole)
    assert isinstance(made.features["response_audio"], datasets.Audio)
    assert isinstance(made.features["context_audio"], datasets.Audio) is simple
    assert "empathy 1 to 5 in steps of 1" in made.info.description
    if stored == "save_to_disk":
        made.save_to_disk(str(tmp_path / "hf"))
    else:
        (tmp_path / "hf").mkdir()
        made.to_parquet(str(tmp_path / "hf" / "data.parquet"))
    options = parsed(hugging_face, ["--dimension", SCALE[0]])
    back = assemble(hugging_face.read(tmp_path / "hf", options), tmp_path / "back")
    assert back.card.content_hash == whole.card.content_hash
    assert back.split_hash() == whole.split_hash()
    pd.testing.assert_frame_equal(back.ratings, whole.ratings)
    assert back.card.description == ""
    # embedded clips, and the pairs of a split
    embedded = assemble(hugging_face.read(tmp_path / "hf", options), tmp_path / "embedded", embed_audio=True)
    part = dataset_to_hugging_face(embedded.subset("train"))
    assert (part["pair_id"][:], part["ratings"][0]) == (["000-0", "000-1"], made["ratings"][0])


def test_published_means_come_back_from_a_hugging_face_dataset(frames, tmp_path):
    pairs, ratings = frames
    means = pd.DataFrame(
        {"pair_id": pairs["pair_id"], "mean": [3.25, 2, 4.5, 1], "sd": [0.5, 1, 0.7, 0], "n": [4, 3, 2, 9]}
    )
    whole = dataset_from_frames(pairs, means, dimensions=["mos=1:5"])
    dataset_to_hugging_face(whole).save_to_disk(str(tmp_path / "hf"))
    back = assemble(
        hugging_face.read(tmp_path / "hf", parsed(hugging_face, ["--dimension", "mos=1:5"])), tmp_path / "back"
    )
    assert back.card.content_hash == whole.card.content_hash
    pd.testing.assert_frame_equal(back.ratings, whole.ratings)
    both = dataset_from_frames(pairs, means, dimensions=["mos=1:5"])
    mixed = pd.concat([both.ratings, ratings.assign(score=3.0)], ignore_index=True)
    with pytest.raises(DataError, match="has published means and ratings; expected only one of these"):
        dataset_to_hugging_face(replace(both, ratings=mixed))


def test_whole_numbers_beside_an_empty_cell_are_ids(frames):
    pairs, ratings = frames
    pairs["response_speaker"] = [7.0, float("nan"), 8.0, 7.0]
    found = dataset_from_frames(pairs, ratings, dimensions=SCALE)
    assert [pair.response_speaker for pair in found.pairs] == ["7", None, "8", "7"]
