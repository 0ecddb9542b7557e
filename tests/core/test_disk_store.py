"""What is kept in a folder is what was given, or it is not there: damage is seen when a file is read."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.core import disk_store
from empathy_judge.core.disk_store import DiskStore
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def tensors(number: int) -> dict[str, torch.Tensor]:
    return {"states": torch.full((250,), float(number))}  # about a kilobyte


def test_a_store_keeps_what_it_was_given(tmp_path):
    store = DiskStore(tmp_path / "deep" / "kept", 1.0)
    assert store.get("ab1") is None
    assert "ab1" not in store
    store.put("ab1", tensors(1))
    store.put("ab1", tensors(2))  # a name stands for one content
    assert "ab1" in DiskStore(tmp_path / "deep" / "kept", 1.0)
    assert torch.equal(store.get("ab1")["states"], tensors(1)["states"])


def written(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def stored_anew(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], object]:
    """The file with other tensors and the same metadata."""

    def spoil(path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        save_file(change(tensors), path, metadata)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        written(lambda data: b""),
        written(lambda data: data[: len(data) // 2]),
        written(lambda data: data + b"x"),
        written(lambda data: b"\x00" * len(data)),
        written(lambda data: b"\xff" * len(data)),
        written(lambda data: data[: len(data) // 2] + b"\x00" * (len(data) - len(data) // 2)),
        written(lambda data: data[:-9] + bytes([data[-9] ^ 0x40]) + data[-8:]),
        written(lambda data: struct.pack("<Q", 2**62) + data[8:]),
        written(lambda data: data.replace(b'"name":"ab1"', b'"name":["a"]')),
        written(lambda data: data.replace(b"crc32", b"crc33")),
        written(lambda data: data.replace(b"states", b"stales")),
        stored_anew(lambda tensors: {**tensors, "states": tensors["states"].half()}),
        stored_anew(lambda tensors: {**tensors, "states": tensors["states"].double()}),
        stored_anew(lambda tensors: {**tensors, "states": tensors["states"] * float("nan")}),
        stored_anew(lambda tensors: {**tensors, "states": tensors["states"][:10]}),
        stored_anew(lambda tensors: {**tensors, "states": tensors["states"].view(50, 5)}),
        stored_anew(lambda tensors: {**tensors, "lengths": tensors["lengths"] + 1}),
        stored_anew(lambda tensors: {"lengths": tensors["lengths"]}),
        stored_anew(lambda tensors: {**tensors, "more": tensors["lengths"].clone()}),
        lambda path: save_file(load_file(path), path),  # nothing says what it is
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to(path)),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_what_cannot_be_used_counts_as_none_and_is_replaced(spoil, tmp_path, capsys):
    given = {"states": torch.arange(250.0), "lengths": torch.tensor([250])}
    store = DiskStore(tmp_path)
    store.put("ab1", given)
    (path,) = tmp_path.rglob("*.safetensors")
    before = path.read_bytes()
    spoil(path)
    assert not path.is_file() or path.read_bytes() != before
    fresh = DiskStore(tmp_path)
    assert "ab1" not in fresh
    assert fresh.get("ab1") is None
    fresh.put("ab1", given)
    assert torch.equal(DiskStore(tmp_path).get("ab1")["states"], given["states"])
    assert capsys.readouterr().err.count("cannot be used") == 1


def test_files_that_were_swapped_are_none(tmp_path, capsys):
    store = DiskStore(tmp_path)
    for name in ("ab1", "ab2"):
        store.put(name, tensors(int(name[-1])))
    first, second = sorted(tmp_path.rglob("*.safetensors"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert store.get("ab1") is None
    assert store.get("ab2") is None
    assert capsys.readouterr().err.count("first ab1.safetensors (the content of another file)") == 1


def test_a_folder_with_files_is_left_alone(tmp_path, capsys):
    store = DiskStore(tmp_path)
    own = tmp_path / "ab" / "ab1.safetensors" / "thesis.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    assert store.get("ab1") is None
    store.put("ab1", tensors(1))
    store.put("ab2", tensors(2))
    assert own.read_text() == "mine"
    assert "ab2" in store


def test_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    done, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(disk_store.os, "fsync", lambda file: (done.append(os.fstat(file).st_size > 1_000), sync(file)))
    monkeypatch.setattr(disk_store.os, "replace", lambda *paths: (done.append("renamed"), rename(*paths)))
    DiskStore(tmp_path).put("ab1", tensors(1))
    assert done == [True, "renamed"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64])
def test_every_type_and_shape_comes_back(dtype, tmp_path):
    store = DiskStore(tmp_path)
    given = {"a": torch.ones(2, 3, dtype=dtype).T, "b": torch.zeros(0, 4, dtype=dtype), "c": torch.tensor(1).to(dtype)}
    store.put("ab1", given)
    found = DiskStore(tmp_path).get("ab1")
    assert found is not None
    for name, tensor in given.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_what_was_used_longest_ago_makes_room(tmp_path, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(disk_store.time, "time", lambda: now[0])
    store = DiskStore(tmp_path, 20e-6)  # 20 kB
    for number in range(12):
        store.put(f"a{number}x", tensors(number))
        for path in tmp_path.rglob(f"a{number}x.safetensors"):
            os.utime(path, (number, number))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    store.get("a0x")  # used again
    for number in range(12, 24):
        store.put(f"a{number}x", tensors(number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) <= 20_000
    assert size > 10_000
    assert "a0x" in store
    assert "a1x" not in store
    assert "a23x" in store


def test_a_full_disk_stops_no_work(tmp_path, monkeypatch, capsys):
    store = DiskStore(tmp_path, 1.0)
    store.put("ab", tensors(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_store.os, "fsync", full)
    store.put("cd", tensors(2))
    store.put("ef", tensors(3))
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert "cd" not in store
    assert store.get("ab") is not None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ab.safetensors"]


def test_a_folder_that_may_not_be_entered_stops_no_work(tmp_path, monkeypatch, capsys):
    store, plain = DiskStore(tmp_path, 1.0), os.stat

    def refused(path: Any, *more: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(".safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *more, **options)

    monkeypatch.setattr(os, "stat", refused)  # not by the mode of a folder: root may enter any
    store.put("ab", tensors(1))
    store.put("cd", tensors(2))
    assert capsys.readouterr().err.count("nothing more is stored here: Permission denied") == 1
    assert store.get("ab") is None
    assert "cd" not in store


def test_machines_whose_processes_have_the_same_number_share_a_store(tmp_path, monkeypatch, capsys):
    store, plain = DiskStore(tmp_path, 1.0), os.replace

    def after_another_machine(source: Path, target: Path) -> None:
        monkeypatch.setattr(disk_store.os, "replace", plain)
        DiskStore(tmp_path, 1.0).put("abc", tensors(1))  # the same, in a container of its own
        plain(source, target)

    monkeypatch.setattr(disk_store.os, "replace", after_another_machine)
    store.put("abc", tensors(1))
    store.put("abd", tensors(2))
    assert capsys.readouterr().err == ""
    assert "abd" in store
    assert torch.equal(store.get("abc")["states"], tensors(1)["states"])


def test_what_a_killed_process_left_is_deleted(tmp_path, monkeypatch):
    store = DiskStore(tmp_path, 1.0)
    (tmp_path / "ab").mkdir()
    left = tmp_path / "ab" / ".abc.77.unfinished"
    left.write_bytes(b"x")
    store.put("abd", tensors(1))
    assert left.exists()  # perhaps it is being written
    later = time.time() + 7_200
    monkeypatch.setattr(disk_store.time, "time", lambda: later)
    DiskStore(tmp_path, 1.0).put("abe", tensors(1))
    assert not left.exists()
