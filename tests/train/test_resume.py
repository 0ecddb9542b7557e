"""A run that was killed ends where the uninterrupted one does, and half-written files are never read."""

from __future__ import annotations

import io
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import ASKED_TO_STOP, UserError
from empathy_judge.data_modules.folders import CARD_FILE
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.models import JUDGE_FILE
from empathy_judge.models.weight_files import damage, read_checkpoint
from empathy_judge.tools.kills.endings import differing
from empathy_judge.train import checkpointing
from empathy_judge.train.checkpointing import (
    AtomicCheckpoints,
    PreemptionCheckpoints,
    find_resumable,
    stopped_by_signals,
)
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train

from ..pages import ROOT
from .conftest import BEST_FILE as BEST
from .conftest import LAST_FILE as LAST
from .conftest import OF_CLIPS, Killed, let_probes_choose_a_kernel, metrics


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """A copy of the finished run, to be spoilt."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def assert_same_end(one: Path, other: Path) -> None:
    assert differing(one, other, LAST, BEST) == []


@pytest.fixture
def in_a_step(monkeypatch):
    """Something is done before the step that begins after so many."""

    @contextmanager
    def patched(after: int, do: Callable[[], None]) -> Iterator[None]:
        plain, begun = JudgeModule.training_step, itertools.count()

        def step(module: JudgeModule, batch, batch_idx):
            if next(begun) == after:
                do()
            return plain(module, batch, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(JudgeModule, "training_step", step)
            yield

    return patched


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
        "plain", "workers", "by tokens", "validated every other epoch", "from a kernel",
        "from a kernel without the language model",
        pytest.param("accumulated", marks=pytest.mark.long),
        pytest.param("validated twice an epoch", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_run_stopped_in_mid_epoch_goes_on_with_the_next_batch(
    kind, train_arguments, tmp_path, in_a_step, batches_read, monkeypatch
):
    """Killed early, at the end of the first epoch, after it and late: what is read is what an uninterrupted run reads.
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
    stops = {"plain": (1, half, len(whole) - 1), "validated every other epoch": (half,)}
    for stop in stops.get(kind, (half + 1,)):
        batches_read.clear()
        run = tmp_path / f"{stop}"
        with in_a_step(stop, die), pytest.raises(Killed):
            train(train_arguments(run, **options))
        assert batches_read == whole[:stop]
        if not find_resumable(run / "checkpoints")[0]:
            assert stop < accumulated
            continue
        batches_read.clear()
        train([*train_arguments(run, **options), "--resume", "auto"])
        kept = len(whole) - len(batches_read)
        assert stop - accumulated < kept <= stop
        assert batches_read == whole[kept:]
        assert_same_end(run, tmp_path / "whole")


def test_a_signal_saves_and_stops(train_arguments, tmp_path, in_a_step, batches_read, capsys):
    options = {"trainer__logger": "false", "trainer__max_epochs": 2}
    train(train_arguments(tmp_path / "whole", **options))
    whole = batches_read.copy()
    for number, after in ((signal.SIGTERM, 2), (signal.SIGUSR1, 5)):
        run, before = tmp_path / f"{after}", signal.getsignal(number)
        batches_read.clear()
        with in_a_step(after - 1, partial(os.kill, os.getpid(), number)), pytest.raises(SystemExit) as stopped:
            train(train_arguments(run, **options))
        assert stopped.value.code == ASKED_TO_STOP == 75
        assert f"asked to stop: saved after step {after}; --resume auto" in capsys.readouterr().err
        assert signal.getsignal(number) == before
        assert batches_read == whole[:after]
        train([*train_arguments(run, **options), "--resume", "auto"])
        assert batches_read == whole
        assert_same_end(run, tmp_path / "whole")


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
    assert_same_end(tmp_path / "run", tmp_path / "whole")


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
    callback.on_train_start(trainer, None)
    try:
        for step in range(1, 18):
            trainer.global_step, now[0] = step, now[0] + seconds
            callback.on_train_batch_end(trainer, None, None, None, step - 1)
    finally:
        callback.teardown(trainer, None, "fit")
    assert asked_at == looks


