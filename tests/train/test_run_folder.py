"""A run that was killed ends where the uninterrupted one does, and half-written files are never read."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from empathy_judge.core import locks
from empathy_judge.core.errors import UserError
from empathy_judge.core.files import CARD_FILE
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.models import JUDGE_FILE
from empathy_judge.models.weight_files import damage, read_checkpoint
from empathy_judge.tools.kills.endings import differing
from empathy_judge.train import run_folder
from empathy_judge.train.run import train
from empathy_judge.train.run_folder import OF_A_RUN, find_resumable, run_lock

from ..conftest import failed
from ..pages import ROOT
from .conftest import BEST_FILE as BEST
from .conftest import LAST_FILE as LAST
from .conftest import OF_CLIPS, Killed, let_probes_choose_a_kernel


def assert_same_end(one: Path, other: Path) -> None:
    assert differing(one, other, LAST, BEST) == []


def die() -> None:
    raise Killed


IN_MID_EPOCH = {
    "plain": {},
    "workers": {"data__num_workers": 1},
    "by tokens": {"data__batch_tokens": 200},
    "accumulated": {"data__batch_size": 2, "trainer__accumulate_grad_batches": 2},
    "validated twice an epoch": {"data__batch_size": 2, "trainer__val_check_interval": 3},
    "validated every other epoch": {"trainer__check_val_every_n_epoch": 2},
    "from a kernel": OF_CLIPS,
    "from a kernel without the language model": OF_CLIPS,
}


@pytest.mark.parametrize(
    "kind",
    [
        "by tokens",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in (
                "plain", "workers", "accumulated", "validated twice an epoch", "validated every other epoch",
                "from a kernel", "from a kernel without the language model",
            )
        ),
    ],
)  # fmt: skip
def test_a_run_stopped_in_mid_epoch_goes_on_with_the_next_batch(
    kind, train_arguments, tmp_path, in_a_step, batches_read, monkeypatch
):
    """Killed early, at the end of the first epoch and after it: what is read is what an uninterrupted run reads.
    Data-loader workers read ahead, so that the order must be right from the start."""
    options = {"judge__lora__dropout": 0.3, "trainer__logger": "false", "trainer__max_epochs": 2, **IN_MID_EPOCH[kind]}
    options["checkpoint-steps"] = 1
    if options.keys() >= OF_CLIPS.keys():
        let_probes_choose_a_kernel(monkeypatch, without_language_model="without" in kind)
    train(train_arguments(tmp_path / "whole", **options))
    whole = batches_read.copy()
    accumulated = options.get("trainer__accumulate_grad_batches", 1)
    assert len({epoch for epoch, *_ in whole}) == 2
    assert len(whole) >= 6
    half = len(whole) // 2
    stop = {"plain": 1, "validated every other epoch": half}.get(kind, half + 1)
    batches_read.clear()
    run = tmp_path / "run"
    with in_a_step(stop, die), pytest.raises(Killed):
        train(train_arguments(run, **options))
    assert batches_read == whole[:stop]
    batches_read.clear()
    train([*train_arguments(run, **options), "--resume", "auto"])
    kept = len(whole) - len(batches_read)
    assert stop - accumulated < kept <= stop
    assert batches_read == whole[kept:]
    assert_same_end(run, tmp_path / "whole")


def test_in_mid_epoch_the_batches_may_not_change(train_arguments, tmp_path, in_a_step):
    run, options = tmp_path / "run", {"trainer__logger": "false", "checkpoint-steps": 1}
    with in_a_step(2, die), pytest.raises(Killed):
        train(train_arguments(run, **options))
    for option, value, name in (
        ("data__batch_size", 2, "data.batch_size"),
        ("data__batch_tokens", 300, "data.batch_size"),  # which counts no longer
        ("seed", 1, "seed"),
        ("data__batches", "groups", "data.batches"),
        ("trainer__accumulate_grad_batches", 2, "trainer.accumulate_grad_batches"),
    ):
        again = [*train_arguments(run, **{**options, option: value}), "--resume", "true"]
        refused(again, "was written in mid-epoch", f"{name} ", "expected the same")


def test_a_truncated_checkpoint_is_passed_over(run, trained_run, train_arguments, capsys):
    """The other one is taken, and the run still ends as it should."""
    whole = (run / LAST).read_bytes()
    (run / LAST).write_bytes(whole[: len(whole) // 2])
    chosen, passed_over = find_resumable(run / "checkpoints")
    assert chosen == run / BEST
    assert len(passed_over) == 1
    assert passed_over[0].startswith(f"{run / LAST}: half-written or damaged checkpoint")
    train([*train_arguments(run), "--resume", "true"])
    assert f"passed over {run / LAST}" in capsys.readouterr().err
    assert not [name for name in differing(run, trained_run) if name.startswith("judge.")]


def flipped(whole: bytes) -> bytes:
    """With another bit in a weight: between members there is padding."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        largest = archive.read(max(archive.infolist(), key=lambda member: member.file_size))
    place = whole.index(largest) + len(largest) // 2
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


