"""Training through the command: what changes, what does not, and what the run folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.run import train

from .conftest import BEST_FILE, LAST_FILE, metrics, scores_of
from .conftest import BEST_FILE as BEST
from .conftest import LAST_FILE as LAST


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
    assert changed == trained
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


# ---------------------------------------------------------------- the folder of a run


def test_a_run_that_was_moved_keeps_its_metrics_and_its_best_checkpoint(run, train_arguments, tmp_path):
    """Its best score, one that no later epoch reaches, stands beside the path of the folder where it was."""
    checkpoint = torch.load(run / LAST, weights_only=True)
    (state,) = (state for key, state in checkpoint["callbacks"].items() if "val_agreement" in key and "Model" in key)
    assert Path(state["dirpath"]) != run / "checkpoints"  # `run` is a copy
    state["best_model_score"] = state["kth_value"] = torch.tensor(2.0)
    state["best_k_models"] = dict.fromkeys(state["best_k_models"], torch.tensor(2.0))
    torch.save(checkpoint, run / LAST)
    best, before = (run / BEST).read_bytes(), validation(run)
    train([*train_arguments(run, trainer__max_epochs=5), "--resume", "true"])
    assert sorted(metrics(run)["epoch"].dropna().unique()) == [0, 1, 2, 3, 4]
    assert validation(run)[:4] == before
    assert (run / BEST).read_bytes() == best
    after = torch.load(run / LAST, weights_only=True)["callbacks"]
    (state,) = (state for key, state in after.items() if "val_agreement" in key and "Model" in key)
    assert state["best_model_path"] == str(run / BEST)
    assert state["best_k_models"] == {str(run / BEST): torch.tensor(2.0)}
