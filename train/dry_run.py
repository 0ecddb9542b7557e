"""`train --dry-run`: what would be trained, on which data, in how many steps and hours, and in how much memory."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ..core.errors import AudioError, counted
from ..core.processes import duration, say
from ..data_modules.clip_measures import clip_seconds
from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.sampling import ByTokens
from ..eval.statistics.bootstrap import MIN_GROUPS
from ..models.judge import EmpathyJudge
from ..models.lora import check_trainable, parameter_table
from ..models.probe import without_adapters
from ..models.shapes import without_hub
from ..models.work import GIB, RATE, TRAINING, of_the_rate
from .left_out import AllPairs, check_choice, check_folds, check_free
from .memory import StepMemory, step_memory
from .preparation import build_objective, read_data
from .room import Way, ways_to_fit
from .run_folder import PROBE, run_folder, starting_point
from .settings import Recipe
from .strategies import check_processes

CLIP_SECONDS = 8.0


@dataclass(frozen=True)
class Plan:
    """What a recipe makes of its data; counts of steps and pairs are those of all processes."""

    training_pairs: int  # that have ratings
    comparisons: int
    validation_pairs: int
    compared_groups: int  # groups, or speakers, of the pairs on which method auto compares probe and adapters
    ratings: int  # of the training split
    raters: int
    clip_seconds: tuple[float, float, float]  # shortest, median and longest clip, from the headers of the files
    tokens_per_pair: tuple[int, int, int]  # fewest, median, most
    processes: int
    batch: int  # most items in a batch of one process
    accumulated: int  # batches between two steps of the optimizer
    steps_per_epoch: int
    steps: int
    tokens_per_step: float  # mean of a batch in one process, padding included
    padding: float  # share of these
    longest_clips: float  # seconds of each of two clips that have as many tokens as those of the longest pair
    memory_pairs: int  # pairs in the largest batch


def dry_run(recipe: Recipe, named: Collection[str] = ()) -> None:
    """Print what would be trained, without weights and without writing anything.

    With `clip_seconds` no data is read, and a step on clips of that length is counted. `named` are the settings that
    the command gives one by one.

    Raises:
        UserError: As training would: for a run folder that is taken, unusable data, clips that are too long, or
            other trained parameters than the recipe expects.
    """
    check_choice(recipe)
    if recipe.several_runs:
        check_processes(processes_of(recipe.trainer))
    judge = without_hub(recipe.judge)
    # a probe has no adapters, see `train_probe`
    recipe = replace(recipe, judge=without_adapters(judge) if recipe.method == "probe" else judge)
    plan = None
    if recipe.clip_seconds is None:
        if recipe.run and recipe.several_runs:
            check_free(recipe, run_folder(recipe))
        elif recipe.run:
            starting_point(run_folder(recipe), recipe.resume)
        data = PairDataModule(recipe.data, seed=recipe.seed)
        if recipe.folds or (recipe.refit and recipe.method == PROBE):
            ids = AllPairs.of(recipe).ids  # of both splits together, of which each run trains on a part or on all
            read_data(recipe, PairDataModule(recipe.data, recipe.seed, parts=RunPairs(ids, ids)), None)
            data.setup("fit")
        else:
            read_data(recipe, data, None)
        build_objective(recipe, data)
        plan = plan_of(recipe, data)
    budget = None if recipe.data.batch_tokens == "auto" else recipe.data.batch_tokens
    counted_step = partial(
        step_memory,
        recipe.judge,
        batch=recipe.data.pairs_in(recipe.data.batch_size) if plan is None else plan.memory_pairs,
        seconds=recipe.clip_seconds or CLIP_SECONDS if plan is None else plan.longest_clips,
        mixed_precision=str(recipe.trainer["precision"]).endswith("-mixed"),
        batch_tokens=budget if plan is None else None,
        audio_cached=recipe.cache.what != "none" and not recipe.judge.lora.trains_tower,
    )
    memory = counted_step(gradient_checkpointing=recipe.gradient_checkpointing)
    held = memory.sharded(shards_of(recipe.trainer))
    gpu = recipe.gpu_gib * GIB if recipe.gpu_gib else None
    if gpu is None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0).total_memory
    ways: list[Way] | None = None
    if gpu is not None and not held.fits(gpu):
        ways = []
        if recipe.method != "probe":
            cheaper = memory if recipe.gradient_checkpointing else counted_step(gradient_checkpointing=True)
            most = memory.tokens if plan is None else max(memory.tokens, plan.tokens_per_pair[2])
            cached = recipe.cache.what != "none"
            uncached = counted_step(gradient_checkpointing=True, audio_cached=False) if cached else cheaper
            ways = ways_to_fit(recipe, held, cheaper, uncached, gpu, most, named)
    if recipe.json:
        to_fit = None if ways is None else dict(ways)
        print(json.dumps(_facts(recipe, memory, held, plan, gpu) | {"to_fit": to_fit}, indent=2))
    else:
        tables = [parameter_table(memory.parts, recipe.method == "probe")]
        tables += [] if plan is None else [plan_table(recipe, plan, memory)]
        for table in (*tables, memory_table(held, plan, recipe.clip_seconds or CLIP_SECONDS, gpu)):
            Console().print(table)
        if ways is not None and gpu is not None:
            say(_to_fit(ways, gpu), stderr=False)
    check_trainable(memory.parts, recipe.expected_trainable or {})


def plan_of(recipe: Recipe, data: PairDataModule) -> Plan:
    """Plan the batches as training does, from the lengths of clips that headers state.

    Raises:
        AudioError: If a clip of a training or validation pair cannot be read, or is too long for the backbone.
        UserError: If there are more folds than groups.
    """
    shapes = replace(recipe.judge, quantization="none")
    judge = EmpathyJudge(shapes, data.dimensions, weights=False)
    seconds, processes = clip_seconds(data.dataset), processes_of(recipe.trainer)
    most = math.inf if recipe.judge.long_clips == "window" else judge.backbone.max_seconds
    compared = [pair for item in data.items.comparisons for pair in (item.chosen, item.rejected)]
    read = [*data.train.pairs, *compared, *data.validation.pairs]
    for pair in read:
        for clip in pair.clips:
            if not 0 < seconds[clip] <= most:
                raise AudioError(
                    f"pair {pair.pair_id}: a clip cannot be read; see empathy-judge inspect"
                    if not seconds[clip]
                    else f"pair {pair.pair_id}: a clip of {seconds[clip]:.1f} s; the backbone takes "
                    f"at most {most:g} s: expected shorter clips, or --judge.long_clips window",
                    "cannot be read",
                )
    rated = judge.count_tokens(data.train.pairs, seconds)
    sides = judge.count_tokens(compared, seconds).reshape(-1, 2)
    tokens = np.concatenate([rated, sides.max(1, initial=0)])
    rows = np.repeat([1, 2], [len(rated), len(sides)])
    longest = int((tokens * rows).max())
    if recipe.data.batch_tokens == "auto":  # a free GPU may hold more
        data.settings = replace(recipe.data, batch_tokens=recipe.data.batch_size * longest)
    planned = data.planned_for(judge, processes)
    batches = planned.batches(0)
    padded = [int((tokens[batch].max() * rows[batch]).sum()) for batch in batches]
    accumulated = int(recipe.trainer.get("accumulate_grad_batches") or 1)
    per_epoch = math.ceil(_limited(planned.steps, recipe.trainer.get("limit_train_batches")) / accumulated)
    clips = np.array([seconds[clip] for pair in read for clip in pair.clips])
    pairs = [*data.train.pairs, *compared]
    of_pairs = np.concatenate([rated, sides.ravel()])
    most_tokens = pairs[int(of_pairs.argmax())]
    half = sum(min(seconds[clip], judge.backbone.max_seconds) for clip in most_tokens.clips) / 2
    ratings = data.dataset.subset(data.train_splits).ratings
    both = AllPairs.among(data.dataset, data.train_splits, data.validation_splits)
    check_folds(recipe, both)
    scored = both.ids if recipe.folds else {pair.pair_id for pair in both.of_validation}
    budget = data.settings.batch_tokens
    by_size = max(int(rows[batch].sum()) for batch in batches) if not isinstance(planned, ByTokens) else 0
    return Plan(
        training_pairs=len(rated),
        comparisons=len(sides),
        validation_pairs=len(data.validation.pairs),
        compared_groups=both.count_groups(scored),
        ratings=len(ratings),
        raters=len(set(ratings["rater_id"].dropna())),
        clip_seconds=_spread(clips),
        tokens_per_pair=_spread(of_pairs, int),
        processes=processes,
        batch=max(map(len, batches)),
        accumulated=accumulated,
        steps_per_epoch=per_epoch,
        steps=_steps(per_epoch, recipe.trainer),
        tokens_per_step=float(np.mean(padded)),
        padding=1 - sum(int((tokens[batch] * rows[batch]).sum()) for batch in batches) / sum(padded),
        longest_clips=min(half, judge.backbone.max_seconds),
        memory_pairs=by_size or max(1, int(budget or 0) // int(of_pairs.max())),
    )


def processes_of(trainer: Mapping[str, Any]) -> int:
    """Processes of a run, one for each device; devices that the recipe leaves open are those of this machine."""
    devices: Any = trainer.get("devices", "auto")
    here = torch.cuda.device_count() if trainer.get("accelerator") != "cpu" else 1
    if isinstance(devices, list):
        count = len(devices)
    elif str(devices).isdecimal():
        count = int(devices)
    elif "," in str(devices):
        count = len([name for name in str(devices).split(",") if name.strip()])
    else:  # auto and -1
        count = max(here, 1)
    return count * int(trainer.get("num_nodes") or 1)


def shards_of(trainer: Mapping[str, Any]) -> int:
    """Devices that share the weights: with FSDP2 those of a machine, otherwise each has them whole."""
    sharded = "ShardedStrategy" in str(trainer.get("strategy"))
    return processes_of(trainer) // int(trainer.get("num_nodes") or 1) if sharded else 1


def plan_table(recipe: Recipe, plan: Plan, memory: StepMemory) -> Table:
    """What `train --dry-run` says of data, steps and time."""
    table = Table("training", "", title=f"On {recipe.data.path}", show_header=False)
    compared = f" and {counted(plan.comparisons, 'comparison')}" if plan.comparisons else ""
    shortest, middle, longest = plan.clip_seconds
    fewest, median, most = plan.tokens_per_pair
    rows = {
        "train on": f"{counted(plan.training_pairs, 'pair')}{compared}: {counted(plan.ratings, 'rating')} of "
        f"{counted(plan.raters, 'rater')}; {counted(plan.validation_pairs, 'pair')} to validate",
        "clips": f"{shortest:.1f} to {longest:.1f} s, half of them up to {middle:.1f} s (from their headers)",
        "tokens of a pair": f"{fewest} to {most}, median {median}",
    }
    if recipe.method == "probe":
        rows["steps"] = "none: one pass over the clips, then a regression in closed form"
    else:
        rows |= _rows_of_steps(recipe, plan, memory)
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _rows_of_steps(recipe: Recipe, plan: Plan, memory: StepMemory) -> dict[str, str]:
    items = plan.batch * plan.processes * plan.accumulated
    processes = counted(plan.processes, "process", "processes")
    auto = str(recipe.trainer.get("devices", "auto")) in ("auto", "-1")
    rows = {
        "global batch": f"up to {counted(items, 'item')}: {plan.batch} x {processes}"
        f"{' (the devices of this machine)' if auto else ''} x {plan.accumulated} accumulated",
        "steps": f"{plan.steps:,}, {plan.steps_per_epoch:,} an epoch; fewer if agreement stops rising",
        "tokens a batch": f"{plan.tokens_per_step:,.0f} in each process, {plan.padding:.0%} of them padding",
    }
    undecided = recipe.method == "auto" and plan.compared_groups < MIN_GROUPS
    runs = [
        text
        for text, wanted in (
            (f"once for each of {recipe.folds} folds", recipe.folds),
            ("once more on all pairs", recipe.refit or recipe.folds),
            ("the probe before", recipe.method == "auto" and not undecided),
        )
        if wanted
    ]
    if runs:
        rows["more than once"] = "; ".join(runs)
    if undecided:
        rows["adapters"] = (
            "none, but the probe alone: the pairs to compare them with it on come from "
            f"{counted(plan.compared_groups, 'group')} (or speakers), at least {MIN_GROUPS} needed"
        )
    if recipe.trainer.get("accelerator") != "cpu":
        rows["time"] = (
            f"{duration(hours_of(plan, memory) * 3600)} on {counted(plan.processes, 'H200')}, validations and the "
            f"first reading of clips not counted: {of_the_rate(TRAINING)}"
        )
    rows["a checkpoint"] = f"{_checkpoint_bytes(memory) / 1e6:,.1f} MB; the best and the last are kept"
    return rows


def hours_of(plan: Plan, memory: StepMemory) -> float:
    """Hours of all steps at the rate that was measured on one H200."""
    per_token = memory.operations / (memory.pairs * memory.tokens)
    tokens = plan.tokens_per_step * (1 - plan.padding) * plan.steps * plan.accumulated
    return per_token * tokens / (RATE * TRAINING) / 3600


def memory_table(found: StepMemory, plan: Plan | None, seconds: float, gpu_bytes: float | None) -> Table:
    """What `train --dry-run` says of memory."""
    what = f"two clips of {seconds:g} s" if plan is None else "the length of the longest"
    title = f"A step on {counted(found.pairs, 'pair')} of {what} ({found.tokens} tokens a pair)"
    table = Table("memory on each GPU", "GiB", title=title)
    for name, size in found.by_kind.items():
        shown = "CUDA runtime (assumed)" if name == "cuda_runtime_assumed" else name
        table.add_row(shown, f"{size / GIB:.2f}", style="bold" if name == "all" else None)
    if gpu_bytes is not None:
        verdict = "fits" if found.fits(gpu_bytes) else "does not fit"
        share = f"{math.ceil(100 * found.total / gpu_bytes)} %"
        table.add_row(f"of a GPU with {gpu_bytes / GIB:.3g} GiB: {verdict}", share)
    return table


def _to_fit(ways: Sequence[Way], gpu_bytes: float) -> str:
    """What to do about a step that does not fit."""
    if not ways:
        lists = f"empathy-judge recipes --gpu-gib {max(1, int(gpu_bytes / GIB))} lists those that do"
        return f"To fit: a larger GPU, or another backbone ({lists})."
    return f"To fit: {'; or '.join(f'{way.options} ({way.bytes / GIB:.1f} GiB)' for way in ways)}."


def _facts(
    recipe: Recipe, memory: StepMemory, held: StepMemory, plan: Plan | None, gpu: float | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "parts": {
            name: {"parameters": count.parameters, "trainable": count.trainable} for name, count in memory.parts.items()
        },
        "pairs": memory.pairs,
        "clip_seconds": recipe.clip_seconds or CLIP_SECONDS if plan is None else plan.longest_clips,
        "tokens_per_pair": memory.tokens,
        "bytes": held.by_kind,
        "operations": memory.operations,
        "checkpoint_bytes": _checkpoint_bytes(memory),
        "gpu_bytes": gpu,
        "fits": None if gpu is None else held.fits(gpu),
        "plan": None,
    }
    if plan is not None:
        on_gpu = recipe.method != "probe" and recipe.trainer.get("accelerator") != "cpu"
        facts["plan"] = {**asdict(plan), "h200_hours": hours_of(plan, memory) if on_gpu else None}
    return facts


def _checkpoint_bytes(memory: StepMemory) -> int:
    """Weights that are trained and AdamW's two moments of each."""
    return memory.gradients + memory.optimizer


def _limited(batches: int, limit: Any) -> int:
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def _steps(per_epoch: int, trainer: Mapping[str, Any]) -> int:
    """Steps of the whole training, as Lightning takes its limits: 1,000 epochs where there is none."""
    epochs, most = trainer.get("max_epochs"), trainer.get("max_steps", -1)
    if epochs is None:
        epochs = 1000 if most in (-1, None) else math.inf
    steps = math.inf if epochs in (-1, math.inf) else per_epoch * int(epochs)
    return int(min(steps, most) if most not in (-1, None) else steps)


def _spread(values: np.ndarray, kind: type = float) -> tuple[Any, Any, Any]:
    low, middle, high = (kind(value) for value in np.quantile(values, [0, 0.5, 1]))
    return low, middle, high
