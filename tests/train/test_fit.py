"""Training through the command: what changes, what does not, and what the run folder holds."""

from __future__ import annotations

import errno
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch
import yaml
from empathy_judge.cli import main
from empathy_judge.data_modules import locks
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.artifact import load_any
from empathy_judge.models.settings import JudgeSettings
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train import module as module_file
from empathy_judge.train import shared
from empathy_judge.train.checkpointing import run_lock
from empathy_judge.train.module import JudgeModule, wants_fused
from empathy_judge.train.recipe import Recipe, RecipeParser
from empathy_judge.train.run import train
from empathy_judge.train.strategies import check_accelerator
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import rank_zero_only

from ..conftest import failed
from .conftest import BEST_FILE, LAST_FILE, frame_of, metrics, scores_of


def validation(run: Path) -> list[float]:
    """Validation Spearman after each epoch."""
    return metrics(run)["val_agreement"].dropna().tolist()


def test_nothing_frozen_changes_in_memory_while_training(train_arguments, tmp_path, monkeypatch):
    """The network that was trained, not one loaded afresh; and it is trained in evaluation mode."""
    kept: list[dict[str, torch.Tensor]] = []
    awake: set[str] = set()

    def keep(module: JudgeModule) -> None:
        kept.append({name: weight.detach().clone() for name, weight in module.judge.named_parameters()})

    def step(module: JudgeModule, *_: object) -> None:
        awake.update(name for name, one in module.judge.network.named_modules() if one.training and "lora" not in name)

    monkeypatch.setattr(JudgeModule, "on_train_start", keep)
    monkeypatch.setattr(JudgeModule, "on_train_batch_start", step)
    monkeypatch.setattr(JudgeModule, "on_train_end", keep)
    parts = '["language_model","projector","audio_tower"]'
    train(train_arguments(
        tmp_path / "run", trainer__max_epochs=1, judge__lora__parts=parts, cache__what="none",
        judge__pooling="attention", trainer__logger="false",
    ))  # fmt: skip
    before, after = kept
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name in before if "lora_" in name or name.startswith(("head.", "pooling."))}
    # a constant added to every token's weight cancels in the softmax: its gradient is rounding
    assert trained - {"pooling.score.bias"} <= changed <= trained
    assert len([name for name in changed if "lora_B" in name]) == 28 + 1 + 24
    assert not {name for name in awake if not name.endswith(("q_proj", "k_proj", "v_proj", "o_proj", "out_proj",
                "fc1", "fc2", "gate_proj", "up_proj", "down_proj", "linear"))}  # fmt: skip


