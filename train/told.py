"""What a run tells while it trains: its settings and what people reach, to every logger, and a line for each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from copy import copy
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from ..core.processes import duration, say
from ..models.work import of_a_token
from .module import JudgeModule
from .throughput import StepClock

_SIDE = {"cuda": 8192, "cpu": 512}
"""Of the square matrices whose product says what a device reaches."""


class RunFacts(Callback):
    """Gives every logger the settings and the data of the run, and after each epoch its speed and model FLOPs
    utilisation; prints a line for each epoch.

    Utilisation is the share of the rate of products of large matrices, which is measured on the device at the start, by
    the operations of the language model (`models.work`). The tower and what is computed again do not count. An encoder
    without a language model has no utilisation: its tower costs by clip and not by token, and where its output is
    cached, the fusion that is left is too small for any device to come near its rate.
    """

    def __init__(self, settings: Mapping[str, Any], clock: StepClock) -> None:
        """Keep the settings, as in `config.yaml`, and the clock of `Throughput`, which is called before."""
        self._settings, self._clock = settings, clock
        self._rate = self._work = 0.0
        self._before = copy(clock)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the loggers about the run."""
        assert isinstance(pl_module, JudgeModule)
        if not trainer.is_global_zero or not trainer.loggers:
            return
        data = pl_module.data
        splits = {"train": data.train_splits, "validation": data.validation_splits}
        facts = {
            **self._settings,
            "content_hash": data.dataset.card.content_hash,
            "splits": {name: "+".join(names) for name, names in splits.items()},
            "pairs": {"train": len(data.train.pairs), "validation": len(data.validation.pairs)},
            "people": {name: vars(found) for name, found in pl_module.people.items()},
            "processes": trainer.world_size,
        }
        for logger in trainer.loggers:
            logger.log_hyperparams(facts)
        # An encoder alone has no utilisation: see the class
        if "language_model" not in pl_module.judge.backbone.parts:
            return
        self._work = sum(of_a_token(pl_module.judge.backbone))
        # The first weight may be of 4 bits, which is stored as integers and says nothing of the dtype of products
        dtype = next(weight.dtype for weight in pl_module.judge.network.parameters() if weight.is_floating_point())
        self._rate = matrix_rate(trainer.strategy.root_device, dtype)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep what the clock shows now: an epoch is what is added to it."""
        self._before = copy(self._clock)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the loggers how fast the epoch was, and the terminal what it reached."""
        clock, before = self._clock, self._before
        seconds = clock.seconds - before.seconds
        if not trainer.is_global_zero or not seconds:
            return
        assert isinstance(pl_module, JudgeModule)
        speed = {"pairs_per_second": trainer.world_size * (clock.pairs - before.pairs) / seconds}
        # Tokens of this process alone, as the rate is that of one device; pairs are those of all processes
        if self._rate:
            speed["mfu"] = self._work * float(clock.tokens - before.tokens) / seconds / self._rate
        for logger in trainer.loggers:
            logger.log_metrics(speed, trainer.global_step)
        rate = f"{speed['pairs_per_second']:,.3g} pairs/s, {duration(seconds)}"
        say(f"{self._line(trainer, pl_module)}; {rate}")

    def _line(self, trainer: L.Trainer, module: JudgeModule) -> str:
        most, found = trainer.max_epochs, trainer.callback_metrics
        parts = [f"epoch {trainer.current_epoch + 1}{'' if most in (None, -1) else f' of {most}'}"]
        if "train_loss" in found:
            parts.append(f"loss {float(found['train_loss']):.4g}")
        for name in (dimension.name for dimension in module.judge.dimensions):
            if (spearman := found.get(f"val_spearman/{name}")) is not None:
                people = module.people.get(name)
                reached = [] if people is None else [*people.reached.items()]
                beside = [f"{what.replace('_', ' ')} {value:.2f}" for what, value in reached]
                # Spearman of constant scores, which a run may begin with
                own = "undefined" if math.isnan(float(spearman)) else f"{float(spearman):.2f}"
                told = f" ({', '.join(beside)})" if beside else ""
                parts.append(f"Spearman {own}{told} for {name}")
        return "; ".join(parts)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a product of two large matrices, the best of three; 0 where it cannot be measured."""
    side = _SIDE.get(device.type)
    if side is None:
        return 0.0
    try:
        # Not drawn: the draw would move the random numbers of the run that follows
        one = torch.linspace(-1, 1, side * side, device=device).view(side, side).to(dtype)
        best = math.inf
        for _ in range(4):  # the first chooses a kernel
            start = time.perf_counter()
            _ = one @ one
            # A kernel is only queued by the line above; without this the clock would measure the launch
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - start)
    except RuntimeError:  # no memory left, or no kernel for this type
        return 0.0
    return 2 * side**3 / best
