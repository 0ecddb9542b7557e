"""Training: pairs per second against the naive way, in one run: `python benchmarks/cpu.py train`.

The naive way is what one writes today with plain transformers and PEFT (`naive`). Ours is the command `train` on a pair
dataset of clips of 2 to 8 s, each context answered four times. Both are the same model: first both train on the same
batches from the same weights, and losses and scores must agree. Then the ways take turns (`timing`), each in a process
of its own; start-up and the computing of cached activations are not counted, data loading is. Ratios are taken in each
round; median and range are quoted, also for CPU time, which other programs on the machine hardly change. Utilisation is
the share of what the machine could do at most, its rate of matrix products in the same round, that a way turns into
operations of its own model; on a CPU both per second of CPU time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.train.run import train
from materials import write_checkpoint, write_conversations
from naive import NaiveRater, Place, command_line, taking_turns, train_both, training_batches
from rich.console import Console
from rich.table import Table
from timing import Order, Player, TimedTurn, Turns, matrix_rate, players, ratios, spread
from transformers import AutoConfig

TOLERANCE = 1e-4
"""Largest difference of losses, and of scores in rating points, between two that are the same model in float32."""
EQUAL_STEPS = 5
BATCHES = {"nano": 16, "mid": 4, "7b": 4}
TOKENS_OF_A_PAIR = 260
"""About as many as a pair of two clips of 4 s has, 25 tokens a second, with the question and a little padding."""
NAIVE = "naive"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `cpu.py train`."""
    parser.add_argument("--shapes", choices=list(BATCHES), default="mid", help="size of the backbone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--batch", type=int, help="pairs in a batch; by default 16 with nano, otherwise 4")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes of each way")
    parser.add_argument("--json", type=Path, help="file that a line for each way is added to")


def measure(options: argparse.Namespace) -> bool:
    """Print the tables; whether the naive way and ours are the same model."""
    batch = options.batch or BATCHES[options.shapes]
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = batch * (options.rounds * options.steps + EQUAL_STEPS)
        write_conversations(folder / "data", pairs, validation=2 * batch)
        place = prepare(folder, options.shapes, batch, options.workers)
        machine = machine_facts(place)
        console.print(" | ".join(f"{name} {value}" for name, value in machine.items()))
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawned) as alone:  # its memory is wanted afterwards
            same = alone.submit(train_both, place, folder / "equality", EQUAL_STEPS).result()
        console.print(
            f"{len(same.losses)} steps on the same batches, loss {same.losses[0]:.4f} to {same.losses[-1]:.4f}: losses "
            f"differ by {same.loss_difference:.1e} at most, scores afterwards by {same.score_difference:.1e} points "
            f"(training moved them by up to {same.moved:.1e}); at most {TOLERANCE:.0e} is expected in float32"
        )
        run = {"shapes": options.shapes, "batch": batch, "workers": options.workers, "responses": 4}
        for kind, values_by_way in ways_of(batch).items():
            (folder / kind).mkdir()
            in_upper = kind == UPPER
            ways = {
                name: partial(
                    Player, run_way, place, folder / kind / name, in_upper, values, log=folder / kind / f"{name}.log"
                )
                for name, values in values_by_way.items()
            }
            rows = list(race(ways, torch.device(place.device), options.rounds, options.steps))
            console.print(table(f"{kind}, {batch} pairs in a batch", rows))
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps({"kind": kind} | run | row | machine) + "\n" for row in rows)
    is_same = same.loss_difference <= TOLERANCE and same.score_difference <= TOLERANCE
    return is_same or place.device != "cpu"


