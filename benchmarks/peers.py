"""Pairs per second against the naive way, and beside ms-swift, in one run: `python benchmarks/peers.py [SWIFT_PYTHON]`.

The naive way is what one writes today with plain transformers and PEFT (`naive`). Ours is the command `train` on a pair
dataset of clips of 2 to 8 s, each context answered four times. Both are the same model: first both train on the same
batches from the same weights, and losses and scores must agree. Then the ways take turns (`timing`), each in a process
of its own; start-up and the computing of cached activations are not counted, data loading is. Ratios are taken in each
round; median and range are quoted, also for CPU time, which other programs on the machine hardly change. Utilisation is
the share of what the machine could do at most, its rate of matrix products in the same round, that a way turns into
operations of its own model; on a CPU both per second of CPU time.

SWIFT_PYTHON is the Python of an environment with ms-swift (4.6.0 with transformers 4.48.3, librosa, and the torch of
this project: with transformers 5 it stops). It reads the same weights and pairs, adapts the same layers with the same
LoRA, and takes as many pairs in a batch; then scoring is measured as well (`scorer.py` has more of that). What it does
otherwise (`--task_type seq_cls --problem_type regression`): it pads each clip to 30 s, reads the state of one token
through a linear layer without bias, and keeps this head in the model's dtype; losses cannot be equal to ours. Weights
are random, which says nothing about the quality at a depth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.backbones.audio_language_model import QUESTION
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.train.run import train
from materials import write_checkpoint, write_conversations
from naive import (
    ALPHA,
    LEARNING_RATE,
    MAXIMUM,
    MINIMUM,
    RANK,
    NaiveCollate,
    NaiveRater,
    Place,
    command_line,
    read_items,
    taking_turns,
    train_both,
    training_batches,
)
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
NAIVE, SWIFT = "naive", "ms-swift"
ADAPTED = r".*language_model\.model\.layers\.\d+\.\w+\.(?:q|k|v|o|gate|up|down)_proj"


def main() -> None:
    """Print the tables; exit with 1 if the naive way and ours are not the same model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swift", type=Path, nargs="?", metavar="SWIFT_PYTHON", help="of an environment with ms-swift")
    parser.add_argument("--shapes", choices=list(BATCHES), default="mid", help="size of the backbone")
    parser.add_argument("--depth", type=float, default=0.5, help="share of the layers that is read in rows that say so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--batch", type=int, help="pairs in a batch; by default 16 with nano, otherwise 4")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes of each way")
    parser.add_argument("--json", type=Path, help="file that a line for each way is added to")
    options = parser.parse_args()
    if options.swift and options.shapes == "nano":
        parser.error("ms-swift does not read the files of nano: --shapes mid or 7b")
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
        for kind, ways in races(options, place, folder):
            rows = list(race(ways, torch.device(place.device), options.rounds, options.steps))
            console.print(table(f"{kind}, {batch} pairs in a batch", rows))
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps({"kind": kind} | run | row | machine) + "\n" for row in rows)
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
    """A judge with random LoRA and head weights; `depth` is the share of the layers that it reads."""
    torch.manual_seed(0)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    settings = JudgeSettings(checkpoint, dtype=dtype, lora=LoraSettings(rank=RANK, alpha=ALPHA), depth=depth)
    judge = EmpathyJudge(settings, [Dimension("fit", MINIMUM, MAXIMUM)]).to(device)
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_(0.02 * torch.randn_like(weight) if "lora_" in name else 0.1 * torch.randn_like(weight))
    return judge.eval()


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

    A row has the pairs per second in each round and their ratios to the naive way and to ms-swift in the same round,
    also for CPU time (without that of data-loader processes); padding as a share of the places of all batches, where
    the way reports it; waiting for data as a share of the time; floating-point operations for a pair; utilisation as a
    share of the machine's rate of matrix products; peak bytes.
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
        compared: dict[str, list[float]] = {}
        for base in (base for base in (NAIVE, SWIFT) if base in ways):
            compared[base] = ratios(rates[name], rates[base])
            compared[f"{base}, CPU"] = ratios(cpu_rates[name], cpu_rates[base])
        flops = counted[name].flops / counted[name].pairs
        flop_rates = [rate * flops for rate in (rates if on_gpu else cpu_rates)[name]]
        tokens = sum(turn.tokens for turn in played)
        yield {
            "way": name,
            "rates": rates[name],
            "ratios": compared,
            "padding": 1 - sum(turn.real for turn in played) / tokens if tokens else None,
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
            "" if row["padding"] is None else f"{row['padding']:.0%}", f"{row['waiting']:.1%}",
            f"{row['flops'] / 1e9:.2f}", f"{row['utilisation']:.0%}", f"{row['peak'] / 1e9:.2f}",
        )  # fmt: skip
    return table


