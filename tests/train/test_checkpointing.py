"""A signal that comes between two training steps: all processes end together, and what was saved loses nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.core.errors import ASKED_TO_STOP, UserError
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.tools.kills.endings import differing
from empathy_judge.train import checkpointing, cross_validate
from empathy_judge.train.checkpointing import AtomicCheckpoints, PreemptionCheckpoints, stopped_by_signals
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train
from empathy_judge.train.run_folder import LEFT_OUT, find_resumable

from .conftest import BEST_FILE, LAST_FILE, OF_CLIPS, PROBE, under_torchrun
from .conftest import LAST_FILE as LAST

TWICE_AN_EPOCH = {"data__batch_size": 2, "trainer__val_check_interval": 3}
EVERY_STEP = {**TWICE_AN_EPOCH, "checkpoint-steps": 1}


@pytest.fixture
def validated(monkeypatch) -> list[int]:
    """The steps after which validations ended."""
    steps: list[int] = []
    ended = JudgeModule.on_validation_epoch_end

    def on_validation_epoch_end(module: JudgeModule) -> None:
        ended(module)
        steps.append(module.trainer.global_step)

    monkeypatch.setattr(JudgeModule, "on_validation_epoch_end", on_validation_epoch_end)
    return steps


@pytest.mark.parametrize(
    ("moment", "options"),
    [
        ("validation_step", EVERY_STEP),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("training_step", TWICE_AN_EPOCH),
                ("training_step", {}),
                ("training_step", EVERY_STEP),
                ("validation_step", {}),
                ("validation_step", TWICE_AN_EPOCH),
            ]
        ),
    ],
)
def test_a_signal_before_or_in_a_validation_leaves_it_to_the_run_that_goes_on(
    moment, options, validated, train_arguments, tmp_path, monkeypatch, capsys
):
    """The validation is due after the third step; it has five batches, of which the first is the last that is read."""
    options = {"trainer__logger": "false", "trainer__max_epochs": 2, "data__eval_batch_size": 2, **options}
    batches: list[int] = []
    plain = getattr(JudgeModule, moment)
    sent = signal.SIGUSR1 if moment == "training_step" else signal.SIGTERM
    before = signal.getsignal(sent)

    def step(module: JudgeModule, batch: Any, number: int) -> Any:
        batches.append(number)
        if len(batches) == (3 if moment == "training_step" else 1):
            os.kill(os.getpid(), sent)
        return plain(module, batch, number)

    train(train_arguments(tmp_path / "whole", **options))
    whole = validated.copy()
    validated.clear()
    with monkeypatch.context() as patch:
        patch.setattr(JudgeModule, moment, step)
        with pytest.raises(SystemExit) as stopped:
            train(train_arguments(tmp_path / "run", **options))
    assert stopped.value.code == ASKED_TO_STOP == 75
    assert "asked to stop: saved after step 3; --resume auto" in capsys.readouterr().err
    assert signal.getsignal(sent) == before
    assert batches == ([0, 1, 2] if moment == "training_step" else [0])
    assert validated == []
    train([*train_arguments(tmp_path / "run", **options), "--resume", "auto"])
    assert validated == whole
    assert differing(tmp_path / "run", tmp_path / "whole", LAST_FILE, BEST_FILE) == []


@pytest.mark.parametrize(
    ("options", "saved_after"),
    [
        # a run that had reached its last step would not validate
        pytest.param({"trainer__max_steps": 3}, 3, marks=pytest.mark.long),
        ({**TWICE_AN_EPOCH, "trainer__max_epochs": 1, "trainer__accumulate_grad_batches": 2}, 2),  # in mid-step
    ],
)
def test_a_validation_that_no_run_could_begin_with_is_finished(
    options, saved_after, validated, train_arguments, tmp_path, monkeypatch, capsys
):
    options = {"trainer__logger": "false", "data__eval_batch_size": 2, **options}
    plain = JudgeModule.validation_step

    def step(module: JudgeModule, batch: Any, number: int) -> None:
        if not validated and number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        plain(module, batch, number)

    train(train_arguments(tmp_path / "whole", **options))
    whole = validated.copy()
    validated.clear()
    with monkeypatch.context() as patch:
        patch.setattr(JudgeModule, "validation_step", step)
        with pytest.raises(SystemExit) as stopped:
            train(train_arguments(tmp_path / "run", **options))
    assert stopped.value.code == ASKED_TO_STOP
    assert f"asked to stop: saved after step {saved_after}; --resume auto" in capsys.readouterr().err
    assert validated == whole[:1]
    train([*train_arguments(tmp_path / "run", **options), "--resume", "auto"])
    assert validated == whole
    assert differing(tmp_path / "run", tmp_path / "whole", LAST_FILE, BEST_FILE) == []


def test_a_signal_after_the_last_look_is_heard(train_arguments, tmp_path, monkeypatch, capsys):
    words = train_arguments(tmp_path / "run", trainer__logger="false", trainer__max_epochs=1)
    monkeypatch.setattr(JudgeModule, "on_fit_end", lambda _: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(SystemExit) as stopped:
        train(words)
    assert stopped.value.code == ASKED_TO_STOP
    assert "asked to stop: the same command goes on" in capsys.readouterr().err


def test_a_signal_while_the_start_is_validated_saves_nothing(train_arguments, tmp_path, monkeypatch, capsys):
    plain = JudgeModule.validation_step

    def step(module: JudgeModule, batch: Any, number: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        plain(module, batch, number)

    run, options = tmp_path / "run", {"trainer__logger": "false", "trainer__max_epochs": 1, **OF_CLIPS}
    with monkeypatch.context() as patch:
        patch.setattr(JudgeModule, "validation_step", step)
        with pytest.raises(SystemExit) as stopped:
            train(train_arguments(run, **options))
    assert stopped.value.code == ASKED_TO_STOP
    assert "asked to stop: the same command goes on (train: with --resume auto)\n" in capsys.readouterr().err
    assert find_resumable(run / "checkpoints")[0] is None
    train([*train_arguments(run, **options), "--resume", "auto"])
    assert read_checkpoint(run / LAST_FILE)["global_step"] == 3


def test_a_signal_between_the_runs_of_folds_is_heard(train_arguments, tmp_path, monkeypatch, capsys):
    """While the judge of a fold scores the pairs that it was not trained on."""
    run, plain = tmp_path / "run", cross_validate.score_pairs
    words = train_arguments(run, **PROBE, folds=2, trainer__logger="false")

    def scored(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return plain(*arguments)

    before = signal.signal(signal.SIGUSR1, lambda *_: pytest.fail("nobody listens"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(cross_validate, "score_pairs", scored)
            with pytest.raises(SystemExit) as stopped:
                train(words)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopped.value.code == ASKED_TO_STOP
    assert "asked to stop: the same command goes on" in capsys.readouterr().err
    assert not list(run.rglob(LEFT_OUT))
    assert train([*words, "--resume", "auto"]) is not None
    assert len(list(run.rglob(LEFT_OUT))) == 3


# The signal comes to one of two processes, while the other waits for it
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from empathy_judge.train import checkpointing, publishing, run
from empathy_judge.train.features import Features
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.lora import StartAtProbe

out, rank, begun = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"]), time.monotonic()
words, moment = json.loads((out / "words.json").read_text()), sys.argv[2]
owner, name = {
    "cache": (Features, "_encode"), "probe": (StartAtProbe, "on_fit_start"), "measuring": (publishing, "measured"),
    "validation": (JudgeModule, "validation_step"),
}[moment]
plain, calls = getattr(owner, name), []
checkpointing._LOOK_STEPS = 1  # look after each batch

def step(*arguments):
    calls.append(name)
    if rank == 1 and len(calls) == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
    return plain(*arguments)

setattr(owner, name, step)
try:
    end = run.train(words)
except SystemExit as stopped:
    end = stopped.code
except Exception as error:
    end = repr(error)
(out / f"{rank}.json").write_text(json.dumps([end, len(calls)]))
os._exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize("moment", ["cache", "probe", "validation", "measuring"])
def test_processes_end_together_wherever_one_is_asked_to_stop(moment, train_arguments, tmp_path):
    options = {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__logger": "false", "trainer__max_epochs": 1}
    options |= {"data__batch_size": 2, "data__eval_batch_size": 2, **(OF_CLIPS if moment == "probe" else {})}
    words = train_arguments(tmp_path / "run", **options, cache__what="audio")
    (tmp_path / "words.json").write_text(json.dumps(words))
    done = under_torchrun(tmp_path, PROGRAM, tmp_path, moment)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found == [[ASKED_TO_STOP, 1]] * 2, done.stderr[-3000:]
    assert done.stderr.count("asked to stop: ") == 1
    assert (tmp_path / "run" / LAST_FILE).exists() == (moment in ("validation", "measuring"))


# As SLURM sends a signal: to all processes of a step, those that read data too
EVERYONE = """
import json, os, subprocess, sys, time
from pathlib import Path
from empathy_judge.data_modules import datamodule
from empathy_judge.train.run import train
from lightning.pytorch.callbacks import LambdaCallback

