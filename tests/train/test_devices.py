"""Whole runs with the precision, clipping and optimizer of the recipes, on one device and on all: they repeat, go on
after `kill -9` as if nothing had been, and end with the same judge. On the CPU, and with `pytest -m gpu` on GPUs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.assessment import Assessment
from empathy_judge.scoring.scorer import Scorer
from empathy_judge.tools.kills.endings import differing

from .conftest import LAST_FILE, under_torchrun

ROOT = Path(__file__).parents[2]
STRATEGIES = {"one device": None, "ddp": "ddp", "fsdp2": "fsdp2", "zero2": "zero2"}
STEPS, KILLED = 6, [1, 1]  # steps of a run; the epoch and batch in which one is killed
SETTINGS = {
    "judge__dtype": "bfloat16", "cache__what": "none", "judge__lora__dropout": 0.05,
    "judge__lora__full_parts": "[projector]", "data__eval_batch_size": 2, "data__num_workers": 1,
    "trainer__precision": "bf16-mixed", "trainer__gradient_clip_val": 0.05, "trainer__deterministic": "true",
    "trainer__max_epochs": 2, "trainer__logger": "false", "checkpoint-steps": 1,
    "trainer__check_val_every_n_epoch": 2,  # after the last alone: of several, rounding would choose the best one
}  # fmt: skip
ALIKE = 0.25
"""How far scores may lie apart after another strategy (rating points): each process has dropout of its own, and sums in
bfloat16 are made in another order."""

# Several runs in the same processes, for starting them takes longer than training; each leaves its losses
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from empathy_judge.train import run as recipe
from empathy_judge.train import publishing
from empathy_judge.train.module import JudgeModule

publishing.calibrate = lambda *_: None
plain, killed, losses = JudgeModule.training_step, None, []

def step(module, batch, batch_idx):
    if [module.current_epoch, batch_idx] == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = plain(module, batch, batch_idx)
    losses.append(loss.item())
    return loss

if __name__ == "__main__":  # processes that read data may import this once more
    JudgeModule.training_step = step
    for run in json.loads(Path(sys.argv[1]).read_text()):
        killed = run["killed"]
        losses.clear()
        recipe.train(run["words"])
        (Path(run["folder"]) / f"losses{os.environ['RANK']}.json").write_text(json.dumps(losses))
"""


@pytest.fixture(scope="module")
def train_with(device, train_arguments, tmp_path_factory):
    """Trains with a strategy, a global batch of 4 whatever the number of devices; once for each.

    Returns the folder of three runs of one seed: `whole`, the same `again`, and `killed` and resumed.
    """
    made: dict[str, Path] = {}

    def launch(folder: Path, processes: int, runs: list[dict[str, Any]]) -> tuple[int, str]:
        (folder / "runs.json").write_text(json.dumps(runs))
        done = under_torchrun(folder, PROGRAM, folder / "runs.json", processes=processes)
        return done.returncode, done.stderr[-3000:]

    def make(strategy: str) -> Path:
        if strategy not in made:
            folder = tmp_path_factory.mktemp(strategy.replace(" ", "-"))
            there = 2 if device.type == "cpu" else torch.cuda.device_count()
            processes = 1 if STRATEGIES[strategy] is None else max(n for n in (1, 2, 4) if n <= there)

            def run(name: str, killed: list[int] | None = None, *further: str) -> dict[str, Any]:
                given = train_arguments(
                    folder / name, **SETTINGS, data__batch_size=4 // processes,
                    trainer__accelerator="cpu" if device.type == "cpu" else "gpu", trainer__devices=processes,
                )  # fmt: skip
                overlay = ROOT / "configs" / f"strategy_{STRATEGIES[strategy]}.yaml"
                words = [*given, *(["--config", str(overlay)] if STRATEGIES[strategy] else []), *further]
                return {"words": words, "killed": killed, "folder": str(folder / name)}

            _, said = launch(folder, processes, [run("whole"), run("again"), run("killed", KILLED)])
            assert "SIGKILL" in said or "-9" in said, said
            last = read_checkpoint(folder / "killed" / LAST_FILE)
            assert (last["epoch"], last["global_step"]) == (1, STEPS // 2 + 1)  # in mid-epoch
            code, said = launch(folder, processes, [run("killed", None, "--resume", "true")])
            assert code == 0, said
            made[strategy] = folder
        return made[strategy]

    return make


@pytest.fixture(scope="module", params=list(STRATEGIES))
def strategy(request, device) -> str:
    """Each in turn. DeepSpeed refuses a CPU under Lightning; what can be tried there is in test_strategies.py."""
    if request.param.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("no DeepSpeed")
    if request.param.startswith("zero") and device.type == "cpu":
        pytest.skip("Lightning keeps DeepSpeed to GPUs")
    return request.param


@pytest.mark.long
def test_the_same_seed_gives_the_same_losses_and_weights_after_a_kill_too(strategy, train_with):
    runs = train_with(strategy)
    found, again = (json.loads((runs / name / "losses0.json").read_text()) for name in ("whole", "again"))
    assert len(set(found)) == STEPS
    assert again == found
    for name in ("again", "killed"):
        assert differing(runs / "whole", runs / name) == []


def scores(run: Path, judge: Path, dataset_folder: Path, device: torch.device) -> torch.Tensor:
    """Of all pairs, by the judge that is exported there `(pairs, dimensions)`."""
    assert main(["export", str(run), "--out", str(judge)]) == 0
    scorer = Scorer.from_pretrained(judge, device=device.type)
    found = list(scorer.assess_pairs(PairDataset.load(dataset_folder).pairs))
    return torch.tensor([list(own.points.values()) for own in found if isinstance(own, Assessment)])


@pytest.mark.long
def test_a_judge_scores_alike_whatever_strategy_trained_it(strategy, train_with, dataset_folder, device, tmp_path):
    if strategy == "one device":
        pytest.skip("what the others are compared with")
    expected, run = train_with("one device") / "whole", train_with(strategy) / "again"
    one, other = (read_checkpoint(folder / LAST_FILE)["state_dict"] for folder in (expected, run))
    assert {key: value.dtype for key, value in one.items()} == {key: value.dtype for key, value in other.items()}
    first = scores(train_with("one device") / "again", tmp_path / "first", dataset_folder, device)
    second = scores(train_with(strategy) / "whole", tmp_path / "second", dataset_folder, device)
    assert len(first) == len(second) == 24
    assert first.std(0).min() > 1e-3
    assert (first - second).abs().max() < ALIKE
