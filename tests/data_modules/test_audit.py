"""Planted leaks of each kind are found, clean splits pass, folds partition, and what may be shared is listed."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml
from empathy_judge.cli import main
from empathy_judge.commands import BAD_USAGE, DONE, FAILED_CHECKS
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.audit import audit_splits, check_splits
from empathy_judge.data_modules.near_duplicates import NEAR_IDENTICAL_FILE, near_identical
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import leave_one_out, split_dataset
from empathy_judge.data_modules.writing import write_splits

from .builders import Source

RATE = 16_000
GROUPS, SYSTEMS = 12, ("a", "b", "c")


def babble(seed: int, seconds: float = 1.5) -> np.ndarray:
    """Something that changes as speech does `(samples,)`: harmonics of a moving pitch through two moving formants."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE)
    knots = np.linspace(0, count - 1, 12)

    def track(low: float, high: float) -> np.ndarray:
        return np.interp(np.arange(count), knots, rng.uniform(low, high, len(knots)))

    phase = 2 * np.pi * np.cumsum(track(90, 250)) / RATE
    pitch = np.gradient(phase) * RATE / (2 * np.pi)
    first, second = track(300, 800), track(900, 1900)
    sound = np.zeros(count)
    for number in range(1, 20):
        at = number * pitch
        sound += np.sin(number * phase) * (np.exp(-(((at - first) / 150) ** 2)) + np.exp(-(((at - second) / 200) ** 2)))
    sound += 0.01 * rng.standard_normal(count)
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)


@pytest.fixture(scope="module")
def babble_folder(tmp_path_factory) -> Path:
    """12 groups with a context and three systems each; every group has speakers of its own."""
    source = Source(tmp_path_factory.mktemp("audit") / "source", groups=GROUPS, per_group=len(SYSTEMS))
    for row in source.pairs:
        group, member = (int(part) for part in row["pair_id"].split("-"))
        row["system_id"] = SYSTEMS[member]
        row["context_speaker"], row["response_speaker"] = f"asker{group}", f"speaker{group}"
        soundfile.write(source.folder / row["response_audio"], babble(10 * group + member), RATE)
        soundfile.write(source.folder / row["context_audio"], babble(1000 + group), RATE)
    source.load()
    return source.out


@pytest.fixture
def folder(babble_folder, tmp_path) -> Path:
    return shutil.copytree(babble_folder, tmp_path / "dataset")


def plant(source: Any, **changes: Any) -> PairDataset:
    """Two groups of two pairs in train and test; `changes` replace values of the last pair, which is in test."""
    for row, split in zip(source.pairs, ["train", "train", "test", "test"], strict=True):
        row["split"] = split
        soundfile.write(source.folder / row["response_audio"], babble(int(row["pair_id"].replace("-", ""))), RATE)
    for number in range(2):
        soundfile.write(source.folder / f"clips/context{number}.wav", babble(100 + number), RATE)
    soundfile.write(source.folder / "clips/copy.mp3", babble(0), RATE)
    source.pairs[-1].update(changes)
    return source.load()


@pytest.mark.parametrize(
    ("changes", "leak", "message"),
    [
        ({"response_audio": "clips/copy.mp3"}, "near_identical_response_clip",
         r"row 4, column 'split': near identical response clip of pairs '000-0' and '001-1' is in test"),
        ({"group_id": "g0"}, "group_id", "group_id 'g0' is in test and train"),
        ({"response_audio": "clips/000-1.wav"}, "response_clip",
         "response clip of pairs '000-1' and '001-1' is in test"),
        ({"context_audio": "clips/context0.wav"}, "context_clip",
         "context clip of pairs '000-0' and '001-1' is in test"),
        ({"context_audio": "clips/000-0.wav"}, "context_clip", "context clip of pairs '000-0' and '001-1' is in test"),
    ],
)  # fmt: skip
def test_a_shared_group_or_clip_and_a_near_copy_are_found(source, changes, leak, message):
    dataset = plant(source, **changes)
    assert list(audit_splits(dataset).leaks) == [leak]
    with pytest.raises(DataError, match=message):
        check_splits(dataset)
    assert main(["inspect", str(dataset.root), "--json"]) == FAILED_CHECKS


