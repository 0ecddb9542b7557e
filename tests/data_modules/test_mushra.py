"""Real ratings of real audio, where EMPATHY_JUDGE_REAL_DATA has them: import, inspect and both splits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from empathy_judge.data_modules.audit import check_splits
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.importers.table import TableMapping, read_tables
from empathy_judge.data_modules.inspection import inspect_dataset
from empathy_judge.data_modules.ratings import parse_dimension
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import leave_one_out, split_dataset

MUSHRA = Path(os.environ.get("EMPATHY_JUDGE_REAL_DATA", "nowhere")) / "mushra_codec"
pytestmark = pytest.mark.skipif(not MUSHRA.is_dir(), reason="EMPATHY_JUDGE_REAL_DATA holds no mushra_codec")


def test_import_inspect_and_split(tmp_path: Path) -> None:
    out = tmp_path / "mushra"
    imported = read_tables(
        MUSHRA / "pairs.csv",
        MUSHRA / "ratings.csv",
        TableMapping({"response_speaker": "speaker_id"}, {}, [parse_dimension("fidelity=0:100:1")]),
    )
    dataset = assemble(imported, out)
    assert (len(dataset.pairs), len(dataset.ratings)) == (128, 1216)
    assert dataset.pairs[0].pair_id == "stim_01_audiodec_8"
    assert dataset.mean_scores().loc["stim_01_audiodec_8", "fidelity"] == pytest.approx(77.182, abs=5e-4)

    found = inspect_dataset(PairDataset.load(out))
    assert found.counts["all"] == {
        "pairs": 128,
        "groups": 16,
        "systems": 8,
        "context_speakers": 0,
        "response_speakers": 10,
        "raters": 19,
        "ratings": 1216,
        "rated_pairs": 128,
    }
    assert found.raters_per_pair["fidelity"].minimum == 8
    assert found.seconds["context"].count == 16

    by_sentence = split_dataset(out)
    assert {name: part["groups"] for name, part in by_sentence.splits.items()} == {
        "train": 11,
        "validation": 3,
        "test": 2,
    }
    assert by_sentence.crossings["group_id"] == {}
    check_splits(PairDataset.load(out))

    by_system = split_dataset(out, by=("system_id",), overwrite=True)
    assert {name: part["systems"] for name, part in by_system.splits.items()} == {
        "train": 6,
        "validation": 1,
        "test": 1,
    }
    assert len(by_system.crossings["group_id"]) == 16
    assert inspect_dataset(PairDataset.load(out)).split_by == ("system_id",)
    check_splits(PairDataset.load(out))

    by_codec = leave_one_out(out, "system_id", overwrite=True)
    assert {(part["systems"], part["pairs"]) for part in by_codec.splits.values()} == {(1, 16)}
    # several codecs hardly change a sentence: meant here, as the group is not what was split by
    assert len(by_codec.crossings["near_identical_response_clip_in_one_group"]) > 20
    assert (by_codec.leaks, by_codec.unsplit) == ({}, 0)
