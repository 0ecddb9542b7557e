"""What makes a training step that does not fit a GPU fit it, by the counts of `memory`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..core.yaml_files import read_yaml
from .memory import ROOM, StepMemory
from .run_folder import flat
from .settings import Recipe, find_recipe
from .strategies import PRECISIONS

_FSDP2 = "strategy_fsdp2"  # the recipe
_DEVICES = (2, 4, 8)  # of a machine, that FSDP2 is tried with


class Way(NamedTuple):
    """Options of `train` that make a step fit."""

    options: str
    bytes: int  # that it then takes


def ways_to_fit(
    recipe: Recipe,
    held: StepMemory,
    checkpointed: StepMemory,
    uncached: StepMemory,
    gpu_bytes: float,
    most_tokens: int,
    named: Collection[str] = (),
) -> list[Way]:
    """Ways in which a step fits a GPU: one change each, or, where no single one is enough, several; and more GPUs.

    Args:
        recipe: What does not fit.
        held: What a step takes on a device now.
        checkpointed: The same with gradient checkpointing, on a device that holds all weights.
        uncached: That where nothing is cached either, as FSDP2 wants it.
        gpu_bytes: Memory of a GPU.
        most_tokens: Of a pair.
        named: Settings that the command gives one by one.

    Returns:
        Nothing where no such change is enough.
    """
    room, by_tokens = ROOM * gpu_bytes, isinstance(recipe.data.batch_tokens, int)
    accumulated = int(recipe.trainer.get("accumulate_grad_batches") or 1)
    there, cheaper = recipe.gradient_checkpointing, "--gradient_checkpointing true"
    strategy = recipe.trainer.get("strategy")
    shards = "ShardedStrategy" in str(strategy)
    on_gpu = recipe.trainer.get("accelerator") != "cpu"
    # What `check_strategy` refuses beside FSDP2 is no way, and several runs are no work for several processes
    sharded: list[tuple[list[str], StepMemory]] = []
    spreads = recipe.data.batch_tokens != "auto" and recipe.trainer.get("precision") in PRECISIONS
    if on_gpu and not recipe.several_runs and spreads and recipe.judge.quantization == "none":
        name = [] if there else [cheaper]
        if not shards:
            name = [f"--config {_FSDP2}", *_again(_FSDP2, named)]
            name += ["--compile_layers false"] if recipe.compile_layers else []
        found = ((devices, uncached.sharded(devices)) for devices in _DEVICES)
        sharded = [([*name, f"--trainer.devices {devices}"], own) for devices, own in found]
    small = on_gpu and not shards and recipe.judge.quantization == "none" and held.quantized < held.weights
    nf4 = ["--judge.quantization nf4"] if small else None

    def fitting(options: Sequence[str], memory: StepMemory, fewer: bool) -> Iterator[Way]:
        rest = memory.total - memory.activations
        pairs = min(memory.pairs, int((room - rest) * memory.pairs // max(memory.activations, 1)))
        if pairs == memory.pairs:
            yield Way(" ".join(options), memory.total)
        elif fewer and pairs >= recipe.data.pairs_in(1):
            # Batches of equal size, which together are the batch of now. `data.batch_size` counts comparisons once
            now, most = memory.pairs, pairs
            if not by_tokens:
                now = min(recipe.data.batch_size, memory.pairs)
                most = max(items for items in range(1, pairs + 1) if recipe.data.pairs_in(items) <= pairs)
            batches = math.ceil(now / most)
            least = math.ceil(now / batches)
            pairs = least if by_tokens else recipe.data.pairs_in(least)
            size = f"batch_tokens {pairs * most_tokens}" if by_tokens else f"batch_size {least}"
            together = f"--trainer.accumulate_grad_batches {batches * accumulated}"
            activations = math.ceil(memory.activations * pairs / memory.pairs)
            yield Way(" ".join([*options, f"--data.{size}", together]), rest + activations)

    def in_nf4(memory: StepMemory) -> StepMemory:
        return replace(memory, weights=memory.quantized)

    again = [] if there else [([cheaper], checkpointed)]
    ways = [*fitting([], held, fewer=True)]
    for options, memory in (*again, *([(nf4, in_nf4(held))] if nf4 else ())):
        ways += fitting(options, memory, fewer=False)
    if not ways:  # together
        together = again + ([([*nf4, *([] if there else [cheaper])], in_nf4(checkpointed))] if nf4 else [])
        for options, memory in together:
            ways += fitting(options, memory, fewer=True)
    for fewer in (False, True):
        shared = [way for options, memory in sharded for way in fitting(options, memory, fewer)]
        if shared:
            return [*ways, shared[0]]
    return ways


def _again(recipe: str, named: Collection[str]) -> Iterator[str]:
    """What a recipe says of settings that the command gives, as options: these count before a file, wherever they
    stand, and the last of them counts."""
    for key, value in flat(read_yaml(find_recipe(recipe))).items():
        name = key.removesuffix(".class_path")
        if any(name == own or name.startswith(f"{own}.") for own in named):
            yield f"--{name} {str(value).lower() if isinstance(value, bool) else value}"
