"""A judge in memory that the command `train` and the naive loop share, and its training step, timed in rounds with the
naive one's, for `gpu.py`."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from accelerate import init_empty_weights
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones.base import Clips, Inputs
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.lora import part_of
from empathy_judge.train import run as training
from empathy_judge.train.collate import Batch
from empathy_judge.train.memory import StepMemory
from empathy_judge.train.run import train
from materials import FAMILIES
from naive import Collate, NaiveRater, read_items, training_loader
from timing import Finished, matrix_rate, memory, ratios, synchronize
from torch import nn
from transformers import AutoConfig
from transformers.modeling_layers import GradientCheckpointingLayer

CONFIGS = Path(__file__).parents[1] / "configs"
PREDICTED_AT = 4
"""Pairs in the batch that a dry run is made of; activations grow with their number."""


@dataclass
class Bench:
    """A judge in memory, and what it is measured with."""

    options: argparse.Namespace
    folder: Path
    device: torch.device
    judge: EmpathyJudge
    batch: int
    predicted: dict[bool, StepMemory]
    rater: NaiveRater | None = None

    def measure_machine(self) -> float:
        """Products per second of large matrices now (FLOP/s), in the dtype of the frozen weights."""
        dtype = next(self.judge.network.parameters()).dtype
        return matrix_rate(self.device, dtype, self.options.matrix)

    def naive(self) -> NaiveRater:
        """The naive model, built when it is first asked for."""
        if self.rater is None:
            options = self.options
            self.rater = naive_around(self.judge, options.family, options.shapes, str(self.folder / "backbone"))
        return self.rater

    @property
    def data(self) -> PairDataset:
        """The pairs."""
        return PairDataset.load(self.folder / "data")


def words(options: argparse.Namespace, folder: Path, values: dict[str, str]) -> list[str]:
    """Arguments of `train`: the recipe, on this machine, with other values."""
    on_gpu = options.device == "cuda"
    given = {
        "judge.backbone": str(folder / "backbone"),
        "data.path": str(folder / "data"),
        "cache.folder": str(folder / "cache"),
        "data.num_workers": str(options.workers),
        "trainer.accelerator": "gpu" if on_gpu else "cpu",
        "trainer.devices": "1",
        "trainer.logger": "false",
        "trainer.max_epochs": "1000",
        "trainer.check_val_every_n_epoch": "1000",
        **values,
    }
    return [f"--config={CONFIGS / options.family}.yaml", *(f"--{name}={value}" for name, value in given.items())]


def predicted_bytes(found: StepMemory, batch: int) -> float:
    """What a dry run says of a batch of this size."""
    return found.total + found.activations * (batch / PREDICTED_AT - 1)


def begin(device: torch.device) -> float:
    """Now (seconds), all that was asked of a GPU being done; peaks of its memory count from here."""
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return time.perf_counter()


def peak_memory(device: torch.device) -> int:
    """Bytes that this process held at most: in GPU memory by torch's allocator, on a CPU resident in main memory."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else memory("VmHWM")


@contextmanager
def on_this_judge(bench: Bench) -> Iterator[None]:
    """Let `train` take the judge that is in memory, leave it where it is, and forget what it did to its layers."""
    judge, plain = bench.judge, training.EmpathyJudge
    training.EmpathyJudge = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    # at its end Lightning carries a model to main memory
    judge._apply = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        training.EmpathyJudge = plain
        del judge._apply
        for layer in judge.network.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                vars(layer).pop("forward", None)
                layer._compiled_call_impl = None
        torch._dynamo.reset()
        judge.zero_grad()
        judge.eval()