class Unwanted:
    """What a checkpoint may not hold."""


def with_code(_: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"state_dict": {}, "surprise": Unwanted()}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((lambda whole, share=share: whole[: int(len(whole) * share)], "half-written or damaged checkpoint")
          for share in (0.0, 0.5, 0.999)),
        (flipped, r"damaged checkpoint \(member "),
        (with_code, "not a checkpoint of this program"),
    ],
)  # fmt: skip
def test_a_spoilt_checkpoint_is_not_read(spoil, message, trained_run, tmp_path):
    (tmp_path / "odd.ckpt").write_bytes(spoil((trained_run / LAST).read_bytes()))
    assert spoil is with_code or damage(tmp_path / "odd.ckpt") is not None
    with pytest.raises(UserError, match=rf"odd\.ckpt: {message}"):
        read_checkpoint(tmp_path / "odd.ckpt")


def test_the_newest_whole_checkpoint_is_taken(run):
    os.utime(run / BEST, (1, 1))
    assert find_resumable(run / "checkpoints")[0] == run / LAST
    os.utime(run / LAST, (0, 0))
    assert find_resumable(run / "checkpoints")[0] == run / BEST
    os.utime(run / LAST, (1, 1))
    assert find_resumable(run / "checkpoints")[0] == run / LAST  # a tie: last is written after best
    assert find_resumable(run / "nowhere") == (None, [])


@pytest.mark.long
def test_random_kills(train_arguments, tmp_path):
    """It ends like one that is not killed. A few here; ``python tools/kills train --moments 50`` for more."""
    options = {"trainer__max_epochs": 3, "data__batch_tokens": 400, "judge__lora__dropout": 0.2}
    words = train_arguments(tmp_path / "unused", **options)
    at = words.index("--run")
    words = [*words[:at], *words[at + 2 :]]
    kills = ROOT / "tools" / "kills"
    program = [sys.executable, str(kills), "train", "--moments", "4", "--seed", "1", "--", *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=500, check=False)
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["kills"] == 4
    assert found["starts"] == 4 + found["runs"]


# ---------------------------------------------------------------- refused