def races(
    options: argparse.Namespace, place: Place, folder: Path
) -> Iterator[tuple[str, dict[str, Callable[[], Player]]]]:
    """The races, each with the functions that start its players; ways of one race are in memory together."""

    def start(run: Callable[..., None], kind: str, name: str, *values: Any) -> Callable[[], Player]:
        kind_folder = folder / kind
        kind_folder.mkdir(exist_ok=True)
        return partial(Player.of, run, place, kind_folder / name, *values, log=kind_folder / f"{name}.log")

    for kind, ours in ways_of(place.batch, options.depth, options.swift is not None).items():
        in_upper = kind == UPPER
        ways = {NAIVE: start(train_naively, kind, NAIVE, in_upper)}
        if options.swift is not None:
            rows = write_rows(place, folder / "rows.jsonl")
            swift_settings = {"arguments": swift_arguments(place, rows, folder / "swift_runs")}
            ways[SWIFT] = partial(swift, options.swift, swift_settings, folder / "swift")
        yield kind, ways | {name: start(train_with_us, kind, name, in_upper, values) for name, values in ours.items()}
    if options.swift is not None:
        swift_settings = scoring_with_swift(options.swift, place, folder)
        yield (
            "scoring",
            {
                NAIVE: start(score_naively, "scoring", NAIVE),
                SWIFT: partial(swift, options.swift, swift_settings, folder / "swift_scoring"),
                "ours": start(score_with_us, "scoring", "ours", None),
                f"ours, depth {options.depth:g}": start(score_with_us, "scoring", "ours, depth", options.depth),
            },
        )


UPPER = "training, LoRA in the upper quarter"


def ways_of(batch: int, depth: float, beside_swift: bool) -> dict[str, dict[str, dict[str, object]]]:
    """Ways of training of each race, with the values of `train` by which they differ."""
    groups = {"data.batches": "groups"}  # the responses to a context, which is read once then
    tokens = {"data.batch_tokens": batch * TOKENS_OF_A_PAIR}
    audio, layers = {"cache.what": "audio"}, {"cache.what": "layers"}
    together = {
        "ours, cold": {},
        "ours, cold, contexts together": groups,
        "ours, audio cached, contexts together": groups | audio,
    }
    if beside_swift:
        at_depth = {
            f"{name}, depth {depth:g}": values | {"judge.depth": depth} for name, values in together.items() if values
        }
        return {"training": together | at_depth}
    apart = {
        "ours, cold, like lengths together": tokens,
        "ours, audio cached": audio,
        "ours, audio cached, like lengths together": tokens | audio,
    }
    upper = {"ours, audio cached": audio, "ours, lower layers cached, like lengths together": tokens | layers}
    return {"training": together | apart, UPPER: upper}


# ---------------------------------------------------------------- ways


def train_naively(turns: Turns, place: Place, folder: Path, in_upper: bool) -> None:
    """Train by the loop of `naive`."""
    rater = NaiveRater(place.checkpoint, range(*place.upper) if in_upper else None, torch.device(place.device))
    batches = training_batches(place.checkpoint, PairDataset.load(place.data), place.batch, place.workers)
    rater.train_in_turns(batches, rater.optimizer(), turns)


def train_with_us(turns: Turns, place: Place, folder: Path, in_upper: bool, values: Mapping[str, object]) -> None:
    """Train by the command `train`, with further values."""
    train(command_line(place, folder, in_upper, {"cache.what": "none", **values}), watching=[taking_turns(turns)])


