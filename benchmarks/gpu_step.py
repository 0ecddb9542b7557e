"""The training step of the command `train`, timed in rounds with the naive loop, for `gpu.py`."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import lightning as L
import torch
from empathy_judge.models.backbones.common.base import Clips, Inputs
from empathy_judge.train.collate import Batch
from empathy_judge.train.run import train
from empathy_judge.train.throughput import memory_bytes, synchronize
from gpu_judge import Bench, on_this_judge, predicted_bytes, words
from naive import Collate, read_items, training_loader
from rate import work_of
from turns import Finished

# One batch of fixed size for each step, as the naive loop has it
FIXED = {
    "data.batch_tokens": "null",
    "model.cache": "none",
    "model.compile_layers": "false",
    "model.gradient_checkpointing": "false",
    "trainer.accumulate_grad_batches": "1",
}
PAIRED, RECIPE = "fixed batches", "the recipe as it is"
BY_TOKENS = {name: value for name, value in FIXED.items() if name != "data.batch_tokens"}
CACHED = BY_TOKENS | {"model.cache": "audio"}
WAYS: dict[str, dict[str, str]] = {
    PAIRED: FIXED,
    RECIPE: {},
    "fixed batches, layers computed again": FIXED | {"model.gradient_checkpointing": "true"},
    "batches by tokens": BY_TOKENS,
    "batches by tokens, audio cached": CACHED,
    "batches by tokens, audio cached, compiled": CACHED | {"model.compile_layers": "true"},
}
"""Ways of training, with the values by which they differ from the recipe."""


class Rounds(L.Callback):
    """Times some steps of a training run, round after round, and ends it."""

    def __init__(self, bench: Bench, between: Callable[[], None]) -> None:
        """After each round `between` runs; steps after a pause are not counted: batches were read ahead meanwhile."""
        self.bench, self.between = bench, between
        self.rates: list[float] = []
        self.waiting: list[float] = []
        self.machine: list[float] = []
        self.peak = 0.0
        self.syncs: Counter[str] = Counter()
        self.light: list[tuple[int, Inputs]] = []
        self.used: list[tuple[int, Inputs]] = []
        self.started = 0.0
        self._steps = -bench.options.warm_up
        self._begun = self._ended = self._waited = 0.0
        self._watch: Any = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """The batch is there."""
        self.started = self.started or time.perf_counter()
        self._waited += time.perf_counter() - self._ended
        inputs, clips = batch.inputs, batch.inputs.clips
        clips = None if clips is None else Clips(torch.empty(0), clips.lengths)
        self.light.append((len(batch.indices), replace(inputs, clips=clips, audio_states=None)))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """A step was asked for; at the end of a round, wait for it."""
        self._steps += 1
        if self._steps == 0:
            self._start()
        elif self._steps == self.bench.options.steps:
            self._finish()
            self._steps = -self.bench.options.warm_up
        self._ended = time.perf_counter()

    def _start(self) -> None:
        synchronize(self.bench.device)
        if self.bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.light.clear()
        self._waited, self._begun = 0.0, time.perf_counter()
        if len(self.rates) == self.bench.options.rounds:
            self._watch = watched_syncs(self.bench.device)
            self.syncs = self._watch.__enter__()

    def _finish(self) -> None:
        if self._watch is not None:  # the last round, which is not timed
            self._watch.__exit__(None, None, None)
            raise Finished
        synchronize(self.bench.device)
        seconds = time.perf_counter() - self._begun
        self.peak = max(self.peak, memory_bytes(self.bench.device))
        self.rates.append(sum(pairs for pairs, _ in self.light) / seconds)
        self.waiting.append(self._waited / seconds)
        self.used += self.light
        self.machine.append(self.bench.measure_machine())
        self.between()


@contextmanager
def watched_syncs(device: torch.device) -> Iterator[Counter[str]]:
    """Counts where the host waits for a GPU, by line of code."""
    found: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            lines = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
            found.update(lines)


class NaiveTurns:
    """The naive loop: `play` makes a round of it."""

    def __init__(self, bench: Bench) -> None:
        """Build the naive model."""
        self.bench, self.rates, self.peak = bench, [], 0.0
        before = held(bench.device)
        self.rater = bench.naive()
        # beside what the naive model holds: our adapter with its moments, and what training keeps
        shared = sum(weight.nbytes for name, weight in bench.judge.network.named_parameters() if "lora_" not in name)
        self.others = max(0, before - shared)
        self.optimizer = self.rater.optimizer()
        collate = Collate(str(bench.folder / "backbone"))
        loader = training_loader(read_items(bench.data, "train"), collate, bench.batch, bench.options.workers)
        self.batches = chain.from_iterable(repeat(loader))

    def play(self) -> None:
        """A round, after some steps that are not counted."""
        options, device = self.bench.options, self.bench.device
        self._steps(options.warm_up)
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        self._steps(options.steps)
        synchronize(device)
        self.rates.append(options.steps * self.bench.batch / (time.perf_counter() - begun))
        self.peak = max(self.peak, memory_bytes(device) - self.others)
        self.optimizer.zero_grad()

    def _steps(self, number: int) -> None:
        for batch in islice(self.batches, number):
            self.rater.step(batch.to(self.bench.device), self.optimizer)


def held(device: torch.device) -> int:
    """Bytes of tensors on a GPU now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def step(bench: Bench, way: str, values: dict[str, str], naively: bool) -> dict[str, Any]:
    """Run `train` with these values until all rounds are measured, if wanted the naive loop after each of them."""
    if way != RECIPE:
        # by tokens: as many as a batch of the longest pairs has, which a dry run says fits
        most = str(bench.batch * bench.predicted[False].tokens)
        values = {"data.batch_size": str(bench.batch), "data.batch_tokens": most, **values}
    again = values.get("model.gradient_checkpointing") == "true"
    naive: list[NaiveTurns] = []
    trouble: list[str] = []

    def between() -> None:
        if naively and not trouble:
            try:
                if not naive:
                    naive.append(NaiveTurns(bench))
                naive[0].play()
            except torch.OutOfMemoryError as error:
                trouble.append("out of memory: " + str(error).partition(".")[0])

    rounds = Rounds(bench, between)
    begun = time.perf_counter()
    run = tempfile.mkdtemp(dir=bench.folder)
    with on_this_judge(bench), suppress(Finished):
        train([*words(bench.options, bench.folder, values), f"--run={run}"], [rounds])
    batches = [inputs for _, inputs in rounds.used]
    pairs, tokens = sum(number for number, _ in rounds.used), sum(int(b.attention_mask.sum()) for b in batches)
    flops = sum(sum(work_of(bench.judge, inputs)) for inputs in batches) / pairs
    found: dict[str, Any] = {
        "batch": round(pairs / len(batches), 1),
        "pairs_per_second": rounds.rates,
        "matrix_rate": rounds.machine,
        "flops_per_pair": flops,
        "share": [rate * flops / machine for rate, machine in zip(rounds.rates, rounds.machine, strict=True)],
        "waiting": rounds.waiting,
        "padding": 1 - tokens / sum(batch.attention_mask.numel() for batch in batches),
        "peak_bytes": rounds.peak,
        # of as many of the longest clips
        "predicted_bytes": None if way == RECIPE else predicted_bytes(bench.predicted[again], bench.batch),
        "syncs_per_step": rounds.syncs.total() / bench.options.steps if bench.device.type == "cuda" else None,
        "sync_lines": dict(rounds.syncs.most_common(5)),
        "start_seconds": rounds.started - begun,
    }
    if naive and not trouble:
        found |= {
            "naive_pairs_per_second": naive[0].rates,
            "naive_share": [
                rate * flops / machine for rate, machine in zip(naive[0].rates, rounds.machine, strict=True)
            ],
            "naive_peak_bytes": naive[0].peak,
            "times_naive": [own / other for own, other in zip(rounds.rates, naive[0].rates, strict=True)],
        }
    if trouble:
        found["naive_left_out"] = trouble[0]
    return found
