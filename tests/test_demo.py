"""A demo replaces nothing but an earlier demo, and that only when it is done."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from empathy_judge import demo
from empathy_judge.cli import main

from .conftest import failed


def test_demo_does_not_replace_what_it_did_not_make(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("mine")
    assert "expected another --out" in failed(capsys, "demo", "--out", str(tmp_path))
    assert (tmp_path / "data" / "mine.txt").read_text() == "mine"


def test_an_earlier_demo_stays_until_the_next_one_is_done(dataset_folder, tmp_path, monkeypatch, capsys):
    """On a full disk it is put back at once, after a kill by the next call."""
    out = tmp_path / "demo"
    shutil.copytree(dataset_folder, out / "data")
    card = (out / "data" / "dataset.yaml").read_text()
    (out / "data" / "dataset.yaml").write_text(f"{card}\nsynthetic: true\n" if "synthetic" not in card else card)
    (out / "run").mkdir()
    before = sorted(out.rglob("*"))

    def fail(folder: Path, groups: int) -> None:
        folder.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(demo, "make_sample", fail)
    assert "No space left" in failed(capsys, "demo", "--out", str(out))
    assert sorted(out.rglob("*")) == before
    killed = demo._replacing(out)
    killed.__enter__()
    (out / "data").mkdir()
    assert main(["demo", "--out", str(out)]) == 2
    assert sorted(out.rglob("*")) == before
    assert main(["demo", "--out", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
