"""A judge in memory that the command `train` and the naive loop share, and its training step, timed in rounds with the
naive one's, for `gpu.py`."""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import init_empty_weights
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones.attention import SHARED
from empathy_judge.models.backbones.inputs import Clips, Inputs, Packed
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.lora import part_of
from empathy_judge.train import preparation
from empathy_judge.train.collate import Batch
from empathy_judge.train.memory import StepMemory
from empathy_judge.train.run import train
from empathy_judge.train.settings import CONFIGS
from lightning.pytorch.callbacks import LambdaCallback
from materials import FAMILIES
from naive import NaiveRater, taking_turns, training_batches
from timing import Finished, Order, TimedTurn, Turns, matrix_rate, one_turn, ratios, reset_peak
from torch import nn
from transformers import AutoConfig
from transformers.modeling_layers import GradientCheckpointingLayer

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
    first: torch.Tensor | None = None  # scores with all levers off (`gpu_levers`)

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
    arguments = {
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
    return [f"--config={CONFIGS / options.family}.yaml", *(f"--{name}={value}" for name, value in arguments.items())]


def predicted_bytes(found: StepMemory, batch: int) -> float:
    """Memory of a step on a batch of this size, by the dry run (bytes)."""
    return found.total + found.activations * (batch / PREDICTED_AT - 1)


@contextmanager
def on_this_judge(bench: Bench) -> Iterator[None]:
    """Let `train` take the judge that is in memory, leave it where it is, and forget what it did to its layers."""
    judge, plain = bench.judge, preparation.EmpathyJudge
    preparation.EmpathyJudge = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    # at the end Lightning moves a model to main memory
    judge._apply = lambda *_, **__: judge  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        preparation.EmpathyJudge = plain
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


class Operations(NamedTuple):
    """Floating-point operations that a judge needs for a batch, by formula."""

    tower: float  # forward pass of the audio tower and the projector
    forward: float  # forward pass of the language model
    backward: float  # its backward pass, with LoRA in all of its layers and the rest frozen


def work_of(judge: EmpathyJudge, inputs: Inputs) -> Operations:
    """Operations for a batch, from the shapes of matrices and the lengths of pairs: padding needs none.

    A matrix takes `2 m n` for each token, forward and once more for the gradient of its input where it is frozen, twice
    more where it is trained (Kaplan et al., 2020); attention `4 T^2 d` in each layer and twice as much backward, a
    causal mask halving nothing (Chowdhery et al., 2022). A packed token attends to its own pair alone, however rows are
    filled. What is computed again is not counted.
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
    attended = tokens.square().sum().item() if inputs.packed is None else attended_by_tree(inputs.packed)
    attention = 4 * config.num_hidden_layers * heads * attended
    frozen, trained = (2 * sizes[kind] * tokens.sum().item() for kind in ("language_model", "trained"))
    return Operations(work, frozen + trained + attention, frozen + 2 * trained + 2 * attention)


def attended_by_tree(packed: Packed) -> float:
    """Pairs of tokens of which one attends to the other: within a beginning, and from each that goes on from it to the
    beginning and to itself."""
    tree, branch = (numbers[packed.attention_mask.bool()] for numbers in (packed.tree, packed.branch))
    (tree, branch), sizes = torch.stack([tree, branch]).unique(dim=1, return_counts=True)
    sizes, shared = sizes.double(), branch == SHARED
    beginnings = sizes.new_zeros(int(tree.max()) + 1).index_add(0, tree[shared], sizes[shared])
    return (sizes.square().sum() + (sizes * beginnings[tree])[~shared].sum()).item()


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


@contextmanager
def watched_syncs(device: torch.device) -> Iterator[Counter[str]]:
    """Counts where the host waits for a GPU, by line of code."""
    counts: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counts
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            for warning in caught:
                file = Path(warning.filename).name
                if "synchroniz" in str(warning.message) and file != "timing.py":  # which measures
                    counts[f"{file}:{warning.lineno}"] += 1


def naive_turns(bench: Bench) -> Iterator[TimedTurn]:
    """The naive loop, a turn at a time."""
    before = torch.cuda.memory_allocated(bench.device) if bench.device.type == "cuda" else 0
    rater = bench.naive()
    # in addition to what the naive model holds: our adapter with its moments, and what training stores
    shared = sum(weight.nbytes for name, weight in bench.judge.network.named_parameters() if "lora_" not in name)
    others = max(0, before - shared)
    options, optimizer = bench.options, rater.optimizer()
    batches = training_batches(str(bench.folder / "backbone"), bench.data, bench.batch, options.workers)
    while True:
        reset_peak(bench.device)
        run = partial(rater.train_in_turns, batches, optimizer)
        turn = one_turn(run, Order(options.steps, options.warm_up))
        optimizer.zero_grad()
        yield replace(turn, peak=turn.peak - others)


def step(bench: Bench, way: str, values: dict[str, str], of_recipe: bool = False) -> dict[str, Any]:
    """Run `train` with these values until all rounds are measured; with fixed batches, the naive loop after each.
    `of_recipe` = in batches of the recipe's size."""
    if way != RECIPE and not of_recipe:
        # by tokens: as many as in a batch of the longest pairs, which fits by the dry run
        limit = str(bench.batch * bench.predicted[False].tokens)
        values = {"data.batch_size": str(bench.batch), "data.batch_tokens": limit, **values}
    recomputed, options = values.get("gradient_checkpointing") == "true", bench.options
    turns, naive, machine = list[TimedTurn](), list[TimedTurn](), list[float]()
    seen: list[tuple[int, Inputs]] = []
    syncs, failure = Counter[str](), ""

    def orders() -> Generator[Order | None, TimedTurn]:
        nonlocal failure
        naive_loop = naive_turns(bench)
        yield None  # for the first `next`, before there are turns
        for _ in range(options.rounds):
            reset_peak(bench.device)
            turns.append((yield Order(options.steps, options.warm_up)))
            machine.append(bench.measure_machine())
            try:
                if way == PAIRED and not failure:
                    naive.append(next(naive_loop))
            except torch.OutOfMemoryError as error:
                failure = "out of memory: " + str(error).partition(".")[0]
        with watched_syncs(bench.device) as counts:
            yield Order(options.steps)
        syncs.update(counts)
        yield None

    def look(trainer: Any, module: Any, batch: Batch, number: int) -> None:
        inputs, clips = batch.inputs, batch.inputs.clips
        clips = None if clips is None else Clips(torch.empty(0), clips.lengths)
        seen.append((len(batch.indices), replace(inputs, clips=clips, audio_states=None)))

    ordered = orders()
    next(ordered)
    run = tempfile.mkdtemp(dir=bench.folder)
    watching = [taking_turns(Turns(ordered.send)), LambdaCallback(on_train_batch_start=look)]
    with on_this_judge(bench), suppress(Finished):
        train([*words(options, bench.folder, values), f"--run={run}"], watching=watching)
    flops = sum(sum(work_of(bench.judge, inputs)) for _, inputs in seen) / sum(pairs for pairs, _ in seen)
    rates = [turn.rate for turn in turns]
    result: dict[str, Any] = {
        "batch": round(sum(turn.pairs for turn in turns) / (options.steps * len(turns)), 1),
        "pairs_per_second": rates,
        "matrix_rate": machine,
        "flops_per_pair": flops,
        "share": [share * flops for share in ratios(rates, machine)],
        "waiting": [turn.waited / turn.seconds for turn in turns],
        "padding": 1 - sum(turn.real for turn in turns) / sum(turn.tokens for turn in turns),
        "peak_bytes": max(turn.peak for turn in turns),
        # for a batch of as many of the longest clips
        "predicted_bytes": None
        if way == RECIPE or of_recipe
        else predicted_bytes(bench.predicted[recomputed], bench.batch),
        "syncs_per_step": syncs.total() / options.steps if bench.device.type == "cuda" else None,
        "sync_lines": dict(syncs.most_common(5)),
    }
    if failure:
        result["naive_left_out"] = failure
    elif naive:
        naive_rates = [turn.rate for turn in naive]
        result |= {
            "naive_pairs_per_second": naive_rates,
            "naive_share": [share * flops for share in ratios(naive_rates, machine)],
            "naive_peak_bytes": max(turn.peak for turn in naive),
            "times_naive": ratios(rates, naive_rates),
        }
    return result
