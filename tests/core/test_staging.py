"""What a system refuses: a full disk, a right, a name. What was there before stays."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

import pytest
from empathy_judge.core import files as folders
from empathy_judge.core.errors import DataError
from empathy_judge.core.staging import staged_folder
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.tables import read_table


@pytest.fixture
def small_disk(tmp_path) -> Any:
    """A file system of 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("embed", [False, True])
def test_a_full_disk_leaves_the_earlier_result(source, small_disk, embed):
    source.out = small_disk / "data"
    first = source.load(embed_audio=embed)
    before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    for number in range(10):
        clip = source.tone(f"clips/long{number}.wav", hertz=500 + number, seconds=3)
        source.pairs[0]["context_audio"] = clip
        source.pairs.append({**source.pairs[0], "pair_id": f"new{number}", "response_audio": clip})
    source.refuses(r"cannot be written \(No space left on device\)", overwrite=True, embed_audio=embed)
    assert {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()} == before
    assert PairDataset.load(source.out).card == first.card
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        split_dataset(source.out, fractions={"train": 0.5, "test": 0.5})
    assert PairDataset.load(source.out).split_hash() == first.split_hash()
    assert inspect_dataset(first).counts["all"]["pairs"] == 4  # what was measured is not kept


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_is_said(source, monkeypatch, number):
    first = source.load()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.os, "replace", refuse)
    for write in (
        lambda: source.load(overwrite=True),
        lambda: split_dataset(source.out, fractions={"train": 0.5, "test": 0.5}),
    ):
        with pytest.raises(DataError, match=rf"cannot be written \({os.strerror(number)}\)"):
            write()
    monkeypatch.undo()
    assert PairDataset.load(source.out).card == first.card
    assert not list(source.out.parent.glob(".*"))


def test_names_that_are_too_long(tmp_path, source):
    name = "n" * 250
    source.load()  # so that there are tables
    source.out = tmp_path / name
    source.refuses(r"cannot be written \(File name too long\)")
    for ask in (lambda: read_table(tmp_path / f"{name}{name}.csv"), lambda: PairDataset.load(tmp_path / (name * 2))):
        with pytest.raises(DataError, match=r"cannot be read \(File name too long\)"):
            ask()
    with pytest.raises(DataError, match="cannot be written"), staged_folder(tmp_path / (name * 2)):
        pass
    source.pairs[0]["response_audio"] = f"{name * 2}.wav"
    source.out = tmp_path / "short"
    source.refuses(r"column 'response_audio': value 'nnn.*cannot be read \(File name too long\)")


def test_staged_folder(tmp_path):
    out = tmp_path / "deep/er/out"

    def interrupted() -> None:
        with staged_folder(out) as stage:
            (stage / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(out.parent.iterdir()) == []
    out.mkdir()  # an empty folder may be replaced
    with staged_folder(out) as stage:
        (stage / "dataset.yaml").touch()
    assert [path.name for path in out.parent.rglob("*")] == ["out", "dataset.yaml"]
    with pytest.raises(DataError, match="cannot be written"), staged_folder(out / "dataset.yaml/below"):
        pass
