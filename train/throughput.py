"""How far and how fast training is, and what of it is waste: logged, shown in the progress bar, one line at the end."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from rich.console import Console
from torch import Tensor, nn

from ..data_modules.parallel import ProgressBar
from ..models.judge import DTYPES, EmpathyJudge
from ..models.lora import part_of
from .collate import Batch
from .module import JudgeModule

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
"""Lightning's name for asking the data loader for the next training batch; no hook stands before it."""
_STATUS = Path("/proc/self/status")
_LARGEST, _SECONDS = 8192, 0.3  # of `matrix_rate`: with what is left of a product then, well below a second
_IN_THE_BAR = {
    "pairs_per_second": "pairs/s",
    "tokens_per_second": "tokens/s",
    "padding": "padding",
    "waiting": "waiting",
    "memory_gb": "GB",
    "utilisation": "MFU",
}


@dataclass(frozen=True)
class Work:
    """What was done, of one or of all processes.

    Attributes:
        pairs: Rows of batches; a comparison is two.
        tokens: Those that are not padding.
        padded: Tokens with padding: rows times the longest row of each batch.
        flops: Useful ones, see `Flops`.
        seconds: Of training steps and of waiting for their data, of all processes together.
        waiting: Of these, waiting for data.
        reachable: What the machine could have computed in these seconds: matrix rate times seconds.
    """

    pairs: float = 0.0
    tokens: float = 0.0
    padded: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    waiting: float = 0.0
    reachable: float = 0.0

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
            "utilisation": self.flops / self.reachable,
        }


class Flops:
    """Useful FLOPs of a training step, by the weights that a token meets (Chowdhery et al., 2022, appendix B).

    A weight of a linear layer takes 2 FLOPs a token in the forward pass, 2 more where a gradient goes back through it,
    and 2 more where it is trained itself. Padding, what is computed a second time (gradient checkpointing), the scores
    of attention and convolutions count nothing. An audio token meets the audio tower once: towers that halve their
    frames late do more than is counted here.

    Attributes:
        tower: FLOPs of the audio tower for an audio token.
        projector: Of the projector (and of cross-attention fusion), for an audio token.
        lower: Of the layers of the language model that no gradient reaches, for a token.
        upper: Of its other layers.
    """

    def __init__(self, judge: EmpathyJudge) -> None:
        found = {"audio_tower": 0.0, "projector": 0.0, "fusion": 0.0, "language_model": 0.0}
        self.lower, learns = 0.0, False
        layers = {name: module for name, module in judge.network.named_modules() if isinstance(module, nn.Linear)}
        experts = {
            name: weight
            for name, weight in judge.network.named_parameters()
            if weight.ndim == 3 and part_of(judge.backbone, name) == "language_model"
        }
        for part in found:  # in the order in which they are computed
            for name, layer in layers.items():
                if part_of(judge.backbone, name) == part:
                    trained = layer.weight.requires_grad
                    if trained and not learns and part == "language_model":
                        self.lower, found[part] = found[part], 0.0
                    learns |= trained
                    found[part] += (2 + 2 * learns + 2 * trained) * layer.in_features * layer.out_features
        for weight in experts.values():  # stacked, of which a token meets a few
            few = getattr(judge.backbone.network.config, "num_experts_per_tok", len(weight))
            found["language_model"] += (2 + 2 * learns) * weight[0].numel() * few
        self.tower, self.projector = found["audio_tower"], found["projector"] + found["fusion"]
        self.upper = found["language_model"]

    def of(self, batch: Batch) -> tuple[float, float]:
        """Those of a step on a batch: for each of its real tokens, and whatever their number."""
        inputs, audio = batch.inputs, len(batch.inputs.audio_index)
        fixed = self.tower * audio if inputs.clips is not None else 0.0
        if inputs.hidden is not None:  # computed beforehand
            return self.upper, fixed
        return self.lower + self.upper, fixed + self.projector * audio


