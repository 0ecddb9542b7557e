"""What a killed run keeps: checkpoints in mid-epoch, and one more when a scheduler asks for the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

from ..data_modules.errors import ASKED_TO_STOP
from ..data_modules.parallel import listen, restore
from ..data_modules.sampling import Position
from ..models.file_names import LAST

_LOOK_EVERY = 8  # steps; whether any process was asked to stop takes a word between all of them


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within, a signal ends the program at once with `ASKED_TO_STOP`; during training `DurableProgress` saves first.

    So whoever started it knows at any time that the run is to be started again.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(ASKED_TO_STOP)

    before = listen(stop)
    try:
        yield
    except SIGTERMException:  # of Lightning, where its handler was the one in force
        raise SystemExit(ASKED_TO_STOP) from None
    finally:
        restore(before)


def position_of(checkpoint: Mapping[str, Any]) -> Position:
    """Where a run goes on from a checkpoint."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    if progress["is_last_batch"]:
        return Position(checkpoint["epoch"] + 1)
    return Position(checkpoint["epoch"], progress["current"]["ready"])


class DurableProgress(Callback):
    """Saves ``last.ckpt`` every so many steps of the optimizer, and when a signal asks the run to stop.

    A checkpoint in mid-epoch names the next batch; the run that goes on from there reads exactly what was left. Nothing
    is saved between two steps of the optimizer, where gradients that are being accumulated would be lost.
    """

    def __init__(self, folder: Path, every: int) -> None:
        """Keep a run durable.

        Args:
            folder: Of the checkpoints.
            every: Steps of the optimizer between two checkpoints; 0 = only at the end of epochs and after a signal.
        """
        self._path, self._every = folder / LAST, every
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listen for signals, instead of Lightning: its own handler talks to other processes from within a signal."""
        self._before = listen(self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time to.

        Raises:
            SystemExit: With `ASKED_TO_STOP` after a signal, on every rank at the same step.
        """
        if trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # the end of an epoch is saved after validation
        stop = self._anyone_asked(trainer)
        if stop or (self._every and trainer.global_step % self._every == 0):
            trainer.save_checkpoint(self._path)
        if stop:
            if trainer.is_global_zero:
                saved = f"asked to stop: saved after step {trainer.global_step}; --resume auto goes on from there"
                Console(stderr=True).print(saved, soft_wrap=True)
            raise SystemExit(ASKED_TO_STOP)

    def _anyone_asked(self, trainer: L.Trainer) -> bool:
        if trainer.world_size == 1:
            return self._asked
        look = trainer.global_step % _LOOK_EVERY == 0
        return look and trainer.strategy.reduce_boolean_decision(self._asked, all=False)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave signals as they were."""
        restore(self._before)
        self._before = {}
