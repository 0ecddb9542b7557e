"""Pairs per second of training against the naive way, in one run: `python benchmarks/training.py`.

The naive way is what one writes today with plain transformers and PEFT (`naive`). Ours is the command `train` on a pair
dataset of clips of 2 to 8 s, each context answered four times (`scorer.py` is about scoring). Both are the same
model: first both train on the same batches from the same weights, and losses and scores must agree. Then the ways take
turns (`timing`), each in a process of its own; start-up and the computing of cached activations are not counted, data
loading is. The ratio is taken in each round; median and range are quoted, also for CPU time, which other programs on
the machine hardly change. Utilisation is the share of what the machine could do at most, its rate of matrix products in
the same round, that a way turns into operations of its own model; on a CPU both per second of CPU time.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.train.run import train
from lightning.pytorch.callbacks import LambdaCallback
from materials import Conversations, write_checkpoint, write_conversations
from naive import (
    ALPHA,
    MAXIMUM,
    MINIMUM,
    RANK,
    Collate,
    NaiveRater,
    Place,
    command_line,
    read_items,
    train_both,
    training_loader,
)
from rich.console import Console
from rich.table import Table
from timing import Order, Player, Turn, Turns, append_row, matrix_rate, players, ratios, spread
from transformers import AutoConfig

TOLERANCE = 1e-4
"""Largest difference of losses, and of scores in rating points, between two that are the same model in float32."""
EQUAL_STEPS = 5
BATCHES = {"nano": 16, "mid": 8, "7b": 4}
TOKENS_OF_A_PAIR = 260
"""About as many as a pair of two clips of 4 s has, 25 tokens a second, with the question and a little padding."""


def main() -> None:
    """Print the tables; exit with 1 if the two are not the same model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=list(BATCHES), default="nano", help="size of the backbone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--batch", type=int, help="pairs in a batch; by default 16 (nano), 8 (mid), 4 (7b)")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes of each way")
    parser.add_argument("--json", type=Path, help="file that a line for each way is added to")
    options = parser.parse_args()
    batch = options.batch or BATCHES[options.shapes]
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = batch * (options.rounds * options.steps + EQUAL_STEPS)
        write_conversations(folder / "data", Conversations(pairs, validation=2 * batch))
        place = prepare(folder, options.shapes, batch, options.workers)
        machine = machine_facts(place)
        console.print(" | ".join(f"{name} {value}" for name, value in machine.items()))
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # its memory is wanted afterwards
            same = alone.submit(train_both, place, folder / "equality", EQUAL_STEPS).result()
        console.print(
            f"{len(same.losses)} steps on the same batches, loss {same.losses[0]:.4f} to {same.losses[-1]:.4f}: losses "
            f"differ by {same.loss_difference:.1e} at most, scores afterwards by {same.score_difference:.1e} points "
            f"(training moved them by up to {same.moved:.1e}); at most {TOLERANCE:.0e} is expected in float32"
        )
        found = train_in_turns(place, folder, options.rounds, options.steps)
        console.print(figures_table(f"training, {batch} pairs in a batch", found))
    run = {"kind": "training", "shapes": options.shapes, "batch": batch, "workers": options.workers, "responses": 4}
    for row in found:
        append_row(options.json, run | row | machine)
    is_same = same.loss_difference <= TOLERANCE and same.score_difference <= TOLERANCE
    sys.exit(0 if is_same or place.device != "cpu" else 1)


def prepare(folder: Path, shapes: str, batch: int, workers: int = 0) -> Place:
    """The backbone of these shapes, beside the data that lies in `folder`."""
    checkpoint = Path(NANO_FOLDER)
    if shapes != "nano":
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        write_checkpoint("qwen2_audio", shapes, checkpoint)
    layers = AutoConfig.from_pretrained(checkpoint).text_config.num_hidden_layers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Place(str(checkpoint), str(folder / "data"), (layers - layers // 4, layers), batch, workers, device)


def random_judge(checkpoint: str, device: torch.device, depth: float | None = None) -> EmpathyJudge:
    """With LoRA that does something; `depth` is the share of the layers that it reads."""
    torch.manual_seed(0)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    settings = JudgeSettings(checkpoint, dtype=dtype, lora=LoraSettings(rank=RANK, alpha=ALPHA), depth=depth)
    judge = EmpathyJudge(settings, [Dimension("fit", MINIMUM, MAXIMUM)]).to(device)
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn_like(weight) if "lora_" in name else 0.1 * torch.randn_like(weight))
    return judge.eval()


def machine_facts(place: Place) -> dict[str, str | float]:
    """Of this machine."""
    device = torch.device(place.device)
    on_gpu = device.type == "cuda"
    kind = "GFLOP/s" if on_gpu else "GFLOP/s of CPU time"
    rates = {name: matrix_rate(device, getattr(torch, name), of_cpu=not on_gpu) for name in ("float32", "bfloat16")}
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **{f"{kind} {name}": round(rate / 1e9, 1) for name, rate in rates.items()},
    }


