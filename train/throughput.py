"""How far training is, and how fast it was: lines in a log, and one line at the end."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..core.processes import ProgressBar, duration, say
from .collate import Batch

_STATUS = Path("/proc/self/status")


class ProgressLines(Callback):
    """Prints lines to a log that say how far training is; in a terminal Lightning's bar does."""

    def __init__(self) -> None:
        self._training = self._validation = ProgressBar("", 0, quiet=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count steps of the optimizer from here."""
        # Infinite where only a person ends training
        steps = trainer.estimated_stepping_batches
        quiet = not trainer.is_global_zero or steps == float("inf")
        self._training = ProgressBar("training", 0 if quiet else int(steps), trainer.global_step, quiet)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Report progress, if it is time to."""
        self._training.update(trainer.global_step, f"epoch {trainer.current_epoch + 1}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches from here."""
        batches = sum(int(count) for count in trainer.num_val_batches)
        self._validation = ProgressBar("validation", batches, quiet=not trainer.is_global_zero)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        """Report progress, if it is time to."""
        self._validation.update(batch_idx + 1)


class StepClock:
    """What steps of training did, and how long they took. Validations and what is saved between two epochs do not
    count. Nothing waits for a GPU."""

    def __init__(self) -> None:
        self.pairs = self.padded = 0  # rows (a comparison is two); tokens with the padding of the longest row
        self.tokens: int | Tensor = 0  # stays on the device, which would be waited for otherwise
        self.seconds = self.waiting = 0.0
        self._since: float | None = None  # end of the last step; None = the clock stands

    def start(self) -> None:
        """Count seconds from here."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count no seconds until the next batch is there."""
        self._since = None

    def batch_is_there(self) -> None:
        """A step begins: what passed since the last one was waiting."""
        now = time.perf_counter()
        waited = 0.0 if self._since is None else now - self._since
        self.waiting += waited
        self.seconds += waited
        self._since = now

    def step_is_done(self, batch: Batch) -> None:
        """Count the step."""
        mask = batch.inputs.attention_mask
        self.pairs += len(batch.labels.targets)
        self.padded += mask.numel()
        # A sum on the device: to read it as a number at each step would make the host wait for the GPU
        self.tokens = self.tokens + mask.sum()
        now = time.perf_counter()
        self.seconds += 0.0 if self._since is None else now - self._since
        self._since = now


class Throughput(Callback):
    """Says at the end how fast training was, and what share of it was padding and waiting for data.

    Lightning's `ThroughputMonitor` waits for the GPU at each step and knows neither padding nor waiting. Here a GPU is
    waited for once, at the end.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._clock.start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """The batch is there."""
        self._clock.batch_is_there()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count the step."""
        self._clock.step_is_done(batch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock until the next step."""
        self._clock.stop()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the line, of all processes together."""
        device = trainer.strategy.root_device
        own = self._clock
        work = [own.pairs, float(own.tokens), own.padded, own.seconds, own.waiting, peak_memory(device)]
        table = torch.tensor([work], dtype=torch.float64)
        if trainer.world_size > 1:
            table = trainer.strategy.all_gather(table[0].to(device)).cpu()
        if trainer.is_global_zero and table[:, 0].sum():
            say(summary(table))


def summary(work: Tensor) -> str:
    """One line about a training, from pairs, tokens, tokens with padding, seconds, seconds of waiting and peak memory
    (bytes) of each process `(processes, 6)`."""
    pairs, tokens, padded, seconds, waiting, _ = work.sum(0).tolist()
    elapsed = seconds / len(work)
    return (
        f"trained on {pairs:,.0f} pairs in {duration(elapsed) if elapsed >= 120 else f'{_three(elapsed)} s'}: "
        f"{_three(pairs / elapsed)} pairs/s, {_three(tokens / elapsed)} tokens/s, "
        f"{1 - tokens / padded:.1%} padding, {waiting / seconds:.1%} waiting for data, "
        f"{work[:, -1].max() / 1e9:.1f} GB"
    ).replace("%", " %")


def peak_memory(device: torch.device) -> float:
    """Peak memory of this process: GPU memory of torch's allocator, on a CPU resident main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux, whose `getrusage` also counts the program that started this one
    if _STATUS.is_file():
        return float(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
