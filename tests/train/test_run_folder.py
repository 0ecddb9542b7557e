"""The folder of a run: one command trains in it, and only the first process tidies it up."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from empathy_judge.train import checkpointing
from empathy_judge.train import run as recipe
from empathy_judge.train.checkpointing import alone_in

from ..conftest import failed


@pytest.mark.parametrize("folds", [0, 3])
def test_a_second_training_in_a_folder_is_refused_at_once(folds, train_arguments, tmp_path, capsys):
    run = tmp_path / "run"
    words = train_arguments(run, folds=folds, data__path=tmp_path / "nowhere")
    run.mkdir()
    held = "import fcntl, sys; lock = open(sys.argv[1], 'a'); fcntl.lockf(lock, fcntl.LOCK_EX); print(flush=True); "
    first = subprocess.Popen(
        [sys.executable, "-c", f"{held}sys.stdin.read()", run / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with first:
        first.stdout.readline()
        for more in ([], ["--resume", "auto"]):
            assert failed(capsys, "train", *words, *more) == (
                f"error: {run}: another process trains here; expected another --run, or --resume auto once it has ended"
            )
        assert [path.name for path in run.iterdir()] == [".lock"]
        first.kill()  # the system lets the lock go
    assert "not a pair dataset" in failed(capsys, "train", *words)
    assert not (run / ".lock").exists()


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, capsys):
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")  # Lustre without the mount option `flock`

    monkeypatch.setattr(checkpointing.fcntl, "lockf", unknown)
    with alone_in(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert capsys.readouterr().err == (
        f"{tmp_path / 'run'}: its file system knows no locks; make sure that no other command trains here\n"
    )


def test_a_run_folder_that_cannot_be_written_is_one_line(train_arguments, tmp_path, capsys):
    (tmp_path / "file").touch()
    run = tmp_path / "file" / "run"
    assert failed(capsys, "train", *train_arguments(run)) == (
        f"error: {run}: cannot be written (Not a directory); expected a folder that can"
    )


def test_only_the_first_process_deletes_what_a_kill_left(tmp_path, monkeypatch):
    """Another one that starts later would delete what the first is writing; and a file may vanish meanwhile."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    left = checkpoints / ".0123abcd.tmp"
    left.touch()
    monkeypatch.setattr(recipe.rank_zero_only, "rank", 1)
    assert recipe._starting_point(tmp_path, "auto") is None
    assert left.exists()
    monkeypatch.setattr(recipe.rank_zero_only, "rank", 0)
    listed = Path.glob
    vanished = checkpoints / ".4567abcd.tmp"
    monkeypatch.setattr(Path, "glob", lambda *words: [*([vanished] if words[1] == ".*.tmp" else []), *listed(*words)])
    assert recipe._starting_point(tmp_path, "auto") is None
    assert not left.exists()
