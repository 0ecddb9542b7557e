"""Training through the command: what changes, what does not, and what the run folder holds."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
import yaml
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset, write_dataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.artifact import load_any, load_run, save_judge
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.run import train

from .conftest import scores_of


def metrics(run: Path) -> pd.DataFrame:
    """All rows that the CSV logger wrote."""
    return pd.concat([pd.read_csv(path) for path in sorted((run / "logs").rglob("metrics.csv"))])


def validation(run: Path) -> list[float]:
    """Validation Spearman after each epoch."""
    rows = metrics(run)
    return rows.loc[rows["val_agreement"].notna(), "val_agreement"].tolist()


def test_nothing_frozen_changes_in_memory_while_training(train_arguments, tmp_path, monkeypatch):
    """The network that was trained, not one loaded afresh; and it is trained in evaluation mode."""
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    awake: set[str] = set()

    def start(module: JudgeModule) -> None:
        before.update({name: weight.detach().clone() for name, weight in module.judge.named_parameters()})

    def step(module: JudgeModule, *_: object) -> None:
        awake.update(name for name, one in module.judge.network.named_modules() if one.training and "lora" not in name)

    def end(module: JudgeModule) -> None:
        after.update({name: weight.detach().clone() for name, weight in module.judge.named_parameters()})

    monkeypatch.setattr(JudgeModule, "on_train_start", start)
    monkeypatch.setattr(JudgeModule, "on_train_batch_start", step)
    monkeypatch.setattr(JudgeModule, "on_train_end", end)
    parts = '["language_model","projector","audio_tower"]'
    train(train_arguments(
        tmp_path / "run", trainer__max_epochs=1, judge__lora__parts=parts, cache__what="none",
        judge__pooling="attention", trainer__logger="false",
    ))  # fmt: skip
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
    found = scores_of(load_run(run / "checkpoints" / "last.ckpt").judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.9


def test_a_checkpoint_holds_what_was_trained_and_no_frozen_weight(trained_run):
    checkpoint = read_checkpoint(trained_run / "checkpoints" / "best.ckpt")
    state = {name.removeprefix("judge."): weight for name, weight in checkpoint["state_dict"].items()}
    assert len([name for name in state if ".lora_A." in name]) == 28
    assert all(weight.abs().max() > 1e-4 for name, weight in state.items() if "lora_B" in name)  # a fresh one is zero
    assert (state["head.norm.weight"] - 1).abs().max() > 1e-4
    assert {name for name in state if "lora_" not in name} == {
        "head.norm.weight", "head.norm.bias", "head.linear.weight", "head.linear.bias",
    }  # fmt: skip
    stored = sum(weight.numel() for weight in state.values())
    size = (trained_run / "checkpoints" / "best.ckpt").stat().st_size
    assert size < 3 * 4 * stored + 200_000  # with Adam's two moments
    assert sorted(path.name for path in (trained_run / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert checkpoint["description"]["provenance"]["dataset"] == "tones"
    assert checkpoint["description"]["provenance"]["synthetic"] is True


def test_the_best_checkpoint_has_the_best_validation_spearman(trained_run, dataset_folder):
    values = validation(trained_run)
    assert len(values) == 4
    checkpoint = read_checkpoint(trained_run / "checkpoints" / "best.ckpt")
    stored = checkpoint["description"]["provenance"]["validation"]
    assert sum(stored.values()) / 2 == pytest.approx(max(values), abs=1e-6)
    assert checkpoint["epoch"] == values.index(max(values))
    # and it is what the weights give, over the whole split
    part = PairDataset.load(dataset_folder).subset("validation")
    found = scores_of(load_run(trained_run).judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        again = spearman(found[:, column], part.mean_scores()[name].to_numpy())
        assert again == pytest.approx(stored[name], abs=1e-9)


def test_an_exported_run_scores_as_the_run_does(trained_run, dataset_folder, tmp_path):
    pairs = PairDataset.load(dataset_folder).pairs
    loaded = load_run(trained_run)
    save_judge(loaded, tmp_path / "judge", "card")
    exported = load_any(tmp_path / "judge")
    assert (scores_of(loaded.judge, pairs) == scores_of(exported.judge, pairs)).all()
    hashes = exported.description.pop("sha256")  # only files have them
    assert set(hashes) == {"head.safetensors", "adapter/adapter_model.safetensors"}
    assert exported.description == loaded.description


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
    loaded = load_run(tmp_path / "run")
    assert not any(module.training for module in loaded.judge.modules())


def test_a_logger_of_the_configuration_replaces_the_default_ones(train_arguments, tmp_path):
    train(train_arguments(
        tmp_path / "run", trainer__max_epochs=1, trainer__logger="lightning.pytorch.loggers.CSVLogger",
        trainer__logger__save_dir=tmp_path / "mine",
    ))  # fmt: skip
    assert not (tmp_path / "run" / "logs").exists()
    (path,) = (tmp_path / "mine").rglob("metrics.csv")
    assert math.isfinite(pd.read_csv(path)["val_agreement"].dropna().item())


def small(folder: Path, source: PairDataset, validation_pairs: int, rated: dict[str, str]) -> Path:
    """The pairs of `source`, so many for validation; `rated` names dimensions that are rated in one split only."""
    folder.mkdir()
    pairs, ratings = [], []
    for number, pair in enumerate(source.pairs):
        split = "validation" if number < validation_pairs else "train"
        assert isinstance(pair.response, Path)
        (folder / pair.response.name).write_bytes(pair.response.read_bytes())
        pairs.append({"pair_id": pair.pair_id, "group_id": pair.pair_id, "response_audio": pair.response.name,
                      "split": split})  # fmt: skip
        for name in ("empathy", "warmth"):
            if rated.get(name, split) == split:
                ratings.append((pair.pair_id, "r0", name, 1 + number % 5))
    card = DatasetCard("small", (Dimension("empathy", 1, 5), Dimension("warmth", 0, 10)), "a test", "CC0-1.0")
    columns = ["pair_id", "rater_id", "dimension", "score"]
    write_dataset(folder, card, pd.DataFrame(pairs), pd.DataFrame(ratings, columns=columns))
    return folder


def test_without_a_validation_spearman_there_is_no_best_checkpoint(train_arguments, dataset_folder, tmp_path, capsys):
    data = small(tmp_path / "data", PairDataset.load(dataset_folder), 2, {})
    run = tmp_path / "run"
    with pytest.raises(UserError, match="no best checkpoint: agreement on the validation split"):
        train(train_arguments(run, data__path=data, trainer__max_epochs=1))
    assert not (run / "checkpoints" / "best.ckpt").exists()
    assert "no Spearman for empathy: 2 items; a correlation needs at least 3" in capsys.readouterr().err


def test_a_dimension_that_nobody_rated_cannot_be_trained(train_arguments, dataset_folder, tmp_path):
    data = small(tmp_path / "data", PairDataset.load(dataset_folder), 4, {"warmth": "validation"})
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
def test_learning_rates_rise_and_then_fall_to_zero(overrides, steps, train_arguments, tmp_path):
    """Linear over the first half, then half a cosine: by hand for every step."""
    run = tmp_path / "run"
    arguments = train_arguments(run, optimizer__warmup=0.5, trainer__logger="false", **overrides)
    rates: list[float] = []

    def note(module: JudgeModule, *_: object) -> None:
        rates.extend(group["lr"] for group in module.optimizers().param_groups[:1])  # pyright: ignore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgeModule, "on_before_optimizer_step", note)
        train(arguments)
    rise = round(steps / 2)
    expected = [
        (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
        for step in range(steps)
    ]
    assert rates == pytest.approx([0.005 * share for share in expected])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recipe_for_a_gpu_says_in_one_line_that_there_is_none(train_arguments, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", *train_arguments(folder, trainer__accelerator="gpu")]) == 2
    assert capsys.readouterr().err == (
        "error: trainer.accelerator gpu: torch finds no GPU on this machine (`empathy-judge doctor`); expected one, or "
        "--trainer.accelerator cpu\n"
    )
    assert not folder.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        # -1 or -1.0: typing keeps one of `int | float` and `float | int` for both
        ("trainer__limit_train_batches", -1, "You have passed invalid value -1"),
        ("trainer__devices", "x", "`devices` selected with `CPUAccelerator` should be an int > 0"),
        ("trainer__strategy", "none", "You selected an invalid strategy name"),
    ],
)
def test_what_the_trainer_refuses_is_one_line(option, value, message, train_arguments, tmp_path, capsys):
    assert main(["train", *train_arguments(tmp_path / "run", **{option: value})]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: trainer: {message}")
    assert line.count("\n") == 1


def test_a_mistake_of_ours_while_the_trainer_is_made_is_told_as_a_bug(train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("empathy_judge.train.run.Throughput", mock.Mock(side_effect=ValueError("no such clock")))
    assert main(["train", *train_arguments(tmp_path / "run")]) == 70
    assert capsys.readouterr().err.startswith("error: ValueError: no such clock: a mistake of this program")


def test_a_run_without_an_end_is_refused(train_arguments, tmp_path):
    with pytest.raises(UserError, match="max_epochs -1 and max_steps -1"):
        train(train_arguments(tmp_path / "run", trainer__max_epochs=-1))


def test_early_stopping_ends_a_run_that_gets_no_better(train_arguments, tmp_path):
    arguments = train_arguments(
        tmp_path / "run", trainer__max_epochs=6, patience=2, optimizer__learning_rate=0, optimizer__head_learning_rate=0
    )
    train(arguments)
    assert len(validation(tmp_path / "run")) == 3  # the first, then two that are not better
    # as after a kill between the end of training and that of the command, it has ended, unless more patience is asked
    for patience, epochs in ((2, 3), (3, 4)):
        train([*arguments, "--resume", "auto", "--patience", str(patience)])
        assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["epoch"] == epochs - 1