def refused(arguments: list[str], *texts: str) -> None:
    with pytest.raises(UserError) as found:
        train(arguments)
    assert "\n" not in str(found.value)
    for text in texts:
        assert text in str(found.value)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("judge__lora__rank", 8, "lora_A.default.weight' has shape (4, 192), expected (8, 192)"),
        ("judge__lora__parts", '["projector"]',
         "missing 'judge.network.multi_modal_projector.linear.lora_A.default.weight'"),
        ("data__target", "single", "trained on other data: target differs"),
        ("optimizer__learning_rate", 0.5, "was begun with optimizer.learning_rate "),
        ("judge__lora__alpha", 3.0, "judge.lora.alpha 32.0, now 3.0; expected the same, or another --run"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_other_settings_is_refused(option, value, text, run, train_arguments):
    before = (run / LAST).read_bytes()
    refused([*train_arguments(run, **{option: value}), "--resume", "true"], text)
    assert (run / LAST).read_bytes() == before


def test_a_checkpoint_of_another_backbone_or_split_is_refused(
    run, train_arguments, make_backbone, dataset_folder, tmp_path
):
    other = make_backbone(tmp_path / "other", 5)
    refused([*train_arguments(run, judge__backbone=other), "--resume", "true"], "trained with other backbone")
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    split_dataset(data, fractions={"train": 0.5, "validation": 0.375, "test": 0.125}, seed=3, overwrite=True)
    refused(
        [*train_arguments(run, data__path=data), "--resume", "true"],
        "trained on other data: split_hash differs", str(data),
    )  # fmt: skip


def test_there_must_be_something_to_resume(train_arguments, tmp_path):
    (tmp_path / "run").mkdir()
    refused([*train_arguments(tmp_path / "run"), "--resume", "true"], str(tmp_path / "run"), "nothing to resume from")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_run_folder_in_use_is_left_alone(run, train_arguments):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused(train_arguments(run), f"{run}: already holds a run", "--resume true")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("name", "what"), [(JUDGE_FILE, "a judge"), (CARD_FILE, "a pair dataset")])
def test_a_judge_or_a_dataset_is_no_run_folder(name, what, train_arguments, tmp_path):
    """Its calibration would be written over, or checkpoints would lie among clips."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / name).write_text("{}")
    refused(train_arguments(tmp_path / "taken"), f"{tmp_path / 'taken'}: is {what}; expected another --run")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == [name]


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

    monkeypatch.setattr(locks.fcntl, "lockf", unknown)
    with run_lock(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert capsys.readouterr().err == (
        f"{tmp_path / 'run'}: its file system knows no locks; make sure that no other command trains here\n"
    )


def test_a_run_folder_that_cannot_be_written_is_one_line(train_arguments, tmp_path, capsys):
    (tmp_path / "file").touch()
    run = tmp_path / "file" / "run"
    assert failed(capsys, "train", *train_arguments(run)) == (
        f"error: {run}: cannot be written (Not a directory); expected a folder to write"
    )


def test_only_the_first_process_deletes_what_a_kill_left(tmp_path, monkeypatch):
    """Another one that starts later would delete what the first is writing; and a file may vanish meanwhile."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    left = checkpoints / ".0123abcd.tmp"
    left.touch()
    monkeypatch.setattr(run_folder.rank_zero_only, "rank", 1)
    run_folder.delete_unfinished(tmp_path)
    assert left.exists()
    monkeypatch.setattr(run_folder.rank_zero_only, "rank", 0)
    listed = Path.glob
    vanished = checkpoints / ".4567abcd.tmp"
    monkeypatch.setattr(Path, "glob", lambda *words: [*([vanished] if words[1] == ".*.tmp" else []), *listed(*words)])
    run_folder.delete_unfinished(tmp_path)
    assert not left.exists()


def test_a_dry_run_deletes_nothing_that_a_training_is_writing(run, train_arguments):
    being_written = run / "checkpoints" / ".0123abcd.tmp"
    being_written.touch()
    train([*train_arguments(run), "--resume", "auto", "--dry-run"])
    assert being_written.exists()


@pytest.mark.parametrize("text", ["data: {path: d}  # mine\nseed: 1\n", "- a list\n"])
def test_a_recipe_of_the_user_in_the_run_folder_is_not_replaced(text, train_arguments, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(UserError, match=f"^{re.escape(str(config))}: exists, and `train` did not write it; expected"):
        train(train_arguments(tmp_path))
    assert config.read_text() == text


@pytest.mark.parametrize("name", OF_A_RUN)
def test_what_another_program_keeps_in_the_run_folder_is_not_replaced(name, train_arguments, tmp_path):
    mine = tmp_path / name / "best.ckpt"
    mine.parent.mkdir()
    mine.write_bytes(b"of another program")
    with pytest.raises(UserError, match=rf"{name}: is of no run, as there is no config\.yaml"):
        train(train_arguments(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