def prepare(folder: Path, shapes: str, batch: int, workers: int = 0) -> Place:
    """The backbone of these shapes, in the folder of the data."""
    checkpoint = Path(NANO_FOLDER)
    if shapes != "nano":
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        write_checkpoint("qwen2_audio", shapes, checkpoint)
    layers = AutoConfig.from_pretrained(checkpoint).text_config.num_hidden_layers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Place(str(checkpoint), str(folder / "data"), (layers - layers // 4, layers), batch, workers, device)


def machine_facts(place: Place) -> dict[str, str | float]:
    """Device, versions and rates of matrix products of this machine."""
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


# ---------------------------------------------------------------- races


def race(
    ways: Mapping[str, Callable[[], Player]], device: torch.device, rounds: int, steps: int
) -> Iterator[dict[str, Any]]:
    """Let ways take turns, and yield a row for each way.

    A row has the pairs per second in each round and their ratios to the naive way in the same round, also for CPU time
    (without that of data-loader processes); padding as a share of the places of all batches; waiting for data as a
    share of the time; floating-point operations for a pair; utilisation as a share of the machine's rate of matrix
    products; peak bytes.
    """
    on_gpu = device.type == "cuda"
    with players(ways) as started:
        machine, turns = [], {name: list[TimedTurn]() for name in started}
        for _ in range(rounds):
            machine.append(matrix_rate(device, torch.bfloat16 if on_gpu else torch.float32, of_cpu=not on_gpu))
            for name, player in started.items():
                turns[name].append(player.play(Order(steps)))
        counted = {name: player.play(Order(1, count=True)) for name, player in started.items()}
    rates = {name: [turn.rate for turn in played] for name, played in turns.items()}
    cpu_rates = {name: [turn.cpu_rate for turn in played] for name, played in turns.items()}
    for name, played in turns.items():
        compared = {"naive": ratios(rates[name], rates[NAIVE]), "naive, CPU": ratios(cpu_rates[name], cpu_rates[NAIVE])}
        flops = counted[name].flops / counted[name].pairs
        flop_rates = [rate * flops for rate in (rates if on_gpu else cpu_rates)[name]]
        yield {
            "way": name,
            "rates": rates[name],
            "ratios": compared,
            "padding": 1 - sum(turn.real for turn in played) / sum(turn.tokens for turn in played),
            "waiting": sum(turn.waited for turn in played) / sum(turn.seconds for turn in played),
            "flops": flops,
            "utilisation": statistics.median(ratios(flop_rates, machine)),
            "peak": played[-1].peak,
        }


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """For people: medians of the rounds, with their range."""
    compared = [f"times {base}" for base in rows[0]["ratios"]]
    table = Table(title, "pairs/s", *compared, "padding", "waiting for data", "GFLOP/pair", "utilisation", "peak GB")
    for row in rows:
        table.add_row(
            row["way"], f"{statistics.median(row['rates']):.2f}", *map(spread, row["ratios"].values()),
            f"{row['padding']:.0%}", f"{row['waiting']:.1%}", f"{row['flops'] / 1e9:.2f}",
            f"{row['utilisation']:.0%}", f"{row['peak'] / 1e9:.2f}",
        )  # fmt: skip
    return table


UPPER = "training, LoRA in the upper quarter"


def ways_of(batch: int) -> dict[str, dict[str, Mapping[str, object] | None]]:
    """Ways of training of each race, with the values of `train` by which they differ; None = the naive way."""
    groups = {"data.batches": "groups"}  # the responses to a context, which is read once then
    tokens = {"data.batch_tokens": batch * TOKENS_OF_A_PAIR}
    audio, layers = {"cache.what": "audio"}, {"cache.what": "layers"}
    half = {"judge.depth": 0.5}  # another model than that of the naive way
    return {
        "training": {
            NAIVE: None,
            "ours, cold": {},
            "ours, cold, contexts together": groups,
            "ours, audio cached, contexts together": groups | audio,
            "ours, cold, contexts together, half the layers": groups | half,
            "ours, audio cached, contexts together, half the layers": groups | audio | half,
            "ours, cold, like lengths together": tokens,
            "ours, audio cached": audio,
            "ours, audio cached, like lengths together": tokens | audio,
        },
        UPPER: {
            NAIVE: None,
            "ours, audio cached": audio,
            "ours, lower layers cached, like lengths together": tokens | layers,
        },
    }


def run_way(turns: Turns, place: Place, folder: Path, in_upper: bool, values: Mapping[str, object] | None) -> None:
    """Train by the command `train` with further values, or by the loop of `naive`."""
    if values is not None:
        train(command_line(place, folder, in_upper, {"cache.what": "none", **values}), watching=[taking_turns(turns)])
        return
    rater = NaiveRater(place.checkpoint, range(*place.upper) if in_upper else None, torch.device(place.device))
    batches = training_batches(place.checkpoint, PairDataset.load(place.data), place.batch, place.workers)
    rater.train_in_turns(batches, rater.optimizer(), turns)
