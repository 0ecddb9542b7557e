"""Sweeps: files that are refused, what is trained, what is resumed, and the table."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import UserError
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train import sweep as sweeps
from empathy_judge.train.checkpointing import CannotWrite
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.sweep import Space, check_recipe, read_sweep, run_sweep
from filelock import FileLock

from ..conftest import output_of

NANO = str(Path(__file__).parents[2] / "configs" / "nano.yaml")
RATE = {"low": 1e-4, "high": 1e-2, "log": True}
VALID = {"train": [NANO], "search": {"optimizer.learning_rate": RATE}, "trials": 2}


def write(path: Path, **changes: Any) -> Path:
    """A sweep file: the valid one with changes; None leaves a key out."""
    content = {key: value for key, value in {**VALID, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(content))
    return path


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trials": None}, "trials: Field required"),
        ({"trials": 0}, "trials: Input should be greater than 0 (found 0)"),
        ({"train": ["absent.yaml"]}, "absent.yaml"),
        ({"seeds": [0, 0]}, "0 stands there twice"),
        ({"search": {"optimizer.learning_rte": RATE}}, "did you mean optimizer.learning_rate?"),
        ({"search": {"learning_rate": RATE}}, "did you mean optimizer.learning_rate?"),
        ({"search": {"run": RATE}}, "run: a sweep sets it itself"),
        ({"search": {"judge.head": {"choices": ["regression", "regresion"]}}}, "regresion"),
        ({"search": {"judge.lora.rank": {"choices": [8, 8]}}}, "8 stands there twice"),
        ({"search": {"judge.lora.rank": {"choices": [8], "low": 1}}}, "judge.lora.rank: choices beside a range"),
        ({"search": {"judge.lora.rank": {"low": 1.5, "high": 2.5}}}, "judge.lora.rank 1.5; expected int"),
        ({"search": {"judge.lora.rank": {"low": 1, "high": 8, "step": 0.5}}}, "step 0.5 between integers"),
        ({"search": {"judge.lora.rank": {"low": 8}}}, "expected choices, or low and high"),
        ({"search": {"judge.lora.rank": {"choices": [4_097]}}}, "judge.lora.rank 4097; expected 1 to 4,096"),
        ({"search": {"judge.lora.alpha": {"choices": [-1.0]}}}, "judge.lora.alpha -1; expected a number above 0"),
        ({"search": {"optimizer.learning_rate": {"low": 0.0, "high": 1.0, "log": True}}}, "log=True"),
        ({"search": {"optimizer.learning_rate": {"low": 0.1, "high": 0.2, "step": 0.2}}}, "step 0.2"),
        ({"overrides": {"optimizer.learning_rate": 0.1}}, "under overrides and search"),
        ({"overrides": {"judge.lora.rank": "many"}}, "overrides: judge.lora.rank many; expected int"),
        ({"overrides": {"trainer.logger": True, "trainer.logger.init_args": {}}}, "lies inside trainer.logger"),
        ({"overrides": {"trainer.devices": 2}}, "trainer.devices 2 on 1 node(s)"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said_in_one_line(changes, text, tmp_path):
    path = write(tmp_path / "sweep.yaml", **changes)
    with pytest.raises(UserError) as found:
        check_recipe(read_sweep(path), path)
    assert text in str(found.value)
    assert str(path) in str(found.value)


def test_numbers_are_read_as_in_recipes(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"train: ['{NANO}']\ntrials: 1\nsearch:\n  optimizer.learning_rate: {{low: 1e-4, high: 1}}\n")
    assert read_sweep(path).search == {"optimizer.learning_rate": Space(low=1e-4, high=1)}
    assert isinstance(read_sweep(path).search["optimizer.learning_rate"].examples()[1], float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1", "not readable as YAML (expected ',' or ']', but got '<stream end>', line 1, column 3)"),
        (b"!!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        (b"\x00", "not readable as YAML (unacceptable character"),
        (b"\xff", "not readable as YAML ('utf-8' codec"),
        (b"trials: 1\ntrials: 2", "key 'trials' stands twice in a mapping, line 1, column 1"),
        (b"trials: 010", "010 is not the same number everywhere; expected decimal digits"),
        (b"trials: 08", "08 is not the same number everywhere"),
        (b"- 1", "Input should be"),
        (b"", "Input should be"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(text, message, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_bytes(text)
    with pytest.raises(UserError) as found:
        read_sweep(path)
    assert str(found.value).startswith(f"{path}: ")
    assert message in str(found.value)
    assert "\n" not in str(found.value)


# ---------------------------------------------------------------- trials, without training


@pytest.fixture
def fails() -> dict[str, BaseException]:
    """What happens to the run of this name in the place of training."""
    return {}


@pytest.fixture
def trained(monkeypatch, fails) -> list[str]:
    """Puts a known value in the place of training, `1 - learning rate - seed / 100`; says what was trained."""
    done: list[str] = []

    def fake(recipes: list[str], run: Path, seed: int) -> float:
        assert recipes[0] == NANO
        assert run.name == f"seed-{seed}"
        name = run.relative_to(run.parents[1]).as_posix()
        if name in fails:
            raise fails[name]
        optimizer = yaml.safe_load(Path(recipes[-1]).read_text())["optimizer"]
        done.append(name)
        run.mkdir(exist_ok=True)
        return 1 - optimizer["learning_rate"] - seed / 100

    monkeypatch.setattr(sweeps, "_train_seed", fake)
    return done


@pytest.fixture
def sweep_file(dataset_folder, tmp_path) -> Path:
    return write(tmp_path / "sweep.yaml", overrides={"data.path": str(dataset_folder)}, seeds=[0, 2], trials=4)


def test_a_trial_counts_the_mean_over_seeds_and_the_best_becomes_a_recipe(trained, sweep_file, tmp_path):
    out = tmp_path / "out"
    _, results = run_sweep(sweep_file, out)
    assert trained == [f"trial-000{number}/seed-{seed}" for number in range(4) for seed in (0, 2)]
    rows = table(out)
    for row, result in zip(rows, results, strict=True):
        rate = result.parameters["optimizer.learning_rate"]
        assert 1e-4 <= rate <= 1e-2
        assert float(row["optimizer.learning_rate"]) == rate
        assert float(row["seed 2"]) == pytest.approx(0.98 - rate)
        assert float(row["mean"]) == pytest.approx(0.99 - rate)
        assert float(row["sd"]) == pytest.approx(0.02 / 2**0.5)
        assert (row["state"], row["reason"]) == ("complete", "")
        assert row["runs"] == f"trial-000{row['trial']}/seed-0 trial-000{row['trial']}/seed-2"
    lowest = min(result.parameters["optimizer.learning_rate"] for result in results)
    words = ["--config", NANO, "--config", str(out / "best.yaml"), "--run", "r"]
    config = RecipeParser().parse(words)
    assert config.optimizer.learning_rate == lowest
    assert config.judge.lora.rank == 16  # as the recipe has it
    assert (out / "best.yaml").read_text().splitlines()[0] == (
        f"# empathy-judge train --config {NANO} --config {out / 'best.yaml'} --run {out / 'best'}"
    )


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        CannotWrite("disk full"),
        pytest.param(OSError(28, "disk full"), marks=pytest.mark.long),
    ],
)
def test_a_sweep_that_was_stopped_goes_on_as_if_nothing_had_happened(error, trained, fails, sweep_file, tmp_path):
    sweep_file.write_text(yaml.safe_dump({**yaml.safe_load(sweep_file.read_text()), "trials": 2}))
    _, whole = run_sweep(sweep_file, tmp_path / "whole")
    trained.clear()
    fails["trial-0001/seed-2"] = error
    with pytest.raises(type(error)):
        run_sweep(sweep_file, tmp_path / "cut")
    assert trained == ["trial-0000/seed-0", "trial-0000/seed-2", "trial-0001/seed-0"]
    fails.clear()
    _, resumed = run_sweep(sweep_file, tmp_path / "cut")
    assert resumed == whole
    assert len(trained) == 4  # no seed twice


def test_more_trials_add_to_a_sweep_and_nothing_else_may_change(trained, sweep_file, tmp_path):
    out = tmp_path / "out"
    _, first = run_sweep(sweep_file, out)
    assert len({result.parameters["optimizer.learning_rate"] for result in first}) == 4  # no draw is repeated
    content = yaml.safe_load(sweep_file.read_text())
    sweep_file.write_text(yaml.safe_dump({**content, "trials": 5}))
    _, more = run_sweep(sweep_file, out)
    assert more[:4] == first
    assert len(more) == 5
    assert len(trained) == 10
    sweep_file.write_text(yaml.safe_dump({**content, "seeds": [0]}))
    with pytest.raises(UserError, match="holds a sweep with other seeds"):
        run_sweep(sweep_file, out)


def test_a_folder_with_something_else_is_left_alone(sweep_file, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(UserError, match="not empty, and no sweep"):
        run_sweep(sweep_file, tmp_path / "mine")
    assert not (tmp_path / "mine" / "sweep.json").exists()


def test_a_trial_of_another_process_is_left_to_it(trained, fails, sweep_file, tmp_path):
    out = tmp_path / "out"
    fails["trial-0000/seed-0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep_file, out)
    fails.clear()
    with FileLock(out / "trial-0000" / ".lock"):  # as if that process still trained it
        _, results = run_sweep(sweep_file, out)
    assert [result.state for result in results] == ["running", "complete", "complete", "complete"]
    assert (results[0].mean, results[0].spread) == (None, None)
    assert "trial-0000/seed-0" not in trained


@pytest.mark.parametrize("error", [UserError("scale\nwithout steps"), torch.OutOfMemoryError("scale without steps")])
def test_a_failed_trial_is_recorded_and_the_sweep_goes_on(error, trained, fails, sweep_file, tmp_path):
    fails["trial-0001/seed-2"] = error
    run_sweep(sweep_file, tmp_path / "out")
    rows = table(tmp_path / "out")
    assert [row["state"] for row in rows] == ["complete", "failed", "complete", "complete"]
    assert rows[1]["reason"] == "scale without steps"
    assert float(rows[1]["seed 0"]) > 0.98
    assert (rows[1]["seed 2"], rows[1]["mean"], rows[1]["sd"]) == ("", "", "")


def test_without_data_no_trial_begins(sweep_file, tmp_path):
    write(sweep_file, overrides={"data.path": str(tmp_path / "absent")})
    with pytest.raises(UserError, match="absent"):
        run_sweep(sweep_file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- with training


def test_the_command_trains_and_goes_on(dataset_folder, backbone_folder, tmp_path, capsys):
    overrides = {
        "judge.backbone": str(backbone_folder), "data.path": str(dataset_folder), "trainer.max_epochs": 1,
        "trainer.limit_train_batches": 1, "trainer.logger": False, "data.batch_size": 4,
    }  # fmt: skip
    path = write(tmp_path / "sweep.yaml", overrides=overrides, seeds=[3], trials=1)
    out = tmp_path / "out"
    words = ["sweep", "--config", str(path), "--out", str(out), "--json"]
    assert main(words) == 0
    best = out / "trial-0000" / "seed-3" / "checkpoints" / "best.ckpt"
    written = os.stat(best).st_mtime_ns
    capsys.readouterr()
    write(path, overrides=overrides, seeds=[3], trials=2)
    found = json.loads(output_of(capsys, *words))
    assert os.stat(best).st_mtime_ns == written
    assert [trial["state"] for trial in found["trials"]] == ["complete", "complete"]
    for trial in found["trials"]:
        run = out / f"trial-000{trial['number']}" / "seed-3"
        checkpoint = read_checkpoint(run / "checkpoints" / "best.ckpt")
        values = checkpoint["description"]["provenance"]["validation"].values()  # Spearman of each dimension
        assert trial["mean"] == trial["values"]["3"] == pytest.approx(sum(values) / 2)
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert config["seed"] == 3
        assert config["optimizer"]["learning_rate"] == trial["parameters"]["optimizer.learning_rate"]
    means = [trial["mean"] for trial in found["trials"]]
    assert found["best"] == means.index(max(means))
