"""What TRL and verl make of a missing reward in a group of four."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from empathy_judge.scoring.reward import valid_rows
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

GROUPS = {
    "all four": (0.9, 0.6, 0.5, 0.2),
    "three": (0.9, 0.6, 0.5, None),
    "two": (0.9, 0.6, None, None),
    "one": (0.9, None, None, None),
    "none": (None, None, None, None),
}
Rewards = Sequence[float | None]


def by_trl(rewards: Rewards, folder: str) -> list[float]:
    """Advantages of one step of TRL's own trainer, which logs them."""
    import grpo  # pyright: ignore[reportMissingImports]

    model, tokenizer = grpo.policy(grpo.WORDS)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: list(rewards),
        train_dataset=Dataset.from_dict({"prompt": ["answer"]}),
        args=GRPOConfig(
            folder, **grpo.SETTINGS, max_steps=1, per_device_train_batch_size=4, num_generations=4,
            max_completion_length=4,
        ),
    )  # fmt: skip
    trainer.train()
    return list(trainer._logs["advantages"])


def by_verl(rewards: Rewards, estimate: Any) -> list[float]:
    """Advantages of verl's GRPO."""
    scores = torch.tensor([[math.nan if reward is None else reward] for reward in rewards])
    return estimate(scores, torch.ones(4, 1), np.array(["a"] * 4))[0][:, 0].tolist()


def shown(values: Sequence[float]) -> str:
    return ", ".join("NaN" if math.isnan(value) else f"{value + 0:.2f}" for value in values)


def measure() -> dict[str, Any]:
    """The table."""
    rows = []
    for name, rewards in GROUPS.items():
        with tempfile.TemporaryDirectory() as folder:
            theirs = shown(by_trl(rewards, folder))
        given = ", ".join("none" if reward is None else str(reward) for reward in rewards)
        estimates = (compute_grpo_outcome_advantage, valid_rows(compute_grpo_outcome_advantage))
        rows.append([name, given, theirs, *(shown(by_verl(rewards, own)) for own in estimates)])
    columns = ["heard", "rewards", "TRL", "verl", "verl with `valid_rows`"]
    return {"versions": {name: version(name) for name in ("trl", "verl")}, "columns": columns, "rows": rows}
