"""`train --profile true`: where the time of training goes, on one page, and a trace to look closer."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

from .actions import FETCH, SAVE, listen
from .batches import Batch
from .module import JudgeModule
from .stages import COLLATE, STAGES, WAITING, StageClock, stage_of, watch
from .throughput import memory_bytes

FOLDER = "profile"
WARM_UP, TRACED, TIMED = 3, 3, 20
"""Batches: to get going, then with torch's profiler, then by the clock alone."""
_TOP = 12
_LARGE = 20_000_000  # bytes


@dataclass(frozen=True)
class Operation:
    """An operation of the trace.

    Attributes:
        name: As torch has it; on a GPU that of the kernel.
        share: Of the time of all of them, without what they call.
        calls: In a batch.
    """

    name: str
    share: float
    calls: float


@dataclass(frozen=True)
class Shape:
    """Rows, longest row and real tokens of a batch."""

    rows: int
    longest: int
    tokens: int


class ProfileSteps(Callback):
    """Writes `profile/summary.md` and `profile/trace.json` (Chrome's format, with gzip where it is large).

    After a warm-up a few batches run under `torch.profiler`, which slows what has many small operations; the shares of
    the stages are taken by a clock from the batches that follow. Validation and checkpoints in between do not count.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._batch = -1  # since this start, by how often data was asked for
        self._shapes: list[Shape] = []
        self._operations: list[Operation] = []
        self._profiler: profile | None = None
        self._leave: Callable[[], None] | None = None
        self._clock = StageClock(torch.device("cpu"))
        self._traced = 0
        self._done = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Only the first process is profiled."""
        self._done = not trainer.is_global_zero
        if self._done:
            return
        listen(trainer, self)
        assert isinstance(pl_module, JudgeModule)
        self._clock = StageClock(trainer.strategy.root_device)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the making of batches where this process does it; the data loader is not there yet."""
        assert isinstance(pl_module, JudgeModule)
        if not self._done and pl_module.data.num_workers == 0:
            pl_module.collate = self._clock.timed(COLLATE, pl_module.collate)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the clock where the parts of the judge begin and end."""
        assert isinstance(pl_module, JudgeModule)
        if not self._done:
            self._leave = watch(self._clock, pl_module.built)

    def action_starts(self, name: str) -> None:
        """A stage begins; with data being asked for, a batch."""
        if self._done:
            return
        if name == FETCH:
            self._next_batch()
        elif name == SAVE:
            self._clock.pause()
        stage = stage_of(name)
        if stage is not None and not self._done:
            self._clock.begin(stage)

    def action_stops(self, name: str) -> None:
        """A stage ends."""
        if not self._done and stage_of(name) is not None:
            self._clock.end()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count a traced batch; note the shape of a timed one."""
        self._traced += self._profiler is not None
        if not self._done and self._batch >= WARM_UP + TRACED:
            mask = batch.inputs.attention_mask
            self._shapes.append(Shape(len(mask), mask.shape[1], int(mask.sum())))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Not a part of training steps."""
        self._clock.pause()
        self._stop_tracing()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is between epochs is not, either."""
        self._clock.pause()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the page, also of a short run."""
        self._clock.pause()
        self._stop_tracing()
        if self._leave is not None:
            self._leave()
        if not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        said = Console(stderr=True)
        if not self._shapes:
            needed = WARM_UP + TRACED + 1
            said.print(f"no profile: training ended after {self._batch + 1} batches; it takes {needed}", markup=False)
            return
        page = self._folder / "summary.md"
        page.write_text(self._page(trainer), encoding="utf-8")
        said.print(f"profile: {page}", markup=False, soft_wrap=True)

    def _next_batch(self) -> None:
        self._batch += 1
        if self._batch == WARM_UP:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it calls a machine without a GPU an error
            kinds = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=kinds, acc_events=True)
            self._profiler.start()
        elif self._batch == WARM_UP + TRACED:
            self._stop_tracing()
        elif self._batch == WARM_UP + TRACED + TIMED:
            self._clock.pause()
            self._done = True
        if WARM_UP + TRACED <= self._batch < WARM_UP + TRACED + TIMED:
            self._clock.resume()

    def _stop_tracing(self) -> None:
        if self._profiler is None:
            return
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_trace(self._profiler, self._folder / "trace.json")
        self._operations = top_operations(self._profiler, self._traced)
        self._profiler = None

    def _page(self, trainer: Trainer) -> str:
        data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        return page(
            self._clock.seconds,
            self._shapes,
            self._operations,
            traced=self._traced,
            device=_name(trainer.strategy.root_device),
            processes=trainer.world_size,
            workers=data.num_workers,
            memory=memory_bytes(trainer.strategy.root_device),
        )