def score_naively(turns: Turns, place: Place, folder: Path) -> None:
    """Score batches in the naive way."""
    rater, collate = NaiveRater(place.checkpoint, None, torch.device(place.device)), NaiveCollate(place.checkpoint)
    rater.eval()
    items = read_items(PairDataset.load(place.data), "train")
    turns.wait()
    while True:
        for start in range(0, len(items), place.batch):
            batch = collate(items[start : start + place.batch])
            turns.batch_came(len(batch.targets), batch.inputs["attention_mask"])
            rater.score(iter([batch]))
            turns.step_done()


def score_with_us(turns: Turns, place: Place, folder: Path, depth: float | None) -> None:
    """Score batches with the scorer behind `score`, which keeps the states of a context from one batch to the next."""
    judge = random_judge(place.checkpoint, torch.device(place.device), depth)
    judge.merge()  # as `Scorer` does
    pairs = [pair for pair, _ in read_items(PairDataset.load(place.data), "train")]
    turns.wait()
    while True:
        scorer = PairScorer(judge, place.batch)
        for start in range(0, len(pairs), place.batch):
            batch = pairs[start : start + place.batch]
            turns.batch_came(len(batch))
            list(scorer.predict(batch))
            turns.step_done()


# ---------------------------------------------------------------- ms-swift


def swift(python: Path, settings: dict[str, Any], folder: Path) -> Player:
    """ms-swift, in its own environment (`peers_swift`)."""
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    ours, theirs = multiprocessing.Pipe()
    program = Path(__file__).with_name("peers_swift.py")
    command = [python, program, str(theirs.fileno()), folder / "settings.json"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
        )
    theirs.close()
    return Player(ours, process.wait, folder / "log")


def write_rows(place: Place, file: Path) -> Path:
    """The training split as ms-swift reads it."""
    lines = []
    for pair, score in read_items(PairDataset.load(place.data), "train"):
        question = f"Context: <audio>\nResponse: <audio>\n{QUESTION}"
        audios = [str(pair.context[0].audio), str(pair.response)]
        lines.append({"messages": [{"role": "user", "content": question}], "audios": audios, "label": score})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def swift_arguments(place: Place, rows: Path, out: Path, **further: object) -> list[str]:
    """Arguments of `swift sft` for what the naive way trains."""
    on_gpu = place.device != "cpu"
    arguments = {
        "model": place.checkpoint, "model_type": "qwen2_audio", "template": "qwen2_audio",
        "task_type": "seq_cls", "num_labels": 1, "problem_type": "regression", "loss_type": "mse",
        "dataset": rows, "dataset_num_proc": 1, "load_from_cache_file": "false", "split_dataset_ratio": 0,
        "tuner_type": "lora", "target_regex": ADAPTED, "lora_rank": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
        "torch_dtype": "bfloat16" if on_gpu else "float32", "bf16": str(on_gpu).lower(), "fp16": "false",
        "attn_impl": "sdpa", "gradient_checkpointing": "false", "dataloader_num_workers": place.workers,
        "per_device_train_batch_size": place.batch, "gradient_accumulation_steps": 1, "num_train_epochs": 1000,
        "learning_rate": LEARNING_RATE, "output_dir": out, "save_strategy": "no", "eval_strategy": "no",
        "logging_steps": 1, "report_to": "none", **further,
    }  # fmt: skip
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def scoring_with_swift(python: Path, place: Place, folder: Path) -> dict[str, Any]:
    """Make an adapter by a step of training; returns what its engine is told."""
    rows, out = folder / "rows.jsonl", folder / "swift_adapter"
    words = swift_arguments(place, rows, out, max_steps=1, save_strategy="steps", save_steps=1, add_version="false")
    program = "import sys; from peers_swift import fine_tune; fine_tune(sys.argv[1:])"
    env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([python, "-c", program, *words], cwd=folder, env=os.environ | env, check=True, capture_output=True)
    engine = {"task_type": "seq_cls", "num_labels": 1, "problem_type": "regression", "model_type": "qwen2_audio"}
    engine |= {"adapters": [str(out / "checkpoint-1")], "attn_impl": "sdpa"}
    return {"model": place.checkpoint, "batch": place.batch, "rows": str(rows), "engine": engine}


if __name__ == "__main__":
    main()
