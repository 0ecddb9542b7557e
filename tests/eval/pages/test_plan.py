"""The files of a plan: all or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from empathy_judge.eval.pages.plan import save_plan
from empathy_judge.eval.plan import assumed_pilot, make_plan


@pytest.mark.parametrize("file", ["plan.csv", "plan.json", "plan.png"])
def test_on_a_full_disk_all_earlier_files_stay(file, tmp_path, monkeypatch):
    save_plan(make_plan(assumed_pilot({"item": 1, "residual": 1}), raters=[2]), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("plan.*")}
    assert set(before) == {"plan.csv", "plan.json", "plan.png"}
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name != file:
            return write(path, content)
        write(path, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{file}"):
        save_plan(make_plan(assumed_pilot({"item": 1, "residual": 2}), raters=[2]), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("plan.*")} == before
