"""Splits: nothing crosses, fractions are near, the seed decides, and the audit finds what hands have done."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.commands.data import _audit_views
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.audit import audit_splits, check_splits
from empathy_judge.data_modules.ratings import PREFERENCE_COLUMNS
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import DEFAULT_FRACTIONS, assign, components, leave_one_out, split_dataset
from empathy_judge.data_modules.writing import write_splits

from ..eval.conftest import printed_at
from .builders import Source

HALVES = {"train": 0.5, "test": 0.5}


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory) -> Path:
    """40 groups of 1 to 4 pairs; the score depends on the group, two groups share a speaker."""
    source = Source(tmp_path_factory.mktemp("splits") / "source", groups=40, per_group=4)
    source.pairs = [row for row in source.pairs if int(row["pair_id"][-1]) <= int(row["pair_id"][:3]) % 4]
    for row in source.pairs:
        row["response_speaker"] = f"speaker{int(row['pair_id'][:3]) // 2}"
    ids = {row["pair_id"] for row in source.pairs}
    source.ratings = [row for row in source.ratings if row["pair_id"] in ids]
    for row in source.ratings:
        row["score"] = 1 + int(row["pair_id"][:3]) % 5
    source.load()
    return source.out


@pytest.fixture
def folder(dataset_folder, tmp_path) -> Path:
    return shutil.copytree(dataset_folder, tmp_path / "dataset")


def members(folder: Path, column: str) -> dict[str | None, set[str | None]]:
    found: dict[str | None, set[str | None]] = defaultdict(set)
    for pair in PairDataset.load(folder).pairs:
        found[getattr(pair, column)].add(pair.split)
    return found


@pytest.mark.parametrize("by", [("group_id",), ("group_id", "response_speaker")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fractions_strata_and_no_crossing(folder, by, seed):
    audit = split_dataset(folder, by=by, seed=seed)
    for column in by:
        assert all(len(splits) == 1 for splits in members(folder, column).values())
        assert audit.crossings[column] == {}
    assert sum(part["pairs"] for part in audit.splits.values()) == 100
    for name, fraction in DEFAULT_FRACTIONS.items():
        assert audit.splits[name]["share"] == pytest.approx(fraction, abs=0.05)
        assert audit.splits[name]["mean_scores"]["empathy"] == pytest.approx(3.0, abs=0.3)
    assert audit.unsplit == 0
    dataset = PairDataset.load(folder)
    assert audit.split_hash == dataset.split_hash()
    assert check_splits(dataset) == audit


def test_stratification_brings_the_means_together(folder):
    def spread(stratify: bool, seed: int) -> float:
        audit = split_dataset(folder, stratify=stratify, seed=seed, overwrite=True)
        return float(np.ptp([part["mean_scores"]["empathy"] for part in audit.splits.values()]))

    with_strata, without = (np.mean([spread(stratify, seed) for seed in range(8)]) for stratify in (True, False))
    assert with_strata < 0.6 * without


def test_seed_decides_and_data_do_not_change(folder):
    content = PairDataset.load(folder).card.content_hash
    hashes = [split_dataset(folder, seed=seed, overwrite=True).split_hash for seed in (0, 1, 0, 2)]
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3
    assert PairDataset.load(folder).card.content_hash == content


def test_by_system_lets_groups_cross_and_says_so(folder):
    audit = split_dataset(folder, by=("system_id",), fractions=HALVES)
    assert audit.crossings["system_id"] == {}
    assert len(audit.crossings["group_id"]) >= 20
    assert audit.to_dict()["crossings"]["group_id"]["refused"] is False
    assert len(audit.to_dict()["crossings"]["group_id"]["first"]) == 10
    assert len(audit.crossings["context_clip"]) == len(audit.crossings["group_id"])
    assert audit.leaks == {}
    check_splits(PairDataset.load(folder))


def test_hold_out(folder):
    fractions = {"train": 0.6, "validation": 0.2, "test": 0.2}
    split_dataset(folder, by=("system_id",), fractions=fractions, hold_out={"system_id": ["s1"]})
    splits = {(pair.system_id, pair.split) for pair in PairDataset.load(folder).pairs}
    assert ("s1", "test") in splits
    assert len(splits) == 4
    assert {split for system, split in splits if system != "s1"} == {"train", "validation"}
    with pytest.raises(DataError, match="held out system_id 's9'; expected s0, s1, s2, s3"):
        split_dataset(folder, by=("system_id",), hold_out={"system_id": ["s9"]}, overwrite=True)
    with pytest.raises(DataError, match="held out by 'system_id'; expected what is split by: group_id"):
        split_dataset(folder, hold_out={"system_id": ["s1"]}, overwrite=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": ("group_id", "system_id")}, r"'train' would get 100% .* 70%.* 100 pairs fall into 1 inseparable part,"),
        ({"by": ("group_id", "system_id"), "hold_out": {"system_id": ["s0", "s1"]}}, "all 100 pairs are linked to"),
        ({"by": ("mood",)}, "split by 'mood'; expected group_id, context_speaker, .*, response_text"),
        ({"by": ()}, "split by 'nothing'; expected group_id"),
        ({"by": ("context_speaker",)}, r"pairs\.parquet, row 1, column 'context_speaker': empty \(99 more\)"),
        ({"fractions": {"train": 0.5}}, r"fractions {'train': 0\.5} sum to 0\.5; expected 1"),
        ({"fractions": {"train": 1.0, "test": 0.0}}, "split 'test': fraction 0.0; expected more than 0"),
        ({"fractions": {"train": 1.5, "test": -0.5}}, "split 'train': fraction 1.5"),
        ({"fractions": {"train": float("nan"), "test": 0.5}}, "split 'train': fraction nan"),
        ({"fractions": {}}, "sum to 0; expected 1"),
        ({"by": ("system_id",), "fractions": dict.fromkeys("abcde", 0.2)}, "split .* would get 0%"),
    ],
)  # fmt: skip
def test_impossible_requests_write_nothing(folder, options, message):
    with pytest.raises(DataError, match=message):
        split_dataset(folder, **options)
    assert {pair.split for pair in PairDataset.load(folder).pairs} == {None}
    assert not (folder / "split.yaml").exists()


def test_a_group_in_two_splits_is_refused(folder):
    dataset = PairDataset.load(folder)
    write_splits(folder, ["test" if pair.pair_id in ("001-1", "002-0") else "train" for pair in dataset.pairs])
    dataset = PairDataset.load(folder)
    assert audit_splits(dataset).crossings["group_id"] == {"g1": ("test", "train"), "g2": ("test", "train")}
    with pytest.raises(DataError) as caught:
        check_splits(dataset)
    row = 1 + [pair.pair_id for pair in dataset.pairs].index("001-1")
    assert f"pairs.parquet, row {row}, column 'split': group_id 'g1' is in test and train (1 more)" in str(caught.value)


def test_without_room_for_one_file_both_stay(folder, monkeypatch):
    split_dataset(folder, fractions=HALVES)
    before = PairDataset.load(folder)

    def full(path: Path, text: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(DataError, match="No space left"):
            split_dataset(folder, fractions=HALVES, seed=1, overwrite=True)
    assert PairDataset.load(folder).split_hash() == before.split_hash()
    check_splits(before)


def test_split_file_of_other_splits_is_refused(folder):
    split_dataset(folder)
    count = len(PairDataset.load(folder).pairs)
    write_splits(folder, ["train"] * count)
    with pytest.raises(DataError, match=r"split\.yaml: belongs to other splits than pairs\.parquet has"):
        check_splits(PairDataset.load(folder))
    for text in ("- 1", "by: [group_id]", "by: [group_id]\nsplit_hash: a\nsplit_hash: b"):
        (folder / "split.yaml").write_text(text)
        with pytest.raises(DataError, match=r"split\.yaml: .*expected the file that `empathy-judge split` writes"):
            check_splits(PairDataset.load(folder))


def test_splits_by_a_tag(source):
    for row, cue in zip(source.pairs, ["sad", "glad", "", "glad"], strict=True):
        row["tag:cue"] = cue
    source.load()
    with pytest.raises(DataError, match=r"split by 'tag:age'; expected .*response_text, tag:cue"):
        split_dataset(source.out, by=("group_id", "tag:age"))
    with pytest.raises(DataError, match=r"row 3, column 'tag:cue': empty"):
        leave_one_out(source.out, "tag:cue")
    source.pairs[2]["tag:cue"] = "glad"
    source.load(overwrite=True)
    assert leave_one_out(source.out, "tag:cue").by == ("tag:cue",)
    splits = [pair.split for pair in PairDataset.load(source.out).pairs]
    assert splits == ["tag:cue=sad", "tag:cue=glad", "tag:cue=glad", "tag:cue=glad"]


def test_components_are_transitive():
    groups = ["g0", "g0", "g1", "g2", "g3"]
    speakers = ["a", "b", "b", "c", "g0"]  # a speaker may be called as a group is
    both = [[("group", group), ("speaker", speaker)] for group, speaker in zip(groups, speakers, strict=True)]
    assert components(both) == [[0, 1, 2], [3], [4]]
    assert components([[group] for group in groups]) == [[0, 1], [2], [3], [4]]
    assert components([["a", "b"], [], ["b"], ["c"], ["c", "a"]]) == [[0, 2, 3, 4], [1]]


def test_assigning_fills_every_split():
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    assert sorted(assign([1, 1, 1], fractions, 0).values()) == ["test", "train", "validation"]
    dealt = assign([1, 1, 1], fractions, 0, [0.1, 0.5, float("nan")])
    assert sorted(dealt.values()) == ["test", "train", "validation"]


def test_assigning_gives_the_large_component_first():
    sizes = [1] * 99 + [10]
    dealt = assign(sizes, HALVES, 3)
    assert sum(size for number, size in enumerate(sizes) if dealt[number] == "train") in (54, 55)


def test_assigning_evens_out_scores():
    """Two of four equal components each: only 0 with 1 and 0.4 with 0.6 have the mean of all."""
    for seed in range(5):
        dealt = assign([2] * 4, HALVES, seed, [0.0, 0.4, 0.6, 1.0])
        assert dealt[0] == dealt[3] != dealt[1] == dealt[2]


def test_comparisons_between_splits_are_counted_and_no_name_is_cut(folder):
    split_dataset(folder, fractions={"train": 0.5, "a-name-that-is-longer-than-a-column": 0.5})
    dataset = PairDataset.load(folder)
    train, test = ([pair.pair_id for pair in dataset.pairs if (pair.split == "train") == own] for own in (True, False))
    ids = [(train[0], train[1]), (train[0], test[0]), (test[1], train[2]), (test[0], test[1]), (test[2], test[1])]
    compared = pd.DataFrame([(*pair, "r", "empathy", 1.0) for pair in ids], columns=list(PREFERENCE_COLUMNS))
    audit = audit_splits(dataclasses.replace(dataset, preferences=compared))
    assert [part["comparisons"] for part in audit.splits.values()] == [2, 1]
    assert audit.comparisons_between == audit.to_dict()["comparisons_between"] == 2
    text = printed_at(80, _audit_views(audit))
    assert "2 comparisons are in no split: their two pairs are not in the same one." in text
    first_cells = "".join(line.split("\u2502")[1].strip() for line in text.splitlines() if line.startswith("\u2502"))
    assert "a-name-that-is-longer-than-a-column" in first_cells