class Waiting(Profiler):
    """Stands before the profiler that the user chose and measures how long training waits for data.

    Attributes:
        asked: When the last batch was asked for (seconds of `time.perf_counter`).
        seconds: Waited so far.
    """

    def __init__(self, chosen: Profiler) -> None:
        super().__init__()
        self.chosen, self.asked, self.seconds = chosen, 0.0, 0.0

    def start(self, action_name: str) -> None:
        """Start the clock."""
        self.chosen.start(action_name)
        if action_name == FETCH:
            self.asked = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """The data is there."""
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
    """Says in a log how far training is; in a terminal Lightning's bar does."""

    def __init__(self) -> None:
        self._training = self._validation = ProgressBar("", 0, quiet=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count steps of the optimizer from here."""
        steps = trainer.estimated_stepping_batches  # infinite where nothing but a person ends it
        quiet = not trainer.is_global_zero or steps == float("inf")
        self._training = ProgressBar("training", 0 if quiet else int(steps), trainer.global_step, quiet)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Say it, if it is time to."""
        self._training.update(trainer.global_step, f"epoch {trainer.current_epoch + 1}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches from here."""
        batches = sum(int(own) for own in trainer.num_val_batches)
        self._validation = ProgressBar("validation", batches, quiet=not trainer.is_global_zero)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Say it, if it is time to."""
        self._validation.update(batch_idx + 1)


class Throughput(Callback):
    """Logs `throughput/...` every `log_every_n_steps` steps of the optimizer, over the steps since the last time.

    The clock runs from asking for a batch until its step is done: neither validation, checkpoints nor loggers count. A
    GPU is waited for when the figures are taken, not at each step as by Lightning's `ThroughputMonitor`.

    Utilisation (MFU) is useful FLOPs (`Flops`) by those that the machine would have done meanwhile with large matrix
    products (`matrix_rate`, in the dtype of the computation). Memory is what the process (main memory, without
    data-loader processes) or the GPU's allocator held at most, of the process that held most.
    """

    def __init__(self) -> None:
        self._total = Work()
        self._steps: list[tuple[int, int, tuple[float, float], Tensor]] = []  # pairs, padded tokens, FLOPs, tokens
        self._flops: Flops | None = None
        self._waiting = Waiting(PassThroughProfiler())
        self._seconds = self._rate = self._all_rates = self._memory = 0.0
        self._last = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Measure when data is asked for."""
        self._waiting = trainer.profiler = Waiting(trainer.profiler)  # pyright: ignore[reportAttributeAccessIssue]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the machine."""
        assert isinstance(pl_module, JudgeModule)
        kinds = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
        dtype = kinds.get(trainer.precision.partition("-")[0], DTYPES[pl_module.judge.settings.dtype])
        self._rate = matrix_rate(trainer.strategy.root_device, dtype)
        self._flops, self._last = Flops(pl_module.judge), trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Note what was in the batch; take the figures where they are due."""
        assert self._flops is not None
        mask = batch.inputs.attention_mask
        self._steps.append((len(batch.labels.targets), mask.numel(), self._flops.of(batch), mask.sum()))
        every: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        due = trainer.global_step > self._last and trainer.global_step % every == 0
        if due:
            synchronize(trainer.strategy.root_device)
        self._seconds += time.perf_counter() - self._waiting.asked
        if due:
            self._last = trainer.global_step
            found = {**self._take(trainer).rates(trainer.world_size), "memory_gb": self._memory / 1e9}
            pl_module.log_dict({f"throughput/{name}": value for name, value in found.items()}, batch_size=1)
            shown = {name: found[key] for key, name in _IN_THE_BAR.items()}
            pl_module.log_dict(shown, prog_bar=True, logger=False, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What a GPU still does belongs to training."""
        begun = time.perf_counter()
        synchronize(trainer.strategy.root_device)
        self._seconds += time.perf_counter() - begun

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how it was."""
        self._take(trainer)
        if trainer.is_global_zero and self._total.pairs:
            line = summary(self._total, trainer.world_size, self._memory, self._all_rates)
            Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)

    def _take(self, trainer: Trainer) -> Work:
        """The work of all processes since the last time."""
        tokens = [float(own) for *_, own in self._steps]  # here a GPU is waited for, at the latest
        work = Work(
            pairs=sum(pairs for pairs, *_ in self._steps),
            tokens=sum(tokens),
            padded=sum(padded for _, padded, *_ in self._steps),
            flops=sum(n * each + fixed for n, (_, _, (each, fixed), _) in zip(tokens, self._steps, strict=True)),
            seconds=self._seconds,
            waiting=self._waiting.seconds,
            reachable=self._rate * self._seconds,
        )
        self._steps, self._seconds, self._waiting.seconds = [], 0.0, 0.0
        own = [*astuple(work), memory_bytes(trainer.strategy.root_device), self._rate]
        of_all = torch.tensor(own, dtype=torch.float64).reshape(1, -1)
        if trainer.world_size > 1:
            of_all = trainer.strategy.all_gather(of_all[0].to(trainer.strategy.root_device)).cpu()
        width = len(fields(Work))
        self._memory, self._all_rates = of_all[:, width].max().item(), of_all[:, width + 1].sum().item()
        work = Work(*of_all.sum(0)[:width].tolist())
        self._total += work
        return work


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


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP per second of square matrix products `(n, n) @ (n, n)` on this device now, in less than a second.

    n is doubled from 256 as long as the time allows, up to 8192; the fastest counts. This is what a step could reach if
    it were nothing but large products, with the threads and the float32 precision (TF32 or not) that torch is set to.
    It is a figure of the machine as it is used, not of its data sheet: where other processes compute, it is lower.
    """
    started, best, size, last = time.perf_counter(), 0.0, 256, 0.0
    draws = torch.Generator(device)  # its own: what training draws must not depend on how fast this is
    while size <= _LARGEST and time.perf_counter() - started + 16 * last < _SECONDS:
        left, right = (torch.randn(size, size, device=device, generator=draws).to(dtype) for _ in range(2))
        for repeat in range(3):  # the first one may choose a kernel
            synchronize(device)
            begun = time.perf_counter()
            torch.mm(left, right)
            synchronize(device)
            last = time.perf_counter() - begun
            if repeat or last > 0.1:
                best = max(best, 2 * size**3 / last)
            if last > 0.1:
                break
        size *= 2
    return best


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{_three(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
