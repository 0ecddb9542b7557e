"""The trainer of every run: loggers, early stopping, and what Lightning refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import yaml
from empathy_judge.cli import main
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.run import train

from ..conftest import failed
from .conftest import LAST_FILE, PROBE, metrics


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("trainer__limit_train_batches", 1.5, "You have passed invalid value 1.5"),
        ("trainer__devices", "x", "`devices` selected with `CPUAccelerator` should be an int > 0"),
        ("trainer__strategy", "none", "You selected an invalid strategy name"),
        ("trainer__max_epochs", -1, "max_epochs -1 and max_steps -1; expected one of them above 0"),
        ("trainer__limit_val_batches", 0.01, "You requested to check 0.01 of the `val_dataloader` but 0.01 * "),
        ("trainer__overfit_batches", 0.01, "You requested to check 0.01 of the `train_dataloader` but 0.01 * "),
        ("trainer__val_check_interval", 1000, "`val_check_interval` (1000) must be less than or equal to the number"),
    ],
)
def test_what_the_trainer_refuses_is_one_line(option, value, message, train_arguments, tmp_path, capsys):
    line = failed(capsys, "train", *train_arguments(tmp_path / "run", **{option: value}))
    assert line.startswith(f"error: trainer: {message}")


def test_a_mistake_of_ours_while_the_trainer_is_made_is_told_as_a_bug(train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("empathy_judge.train.trainer.Throughput", mock.Mock(side_effect=ValueError("no such clock")))
    assert main(["train", *train_arguments(tmp_path / "run")]) == 70
    assert capsys.readouterr().err.startswith("error: ValueError: no such clock: internal error")


def test_early_stopping_ends_a_run_that_gets_no_better(train_arguments, tmp_path):
    arguments = train_arguments(
        tmp_path / "run", trainer__max_epochs=6, patience=2, optimizer__learning_rate=0, optimizer__head_learning_rate=0
    )
    train(arguments)
    assert metrics(tmp_path / "run")["val_agreement"].count() == 3  # the first, then two that are not better
    # as after a kill between the end of training and that of the command, it has ended, unless more patience is asked
    for patience, epochs in ((2, 3), (3, 4)):
        train([*arguments, "--resume", "auto", "--patience", str(patience)])
        assert read_checkpoint(tmp_path / "run" / LAST_FILE)["epoch"] == epochs - 1


@pytest.mark.parametrize(
    ("kind", "folder", "kept"),
    [
        ("CSVLogger", ".", "."),
        ("TensorBoardLogger", ".", "."),
        ("TensorBoardLogger", "mine", "mine"),
        ("WandbLogger", None, "RUN/logs"),
        ("WandbLogger", "mine", "mine"),
    ],
)
def test_a_folder_that_a_recipe_names_for_its_logger_is_kept(kind, folder, kept, train_arguments, tmp_path):
    """Lightning's own default, which is where the command is run, is none that anybody named."""
    if kind == "WandbLogger":
        pytest.importorskip("wandb")
    named = {} if folder is None else {"trainer__logger__save_dir": folder}
    words = train_arguments(tmp_path / "run", trainer__logger=f"lightning.pytorch.loggers.{kind}", **named)
    logger = RecipeParser().recipe(RecipeParser().parse(words)).trainer["logger"]
    assert logger.save_dir == kept.replace("RUN", str(tmp_path / "run"))


@pytest.fixture
def wandb(tmp_path, monkeypatch) -> Iterator[Any]:
    """The library, whose files lie in the test's folder; commands are run in `here`."""
    library = pytest.importorskip("wandb")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    yield library
    library.finish()
    library.teardown()


@pytest.mark.slow
def test_each_fold_is_a_run_of_its_own_in_one_group(wandb, train_arguments, tmp_path):
    words = [*train_arguments(tmp_path / "run", folds=2, **PROBE), "--config", "nano_wandb"]
    train(words)
    wandb.teardown()  # as at the end of the process: the library's own process writes the rest of the files and ends
    parts = {"probe/fold1": "probe/fold1/logs", "probe/fold2": "probe/fold2/logs", "": "logs"}
    assert len([*tmp_path.rglob("*.wandb")]) == len(parts)
    for part, folder in parts.items():
        (written,) = (tmp_path / "run" / folder).glob("wandb/offline-run-*/*.wandb")
        told = written.read_bytes()
        assert b"content_hash" in told
        assert (b"val_spearman" in told) == bool(part)  # what is fitted to all pairs is not measured
        named = [other for other in parts if other and f"run/{other}".encode() in told]
        assert named == [part] * bool(part)
        stored = yaml.safe_load((tmp_path / "run" / part / "config.yaml").read_text())["trainer"]["logger"]
        if part:
            assert stored["init_args"]["name"] == f"run/{part}"
            assert stored["dict_kwargs"] == {"group": "run"}
    # a run of the caller's goes on, and has what is trained in it
    mine = wandb.init(project="mine", mode="offline", dir=str(tmp_path))
    train([*train_arguments(tmp_path / "other", **PROBE), "--config", "nano_wandb"])
    assert wandb.run is mine
    assert not [*(tmp_path / "other").rglob("*.wandb")]


def test_a_version_that_a_recipe_names_is_that_of_one_fold_each(train_arguments, tmp_path):
    """In one folder, the table of a fold would delete that of the fold before."""
    train(train_arguments(
        tmp_path / "run", folds=2, **PROBE, trainer__logger="lightning.pytorch.loggers.CSVLogger",
        trainer__logger__save_dir=tmp_path / "mine", trainer__logger__version="v",
    ))  # fmt: skip
    written = {path.parent.name for path in (tmp_path / "mine").rglob("hparams.yaml")}
    assert written == {"v-probe-fold1", "v-probe-fold2", "v"}


@pytest.mark.slow
def test_weights_and_biases_offline_needs_neither_account_nor_network(wandb, train_arguments, tmp_path, monkeypatch):
    secret = "0123456789abcdef0123456789abcdef01234567"  # of the length that the library accepts
    monkeypatch.setenv("WANDB_API_KEY", secret)
    run = train([*train_arguments(tmp_path / "run", trainer__max_epochs=1), "--config", "nano_wandb"])
    assert run.checkpoint.is_file()
    wandb.teardown()  # as at the end of the process: the library's own process writes the rest of the file and ends
    # WandbLogger of Lightning 2.6.6 writes where the command is run, unless it is told a folder
    assert not any((tmp_path / "here").iterdir())
    (written,) = (tmp_path / "run" / "logs").glob("wandb/offline-run-*/*.wandb")
    told = ("content_hash", "splits", "noise_ceiling", "learning_rate", "val_spearman", "mfu")
    assert [name for name in told if name.encode() not in written.read_bytes()] == []
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert not holding