def naive_around(judge: EmpathyJudge, family: str, shapes: str, folder: str) -> NaiveRater:
    """The generation model of a family with an adapter and a head of its own, around the frozen weights of a judge that
    are in memory: what the judge left out (LM head) is drawn at random."""
    _, model_class, _ = FAMILIES[family](shapes)
    config = AutoConfig.from_pretrained(folder)
    frozen = {name: w for name, w in judge.network.named_parameters() if "lora_" not in name}
    with init_empty_weights(include_buffers=False):
        model: Any = model_class._from_config(
            getattr(config, "thinker_config", config), dtype=next(iter(frozen.values())).dtype
        )
    plain = {f"model.{name}".replace(".base_layer", ""): nn.Parameter(w.detach(), False) for name, w in frozen.items()}
    report = model.load_state_dict(
        {name.replace("model.projector.", "model.audio_tower.proj."): weight for name, weight in plain.items()},
        strict=False,
        assign=True,
    )
    left_out = re.compile(r"^lm_head|visual|audio_bos_eos_token")
    assert not report.unexpected_keys, report.unexpected_keys
    assert all(left_out.search(name) for name in report.missing_keys), report.missing_keys
    for name in report.missing_keys:
        owner, _, leaf = name.rpartition(".")
        part = model.get_submodule(owner)
        drawn = torch.empty_like(getattr(part, leaf), device=judge.device).normal_(0, 0.02)
        setattr(part, leaf, nn.Parameter(drawn, requires_grad=False))
    torch.manual_seed(0)
    return NaiveRater(folder, None, judge.device, model.eval())


class Work(NamedTuple):
    """Floating-point operations that a judge needs for a batch, by formula."""

    tower: float  # forward pass of the audio tower and the projector
    forward: float  # forward pass of the language model
    backward: float  # its backward pass, with LoRA in all of its layers and the rest frozen


def work_of(judge: EmpathyJudge, inputs: Inputs) -> Work:
    """Operations for a batch, from the shapes of matrices and the lengths of pairs: padding needs none.

    A matrix takes `2 m n` for each token, forward and once more for the gradient of its input where it is frozen, twice
    more where it is trained (Kaplan et al., 2020); attention `4 T^2 d` in each layer and twice as much backward, a
    causal mask halving nothing (Chowdhery et al., 2022). What is computed again is not counted.
    """
    sizes: Counter[str | None] = Counter()
    for name, module in judge.network.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            part = "trained" if "lora_" in name else part_of(judge.backbone, name)
            sizes[part] += module.weight.numel()
    network: Any = judge.backbone.network
    config, tower = network.language_model.config, network.audio_tower
    width, layers = tower.conv1.out_channels, len(tower.layers)
    tokens = (inputs.packed or inputs).attention_mask.sum(1).double()
    work = 0.0
    if inputs.clips is not None:
        frames = torch.tensor(inputs.clips.lengths, dtype=torch.float64)
        places = frames / 2  # after the second convolution
        blocks = getattr(tower, "n_window", None)  # Omni's attention stays within blocks
        reach = places if blocks is None else places.clamp(max=blocks)
        first = tower.conv1.weight.numel()
        work = 2 * (first * frames + (sizes["audio_tower"] - first) * places).sum().item()
        work += 4 * layers * width * (places * reach).sum().item()
        work += 2 * sizes["projector"] * len(inputs.audio_index)
    heads = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    attention = 4 * config.num_hidden_layers * heads * tokens.square().sum().item()
    frozen, trained = (2 * sizes[kind] * tokens.sum().item() for kind in ("language_model", "trained"))
    return Work(work, frozen + trained + attention, frozen + 2 * trained + 2 * attention)


# ---------------------------------------------------------------- the training step