def to_all(trainer, *_):
    if trainer.global_step == (6 if trainer.validating else 2):
        command = ["kill", f"-{sys.argv[3]}", "--", f"-{os.getpgrp()}"]
        subprocess.run(command, start_new_session=True, check=True)
        time.sleep(1)

datamodule._start_method = lambda: sys.argv[2]
if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text()), watching=[LambdaCallback(**{sys.argv[4]: to_all})])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "name", "moment"),
    [
        ("fork", "USR1", "on_train_batch_start"),
        ("fork", "TERM", "on_train_batch_start"),
        ("forkserver", "USR1", "on_train_batch_start"),
        ("fork", "USR1", "on_validation_batch_start"),  # Lightning leaves those alone that read for training
        ("forkserver", "USR1", "on_validation_batch_start"),
    ],
)
def test_a_signal_to_all_processes_ends_none_that_reads_data_first(method, name, moment, train_arguments, tmp_path):
    options = {"trainer__logger": "false", "trainer__max_epochs": 2, "data__num_workers": 2, "data__batch_size": 2}
    (tmp_path / "words.json").write_text(json.dumps(train_arguments(tmp_path / "run", **options)))
    (tmp_path / "program.py").write_text(EVERYONE)
    command = [sys.executable, tmp_path / "program.py", tmp_path / "words.json", method, name, moment]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == ASKED_TO_STOP, done.stderr[-3000:]
    assert f"asked to stop: saved after step {3 if 'train' in moment else 6};" in done.stderr


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[int, FrameType | None], object]]:
    """Python's own handler: a shell starts what it puts behind with Ctrl-C ignored."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, inherited)


def test_ctrl_c_in_an_epoch_is_what_it_is_elsewhere(train_arguments, tmp_path, in_a_step, batches_read, capsys, ctrl_c):
    options = {"trainer__logger": "false", "trainer__max_epochs": 2, "checkpoint-steps": 1}
    train(train_arguments(tmp_path / "whole", **options))
    whole = batches_read.copy()
    batches_read.clear()
    with in_a_step(4, partial(signal.raise_signal, signal.SIGINT)):
        assert main(["train", *train_arguments(tmp_path / "run", **options)]) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")
    assert signal.getsignal(signal.SIGINT) == ctrl_c
    assert batches_read == whole[:4]
    assert main(["train", *train_arguments(tmp_path / "run", **options), "--resume", "auto"]) == 0
    assert batches_read == whole
    assert differing(tmp_path / "run", tmp_path / "whole", LAST_FILE, BEST_FILE) == []


@pytest.mark.parametrize(("seconds", "looks"), [(0.01, [1, 9, 17]), (1.0, [1, 5, 9, 13, 17]), (6.0, [*range(1, 18)])])
def test_processes_ask_each_other_before_torchrun_loses_patience(seconds, looks, monkeypatch, tmp_path):
    """At steps that all agree on, at most 8 steps or some 4 seconds apart."""
    now, asked_at = [0.0], []
    loop = SimpleNamespace(_should_accumulate=lambda: False, _should_check_val_fx=lambda _: False)
    trainer = SimpleNamespace(
        world_size=2, global_step=0, is_last_batch=False, validating=False,
        fit_loop=SimpleNamespace(epoch_loop=loop, _data_fetcher=None),
        strategy=SimpleNamespace(root_device=torch.device("cpu"), reduce=lambda own, reduce_op: own),
    )  # fmt: skip
    monkeypatch.setattr(checkpointing.time, "monotonic", lambda: now[0])
    callback = PreemptionCheckpoints(tmp_path, every=0)
    anyone = callback._anyone_asked
    monkeypatch.setattr(callback, "_anyone_asked", lambda it: asked_at.append(it.global_step) or anyone(it))
    monkeypatch.setattr(checkpointing, "listen", lambda _: None)
    callback.on_train_start(trainer, None)
    for step in range(1, 18):
        trainer.global_step, now[0] = step, now[0] + seconds
        callback.on_train_batch_end(trainer, None, None, None, step - 1)
    assert asked_at == looks


@pytest.mark.parametrize(
    ("moment", "line"),
    [
        pytest.param("on_fit_start", "the same command goes on (train: with --resume auto)", marks=pytest.mark.long),
        pytest.param("on_train_start", "saved after step 1; --resume auto goes on from there", marks=pytest.mark.long),
        ("on_train_epoch_end", "saved after step 3; --resume auto goes on from there"),
        ("train_dataloader", "the same command goes on (train: with --resume auto)"),  # Lightning's handler is first
    ],
)
def test_a_signal_at_another_time_stops_and_says_so(moment, line, train_arguments, tmp_path, monkeypatch, capsys):
    """Before the first step, when there is nothing to save yet, and after the last one, before the calibration."""
    owner = PairDataModule if moment == "train_dataloader" else JudgeModule
    plain = getattr(owner, moment)

    def hook(module: Any, **arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(module, **arguments)

    run, options = tmp_path / "run", {"trainer__logger": "false", "trainer__max_epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, hook)
        with pytest.raises(SystemExit) as stopped:
            train(train_arguments(run, **options))
    assert stopped.value.code == ASKED_TO_STOP
    assert f"asked to stop: {line}\n" in capsys.readouterr().err
    assert not (run / "calibration.json").exists()
    train([*train_arguments(run, **options), "--resume", "auto"])
    assert read_checkpoint(run / LAST)["global_step"] == 3


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_mistake_while_tidying_up_does_not_hide_the_signal(number, ends, capsys, ctrl_c):
    """Lightning tears down a loop that it had not begun."""

    @stopped_by_signals()
    def validate() -> None:
        try:
            signal.raise_signal(number)
        finally:
            raise RuntimeError("Please call `iter(combined_loader)` first.")

    with pytest.raises(ends) as stopped:
        validate()
    assert ends is KeyboardInterrupt or stopped.value.code == ASKED_TO_STOP
    assert ("asked to stop: the same command goes on" in capsys.readouterr().err) == (ends is SystemExit)


def test_a_disk_without_room_leaves_the_old_checkpoint(tmp_path):
    """The system refuses to write on, as it does where a disk or a quota is full."""
    writer, path = AtomicCheckpoints(), tmp_path / "last.ckpt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"epoch": torch.tensor(2), "weights": torch.zeros(1_000_000)}
    for before in (False, True):
        if before:
            writer.save_checkpoint({"epoch": torch.tensor(1)}, path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(UserError, match=r"last\.ckpt: checkpoint not written \(") as found:
                writer.save_checkpoint(large, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert ("the one before it is whole" if before else "there is none before it") in str(found.value)
        assert [file.name for file in tmp_path.iterdir()] == (["last.ckpt"] if before else [])
    assert read_checkpoint(path)["epoch"] == 1
