"""Ways of training the same judge on the same pairs, and how each is run in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import lightning as L
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.train.collate import Batch
from empathy_judge.train.run import train
from naive import ALPHA, HEAD_LEARNING_RATE, LEARNING_RATE, RANK, Collate, NaiveRater, read_items, training_loader
from turns import Turns


@dataclass(frozen=True)
class Place:
    """What all ways have in common.

    Attributes:
        checkpoint: Folder of the backbone.
        data: Folder of the pair dataset.
        upper: Layers of the language model in its upper quarter, the first and one past the last.
        batch: Pairs in a batch.
        workers: Data-loader processes.
        device: Of torch.
    """

    checkpoint: str
    data: str
    upper: tuple[int, int]
    batch: int
    workers: int
    device: str


@dataclass(frozen=True)
class Way:
    """A way of training.

    Attributes:
        name: What tables call it.
        baseline: Name of the way that it is compared with.
        run: Trains until the turns are over: `run(turns, place, folder for its files, *options)`.
        options: Further arguments of `run`.
    """

    name: str
    baseline: str
    run: Callable[..., None]
    options: tuple[Any, ...] = ()


def train_naively(turns: Turns, place: Place, folder: Path, in_upper: bool) -> None:
    """The loop of `naive`, epoch after epoch."""
    device = torch.device(place.device)
    rater = NaiveRater(place.checkpoint, range(*place.upper) if in_upper else None, device)
    optimizer = rater.optimizer()
    items = read_items(PairDataset.load(place.data), "train")
    loader = training_loader(items, Collate(place.checkpoint), place.batch, place.workers)
    turns.wait()
    for batch in chain.from_iterable(repeat(loader)):
        turns.batch_came(len(batch.targets), batch.inputs["attention_mask"])
        rater.step(batch.to(device), optimizer)
        turns.step_done()


def train_with_us(
    turns: Turns, place: Place, folder: Path, in_upper: bool, by_tokens: bool, arguments: Sequence[str]
) -> None:
    """The command `train`, with further arguments; with batches of as many tokens as `place.batch` pairs have."""
    words = [*common_arguments(place, folder, in_upper), *arguments]
    if by_tokens:
        words.append(f"--data.batch_tokens={place.batch * TOKENS_OF_A_PAIR}")
    train(words, [TakeTurns(turns)])


def common_arguments(place: Place, run: Path, in_upper: bool = False) -> list[str]:
    """The command line that trains what the baseline trains. Nothing is validated or written in between."""
    on_gpu = place.device != "cpu"
    return [
        f"--run={run}",
        f"--data.path={place.data}",
        f"--data.batch_size={place.batch}",
        f"--data.num_workers={place.workers}",
        f"--model.backbone={place.checkpoint}",
        f"--model.dtype={'bfloat16' if on_gpu else 'float32'}",
        f"--model.lora_rank={RANK}",
        f"--model.lora_alpha={ALPHA}",
        f"--model.lora_layers={list(place.upper) if in_upper else 'null'}",
        f"--model.learning_rate={LEARNING_RATE}",
        f"--model.head_learning_rate={HEAD_LEARNING_RATE}",
        f"--trainer.accelerator={'gpu' if on_gpu else 'cpu'}",
        "--trainer.devices=1",
        f"--trainer.precision={'bf16-mixed' if on_gpu else '32-true'}",
        "--trainer.max_epochs=1000",
        "--trainer.check_val_every_n_epoch=1000",
    ]


class TakeTurns(L.Callback):
    """Makes a training run wait for its turns."""

    def __init__(self, turns: Turns) -> None:
        """Wait for these."""
        self._turns = turns

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """All is loaded, and audio states are computed where they are kept."""
        self._turns.wait()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """The batch is there."""
        self._turns.batch_came(len(batch.indices), batch.inputs.attention_mask)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Forward and backward pass and optimizer are done."""
        self._turns.step_done()


TOKENS_OF_A_PAIR = 260
"""About as many as a pair of two clips of 4 s has, 25 tokens a second, with the question and a little padding."""
NAIVE, NAIVE_UPPER = "naive", "naive, LoRA in the upper quarter"
_BY_CONTEXT, _KEPT, _LOWER = ("--data.batches=groups",), ("--model.cache=audio",), ("--model.cache=layers",)
WAYS = (
    Way(NAIVE, NAIVE, train_naively, (False,)),
    Way("ours, cold", NAIVE, train_with_us, (False, False, ())),
    Way("ours, cold, responses to one context together", NAIVE, train_with_us, (False, False, _BY_CONTEXT)),
    Way("ours, cold, like lengths together", NAIVE, train_with_us, (False, True, ())),
    Way("ours, audio states kept", NAIVE, train_with_us, (False, False, _KEPT)),
    Way("ours, audio states kept, like lengths together", NAIVE, train_with_us, (False, True, _KEPT)),
    Way(NAIVE_UPPER, NAIVE_UPPER, train_naively, (True,)),
    Way("ours, LoRA in the upper quarter, audio states kept", NAIVE_UPPER, train_with_us, (True, False, _KEPT)),
    Way("ours, lower layers kept, like lengths together", NAIVE_UPPER, train_with_us, (True, True, _LOWER)),
)
