"""What a run tells while it trains: its settings and what people reach, to every logger, and a line for each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from ..core.processes import duration, say
from ..data_modules.datamodule import PairDataModule
from ..eval.statistics.reliability import measure, rated_items
from ..models.backbones.base import Backbone
from ..models.lora import part_of
from .collate import Batch
from .module import JudgeModule

_DRAWS = 20  # of intervals that nobody reads here
_SIDE = {"cuda": 8192, "cpu": 512}
"""Of the square matrices whose product says what a device reaches."""


@dataclass(frozen=True)
class People:
    """Agreement among the raters of the validation split on one dimension; None = it cannot be measured."""

    one_rater: float | None  # Spearman of a rater with the mean of the others
    noise_ceiling: float | None  # Spearman that a perfect judge would have with the panel mean


def people_of(data: PairDataModule) -> dict[str, People]:
    """What the raters of the validation split reach, by dimension."""
    groups = {pair.pair_id: pair.group_id for pair in data.validation.pairs}
    ratings = data.dataset.ratings[data.dataset.ratings["pair_id"].isin(list(groups))]
    found: dict[str, People] = {}
    for dimension in data.dimensions:
        if not (ratings["dimension"] == dimension.name).any():
            continue
        panel = measure(*rated_items(ratings, dimension.name, groups, _DRAWS, 0), 0)
        found[dimension.name] = People(panel.leave_one_rater_out.value, panel.panel_mean.value)
    return found


class RunFacts(Callback):
    """Gives every logger the settings and the data of the run, and after each epoch what people reach beside the judge,
    the speed, and the model FLOPs utilisation; prints a line for each epoch.

    Utilisation is the share of the rate of products of large matrices, which is measured on the device at the start:
    `4 N` operations for each token where `N` weights are frozen, `6 N` where they are trained (Kaplan et al., 2020), of
    the language model, or of an encoder that has none. The tower, attention and what is computed again do not count.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings, as in `config.yaml`."""
        self._settings = settings
        self._people: dict[str, People] = {}
        self._rate = self._work = 0.0
        self._start()

    def _start(self) -> None:
        self._tokens: Tensor | int = 0
        self._pairs, self._seconds, self._since = 0, 0.0, None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the loggers about the run."""
        assert isinstance(pl_module, JudgeModule)
        if not trainer.is_global_zero or not trainer.loggers:
            return
        data = pl_module.data
        self._people = people_of(data)
        splits = {"train": data.train_splits, "validation": data.validation_splits}
        facts = {
            **self._settings,
            "content_hash": data.dataset.card.content_hash,
            "splits": {name: "+".join(names) for name, names in splits.items()},
            "pairs": {"train": len(data.train.pairs), "validation": len(data.validation.pairs)},
            "people": {name: vars(found) for name, found in self._people.items()},
            "processes": trainer.world_size,
        }
        for logger in trainer.loggers:
            logger.log_hyperparams(facts)
        self._work = operations_of(pl_module.judge.backbone)
        dtype = next(weight.dtype for weight in pl_module.judge.network.parameters() if weight.is_floating_point())
        self._rate = matrix_rate(trainer.strategy.root_device, dtype)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._start()
        self._since = time.perf_counter()

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock after a validation."""
        self._since = self._since or time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count the step; nothing waits for a GPU."""
        self._pairs += len(batch.labels.targets)
        self._tokens = self._tokens + batch.inputs.attention_mask.sum()
        now = time.perf_counter()
        self._seconds, self._since = self._seconds + now - (self._since or now), now

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock."""
        self._since = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the loggers what people reach."""
        for name, found in self._people.items() if trainer.is_global_zero else ():
            values = {f"val_one_rater/{name}": found.one_rater, f"val_noise_ceiling/{name}": found.noise_ceiling}
            for logger in trainer.loggers:
                logger.log_metrics({key: v for key, v in values.items() if v is not None}, trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the loggers how fast the epoch was, and the terminal what it reached."""
        if not trainer.is_global_zero or not self._seconds:
            return
        assert isinstance(pl_module, JudgeModule)
        speed = {"pairs_per_second": trainer.world_size * self._pairs / self._seconds}
        if self._rate:
            speed["mfu"] = self._work * float(self._tokens) / self._seconds / self._rate
        for logger in trainer.loggers:
            logger.log_metrics(speed, trainer.global_step)
        say(self._line(trainer, pl_module, speed["pairs_per_second"]))

    def _line(self, trainer: L.Trainer, module: JudgeModule, rate: float) -> str:
        most, found = trainer.max_epochs, trainer.callback_metrics
        parts = [f"epoch {trainer.current_epoch + 1}{'' if most in (None, -1) else f' of {most}'}"]
        if "train_loss" in found:
            parts.append(f"loss {float(found['train_loss']):.4g}")
        for name in (dimension.name for dimension in module.judge.dimensions):
            if (spearman := found.get(f"val_spearman/{name}")) is not None:
                people = self._people.get(name, People(None, None))
                beside = [
                    f"{what} {value:.2f}"
                    for what, value in (("one rater", people.one_rater), ("noise ceiling", people.noise_ceiling))
                    if value is not None
                ]
                own = "undefined" if math.isnan(float(spearman)) else f"{float(spearman):.2f}"
                parts.append(f"Spearman {own}{f' ({chr(44).join(beside)})' if beside else ''} for {name}")
        return f"{', '.join(parts)}; {rate:,.3g} pairs/s, {duration(self._seconds)}"


def operations_of(backbone: Backbone) -> float:
    """Floating-point operations of a training step for each token, see `RunFacts`."""
    sizes = {True: 0, False: 0}  # trained or not
    for name, module in backbone.network.named_modules():
        if isinstance(module, nn.Linear) and part_of(backbone, name) in ("language_model", "audio_tower", "fusion"):
            if "language_model" not in backbone.parts or part_of(backbone, name) == "language_model":
                sizes[module.weight.requires_grad] += module.weight.numel()
    return 4.0 * sizes[False] + 6.0 * sizes[True]


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a product of two large matrices, the best of three; 0 where it cannot be measured."""
    side = _SIDE.get(device.type)
    if side is None:
        return 0.0
    try:
        one = torch.linspace(-1, 1, side * side, device=device).view(side, side).to(dtype)
        best = math.inf
        for _ in range(4):  # the first chooses a kernel
            start = time.perf_counter()
            _ = one @ one
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - start)
    except RuntimeError:  # no memory left, or no kernel for this type
        return 0.0
    return 2 * side**3 / best
