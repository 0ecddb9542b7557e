"""What one run of several is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from ..data_modules.datamodule import Parts
from ..models.heads import Prediction
from .module import steps_of_epoch


@dataclass(frozen=True)
class Task:
    """Of a run; by default it is the only one.

    Attributes:
        parts: Which pairs it trains on and validates on; None = those of its splits.
        refit: It trains on all that there is. Nothing is left to choose or to measure by.
        scores: Pair -> what a judge that was not trained on it says; the refit judge is calibrated with it. None = a
            probe fits itself once more to all but a fold of the groups, for each fold.
        epochs: For which the refit trains; None = a probe, which does not.
        landmarks: How many a kernel shall have at least, so that judges of several folds make an ensemble.
        one_process: Other runs follow, so that it cannot be spread over processes.
    """

    parts: Parts | None = None
    refit: bool = False
    scores: Mapping[str, Prediction] | None = None
    epochs: float | None = None
    landmarks: int | None = None
    one_process: bool = False


class StopAfter(Callback):
    """Ends training after so many epochs, on the way that learning rates would take for all."""

    def __init__(self, epochs: float) -> None:
        """Whole, or a part."""
        self._epochs = epochs

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """There may be nothing to do."""
        self._look(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop where it is reached."""
        self._look(trainer)

    def _look(self, trainer: L.Trainer) -> None:
        if trainer.global_step >= round(self._epochs * steps_of_epoch(trainer)):
            trainer.should_stop = True
