"""Pairs per second of training and scoring against the naive way, in one run: `python benchmarks/training.py`.

The naive way is what one writes today with plain transformers and PEFT (`naive`). Ours is the command `train` on a pair
dataset of clips of 2 to 8 s, each context answered several times, and the scorer behind `score`. Both are the same
model: first both train on the same batches from the same weights, and losses and scores must agree. Then the ways take
turns (`turns`), each in a process of its own; start-up and the computing of kept states are not counted, data loading
is. The ratio is taken in each round; median and range are quoted, also for CPU time, which other programs on the
machine hardly change. Utilisation is the share of what the machine could do at most, its rate of matrix products in the
same round, that a way turns into operations of its own model; on a CPU both per second of CPU time.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers
from conversations import Conversations, write_conversations
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.scoring import PairScorer
from equality import Same, scores, train_both
from naive import Collate, NaiveRater, read_items
from random_checkpoint import write_checkpoint
from rate import matrix_rate
from rich.console import Console
from rich.table import Table
from rows import append_row
from transformers import AutoConfig
from turns import Order, Player, Turn
from ways import WAYS, Place, Way

TOLERANCE = 1e-4
"""Largest difference of losses, and of scores in rating points, between two that are the same model in float32."""
EQUAL_STEPS = 5
TIMES, CPU_TIMES = "times the naive way (median, range)", "in CPU time"
BATCHES = {"nano": 16, "mid": 8, "7b": 4}


@dataclass(frozen=True)
class Figures:
    """Of one way.

    Attributes:
        way: Its name.
        baseline: Of the way that it is compared with.
        rates: Pairs per second in each round.
        ratios: These, divided by the baseline's in the same round.
        cpu_ratios: The same of pairs per second of CPU time, without that of data-loader processes.
        padding: Share of padding in the places of all batches.
        waiting: Share of the time until a batch was there.
        flops: Floating-point operations for a pair; 0 = not counted.
        utilisation: Share of the machine's rate of matrix products, the median of all rounds.
        peak: Most memory, bytes.
    """

    way: str
    baseline: str
    rates: list[float]
    ratios: list[float]
    cpu_ratios: list[float]
    padding: float = 0.0
    waiting: float = 0.0
    flops: float = 0.0
    utilisation: float = 0.0
    peak: int = 0


def main() -> None:
    """Print the tables; exit with 1 if the two are not the same model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=list(BATCHES), default="nano", help="size of the backbone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--batch", type=int, help="pairs in a batch; by default 16 (nano), 8 (mid), 4 (7b)")
    parser.add_argument("--responses", type=int, default=4, help="to each context")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes of each way")
    parser.add_argument("--json", type=Path, help="file that a line for each way is added to")
    options = parser.parse_args()
    batch = options.batch or BATCHES[options.shapes]
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = batch * (options.rounds * options.steps + EQUAL_STEPS)
        write_conversations(folder / "data", Conversations(pairs, validation=2 * batch, responses=options.responses))
        place = prepare(folder, options.shapes, batch, options.workers)
        machine = facts(place)
        console.print(" | ".join(f"{name} {value}" for name, value in machine.items()))
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # its memory is wanted afterwards
            same, scoring = alone.submit(compare_models, place, folder / "equality", options.rounds).result()
        print_equality(console, same, place)
        console.print(scoring_table(scoring))
        training = train_in_turns(WAYS, place, folder, options.rounds, options.steps)
        console.print(training_table(training, place))
    for kind, found in (("scoring", scoring), ("training", training)):
        for figures in found if options.json else ():
            run = {"kind": kind, "shapes": options.shapes, "batch": batch, "workers": options.workers}
            append_row(options.json, run | {"responses": options.responses} | asdict(figures) | machine)
    is_same = same.loss_difference <= TOLERANCE and same.score_difference <= TOLERANCE
    sys.exit(0 if is_same or place.device != "cpu" else 1)