@pytest.mark.slow
def test_a_tiny_set_is_learned_by_heart(train_arguments, dataset_folder, tmp_path):
    run = tmp_path / "run"
    train(train_arguments(run, trainer__max_epochs=20, trainer__gradient_clip_val=1.0))
    losses = metrics(run)["train_loss"].dropna().tolist()  # three steps an epoch
    assert sum(losses[:3]) / sum(losses[-3:]) > 10
    part = PairDataset.load(dataset_folder).subset("train")
    found = scores_of(load_any(run / LAST_FILE).judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.9


def test_a_checkpoint_holds_what_was_trained_and_no_frozen_weight(trained_run):
    checkpoint = read_checkpoint(trained_run / BEST_FILE)
    state = {name.removeprefix("judge."): weight for name, weight in checkpoint["state_dict"].items()}
    assert len([name for name in state if ".lora_A." in name]) == 28
    assert all(weight.abs().max() > 1e-4 for name, weight in state.items() if "lora_B" in name)  # a fresh one is zero
    assert (state["head.norm.weight"] - 1).abs().max() > 1e-4
    assert {name for name in state if "lora_" not in name} == {
        "head.norm.weight", "head.norm.bias", "head.linear.weight", "head.linear.bias",
    }  # fmt: skip
    stored = sum(weight.numel() for weight in state.values())
    size = (trained_run / BEST_FILE).stat().st_size
    assert size < 3 * 4 * stored + 200_000  # with Adam's two moments
    assert sorted(path.name for path in (trained_run / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert checkpoint["description"]["provenance"]["dataset"] == "tones"
    assert checkpoint["description"]["provenance"]["synthetic"] is True


def test_the_best_checkpoint_has_the_best_validation_spearman(trained_run, dataset_folder):
    values = validation(trained_run)
    assert len(values) == 4
    checkpoint = read_checkpoint(trained_run / BEST_FILE)
    stored = checkpoint["description"]["provenance"]["validation"]
    assert sum(stored.values()) / 2 == pytest.approx(max(values), abs=1e-6)
    assert checkpoint["epoch"] == values.index(max(values))
    # and it is what the weights give, over the whole split
    part = PairDataset.load(dataset_folder).subset("validation")
    found = scores_of(load_any(trained_run).judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        again = spearman(found[:, column], part.mean_scores()[name].to_numpy())
        assert again == pytest.approx(stored[name], abs=1e-9)


def test_the_resolved_configuration_can_be_run_again(trained_run, backbone_folder, dataset_folder):
    stored = yaml.safe_load((trained_run / "config.yaml").read_text())
    assert stored["judge"]["backbone"] == str(backbone_folder)
    assert stored["judge"]["lora"]["rank"] == 4  # from the command line
    assert stored["optimizer"]["learning_rate"] == 0.005  # from nano.yaml
    assert stored["optimizer"]["weight_decay"] == 0.01  # nobody said so
    assert "dry_run" not in stored
    assert stored["data"]["path"] == str(dataset_folder)
    parser = RecipeParser()
    again = parser.parse(["--config", str(trained_run / "config.yaml"), "--run", "elsewhere"])
    assert yaml.safe_load(parser.text(again)) == {**stored, "run": "elsewhere"}
    assert again.trainer.max_epochs == 4


def test_lora_dropout_acts_in_training_and_not_in_validation(trained_run, train_arguments, tmp_path):
    train(train_arguments(tmp_path / "run", judge__lora__dropout=0.5, trainer__max_epochs=1))
    first, plain = metrics(tmp_path / "run"), metrics(trained_run)
    losses, without = first["train_loss"].dropna().tolist(), plain["train_loss"].dropna().tolist()
    assert losses[0] == pytest.approx(without[0], abs=1e-6)  # the adapter starts at zero
    assert abs(losses[2] - without[2]) > 1e-6
    # validation heard no dropout: the stored weights give the stored value
    loaded = load_any(tmp_path / "run")
    assert not any(module.training for module in loaded.judge.modules())


def test_a_logger_of_the_configuration_replaces_the_default_ones(train_arguments, tmp_path):
    train(train_arguments(
        tmp_path / "run", trainer__max_epochs=1, trainer__logger="lightning.pytorch.loggers.CSVLogger",
        trainer__logger__save_dir=tmp_path / "mine",
    ))  # fmt: skip
    assert not (tmp_path / "run" / "logs").exists()
    (path,) = (tmp_path / "mine").rglob("metrics.csv")
    assert math.isfinite(pd.read_csv(path)["val_agreement"].dropna().item())


def small(folder: Path, source: Path, validation_pairs: int, same_clip: bool = False, **unrated: str) -> Path:
    """The responses of a dataset, so many for validation, if asked all with the clip of the first; of dimensions
    without ratings in a split this is named."""
    shutil.copytree(source, folder)
    (folder / "split.yaml").unlink()
    dataset = PairDataset.load(source)
    pairs = frame_of(dataset.pairs).drop(columns="context_audio")
    pairs["group_id"] = pairs["pair_id"]
    pairs["split"] = ["validation"] * validation_pairs + ["train"] * (len(pairs) - validation_pairs)
    if same_clip:
        validation = pairs["split"] == "validation"
        pairs.loc[validation, "response_audio"] = [pairs["response_audio"].iloc[0]] * validation.sum()
    ratings = dataset.ratings
    for name, split in unrated.items():
        without = pairs.loc[pairs["split"] == split, "pair_id"]
        ratings = ratings[(ratings["dimension"] != name) | ~ratings["pair_id"].isin(without)]
    write_dataset(folder, dataset.card, pairs, ratings)
    return folder


def test_a_judge_that_scores_all_alike_has_no_best_checkpoint(train_arguments, dataset_folder, tmp_path, capsys):
    """All pairs of the validation split have the same clip, and each a rating of its own."""
    data, run = small(tmp_path / "data", dataset_folder, 4, same_clip=True), tmp_path / "run"
    with pytest.raises(UserError, match="no best checkpoint: agreement on the validation split"):
        train(train_arguments(run, data__path=data, trainer__max_epochs=1))
    assert not (run / BEST_FILE).exists()
    assert "no Spearman for empathy: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pairs", "unrated", "counts"), [(2, {}, "'empathy' has 2"), (4, {"warmth": "validation"}, "'warmth' has 0")]
)
def test_without_ratings_to_choose_by_nothing_is_trained(
    pairs, unrated, counts, train_arguments, dataset_folder, tmp_path, capsys
):
    data, run = small(tmp_path / "data", dataset_folder, pairs, **unrated), tmp_path / "run"
    with pytest.raises(UserError, match=rf"split 'validation': {counts} rated pairs with {counts[-1]} different"):
        train(train_arguments(run, data__path=data, trainer__max_epochs=1))
    assert not (run / "logs").exists()


def test_a_dimension_that_nobody_rated_cannot_be_trained(train_arguments, dataset_folder, tmp_path):
    data = small(tmp_path / "data", dataset_folder, 4, warmth="train")
    with pytest.raises(UserError, match=r"nobody rated 'warmth' in split 'train'"):
        train(train_arguments(tmp_path / "run", data__path=data, trainer__max_epochs=1))


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ({"trainer__max_epochs": 2}, 6),
        ({"trainer__max_epochs": 2, "trainer__accumulate_grad_batches": 2}, 4),
        ({"trainer__max_epochs": 3, "trainer__limit_train_batches": 2}, 6),
        ({"trainer__max_epochs": 2, "trainer__limit_train_batches": 0.7}, 4),
        ({"trainer__max_epochs": 3, "trainer__max_steps": 5}, 5),
    ],
    ids=["epochs", "accumulated", "counted", "share", "steps"],
)
def test_learning_rates_rise_and_then_fall_to_zero(overrides, steps, train_arguments, tmp_path, monkeypatch):
    """Linear over the first half, then half a cosine: by hand for every step."""
    rates: list[float] = []
    monkeypatch.setattr(
        JudgeModule, "on_before_optimizer_step", lambda _, optimizer: rates.append(optimizer.param_groups[0]["lr"])
    )
    train(train_arguments(tmp_path / "run", optimizer__warmup=0.5, trainer__logger="false", **overrides))
    rise = round(steps / 2)
    expected = [
        (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
        for step in range(steps)
    ]
    assert rates == pytest.approx([0.005 * share for share in expected])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recipe_for_a_gpu_says_in_one_line_that_there_is_none(train_arguments, tmp_path, capsys):
    folder = tmp_path / "run"
    assert failed(capsys, "train", *train_arguments(folder, trainer__accelerator="gpu")) == (
        "error: trainer.accelerator gpu: torch finds no GPU on this machine (`empathy-judge doctor`); expected one, or "
        "--trainer.accelerator cpu"
    )
    assert not folder.exists()


@pytest.mark.parametrize(("there", "backbone", "said"), [(True, "7b", 1), (True, "nano", 0), (False, "7b", 0)])
def test_a_gpu_that_stays_idle_is_told_of_unless_the_backbone_is_nano(there, backbone, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    check_accelerator(Recipe(judge=JudgeSettings(backbone), data=DataSettings("data"), trainer={"accelerator": "cpu"}))
    expected = "the GPU of this machine stays idle: the recipe has trainer.accelerator cpu\n"
    assert capsys.readouterr().err == said * expected
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    check_accelerator(Recipe(judge=JudgeSettings(backbone), data=DataSettings("data"), trainer={"accelerator": "cpu"}))
    assert capsys.readouterr().err == "", "each process says it"


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
        ("trainer__logger", "[]", "Cannot use `LearningRateMonitor` callback with `Trainer` that has no logger."),
    ],
)
def test_what_the_trainer_refuses_is_one_line(option, value, message, train_arguments, tmp_path, capsys):
    line = failed(capsys, "train", *train_arguments(tmp_path / "run", **{option: value}))
    assert line.startswith(f"error: trainer: {message}")


