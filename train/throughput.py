"""Progress and speed of training, and the shares of padding and waiting: logged, shown in the progress bar, and
summarised in one line at the end."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch import Tensor

from ..data_modules.parallel import ProgressBar, duration, say
from .collate import Batch

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
"""Lightning's name for asking the data loader for the next training batch; no hook stands before it."""
_STATUS = Path("/proc/self/status")
_IN_THE_BAR = {
    "pairs_per_second": "pairs/s",
    "tokens_per_second": "tokens/s",
    "padding": "padding",
    "waiting": "waiting",
    "memory_gb": "GB",
}


@dataclass(frozen=True)
class Work:
    """What was done, of one or of all processes: rows of batches (a comparison is two), tokens that are not padding,
    tokens with padding (rows times the longest row of each batch), seconds of training steps and of waiting for their
    data, of all processes together, and of these, waiting for data."""

    pairs: float = 0.0
    tokens: float = 0.0
    padded: float = 0.0
    seconds: float = 0.0
    waiting: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def rates(self, processes: int) -> dict[str, float]:
        """Per second of the clock, all processes together; ratios from 0 to 1."""
        elapsed = self.seconds / processes
        return {
            "pairs_per_second": self.pairs / elapsed,
            "tokens_per_second": self.tokens / elapsed,
            "padding": 1 - self.tokens / self.padded,
            "waiting": self.waiting / self.seconds,
        }


class Waiting(Profiler):
    """Stands before the profiler that the user chose and measures how long training waits for data: when the last batch
    was asked for (`time.perf_counter`), and the seconds waited so far."""

    def __init__(self, chosen: Profiler) -> None:
        super().__init__()
        self.chosen, self.asked, self.seconds = chosen, 0.0, 0.0

    def start(self, action_name: str) -> None:
        """Start the clock."""
        self.chosen.start(action_name)
        if action_name == FETCH:
            self.asked = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """Stop the clock: the data is there."""
        if action_name == FETCH:
            self.seconds += time.perf_counter() - self.asked
        self.chosen.stop(action_name)

    def describe(self) -> None:
        """Let the chosen profiler print its report."""
        self.chosen.describe()

    def teardown(self, stage: str | None) -> None:
        """Let the chosen profiler close its files; its `setup` was called before this one took its place."""
        self.chosen.teardown(stage)


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


class Throughput(Callback):
    """Logs `throughput/...` every `log_every_n_steps` steps of the optimizer (0 = never), over the steps since the last
    time.

    The clock runs from asking for a batch until its step is done: neither validation, checkpoints nor loggers count. A
    GPU is waited for when the figures are taken, not at each step as by Lightning's `ThroughputMonitor`. Memory is what
    the process (main memory, without data-loader processes) or the GPU's allocator held at most, of the one that held
    most.
    """

    def __init__(self) -> None:
        self._total = Work()
        self._steps: list[tuple[int, int, Tensor]] = []  # pairs, padded tokens, tokens
        self._waiting = Waiting(PassThroughProfiler())
        self._seconds = self._memory = 0.0
        self._last = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Measure when data is asked for."""
        self._waiting = trainer.profiler = Waiting(trainer.profiler)  # pyright: ignore[reportAttributeAccessIssue]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count steps from here."""
        self._last = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Note the sizes of the batch; log the figures when they are due."""
        mask = batch.inputs.attention_mask
        self._steps.append((len(batch.labels.targets), mask.numel(), mask.sum()))
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        due = interval > 0 and trainer.global_step > self._last and trainer.global_step % interval == 0
        if due:
            synchronize(trainer.strategy.root_device)
        self._seconds += time.perf_counter() - self._waiting.asked
        if due:
            self._last = trainer.global_step
            figures = {**self._take(trainer).rates(trainer.world_size), "memory_gb": self._memory / 1e9}
            pl_module.log_dict({f"throughput/{name}": value for name, value in figures.items()}, batch_size=1)
            shown = {name: figures[key] for key, name in _IN_THE_BAR.items()}
            pl_module.log_dict(shown, prog_bar=True, logger=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the GPU: what it still computes belongs to training."""
        start = time.perf_counter()
        synchronize(trainer.strategy.root_device)
        self._seconds += time.perf_counter() - start

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the summary of the training."""
        self._take(trainer)
        if trainer.is_global_zero and self._total.pairs:
            say(summary(self._total, trainer.world_size, self._memory))

    def _take(self, trainer: Trainer) -> Work:
        """The work of all processes since the last time."""
        work = Work(
            pairs=sum(pairs for pairs, _, _ in self._steps),
            # this waits for a GPU, at the latest
            tokens=float(torch.stack([tokens for _, _, tokens in self._steps]).sum()) if self._steps else 0.0,
            padded=sum(padded for _, padded, _ in self._steps),
            seconds=self._seconds,
            waiting=self._waiting.seconds,
        )
        self._steps, self._seconds, self._waiting.seconds = [], 0.0, 0.0
        of_all = torch.tensor([[*astuple(work), memory_bytes(trainer.strategy.root_device)]], dtype=torch.float64)
        if trainer.world_size > 1:
            of_all = trainer.strategy.all_gather(of_all[0].to(trainer.strategy.root_device)).cpu()
        self._memory = of_all[:, -1].max().item()
        work = Work(*of_all.sum(0)[:-1].tolist())
        self._total += work
        return work


def summary(work: Work, processes: int, memory: float) -> str:
    """One line about a whole training: the work of all processes, and the bytes of the one that held most."""
    rates, seconds = work.rates(processes), work.seconds / processes
    return (
        f"trained on {work.pairs:,.0f} pairs in {duration(seconds) if seconds >= 120 else f'{_three(seconds)} s'}: "
        f"{_three(rates['pairs_per_second'])} pairs/s, {_three(rates['tokens_per_second'])} tokens/s, "
        f"{rates['padding']:.1%} padding, {rates['waiting']:.1%} waiting for data, {memory / 1e9:.1f} GB"
    ).replace("%", " %")


def memory_bytes(device: torch.device) -> float:
    """Peak memory of this process: GPU memory of torch's allocator, on a CPU resident main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux, whose `getrusage` also counts the program that started this one
    if _STATUS.is_file():
        return float(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