def test_a_speaker_in_two_splits_is_found_where_splits_are_by_speaker(source):
    for row in source.pairs:
        row["response_speaker"] = f"speaker{row['group_id']}"
    dataset = plant(source, response_speaker="speakerg0")
    assert check_splits(dataset).leaks == {}
    by_speaker = {"by": ["group_id", "response_speaker"], "split_hash": dataset.split_hash()}
    (dataset.root / "split.yaml").write_text(yaml.safe_dump(by_speaker))
    with pytest.raises(DataError, match="row 4, column 'split': response_speaker 'speakerg0' is in test and train;"):
        check_splits(dataset)


def test_clean_splits_pass_and_the_audit_is_kept(folder, capsys):
    audit = split_dataset(folder)
    assert (audit.clips, audit.not_comparable, audit.unsplit) == (GROUPS * 4, 0, 0)
    assert audit.leaks == {}
    content = PairDataset.load(folder).card.content_hash
    stored = yaml.safe_load((folder / "split.yaml").read_text())
    assert (stored["split_hash"], stored["audit"]["content_hash"]) == (audit.split_hash, content)
    assert stored["set_aside"] == []
    kept = json.loads((folder / NEAR_IDENTICAL_FILE).read_text())
    assert (kept["content_hash"], kept["clips"], kept["clusters"]) == (content, GROUPS * 4, [])
    assert main(["inspect", str(folder)]) == DONE
    capsys.readouterr()
    for clip in (folder / "audio").iterdir():
        clip.write_bytes(b"nothing is decoded any more")
    assert check_splits(PairDataset.load(folder)) == audit


@pytest.mark.parametrize("content", ["{", "[]", '{"method": "another", "content_hash": "0"}'])
def test_a_kept_result_of_other_clips_is_not_used(source, content):
    dataset = plant(source)
    (dataset.root / NEAR_IDENTICAL_FILE).write_text(content)
    assert near_identical(dataset).clips == 6
    other = json.loads((dataset.root / NEAR_IDENTICAL_FILE).read_text())
    (dataset.root / NEAR_IDENTICAL_FILE).write_text(json.dumps({**other, "content_hash": "0" * 64, "clips": 9}))
    assert near_identical(dataset).clips == 6


def test_a_kept_result_that_was_changed_is_not_used(source):
    dataset = plant(source)
    before = near_identical(dataset)
    file = dataset.root / NEAR_IDENTICAL_FILE
    text = file.read_text()
    file.write_text(text.replace('"clips":6', '"clips":9'))
    assert file.read_text() != text
    assert near_identical(dataset) == before
    assert file.read_text() == text


def test_groups_that_share_audio_stay_together(tmp_path):
    source = Source(tmp_path / "source", groups=8, per_group=1)
    for row in source.pairs:
        soundfile.write(source.folder / row["response_audio"], babble(int(row["pair_id"][:3])), RATE)
    soundfile.write(source.folder / "clips/copy.mp3", babble(0), RATE)
    source.pairs[3]["response_audio"] = "clips/copy.mp3"
    source.pairs[5]["context_audio"] = source.pairs[3]["context_audio"]
    source.load()
    for seed in range(6):
        audit = split_dataset(source.out, fractions={"train": 0.5, "test": 0.5}, seed=seed, overwrite=True)
        splits = [pair.split for pair in PairDataset.load(source.out).pairs]
        assert splits[0] == splits[3] == splits[5]
        assert audit.leaks == {}


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_folds_partition_and_keep_groups_whole(folder, folds):
    audit = split_dataset(folder, folds=folds, seed=1)
    pairs = PairDataset.load(folder).pairs
    assert set(audit.splits) == {f"fold{number}" for number in range(1, folds + 1)}
    counts = Counter(pair.split for pair in pairs)
    assert sum(counts.values()) == len(pairs) == 36
    assert max(counts.values()) - min(counts.values()) <= 3  # one group
    assert len({(pair.group_id, pair.split) for pair in pairs}) == GROUPS
    assert check_splits(PairDataset.load(folder)) == audit
    stored = yaml.safe_load((folder / "split.yaml").read_text())
    assert (stored["folds"], stored["seed"], stored["by"]) == (folds, 1, ["group_id"])
    again = split_dataset(folder, folds=folds, seed=1, overwrite=True)
    assert again.split_hash == audit.split_hash != split_dataset(folder, folds=folds, seed=2, overwrite=True).split_hash