@pytest.mark.parametrize(
    ("moment", "line"),
    [
        ("setup", "the same command goes on (train: with --resume auto)"),
        ("on_fit_start", "the same command goes on (train: with --resume auto)"),
        ("on_train_start", "saved after step 1; --resume auto goes on from there"),
        ("on_train_epoch_end", "saved after step 3; --resume auto goes on from there"),
    ],
)
def test_a_signal_at_another_time_stops_and_says_so(moment, line, train_arguments, tmp_path, monkeypatch, capsys):
    """Before the first step, when there is nothing to save yet, and after the last one, before the calibration."""
    plain = getattr(JudgeModule, moment)

    def hook(module: JudgeModule, **arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        plain(module, **arguments)

    run, options = tmp_path / "run", {"trainer__logger": "false", "trainer__max_epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(JudgeModule, moment, hook)
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


@pytest.mark.parametrize(
    ("option", "value"),
    [("data__batch_size", 2), ("data__batch_tokens", 300), ("seed", 1), ("data__batches", "groups"),
     ("trainer__accumulate_grad_batches", 2)],
)  # fmt: skip
def test_in_mid_epoch_the_batches_may_not_change(option, value, train_arguments, tmp_path, in_a_step):
    run, options = tmp_path / "run", {"trainer__logger": "false", "checkpoint-steps": 1}
    with in_a_step(2, die), pytest.raises(Killed):
        train(train_arguments(run, **options))
    name = option.replace("__", ".")
    if option == "data__batch_tokens":
        name = "data.batch_size"  # which counts no longer
    refused(
        [*train_arguments(run, **{**options, option: value}), "--resume", "true"],
        "was written in mid-epoch", f"{name} ", "expected the same",
    )  # fmt: skip


def test_a_run_that_may_go_on_starts_where_there_is_nothing(train_arguments, tmp_path):
    train([*train_arguments(tmp_path / "run", trainer__max_epochs=1), "--resume", "auto"])
    assert read_checkpoint(tmp_path / "run" / LAST)["epoch"] == 0


def test_metrics_of_the_first_part_survive_a_resumption(train_arguments, tmp_path):
    run = tmp_path / "run"
    train(train_arguments(run, trainer__max_epochs=1))
    before = metrics(run)
    train([*train_arguments(run, trainer__max_epochs=2), "--resume", "true"])
    after = metrics(run)
    assert sorted(before["epoch"].dropna().unique()) == [0]
    assert sorted(after["epoch"].dropna().unique()) == [0, 1]
    old, new = (t.loc[t["epoch"] == 0, "val_agreement"].dropna().tolist() for t in (before, after))
    assert len(old) == 1
    assert old == new


def test_a_run_that_was_moved_keeps_its_best_checkpoint(run, train_arguments, tmp_path):
    """Its best score, one that no later epoch reaches, stands beside the path of the folder where it was."""
    checkpoint = torch.load(run / LAST, weights_only=True)
    (state,) = (state for key, state in checkpoint["callbacks"].items() if "val_agreement" in key and "Model" in key)
    assert Path(state["dirpath"]) != run / "checkpoints"  # `run` is a copy
    state["best_model_score"] = state["kth_value"] = torch.tensor(2.0)
    state["best_k_models"] = dict.fromkeys(state["best_k_models"], torch.tensor(2.0))
    torch.save(checkpoint, run / LAST)
    best = (run / BEST).read_bytes()
    train([*train_arguments(run, trainer__max_epochs=5), "--resume", "true"])
    assert sorted(metrics(run)["epoch"].dropna().unique()) == [0, 1, 2, 3, 4]
    assert (run / BEST).read_bytes() == best
    after = torch.load(run / LAST, weights_only=True)["callbacks"]
    (state,) = (state for key, state in after.items() if "val_agreement" in key and "Model" in key)
    assert state["best_model_path"] == str(run / BEST)
    assert state["best_k_models"] == {str(run / BEST): torch.tensor(2.0)}


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
