"""On two GPUs, or on the one that there is: every strategy trains, saves, and its judge scores like that of DDP."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from empathy_judge.assessment import Assessment
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.checkpoints import read_checkpoint
from empathy_judge.models.file_names import LAST
from empathy_judge.scorer import Scorer

ROOT = Path(__file__).parents[2]
STEPS = 10
# by model.dtype: trainer.precision, and how far scores may lie apart (rating points): sums are made in another order
PRECISIONS = {"float32": ("32-true", 0.01), "bfloat16": ("bf16-mixed", 0.1)}
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(scope="module")
def judge(train_arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory):
    """Trains with a strategy and exports; the folder of the run, whose judge is in `judge`. Once for each kind."""
    made: dict[tuple[str, str], Path] = {}

    def make(strategy: str, dtype: str) -> Path:
        if (strategy, dtype) not in made:
            run = tmp_path_factory.mktemp(f"{strategy}-{dtype}") / "run"
            words = train_arguments(
                run,
                model__dtype=dtype,
                model__cache="none",
                model__full_parts="[projector]",
                trainer__accelerator="gpu",
                trainer__devices=min(2, torch.cuda.device_count()),
                trainer__precision=PRECISIONS[dtype][0],
                trainer__gradient_clip_val=1.0,
                trainer__max_epochs=2,
                trainer__limit_train_batches=STEPS // 2,
                data__batch_size=1,
            )
            overlay = ["--config", str(ROOT / "configs" / f"strategy_{strategy}.yaml")]
            command = [sys.executable, "-m", "empathy_judge.cli", "train", *words, *overlay]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-3000:]
            assert main(["export", str(run), "--out", str(run / "judge")]) == 0
            made[strategy, dtype] = run
        return made[strategy, dtype]

    return make


def scores(run: Path, dataset_folder: Path) -> torch.Tensor:
    """Of all pairs, by the exported judge `(pairs, dimensions)`."""
    scorer = Scorer.from_pretrained(run / "judge", device="cuda")
    found = [own for _, own in scorer.assess_pairs(PairDataset.load(dataset_folder).pairs)]
    assert all(isinstance(own, Assessment) for own in found)
    return torch.tensor([list(own.points.values()) for own in found if isinstance(own, Assessment)])


@pytest.mark.parametrize("dtype", list(PRECISIONS))
@pytest.mark.parametrize("strategy", ["fsdp2", "zero2", "zero3"])
def test_a_judge_scores_alike_whatever_strategy_trained_it(strategy, dtype, judge, dataset_folder):
    if strategy.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("no DeepSpeed")
    expected, run = judge("ddp", dtype), judge(strategy, dtype)
    one, other = (read_checkpoint(folder / "checkpoints" / LAST) for folder in (expected, run))
    assert one["global_step"] == other["global_step"] == STEPS
    assert one["state_dict"].keys() == other["state_dict"].keys()
    assert {key: value.dtype for key, value in one["state_dict"].items()} == {
        key: value.dtype for key, value in other["state_dict"].items()
    }
    assert sorted(path.name for path in (run / "judge").rglob("*")) == sorted(
        path.name for path in (expected / "judge").rglob("*")
    )
    first, second = scores(expected, dataset_folder), scores(run, dataset_folder)
    assert first.std(0).min() > 1e-3
    assert (first - second).abs().max() < PRECISIONS[dtype][1]


def test_one_gpu_goes_on_from_a_sharded_run(judge, train_arguments, dataset_folder, tmp_path):
    """A checkpoint of FSDP2 is one of a single process: it can be resumed by one."""
    run = judge("fsdp2", "float32")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / LAST).write_bytes((run / "checkpoints" / LAST).read_bytes())
    words = train_arguments(
        tmp_path,
        model__cache="none",
        model__full_parts="[projector]",
        trainer__accelerator="gpu",
        trainer__devices=1,
        trainer__max_epochs=3,
        trainer__limit_train_batches=STEPS // 2,
        data__batch_size=1,
    )
    assert main(["train", *words, "--resume", "true"]) == 0
    assert read_checkpoint(tmp_path / "checkpoints" / LAST)["global_step"] == STEPS + STEPS // 2
