"""Nothing is trained on or measured with audio that is not what was imported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules import unchanged
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.unchanged import CHECKED_FILE, check_unchanged
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.stress import stress
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.export.check import rated_set
from empathy_judge.scoring.judge_calibration import calibrate_judge
from empathy_judge.train.run import train

FILES = 24 + 8  # responses and contexts of `dataset_folder`


@pytest.fixture
def folder(dataset_folder, tmp_path) -> Path:
    """A copy of the dataset, to be changed."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "data"))


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Names of files that were read; all are old enough to be remembered."""
    names: list[str] = []
    plain = unchanged._hash
    monkeypatch.setattr(unchanged, "_SETTLED_NS", -1_000_000_000)
    monkeypatch.setattr(unchanged, "_hash", lambda path: names.append(Path(path).name) or plain(path))
    return names


def replace(folder: Path, name: str = "p00.wav", by: str = "p01.wav") -> None:
    """Put the content of a clip into another one; size and time of the content stay."""
    target = folder / name
    before = target.stat()
    data = (folder / by).read_bytes()[: before.st_size]
    target.write_bytes(data + b"\x00" * (before.st_size - len(data)))
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (target.stat().st_size, target.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_files_are_read_once_and_again_where_something_differs(folder, hashed):
    table = (folder / "pairs.parquet").read_bytes()
    dataset = PairDataset.load(folder)
    check_unchanged(dataset)
    assert len(hashed) == len(set(hashed)) == FILES
    hashed.clear()
    check_unchanged(dataset)
    assert hashed == []
    os.utime(folder / "p03.wav")
    (folder / "p04.wav").rename(folder / "aside")
    shutil.copyfile(folder / "aside", folder / "p04.wav")
    check_unchanged(dataset)
    assert sorted(hashed) == ["p03.wav", "p04.wav"]
    hashed.clear()
    check_unchanged(dataset.subset("test"))
    check_unchanged(dataset)
    assert hashed == []
    assert (folder / "pairs.parquet").read_bytes() == table


def test_a_copy_is_read_once(folder, hashed, tmp_path):
    check_unchanged(PairDataset.load(folder))
    hashed.clear()
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    for _ in range(2):
        check_unchanged(PairDataset.load(copied))
    assert len(hashed) == FILES
    hashed.clear()
    copied.rename(tmp_path / "moved")
    check_unchanged(PairDataset.load(tmp_path / "moved"))
    assert hashed == []


def test_content_that_differs_is_named(folder, hashed):
    dataset = PairDataset.load(folder)
    check_unchanged(dataset)
    replace(folder)
    for count in (1, 2):  # what was found is not remembered as good
        with pytest.raises(DataError, match=r"1 clip is not what was imported: 'p00.wav'; .*put them back"):
            check_unchanged(PairDataset.load(folder))
        assert hashed.count("p00.wav") == 1 + count
    for number in range(1, 7):
        (folder / f"p{number:02d}.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"7 clips .*: 'p00.wav', 'p\d\d.wav', 'p\d\d.wav' and 4 more; "):
        check_unchanged(dataset)
    shutil.copy(folder / "p10.wav", folder / "context0.wav")
    with pytest.raises(DataError, match=r"8 clips"):
        check_unchanged(dataset)


@pytest.mark.parametrize(("link", "end"), [("p00.wav", "p01.wav"), ("p01.wav", "p00.wav")])
def test_a_link_to_another_clip_is_not_what_was_imported(link, end, folder, hashed):
    """Both clips are the file at its end, which has the content that one of them should have."""
    dataset = PairDataset.load(folder)
    check_unchanged(dataset)
    (folder / link).unlink()
    (folder / link).symlink_to(end)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"1 clip .*: '{end}'; "):
            check_unchanged(PairDataset.load(folder))
    (folder / link).unlink()
    shutil.copyfile(folder / "p02.wav", folder / link)
    with pytest.raises(DataError, match=rf"1 clip .*: '{link}'"):
        check_unchanged(PairDataset.load(folder))


def test_a_file_that_has_just_been_written_may_change_within_the_same_time(folder, hashed, monkeypatch):
    monkeypatch.setattr(unchanged, "_SETTLED_NS", 3_600_000_000_000)
    for _ in range(2):
        check_unchanged(PairDataset.load(folder))
    assert len(hashed) == 2 * FILES


@pytest.mark.parametrize("notes", [None, "of the folder that it was copied from"])
def test_a_folder_that_may_not_be_written_is_remembered_elsewhere(notes, folder, hashed, monkeypatch, users_cache):
    (folder / CHECKED_FILE).unlink(missing_ok=True)
    if notes:
        check_unchanged(PairDataset.load(folder))
        for path in folder.glob("*.wav"):
            os.utime(path)
    before = (folder / CHECKED_FILE).read_bytes() if notes else None
    hashed.clear()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    for _ in range(2):
        check_unchanged(PairDataset.load(folder))
    assert len(hashed) == FILES
    assert ((folder / CHECKED_FILE).read_bytes() if notes else None) == before
    (kept,) = users_cache.rglob(f"*{CHECKED_FILE.removeprefix('.')}")
    kept.unlink()


def test_a_clip_that_is_gone_is_left_to_whoever_needs_it(folder):
    dataset = PairDataset.load(folder)
    (folder / "p00.wav").unlink()
    check_unchanged(dataset)


DOORS: dict[str, Callable[..., Any]] = {
    "evaluate": lambda data, judge, _: evaluate(judge, data),
    "evaluate a dataset": lambda data, judge, _: evaluate(judge, PairDataset.load(data)),
    "compare": lambda data, judge, _: compare([judge, "acoustic"], data),
    "calibrate": lambda data, judge, _: calibrate_judge(load_any(judge), PairDataset.load(data), None),
    "export": lambda data, judge, _: rated_set(load_any(judge), PairDataset.load(data), "all"),
    "stress": lambda data, *_: stress(SimpleNamespace(), PairDataset.load(data)),  # pyright: ignore[reportArgumentType]
    "split": lambda data, *_: split_dataset(data, overwrite=True),
    "train": lambda data, _, arguments: train(arguments(data.parent / "run", data__path=data)),
    "folds": lambda data, _, arguments: train(arguments(data.parent / "run", data__path=data, folds=3)),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses(door, folder, judge_folder, train_arguments):
    check_unchanged(PairDataset.load(folder))
    replace(folder, "p02.wav", "p05.wav")
    replace(folder, "context3.wav", "p05.wav")
    with pytest.raises(DataError, match=r"2 clips .*: '(p02|context3).wav', "):
        DOORS[door](folder, judge_folder, train_arguments)


def test_a_run_is_not_resumed_on_other_audio(folder, train_arguments, tmp_path):
    common = {"data__path": folder, "trainer__logger": "false"}
    train(train_arguments(tmp_path / "run", **common, trainer__max_epochs=1))
    replace(folder)
    with pytest.raises(DataError, match=r"1 clip .*: 'p00.wav'"):
        train([*train_arguments(tmp_path / "run", **common, trainer__max_epochs=2), "--resume", "auto"])
