"""How fast training is, and what of it is waste: logged, shown in the progress bar, and one line at the end."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from torch import Tensor

from ..models.judge import DTYPES
from .actions import FETCH, listen
from .batches import Batch
from .flops import UsefulFlops, matrix_rate, synchronize
from .module import JudgeModule

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Work:
    """What was done, of one or of all processes.

    Attributes:
        pairs: Rows of batches; a comparison is two.
        tokens: Those that are not padding.
        places: Rows times the longest row of each batch.
        flops: Useful ones, see `Throughput`.
        seconds: Of training steps and of waiting for their data, of all processes together.
        waiting: Of these, waiting for data.
        reachable: What the machine could have computed in these seconds: matrix rate times seconds.
    """

    pairs: float = 0.0
    tokens: float = 0.0
    places: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    waiting: float = 0.0
    reachable: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def rates(self, processes: int) -> dict[str, float]:
        """Per second of the clock, all processes together; shares from 0 to 1."""
        elapsed = self.seconds / processes
        return {
            "pairs_per_second": self.pairs / elapsed,
            "tokens_per_second": self.tokens / elapsed,
            "padding": 1 - self.tokens / self.places,
            "waiting": self.waiting / self.seconds,
            "utilisation": self.flops / self.reachable,
        }


_IN_THE_BAR = {
    "pairs_per_second": "pairs/s",
    "tokens_per_second": "tokens/s",
    "padding": "padding",
    "waiting": "waiting",
    "memory_gb": "GB",
    "utilisation": "MFU",
}


class Throughput(Callback):
    """Logs `throughput/...` every `log_every_n_steps` steps of the optimizer, over the steps since the last time.

    The clock runs from asking for a batch until its step is done: neither validation, checkpoints nor loggers count. A
    GPU is waited for when the figures are taken, not at each step. Lightning's `ThroughputMonitor` waits at each,
    multiplies the figures of one process by their number, although batches differ, and takes what the GPU could do from
    a table of data sheets; so none of it is used here.

    Utilisation (MFU) is useful FLOPs by those that the machine would have done meanwhile with large matrix products
    (`matrix_rate`, in the dtype of the computation). Useful FLOPs are counted in the first step (`UsefulFlops`: no
    recomputation), divided by the places of its batch and multiplied by the real tokens of each step, so that padding
    is not useful either. Batches whose audio was encoded beforehand are counted apart. The growth of attention with
    length, and that the audio tower depends on seconds and not on tokens, are averaged away.

    Memory is what the process (main memory, without data-loader processes) or the GPU's allocator held at most, of the
    process that held most.
    """

    def __init__(self) -> None:
        self._total = Work()
        self._steps: list[tuple[int, int, tuple[bool, bool], Tensor]] = []  # pairs, places, form, tokens
        self._flops_per_place: dict[tuple[bool, bool], float] = {}
        self._counting: UsefulFlops | None = None
        self._eager: AbstractContextManager[object] | None = None
        self._counted = 0
        self._seconds = self._waiting = self._asked = 0.0
        self._rate, self._all_rates, self._memory, self._last = 0.0, 0.0, 0.0, 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Hear when data is asked for."""
        listen(trainer, self)

    def action_starts(self, name: str) -> None:
        """Start the clock."""
        if name == FETCH:
            self._asked = time.perf_counter()

    def action_stops(self, name: str) -> None:
        """The data is there."""
        if name == FETCH:
            self._waiting += time.perf_counter() - self._asked

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the machine."""
        assert isinstance(pl_module, JudgeModule)
        dtype = _compute_dtype(trainer.precision, pl_module)
        self._rate = matrix_rate(trainer.strategy.root_device, dtype)
        self._last = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Count the FLOPs of the first step of each kind.

        This step is not compiled: a layer that dynamo meets under a dispatch mode is never compiled later
        (pytorch#190286). Its backward pass is not either: gradient checkpointing must compute what was computed.
        """
        if _form(batch) not in self._flops_per_place:
            self._eager = torch.compiler.set_stance("force_eager")
            self._eager.__enter__()
            self._counting = UsefulFlops()
            self._counting.start()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """The forward pass is over, and all is counted."""
        if self._counting is not None:
            self._counted = self._counting.stop()
            self._counting = None

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on layers are compiled."""
        self._compile_again()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Note what was in the batch; take the figures where they are due."""
        mask = batch.inputs.attention_mask
        self._flops_per_place.setdefault(_form(batch), self._counted / mask.numel())
        self._steps.append((len(batch.said.targets), mask.numel(), _form(batch), mask.sum()))
        every: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        due = trainer.global_step > self._last and trainer.global_step % every == 0
        if due:
            synchronize(trainer.strategy.root_device)
        self._seconds += time.perf_counter() - self._asked
        if due:
            self._last = trainer.global_step
            work = self._take(trainer)
            found = {**work.rates(trainer.world_size), "memory_gb": self._memory / 1e9}
            pl_module.log_dict({f"throughput/{name}": value for name, value in found.items()}, batch_size=1)
            shown = {name: found[key] for key, name in _IN_THE_BAR.items()}
            pl_module.log_dict(shown, prog_bar=True, logger=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What a GPU still does belongs to training."""
        if trainer.strategy.root_device.type != "cpu":
            begun = time.perf_counter()
            synchronize(trainer.strategy.root_device)
            self._seconds += time.perf_counter() - begun

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how it was."""
        self._take(trainer)
        if trainer.is_global_zero and self._total.pairs:
            line = summary(self._total, trainer.world_size, self._memory, self._all_rates)
            Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A counter that is left running would count whatever this process does next."""
        if self._counting is not None:
            self._counting.stop()
            self._counting = None
        self._compile_again()

    def _compile_again(self) -> None:
        if self._eager is not None:
            self._eager.__exit__(None, None, None)
            self._eager = None

    def _take(self, trainer: Trainer) -> Work:
        """The work of all processes since the last time."""
        own = [*astuple(self._own()), memory_bytes(trainer.strategy.root_device), self._rate]
        of_all = torch.tensor(own, dtype=torch.float64).reshape(1, -1)
        if trainer.world_size > 1:
            of_all = trainer.strategy.all_gather(of_all[0].to(trainer.strategy.root_device)).cpu()
        sums, width = of_all.sum(0), len(fields(Work))
        self._memory, self._all_rates = of_all[:, width].max().item(), sums[width + 1].item()
        work = Work(*sums[:width].tolist())
        self._total += work
        return work

    def _own(self) -> Work:
        """Of this process since the last time."""
        tokens = torch.stack([step[3] for step in self._steps]).tolist() if self._steps else []
        steps, seconds, waiting = self._steps, self._seconds, self._waiting
        self._steps, self._seconds, self._waiting = [], 0.0, 0.0
        return Work(
            pairs=sum(pairs for pairs, *_ in steps),
            tokens=sum(tokens),
            places=sum(places for _, places, *_ in steps),
            flops=sum(n * self._flops_per_place[form] for n, (_, _, form, _) in zip(tokens, steps, strict=True)),
            seconds=seconds,
            waiting=waiting,
            reachable=self._rate * seconds,
        )


def summary(work: Work, processes: int, memory: float, rate: float) -> str:
    """One line about a whole training.

    Args:
        work: Of all processes.
        processes: How many there were.
        memory: Bytes of the process that held most.
        rate: FLOP per second that all of them can do together.
    """
    found = work.rates(processes)
    owner = "this machine's" if processes == 1 else f"{processes} processes'"
    reachable = f"{rate / 1e9:.0f} GFLOP/s" if rate < 1e12 else f"{rate / 1e12:.0f} TFLOP/s"
    return (
        f"trained on {work.pairs:,.0f} pairs in {_duration(work.seconds / processes)}: "
        f"{_three(found['pairs_per_second'])} pairs/s, {_three(found['tokens_per_second'])} tokens/s, "
        f"{found['padding']:.1%} padding, {found['waiting']:.1%} waiting for data, {memory / 1e9:.1f} GB, "
        f"{found['utilisation']:.0%} of {owner} {reachable}"
    ).replace("%", " %")


def memory_bytes(device: torch.device) -> float:
    """What this process held at most: in GPU memory by torch's allocator, on a CPU resident in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.is_file():  # Linux, whose `getrusage` also knows what the program held that started this one
        return float(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _compute_dtype(precision: str, module: JudgeModule) -> torch.dtype:
    """In which most products are computed: as autocast or Lightning's conversion has it, else that of the weights."""
    kinds = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
    return kinds.get(precision.partition("-")[0], DTYPES[module.judge_settings.dtype])


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{_three(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _form(batch: Batch) -> tuple[bool, bool]:
    """What a batch begins with (sounds, audio states or hidden states), which decides what a step computes."""
    return batch.inputs.clips is None, batch.inputs.hidden is None
