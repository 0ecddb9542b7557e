"""A signal that comes between two training steps: all processes end together, and what was saved loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from empathy_judge.data_modules.errors import ASKED_TO_STOP
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.tools.kills.endings import differing
from empathy_judge.train import cross_validate
from empathy_judge.train.checkpointing import LEFT_OUT, find_resumable
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train

from .conftest import BEST_FILE, LAST_FILE, OF_CLIPS, PROBE, under_torchrun

TWICE_AN_EPOCH = {"data__batch_size": 2, "trainer__val_check_interval": 3}


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


@pytest.mark.parametrize("options", [{}, TWICE_AN_EPOCH, {**TWICE_AN_EPOCH, "checkpoint-steps": 1}])
@pytest.mark.parametrize("moment", ["training_step", "validation_step"])
def test_a_signal_before_or_in_a_validation_leaves_it_to_the_run_that_goes_on(
    moment, options, validated, train_arguments, tmp_path, monkeypatch, capsys
):
    """The validation is due after the third step; it has five batches, of which the first is the last that is read."""
    options = {"trainer__logger": "false", "trainer__max_epochs": 2, "data__eval_batch_size": 2, **options}
    batches: list[int] = []
    plain = getattr(JudgeModule, moment)

    def step(module: JudgeModule, batch: Any, number: int) -> Any:
        batches.append(number)
        if len(batches) == (3 if moment == "training_step" else 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(module, batch, number)

    train(train_arguments(tmp_path / "whole", **options))
    whole = validated.copy()
    validated.clear()
    with monkeypatch.context() as patch:
        patch.setattr(JudgeModule, moment, step)
        with pytest.raises(SystemExit) as stopped:
            train(train_arguments(tmp_path / "run", **options))
    assert stopped.value.code == ASKED_TO_STOP
    assert "asked to stop: saved after step 3; --resume auto" in capsys.readouterr().err
    assert batches == ([0, 1, 2] if moment == "training_step" else [0])
    assert validated == []
    train([*train_arguments(tmp_path / "run", **options), "--resume", "auto"])
    assert validated == whole
    assert differing(tmp_path / "run", tmp_path / "whole", LAST_FILE, BEST_FILE) == []


@pytest.mark.parametrize(
    ("options", "saved_after"),
    [
        ({"trainer__max_steps": 3}, 3),  # a run that had reached its last step would not validate
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
from empathy_judge.train import checkpointing, run, shared
from empathy_judge.train.features import Features
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.start import StartAtProbe

out, rank, begun = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"]), time.monotonic()
words, moment = json.loads((out / "words.json").read_text()), sys.argv[2]
owner, name = {
    "cache": (Features, "_encode"), "probe": (StartAtProbe, "_start"), "measuring": (shared, "measured"),
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


# The second comes later to where a best checkpoint that is none is deleted
UNDEFINED = """
import json, os, sys, time
from pathlib import Path
from empathy_judge.train import run, shared
from empathy_judge.train.validation import Agreement

out, rank, plain = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"]), shared.check_best
Agreement.value = float("nan")
shared.check_best = lambda folder: time.sleep(rank) or plain(folder)
try:
    run.train(json.loads((out / "words.json").read_text()))
except Exception as error:
    (out / f"{rank}.json").write_text(json.dumps(str(error)))
"""


@pytest.mark.long
def test_all_processes_say_why_there_is_no_best_checkpoint(train_arguments, tmp_path):
    options = {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__logger": "false", "trainer__max_epochs": 1}
    (tmp_path / "words.json").write_text(json.dumps(train_arguments(tmp_path / "run", **options)))
    done = under_torchrun(tmp_path, UNDEFINED, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert "was undefined after every epoch" in json.loads((tmp_path / f"{rank}.json").read_text())
    assert not (tmp_path / "run" / BEST_FILE).exists()


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
