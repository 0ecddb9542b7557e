"""A lock of a folder ends with its process; see also test_written.py and the tests of commands that hold one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from empathy_judge.core import locks


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, capsys):
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")  # Lustre without the mount option `flock`

    monkeypatch.setattr(locks.fcntl, "lockf", unknown)
    with locks.locked(tmp_path / "run" / "lock", "taken", "no locks here"):
        assert (tmp_path / "run" / "lock").is_file()
    assert capsys.readouterr().err == "no locks here\n"
    assert list((tmp_path / "run").iterdir()) == []


def test_another_error_of_the_file_system_is_told(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks.fcntl, "lockf", broken)
    with pytest.raises(OSError, match="Input/output error"), locks.locked(tmp_path / "lock", "taken", "no locks"):
        pass


@pytest.mark.parametrize("kind", ["link", "system"])
def test_a_place_where_nothing_can_be_made_is_told_and_not_tried_for_ever(kind, tmp_path):
    """Below /proc, and behind a link to nowhere, making the file fails as if another process had deleted its folder."""
    (tmp_path / "lock").symlink_to("nowhere/lock")
    path = tmp_path / "lock" if kind == "link" else Path("/proc/report/lock")
    with pytest.raises(FileNotFoundError, match="No such file or directory"), locks.locked(path, "taken", "no locks"):
        pass