def prepare(folder: Path, shapes: str, batch: int, workers: int) -> Place:
    """The backbone of these shapes, beside the data that lies in `folder`."""
    checkpoint = Path(NANO_FOLDER)
    if shapes != "nano":
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint("qwen2_audio", shapes, checkpoint)
    layers = AutoConfig.from_pretrained(checkpoint).text_config.num_hidden_layers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Place(str(checkpoint), str(folder / "data"), (layers - layers // 4, layers), batch, workers, device)


def facts(place: Place) -> dict[str, str | float]:
    """Of this machine."""
    device = torch.device(place.device)
    on_gpu = device.type == "cuda"
    clock, kind = (time.perf_counter, "GFLOP/s") if on_gpu else (time.process_time, "GFLOP/s of CPU time")
    rates = {name: matrix_rate(device, getattr(torch, name), 1024, clock=clock) for name in ("float32", "bfloat16")}
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **{f"{kind} {name}": round(rate / 1e9, 1) for name, rate in rates.items()},
    }


# ---------------------------------------------------------------- the same model


def print_equality(console: Console, same: Same, place: Place) -> None:
    """How far the two are apart after the same steps."""
    console.print(
        f"{len(same.losses)} steps on the same batches, loss {same.losses[0]:.4f} to {same.losses[-1]:.4f}: losses "
        f"differ by {same.loss_difference:.1e} at most, scores afterwards by {same.score_difference:.1e} points "
        f"(training moved them by up to {same.moved:.1e}); accepted "
        + (f"{TOLERANCE:.0e}" if place.device == "cpu" else "is whatever bfloat16 makes")
    )


# ---------------------------------------------------------------- scoring


def compare_models(place: Place, run: Path, rounds: int) -> tuple[Same, list[Figures]]:
    """Train both on the same batches, then let the two score in turns."""
    same, judge, rater = train_both(place, run, EQUAL_STEPS)
    return same, score_in_turns(judge, rater, place, rounds)


def score_in_turns(judge: EmpathyJudge, rater: NaiveRater, place: Place, rounds: int) -> list[Figures]:
    """Score two batches of pairs in each round: naively, the same without the LM head, by ours from nothing, and by
    ours once more."""
    items = read_items(PairDataset.load(place.data), "train")[: 2 * place.batch]
    pairs = [pair for pair, _ in items]
    starts = range(0, len(items), place.batch)
    collate, known = Collate(place.checkpoint), PairScorer(judge, place.batch)

    def naively(lm_head: bool) -> object:
        rater.lm_head = lm_head
        return rater.score(collate(items[start : start + place.batch]) for start in starts)

    ways: dict[str, Callable[[], object]] = {
        "naive": lambda: naively(True),
        "naive without its LM head": lambda: naively(False),
        "ours": lambda: scores(judge, pairs, place.batch),
        "ours, clips heard before": lambda: list(known.predict(pairs)),
    }
    rater.eval()
    for way in ways.values():
        way()  # warm-up
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start, begun = time.perf_counter(), time.process_time()
            way()
            rates[name].append(len(pairs) / (time.perf_counter() - start))
            cpu[name].append(len(pairs) / (time.process_time() - begun))
    return [
        Figures(name, "naive", own, _ratios(own, rates["naive"]), _ratios(cpu[name], cpu["naive"]))
        for name, own in rates.items()
    ]


def scoring_table(found: Sequence[Figures]) -> Table:
    """For people."""
    table = Table("scoring", "pairs/s", TIMES, CPU_TIMES)
    for figures in found:
        pace = f"{statistics.median(figures.rates):.2f}"
        table.add_row(figures.way, pace, _spread(figures.ratios), _spread(figures.cpu_ratios))
    return table


# ---------------------------------------------------------------- training


def train_in_turns(ways: Sequence[Way], place: Place, folder: Path, rounds: int, steps: int) -> list[Figures]:
    """Train by each way, `steps` in each round. Those of one baseline are in memory at the same time."""
    baselines = dict.fromkeys(way.baseline for way in ways)
    groups = [[way for way in ways if way.baseline == baseline] for baseline in baselines]
    return [figures for group in groups for figures in _play(group, place, folder, rounds, steps)]


def _play(ways: Sequence[Way], place: Place, folder: Path, rounds: int, steps: int) -> list[Figures]:
    device = torch.device(place.device)
    on_gpu = device.type == "cuda"
    dtype, clock = (torch.bfloat16, time.perf_counter) if on_gpu else (torch.float32, time.process_time)
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for way in ways:
            run = folder / way.name
            player = Player(way.run, place, run, *way.options, log=folder / f"{way.name}.log")
            players[way.name] = player
            stack.callback(player.stop)
        for player in players.values():
            player.play(Order(1))  # warm-up
        machine, turns = [], {way.name: [] for way in ways}
        for _ in range(rounds):
            machine.append(matrix_rate(device, dtype, 1024, clock=clock))
            for name, player in players.items():
                turns[name].append(player.play(Order(steps)))
        counted = {name: player.play(Order(1, count=True)) for name, player in players.items()}
    return [_figures(way, turns[way.name], turns[way.baseline], counted[way.name], machine, on_gpu) for way in ways]


def _figures(
    way: Way, turns: Sequence[Turn], base: Sequence[Turn], counted: Turn, machine: Sequence[float], on_gpu: bool
) -> Figures:
    steps = [step for turn in turns for step in turn.steps]
    own = [turn.rate for turn in turns]
    paces = own if on_gpu else [turn.cpu_rate for turn in turns]
    flops = counted.flops / sum(step.pairs for step in counted.steps)
    return Figures(
        way.name,
        way.baseline,
        own,
        _ratios(own, [turn.rate for turn in base]),
        _ratios([turn.cpu_rate for turn in turns], [turn.cpu_rate for turn in base]),
        padding=1 - sum(step.real for step in steps) / sum(step.tokens for step in steps),
        waiting=sum(step.waited for step in steps) / sum(step.seconds for step in steps),
        flops=flops,
        utilisation=statistics.median(rate * flops / most for rate, most in zip(paces, machine, strict=True)),
        peak=turns[-1].peak,
    )


def training_table(found: Sequence[Figures], place: Place) -> Table:
    """For people."""
    table = Table(
        "training", "pairs/s", TIMES, CPU_TIMES, "padding", "waiting for data", "GFLOP/pair",
        "utilisation", "peak GB", title=f"{place.batch} pairs in a batch",
    )  # fmt: skip
    for figures in found:
        table.add_row(
            figures.way,
            f"{statistics.median(figures.rates):.2f}",
            _spread(figures.ratios),
            _spread(figures.cpu_ratios),
            f"{figures.padding:.0%}",
            f"{figures.waiting:.1%}",
            f"{figures.flops / 1e9:.2f}",
            f"{figures.utilisation:.0%}",
            f"{figures.peak / 1e9:.2f}",
        )
    return table


def _ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    return [rate / other for rate, other in zip(own, base, strict=True)]


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


if __name__ == "__main__":
    main()