# One batch of fixed size for each step, as the naive loop has it
FIXED = {
    "data.batch_tokens": "null",
    "cache.what": "none",
    "compile_layers": "false",
    "gradient_checkpointing": "false",
    "trainer.accumulate_grad_batches": "1",
}
PAIRED, RECIPE = "fixed batches", "the recipe as it is"
BY_TOKENS = {name: value for name, value in FIXED.items() if name != "data.batch_tokens"}
CACHED = BY_TOKENS | {"cache.what": "audio"}
WAYS: dict[str, dict[str, str]] = {
    PAIRED: FIXED,
    RECIPE: {},
    "fixed batches, layers computed again": FIXED | {"gradient_checkpointing": "true"},
    "batches by tokens": BY_TOKENS,
    "batches by tokens, contexts together": BY_TOKENS | {"data.batches": "groups"},
    "batches by tokens, audio cached": CACHED,
    "batches by tokens, audio cached, compiled": CACHED | {"compile_layers": "true"},
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
        self._steps = -bench.options.warm_up
        self._begun = self._ended = self._waited = 0.0
        self._watch: Any = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Batch, batch_idx: int) -> None:
        """The batch is there."""
        self._waited += time.perf_counter() - self._ended
        inputs, clips = batch.inputs, batch.inputs.clips
        clips = None if clips is None else Clips(torch.empty(0), clips.lengths)
        self.light.append((len(batch.indices), replace(inputs, clips=clips, audio_states=None)))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """A step was asked for; at the end of a round, wait for it."""
        self._steps += 1
        if self._steps == 0:
            self._start()
        elif self._steps == self.bench.options.steps:
            self._finish()
            self._steps = -self.bench.options.warm_up
        self._ended = time.perf_counter()

    def _start(self) -> None:
        self.light.clear()
        self._waited, self._begun = 0.0, begin(self.bench.device)
        if len(self.rates) == self.bench.options.rounds:
            self._watch = watched_syncs(self.bench.device)
            self.syncs = self._watch.__enter__()

    def _finish(self) -> None:
        if self._watch is not None:  # the last round, which is not timed
            self._watch.__exit__(None, None, None)
            raise Finished
        synchronize(self.bench.device)
        seconds = time.perf_counter() - self._begun
        self.peak = max(self.peak, peak_memory(self.bench.device))
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
        before = torch.cuda.memory_allocated(bench.device) if bench.device.type == "cuda" else 0
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
        begun = begin(device)
        self._steps(options.steps)
        synchronize(device)
        self.rates.append(options.steps * self.bench.batch / (time.perf_counter() - begun))
        self.peak = max(self.peak, peak_memory(device) - self.others)
        self.optimizer.zero_grad()

    def _steps(self, number: int) -> None:
        for batch in islice(self.batches, number):
            self.rater.step(batch.to(self.bench.device), self.optimizer)


def step(bench: Bench, way: str, values: dict[str, str], naively: bool) -> dict[str, Any]:
    """Run `train` with these values until all rounds are measured, if wanted the naive loop after each of them."""
    if way != RECIPE:
        # by tokens: as many as a batch of the longest pairs has, which a dry run says fits
        most = str(bench.batch * bench.predicted[False].tokens)
        values = {"data.batch_size": str(bench.batch), "data.batch_tokens": most, **values}
    again = values.get("gradient_checkpointing") == "true"
    naive: list[NaiveTurns] = []
    failure: list[str] = []

    def between() -> None:
        if naively and not failure:
            try:
                if not naive:
                    naive.append(NaiveTurns(bench))
                naive[0].play()
            except torch.OutOfMemoryError as error:
                failure.append("out of memory: " + str(error).partition(".")[0])

    rounds = Rounds(bench, between)
    run = tempfile.mkdtemp(dir=bench.folder)
    with on_this_judge(bench), suppress(Finished):
        train([*words(bench.options, bench.folder, values), f"--run={run}"], watching=[rounds])
    batches = [inputs for _, inputs in rounds.used]
    pairs, tokens = sum(number for number, _ in rounds.used), sum(int(b.attention_mask.sum()) for b in batches)
    flops = sum(sum(work_of(bench.judge, inputs)) for inputs in batches) / pairs
    found: dict[str, Any] = {
        "batch": round(pairs / len(batches), 1),
        "pairs_per_second": rounds.rates,
        "matrix_rate": rounds.machine,
        "flops_per_pair": flops,
        "share": [share * flops for share in ratios(rounds.rates, rounds.machine)],
        "waiting": rounds.waiting,
        "padding": 1 - tokens / sum(batch.attention_mask.numel() for batch in batches),
        "peak_bytes": rounds.peak,
        # of as many of the longest clips
        "predicted_bytes": None if way == RECIPE else predicted_bytes(bench.predicted[again], bench.batch),
        "syncs_per_step": rounds.syncs.total() / bench.options.steps if bench.device.type == "cuda" else None,
        "sync_lines": dict(rounds.syncs.most_common(5)),
    }
    if naive and not failure:
        found |= {
            "naive_pairs_per_second": naive[0].rates,
            "naive_share": [share * flops for share in ratios(naive[0].rates, rounds.machine)],
            "naive_peak_bytes": naive[0].peak,
            "times_naive": ratios(rounds.rates, naive[0].rates),
        }
    if failure:
        found["naive_left_out"] = failure[0]
    return found
