"""Two processes (gloo, on the CPU) give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge.data_modules.sampling import EpochOrder
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.run import train

LAST = "checkpoints/last.ckpt"


def run_command(arguments: list[str], **variables: str) -> str:
    """What `empathy-judge train` says in processes of its own; its last words are shown where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "empathy_judge.cli", "train", *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def logged(run: Path, name: str) -> list[float]:
    table = pd.concat([pd.read_csv(path) for path in sorted((run / "logs").rglob("metrics.csv"))])
    return table[name].dropna().tolist()


@pytest.mark.slow
def test_two_processes_train_and_validate_like_one(train_arguments, tmp_path):
    """12 pairs in batches of 4, or of twice 2: the same sums. 9 validation pairs: an odd number, 5 and 4 of them.

    With a fully fine-tuned part, and layers computed again: reentrant checkpointing would break under DDP (peft#313).
    With losses that compare the items of a batch: each process must see those of the other.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    common = {
        "trainer__max_epochs": 2, "optimizer__head_learning_rate": 0.001, "optimizer__learning_rate": 0.0005,
        "judge__lora__full_parts": "[projector]", "gradient_checkpointing": "true",
        "objective__losses": "{mse: 1, ccc: 0.5, logistic_ranking: 0.5, margin_ranking: 0.5, soft_spearman: 0.2}",
    }  # fmt: skip
    train(train_arguments(one, **common))
    said = run_command(train_arguments(
        two, trainer__devices=2, trainer__strategy="ddp", data__batch_size=2, data__eval_batch_size=2, **common
    ))  # fmt: skip
    assert said.count("trained on 24 pairs in ") == 1  # by one of them, of both
    for name in ("val_agreement", "val_spearman/empathy", "val_spearman/warmth"):
        assert len(logged(one, name)) == 2
        assert logged(two, name) == pytest.approx(logged(one, name), abs=1e-9)
    assert (two / "calibration.json").is_file()  # written by one of the processes
    first, second = (read_checkpoint(run / LAST)["state_dict"] for run in (one, two))
    assert first.keys() == second.keys()
    assert "judge.network.multi_modal_projector.linear.weight" in first
    # Adam divides by the size of a gradient, and so makes much of the rounding of one that is almost zero
    moved = sum(float((value - value.mean()).abs().mean()) for value in first.values())
    apart = sum(float((first[key] - second[key]).abs().mean()) for key in first)
    assert apart < 1e-3 * moved
    assert (first["judge.head.linear.weight"] - second["judge.head.linear.weight"]).abs().max() < 1e-4


# ---------------------------------------------------------------- who reads what


@pytest.mark.parametrize("size", [1, 7, 8, 9])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_rank_reads_equally_many_items(size, ranks, shuffle):
    """In training and in validation: a model that is spread over the ranks takes all of them for each batch."""
    orders = [EpochOrder(size, shuffle=shuffle, seed=4, rank=rank, ranks=ranks) for rank in range(ranks)]
    read = [order.items(0) for order in orders]
    assert {len(part) for part in read} == {len(orders[0])} == {-(-size // ranks)}
    together = [item for part in read for item in part]
    assert set(together) == set(range(size))
    assert len(together) - size == -size % ranks  # as few twice as can be