def figures_table(title: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """For people."""
    table = Table(
        title, "pairs/s", "times the naive way (median, range)", "in CPU time", "padding", "waiting for data",
        "GFLOP/pair", "utilisation", "peak GB",
    )  # fmt: skip
    for own in found:
        table.add_row(
            own["way"], f"{statistics.median(own['rates']):.2f}", spread(own["ratios"]), spread(own["cpu_ratios"]),
            f"{own['padding']:.0%}", f"{own['waiting']:.1%}", f"{own['flops'] / 1e9:.2f}", f"{own['utilisation']:.0%}",
            f"{own['peak'] / 1e9:.2f}",
        )  # fmt: skip
    return table


# ---------------------------------------------------------------- ways of training


def train_naively(turns: Turns, place: Place, folder: Path, in_upper: bool = False) -> None:
    """The loop of `naive`, epoch after epoch."""
    device = torch.device(place.device)
    rater = NaiveRater(place.checkpoint, range(*place.upper) if in_upper else None, device)
    optimizer = rater.optimizer()
    items = read_items(PairDataset.load(place.data), "train")
    loader = training_loader(items, Collate(place.checkpoint), place.batch, place.workers)
    turns.wait()
    for batch in chain.from_iterable(repeat(loader)):
        turns.batch_came(len(batch.targets), batch.inputs["attention_mask"])
        rater.step(batch.to(device), optimizer)
        turns.step_done()


def train_with_us(
    turns: Turns, place: Place, folder: Path, in_upper: bool = False, values: Mapping[str, object] | None = None
) -> None:
    """The command `train`, with further values."""
    in_turns = LambdaCallback(
        on_train_start=lambda *_: turns.wait(),  # all is loaded, and cached activations are computed
        on_train_batch_start=lambda trainer, module, batch, _: turns.batch_came(
            len(batch.indices), batch.inputs.attention_mask
        ),
        on_train_batch_end=lambda *_: turns.step_done(),
    )
    values = {"cache.what": "none", **(values or {})}
    train(command_line(place, folder, in_upper, values), watching=[in_turns])


NAIVE, NAIVE_UPPER = "naive", "naive, LoRA in the upper quarter"


def ways_of(batch: int) -> dict[str, tuple[str, Callable[..., None], tuple[Any, ...]]]:
    """Ways of training: by name the one that each is compared with, what runs until the turns are over
    (`run(turns, place, folder for its files, *options)`), and its options. Batches by tokens have as many as so many
    pairs."""
    by_tokens = {"data.batch_tokens": batch * TOKENS_OF_A_PAIR}
    audio, layers = {"cache.what": "audio"}, {"cache.what": "layers"}
    ours = {
        "ours, cold": (False, {}),
        "ours, cold, responses to one context together": (False, {"data.batches": "groups"}),
        "ours, cold, like lengths together": (False, by_tokens),
        "ours, audio states cached": (False, audio),
        "ours, audio states cached, like lengths together": (False, by_tokens | audio),
        "ours, LoRA in the upper quarter, audio states cached": (True, audio),
        "ours, lower layers cached, like lengths together": (True, by_tokens | layers),
    }
    naive = {name: (name, train_naively, (name == NAIVE_UPPER,)) for name in (NAIVE, NAIVE_UPPER)}
    return naive | {name: ((NAIVE, NAIVE_UPPER)[own[0]], train_with_us, own) for name, own in ours.items()}


def train_in_turns(place: Place, folder: Path, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Train by each way, `steps` in each round; a row for each. Those of one baseline are in memory together."""
    device = torch.device(place.device)
    on_gpu = device.type == "cuda"
    rows = []
    for baseline in (NAIVE, NAIVE_UPPER):
        starts = {
            name: partial(Player.of, run, place, folder / name, *options, log=folder / f"{name}.log")
            for name, (compared_with, run, options) in ways_of(place.batch).items()
            if compared_with == baseline
        }
        with players(starts) as started:
            machine, turns = [], {name: [] for name in started}
            for _ in range(rounds):
                machine.append(matrix_rate(device, torch.bfloat16 if on_gpu else torch.float32, of_cpu=not on_gpu))
                for name, player in started.items():
                    turns[name].append(player.play(Order(steps)))
            counted = {name: player.play(Order(1, count=True)) for name, player in started.items()}
        rows += [_row(name, baseline, turns, counted[name], machine, on_gpu) for name in started]
    return rows


def _row(
    way: str, baseline: str, turns: Mapping[str, Sequence[Turn]], counted: Turn, machine: Sequence[float], on_gpu: bool
) -> dict[str, Any]:
    """Of a way: pairs per second in each round and their ratios to those of the baseline in the same round, also of CPU
    time (without that of data-loader processes); padding as a share of the places of all batches, waiting of the time;
    floating-point operations for a pair, utilisation as a share of the machine's rate of matrix products; peak bytes.
    """
    own, base = turns[way], turns[baseline]
    steps = [step for turn in own for step in turn.steps]
    rates, cpu_rates = [turn.rate for turn in own], [turn.cpu_rate for turn in own]
    flops = counted.flops / sum(step.pairs for step in counted.steps)
    used = [rate * flops for rate in (rates if on_gpu else cpu_rates)]
    return {
        "way": way,
        "baseline": baseline,
        "rates": rates,
        "ratios": ratios(rates, [turn.rate for turn in base]),
        "cpu_ratios": ratios(cpu_rates, [turn.cpu_rate for turn in base]),
        "padding": 1 - sum(step.real for step in steps) / sum(step.tokens for step in steps),
        "waiting": sum(step.waited for step in steps) / sum(step.seconds for step in steps),
        "flops": flops,
        "utilisation": statistics.median(ratios(used, machine)),
        "peak": own[-1].peak,
    }


if __name__ == "__main__":
    main()
