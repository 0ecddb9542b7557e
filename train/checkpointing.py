"""Checkpoints of a run: written whole or not at all, also within an epoch, and when a signal asks the run to stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import CheckpointIO

from ..core.errors import ASKED_TO_STOP, UserError
from ..core.files import replace_file
from ..core.processes import listen, restore, say
from ..data_modules.sampling import Position
from ..models import LAST
from ..models.weight_files import read_checkpoint
from .features import rank_and_world_size, signals_received

# Whether any process was asked to stop takes communication between all of them: every so many batches or seconds,
# whichever is sooner. torchrun kills half a minute after the signal
_LOOK_STEPS, _LOOK_SECONDS = 8, 4.0
_GOES_ON = "the same command goes on (train: with --resume auto)"


class CannotWrite(UserError):
    """The folder of the run cannot be written now; the same command continues once it can."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within it, a signal ends the program with `ASKED_TO_STOP`: at once (of several processes all at their next common
    operation), in training once a checkpoint is saved.

    So whoever started the program can tell at any time that the run is to be started again, and a line says so. Ctrl-C
    is a `KeyboardInterrupt`, as anywhere in Python.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signals_received.append(number)
        if rank_and_world_size()[1] == 1:
            raise SystemExit(ASKED_TO_STOP)

    handlers = listen(stop)
    # Lightning ignores Ctrl-C after the first one
    if handlers:
        handlers[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (SystemExit, Exception) as end:
        # Lightning would end the program with 1
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        # or Lightning fails with an error of its own when it tears down what it had not set up
        if signals_received and SystemExit in (type(end), type(end.__context__)):
            if os.environ.get("LOCAL_RANK", "0") == "0":
                print(f"asked to stop: {_GOES_ON}", file=sys.stderr)
            raise SystemExit(ASKED_TO_STOP) from None
        raise
    finally:
        signals_received.clear()
        restore(handlers)


def position_of(checkpoint: Mapping[str, Any]) -> Position:
    """The position in the data at which a run resumes after a checkpoint."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    if progress["is_last_batch"]:
        return Position(checkpoint["epoch"] + 1)
    return Position(checkpoint["epoch"], progress["current"]["ready"])


class PreemptionCheckpoints(Callback):
    """Saves ``last.ckpt`` every N optimizer steps, and when a signal asks the run to stop.

    A checkpoint in mid-epoch names the next batch; the run that goes on from there reads exactly what was left. Where a
    validation is due after a step, that run begins with this validation, of which no part is kept. Nothing is saved
    between two steps of the optimizer, where gradients that are being accumulated would be lost; nor after the last
    step before its validation is over, since Lightning would take such a run for a finished one.
    """

    def __init__(self, folder: Path, every: int) -> None:
        """Save into a folder every `every` optimizer steps; 0 = only at the end of epochs and after a signal."""
        self._path, self._every = folder / LAST, every
        self._asked = False
        # batches so far, at which to look again, how many are between, when it looked (`time.monotonic`)
        self._batches, self._next_look, self._gap, self._looked = 0, 0, 1, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listen for signals; from now on a signal saves a checkpoint first."""
        # Lightning 2.6 puts a handler of its own before ours when it begins to fit, and has no option against it. On
        # SIGTERM that one communicates with other processes, which may be waiting in another collective operation: it
        # is replaced here. After the fit Lightning puts back the handlers that it found
        listen(self._ask)
        # One of several processes may have been asked earlier, when it could not end alone
        self._asked |= bool(signals_received)
        signals_received.clear()
        self._looked = time.monotonic()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time to.

        Raises:
            SystemExit: With `ASKED_TO_STOP` after a signal, on every rank at the same step.
        """
        loop = trainer.fit_loop.epoch_loop
        validates = loop._should_check_val_fx(trainer.fit_loop._data_fetcher)  # pyright: ignore[reportArgumentType]
        if trainer.is_last_batch or validates or loop._should_accumulate():
            return  # saved in the validation, or after the epoch
        stop = self._is_to_stop(trainer)
        if stop or (self._every and trainer.global_step % self._every == 0):
            trainer.save_checkpoint(self._path)
        if stop:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save where no validation ends the epoch, after which Lightning would (`check_val_every_n_epoch`)."""
        # None = a validation after so many steps alone, which is before or after this
        every = trainer.check_val_every_n_epoch
        if every is None or (trainer.current_epoch + 1) % every:
            trainer.save_checkpoint(self._path)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if it is time to."""
        listen(self._ask)  # as above, where a probe is validated without training
        progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
        progress.total.reset_on_restart()  # Lightning does that for `current` alone
        if self._every and trainer.global_step % self._every == 0 and self._may_begin_with_validation(trainer):
            self._save_before_validation(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop within a validation, which may take longer than a scheduler waits; all ranks have equally many batches.

        Raises:
            SystemExit: As above.
        """
        saves = self._may_begin_with_validation(trainer)
        # Before the first step there is nothing to lose
        if (saves or not trainer.global_step) and self._is_to_stop(trainer):
            if saves:
                self._save_before_validation(trainer)
            self._stop(trainer, saves)

    @staticmethod
    def _may_begin_with_validation(trainer: L.Trainer) -> bool:
        """Whether a run that is saved now, within a validation, would repeat that validation."""
        return (
            trainer.global_step not in (0, trainer.max_steps) and not trainer.fit_loop.epoch_loop._should_accumulate()
        )

    def _save_before_validation(self, trainer: L.Trainer) -> None:
        progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
        before = progress.state_dict()
        progress.reset()
        progress.increment_ready()
        progress.increment_started()  # within the first batch: a run that goes on from there validates
        trainer.save_checkpoint(self._path)
        progress.load_state_dict(before)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a signal in the last epoch, stop without waiting for the calibration that follows.

        Raises:
            SystemExit: As above.
        """
        if self._anyone_asked(trainer):
            self._stop(trainer)

    def _is_to_stop(self, trainer: L.Trainer) -> bool:
        """Check for signals after a batch, on all ranks at the same batch."""
        self._batches += 1
        return self._batches >= self._next_look and self._anyone_asked(trainer)

    def _anyone_asked(self, trainer: L.Trainer) -> bool:
        """Whether a signal came to any process."""
        if trainer.world_size == 1:
            return self._asked
        # All ranks take the largest values, so that they also agree on when to look again
        now = time.monotonic()
        here = torch.tensor([float(self._asked), now - self._looked], device=trainer.strategy.root_device)
        asked, seconds = trainer.strategy.reduce(here, reduce_op="max").tolist()  # pyright: ignore[reportAttributeAccessIssue]
        # As many batches as take about `_LOOK_SECONDS`, judging by those since the last look
        self._gap = max(1, min(_LOOK_STEPS, int(self._gap * _LOOK_SECONDS / max(seconds, 1e-9))))
        self._next_look, self._looked = self._batches + self._gap, now
        return bool(asked)

    @staticmethod
    def _stop(trainer: L.Trainer, saved: bool = True) -> None:
        if trainer.is_global_zero:
            after = f"saved after step {trainer.global_step}; --resume auto goes on from there"
            say(f"asked to stop: {after if saved else _GOES_ON}")
        raise SystemExit(ASKED_TO_STOP)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the data workers. Lightning ends only those of the active loop."""
        trainer.fit_loop.teardown()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave a signal that came after the last look to `stopped_by_signals`.

        Raises:
            SystemExit: With `ASKED_TO_STOP`, if one did; of several processes at their next common operation.
        """
        if self._asked:
            signals_received.append(signal.SIGTERM)
            if trainer.world_size == 1:
                raise SystemExit(ASKED_TO_STOP)


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's early stopping, except that a stopped run stays stopped, and that the patience may change on resume.

    It has the same name, under which checkpoints keep its state.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, with the patience of the present settings."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once if the patience is used up."""
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class ModelCheckpoint(callbacks.ModelCheckpoint):
    """Lightning's checkpoints, except that a run whose folder was moved keeps its best score.

    Lightning forgets it there, and the next validation, however bad, would replace the best checkpoint. It has the same
    name, under which checkpoints keep its state.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, with the present paths."""
        here = Path(str(self.dirpath))

        def moved(path: str) -> str:
            return str(here / Path(path).name) if path else path

        paths = {
            name: moved(state_dict[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")
        }
        scores = {moved(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict({**state_dict, **paths, "best_k_models": scores, "dirpath": self.dirpath})


class AtomicCheckpoints(CheckpointIO):
    """Writes a temporary file, flushes it to the disk and renames it: a kill leaves the old checkpoint or the new one.

    The file is in the same folder. That of Lightning's own writer may lie on another disk, where a rename is a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            CannotWrite: What was there before stays.
        """
        path = Path(path)

        def write(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, write)
        except OSError as error:
            state = "the one before it is whole" if path.exists() else "there is none before it"
            raise CannotWrite(
                f"{path}: checkpoint not written ({error.strerror or error}), {state}; expected a disk with room, then "
                "--resume auto"
            ) from None

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; tensors and plain values only, whatever Lightning asks for."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)