def test_a_mistake_of_ours_while_the_trainer_is_made_is_told_as_a_bug(train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("empathy_judge.train.shared.Throughput", mock.Mock(side_effect=ValueError("no such clock")))
    assert main(["train", *train_arguments(tmp_path / "run")]) == 70
    assert capsys.readouterr().err.startswith("error: ValueError: no such clock: internal error")


def test_early_stopping_ends_a_run_that_gets_no_better(train_arguments, tmp_path):
    arguments = train_arguments(
        tmp_path / "run", trainer__max_epochs=6, patience=2, optimizer__learning_rate=0, optimizer__head_learning_rate=0
    )
    train(arguments)
    assert len(validation(tmp_path / "run")) == 3  # the first, then two that are not better
    # as after a kill between the end of training and that of the command, it has ended, unless more patience is asked
    for patience, epochs in ((2, 3), (3, 4)):
        train([*arguments, "--resume", "auto", "--patience", str(patience)])
        assert read_checkpoint(tmp_path / "run" / LAST_FILE)["epoch"] == epochs - 1


# ---------------------------------------------------------------- the fused optimizer, which runs on a CPU as well


CLIP = 0.05
CLIPPED = {
    "trainer__precision": "bf16-mixed",
    "trainer__gradient_clip_val": CLIP,
    "trainer__max_epochs": 2,
    "trainer__logger": "false",
}


@pytest.fixture
def clipped(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All gradients of a step before and after clipping, side by side."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    clip = JudgeModule.configure_gradient_clipping

    def gradients(module: JudgeModule) -> torch.Tensor:
        return torch.cat([weight.grad.flatten() for weight in module.parameters() if weight.grad is not None])

    def measured(module: JudgeModule, *args: Any, **kwargs: Any) -> None:
        before = gradients(module)
        clip(module, *args, **kwargs)
        found.append((before, gradients(module)))

    monkeypatch.setattr(JudgeModule, "configure_gradient_clipping", measured)
    return found


def test_fused_steps_clip_and_end_where_unfused_ones_do(train_arguments, tmp_path, monkeypatch, clipped):
    def trained(run: Path) -> dict[str, Any]:
        train(train_arguments(run, **CLIPPED))
        return read_checkpoint(run / LAST_FILE)

    fused = trained(tmp_path / "fused")
    assert all(group["fused"] for group in fused["optimizer_states"][0]["param_groups"])
    norms = [(float(before.norm()), float(after.norm())) for before, after in clipped]
    assert len(norms) == 6
    assert sum(before > CLIP for before, _ in norms) >= 3
    for before, after in norms:
        assert after == pytest.approx(min(before, CLIP), rel=1e-4)
    monkeypatch.setattr(module_file, "wants_fused", lambda precision: False)
    unfused = trained(tmp_path / "unfused")
    assert not any(group["fused"] for group in unfused["optimizer_states"][0]["param_groups"])
    # forward passes in bfloat16 make much of the last bit of a weight
    ours, theirs = fused["state_dict"], unfused["state_dict"]
    moved = sum(float(weight.abs().sum()) for name, weight in ours.items() if "lora_B" in name)  # from zero
    apart = sum(float((weight - theirs[name]).abs().sum()) for name, weight in ours.items() if "lora_B" in name)
    assert apart < 2e-3 * moved


def test_fused_wherever_gradients_are_not_scaled():
    assert wants_fused(Precision())
    assert wants_fused(MixedPrecision("bf16-mixed", "cuda"))
    assert not wants_fused(MixedPrecision("16-mixed", "cpu"))  # has a scaler, and clips unscaled gradients


def test_clipping_by_value(train_arguments, tmp_path, clipped):
    settings = {**CLIPPED, "trainer__gradient_clip_algorithm": "value", "trainer__gradient_clip_val": 0.001}
    train(train_arguments(tmp_path / "run", **{**settings, "trainer__max_epochs": 1}))
    assert [float(after.abs().max()) for _, after in clipped] == pytest.approx([0.001] * 3)


# ---------------------------------------------------------------- the folder of a run


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
    monkeypatch.setattr(shared.rank_zero_only, "rank", 1)
    assert shared.starting_point(tmp_path, "auto") is None
    assert left.exists()
    monkeypatch.setattr(shared.rank_zero_only, "rank", 0)
    listed = Path.glob
    vanished = checkpoints / ".4567abcd.tmp"
    monkeypatch.setattr(Path, "glob", lambda *words: [*([vanished] if words[1] == ".*.tmp" else []), *listed(*words)])
    assert shared.starting_point(tmp_path, "auto") is None
    assert not left.exists()