def page(
    seconds: Mapping[str, float],
    shapes: list[Shape],
    operations: list[Operation],
    *,
    traced: int,
    device: str,
    processes: int,
    workers: int,
    memory: float,
) -> str:
    """The page as Markdown.

    Args:
        seconds: Of each stage in all timed batches.
        shapes: Of these batches.
        operations: Of the traced batches, the longest first.
        traced: How many batches these operations are of.
        device: In words.
        processes: That train together.
        workers: Data-loader processes of each.
        memory: Bytes that were held at most.
    """
    batches, total = len(shapes), sum(seconds.values())
    places = sum(shape.rows * shape.longest for shape in shapes)
    tokens = sum(shape.tokens for shape in shapes)
    shares = rounded({stage: seconds.get(stage, 0.0) / total for stage in STAGES})
    lines = [
        "# Where the time of training goes",
        "",
        f"{batches} batches on {device}" + (f", the first of {processes} processes" if processes > 1 else "") + ".",
        "",
        "| stage | share | ms in a batch |",
        "|---|--:|--:|",
        *(f"| {name} | {share:.1f} % | {1e3 * seconds.get(name, 0) / batches:.1f} |" for name, share in shares.items()),
        f"| **all** | **{sum(shares.values()):.1f} %** | **{1e3 * total / batches:.1f}** |",
        "",
        *_notes(workers, processes),
        "",
        f"- a batch: {sum(shape.rows for shape in shapes) / batches:.1f} rows, the longest of "
        f"{sum(shape.longest for shape in shapes) / batches:.0f} tokens; {100 * (1 - tokens / places):.1f} % padding",
        f"- {sum(shape.rows for shape in shapes) / total:.1f} rows and {tokens / total:,.0f} tokens a second",
        f"- memory: at most {memory / 1e9:.2f} GB",
        "",
        "## Longest operations",
        "",
        f"Of {traced} batches before these, under `torch.profiler`; without what an operation calls.",
        "",
        "| operation | share | calls in a batch |",
        "|---|--:|--:|",
        *(f"| `{found.name[:90]}` | {100 * found.share:.1f} % | {found.calls:.0f} |" for found in operations),
        "",
        "`trace.json` (or `trace.json.gz`) opens in https://ui.perfetto.dev; the stages are regions of it.",
        "",
    ]
    return "\n".join(lines)


def _notes(workers: int, processes: int) -> list[str]:
    notes = [
        f"`{COLLATE}` is done by {workers} other processes; `{WAITING}` is what they were late."
        if workers
        else f"`{WAITING}` is reading items; there are no data-loader processes (`data.num_workers`)."
    ]
    if processes > 1:
        notes.append("`backward` includes waiting for the other processes.")
    return [*notes, "`rest` is callbacks, loggers, the copy to the device and Lightning's loops."]


def rounded(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares as per cent with one decimal that add up to 100.0: the largest remainders are rounded up."""
    tenths = {name: int(1000 * share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: 1000 * shares[name] - tenths[name], reverse=True)
    for name in by_remainder[: 1000 - sum(tenths.values())]:
        tenths[name] += 1
    return {name: count / 10 for name, count in tenths.items()}


def top_operations(profiler: profile, batches: int) -> list[Operation]:
    """The operations that took longest themselves: kernels of a GPU where there is one, else of the CPU."""
    found = [event for event in profiler.key_averages() if event.key not in STAGES]
    # kernels; operations of the CPU have the time of theirs as well, regions that of all in them
    on_gpu = [event for event in found if event.device_type.name != "CPU" and not event.is_user_annotation]
    events = on_gpu or found
    times = {event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in events}
    total = sum(times.values())
    events.sort(key=lambda event: times[event.key], reverse=True)
    return [Operation(event.key, times[event.key] / total, event.count / batches) for event in events[:_TOP]]


def write_trace(profiler: profile, path: Path) -> None:
    """Write it, with gzip (and `.gz` behind the name) where it is large; another one is replaced."""
    packed = path.with_name(f"{path.name}.gz")
    packed.unlink(missing_ok=True)
    profiler.export_chrome_trace(str(path))
    if path.stat().st_size > _LARGE:
        with open(path, "rb") as plain, gzip.open(packed, "wb") as file:
            shutil.copyfileobj(plain, file)
        path.unlink()


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads > 1)} of a CPU ({platform.machine()})"