def test_leave_one_system_out(folder):
    audit = leave_one_out(folder, "system_id")
    assert {name: part["systems"] for name, part in audit.splits.items()} == {f"system_id={one}": 1 for one in SYSTEMS}
    assert all(pair.split == f"system_id={pair.system_id}" for pair in PairDataset.load(folder).pairs)
    assert len(audit.crossings["group_id"]) == len(audit.crossings["context_clip"]) == GROUPS
    assert check_splits(PairDataset.load(folder)).leaks == {}


def near_copies_by_system(folder: Path) -> Any:
    """4 groups: in each, system s1 answers with a re-encoded copy of what s0 says."""
    source = Source(folder, groups=4, per_group=2)
    for row in source.pairs:
        group, member = (int(part) for part in row["pair_id"].split("-"))
        row["response_audio"] = row["response_audio"].replace(".wav", ".ogg" if member else ".flac")
        soundfile.write(source.folder / row["response_audio"], babble(group), RATE)
    return source


def test_systems_that_degrade_one_recording_may_be_apart(tmp_path):
    source = near_copies_by_system(tmp_path / "source")
    source.load()
    audit = leave_one_out(source.out, "system_id")
    assert len(audit.crossings["near_identical_response_clip_in_one_group"]) == 4
    assert (audit.leaks, audit.unsplit) == ({}, 0)
    check_splits(PairDataset.load(source.out))


def test_the_same_answer_of_two_systems_is_set_aside(tmp_path):
    source = near_copies_by_system(tmp_path / "source")
    source.pairs[1]["response_audio"] = source.pairs[0]["response_audio"]
    source.pairs[4]["response_audio"] = "clips/other.ogg"  # a copy across groups: 001-1 and 002-0
    soundfile.write(source.folder / "clips/other.ogg", babble(1) * 0.5, RATE)
    source.load()
    audit = leave_one_out(source.out, "system_id")
    assert audit.unsplit == 5
    stored = yaml.safe_load((source.out / "split.yaml").read_text())
    assert stored["set_aside"] == ["000-0", "000-1", "001-0", "001-1", "002-0"]
    dataset = PairDataset.load(source.out)
    assert [pair.pair_id for pair in dataset.pairs if pair.split is None] == stored["set_aside"]
    assert check_splits(dataset).leaks == {}
    write_splits(source.out, [f"system_id={pair.system_id}" for pair in dataset.pairs])
    leaks = audit_splits(PairDataset.load(source.out), ["system_id"]).leaks
    assert list(leaks) == ["response_clip", "near_identical_response_clip"]


def test_systems_that_all_say_the_same_are_no_folds(tmp_path):
    source = Source(tmp_path / "source", groups=2, per_group=2)
    for row in source.pairs:
        row["response_audio"] = "clips/000-0.wav"
    source.load()
    with pytest.raises(DataError, match="every response clip of 'system_id=s0' is in another split"):
        leave_one_out(source.out, "system_id")
    assert not (source.out / "split.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--folds", "1"], "1 fold; expected 2 to 36"),
        (["--folds", "99"], "99 folds; expected 2 to 36"),
        (["--folds", "13"], "split 'fold.*' would get 0% of the pairs instead of 8%"),
        (["--folds", "3", "--hold-out", "system_id=a"], "--folds together with --hold-out"),
        (["--leave-out", "language"], r"pairs\.parquet, row 1, column 'language': empty \(35 more\)"),
        (["--leave-out", "system_id", "--by", "group_id"], "--leave-out together with --by"),
    ],
)
def test_bad_requests(folder, words, message, capsys):
    assert main(["split", str(folder), *words]) == BAD_USAGE
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error)
    assert not (folder / "split.yaml").exists()


def test_folds_by_the_command_line(folder, capsys):
    assert main(["split", str(folder), "--folds", "3", "--seed", "4", "--json"]) == DONE
    printed = json.loads(capsys.readouterr().out)
    assert list(printed["splits"]) == ["fold1", "fold2", "fold3"]
    assert main(["split", str(folder), "--leave-out", "system_id"]) == BAD_USAGE
    assert "it has splits already; expected --overwrite" in capsys.readouterr().err
    assert main(["split", str(folder), "--leave-out", "system_id", "--overwrite"]) == DONE
    said = capsys.readouterr().out
    assert f"Split by system_id. In several splits: {GROUPS} of group_id, " in said
    assert "{" not in said
