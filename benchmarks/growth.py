"""How training grows with the number of pairs and with the length of clips: `python benchmarks/growth.py`.

**Pairs.** The command `train` on 1,000 to 100,000 pairs, with the nano backbone and distinct clips of a quarter of a
second, embedded in the tables, so that as much of a step as possible is reading, ordering and collating. The sizes take
turns (`turns`), so that the drift of the machine is unfair to none. Before that each process measures its start-up: to
load the tables, to check the splits (the audio compared by its sound for the first time, then with that result stored),
and to put an epoch in order. What matters is that a pair costs the same among many, and that memory grows by the tables
alone.

**Length.** The command `train` and the naive loop (`naive`) with clips of 1 to 30 s, all of one length, on the backbone
`mid` of `training.py`. The naive loop pads every clip to 30 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conversations import Conversations, write_conversations
from empathy_judge.data_modules.audit import check_splits
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from random_checkpoint import write_checkpoint
from rich.console import Console
from rich.table import Table
from rows import append_row
from turns import Order, Player, Turn, Turns
from ways import Place, train_naively, train_with_us

BATCH = 32
PIECE = 0.25
"""Length of a clip (seconds) where the number of pairs grows."""
STARTUP = "startup.json"


@dataclass(frozen=True)
class Size:
    """What a number of pairs costs.

    Attributes:
        pairs: How many are trained on.
        seconds_per_pair: Of training, in each round.
        cpu_per_pair: The same in CPU time.
        waited_per_pair: Until its batch was there.
        load: Seconds to load the tables.
        first_check: Seconds to check the splits for the first time.
        check: Seconds to check them again.
        order: Seconds to put an epoch in order.
        resident: Bytes after the last step.
    """

    pairs: int
    seconds_per_pair: list[float]
    cpu_per_pair: list[float]
    waited_per_pair: list[float]
    load: float
    first_check: float
    check: float
    order: float
    resident: int


@dataclass(frozen=True)
class Length:
    """What clips of a length cost.

    Attributes:
        seconds: Of each clip.
        ours: Pairs per second in each round.
        naive: Of the naive loop.
        ratios: Of the two in each round.
        cpu_ratios: Of pairs per second of CPU time.
        flops: Floating-point operations for a pair, ours.
        tokens: Of a pair, without padding.
    """

    seconds: float
    ours: list[float]
    naive: list[float]
    ratios: list[float]
    cpu_ratios: list[float]
    flops: float
    tokens: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--seconds", type=float, nargs="*", default=[1.0, 2.0, 5.0, 10.0, 20.0, 30.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="in a round")
    parser.add_argument("--json", type=Path, help="file that a line for each size and length is added to")
    options = parser.parse_args()
    console = Console(width=170)
    with tempfile.TemporaryDirectory() as temporary:
        found: list[Size | Length] = []
        if options.pairs:
            sizes = measure_sizes(options.pairs, Path(temporary), options.rounds, options.steps)
            console.print(sizes_table(sizes))
            found += sizes
        if options.seconds:
            lengths = measure_lengths(options.seconds, Path(temporary), options.rounds)
            console.print(lengths_table(lengths))
            found += lengths
    for one in found if options.json else ():
        append_row(options.json, asdict(one))


# ---------------------------------------------------------------- number of pairs


def measure_sizes(sizes: list[int], folder: Path, rounds: int, steps: int) -> list[Size]:
    """Train on each number of pairs, by turns."""
    with ExitStack() as stack:
        players = {}
        for pairs in sizes:
            data, run = folder / f"data-{pairs}", folder / f"run-{pairs}"
            write_conversations(data, Conversations(pairs, validation=32, seconds=(PIECE, PIECE), embedded=True))
            place = Place(str(NANO_FOLDER), str(data), (3, 4), BATCH, 0, "cpu")
            players[pairs] = Player(start_and_train, place, run, log=folder / f"{pairs}.log")
            stack.callback(players[pairs].stop)
        turns: dict[int, list[Turn]] = {pairs: [] for pairs in sizes}
        for player in players.values():
            player.play(Order(2))  # warm-up
        for _ in range(rounds):
            for pairs, player in players.items():
                turns[pairs].append(player.play(Order(steps)))
    return [
        _size(pairs, own, json.loads((folder / f"run-{pairs}" / STARTUP).read_text())) for pairs, own in turns.items()
    ]


def start_and_train(turns: Turns, place: Place, run: Path) -> None:
    """Measure the start-up by parts, then train."""
    run.mkdir()
    (run / STARTUP).write_text(json.dumps(_startup(place)))
    train_with_us(turns, place, run, False, False, ())


def _startup(place: Place) -> dict[str, float]:
    """Seconds of each part, by the names of `Size`."""
    dataset, load = _timed(lambda: PairDataset.load(place.data))
    _, first_check = _timed(lambda: check_splits(dataset))
    _, check = _timed(lambda: check_splits(dataset))
    data = PairDataModule(place.data, batch_size=place.batch)
    data.setup("fit")
    loader = data.train_dataloader()
    _, order = _timed(lambda: list(loader.sampler))
    return {"load": load, "first_check": first_check, "check": check, "order": order}


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = run()
    return made, time.perf_counter() - start


def _size(pairs: int, turns: list[Turn], startup: dict[str, float]) -> Size:
    waited = [sum(step.waited for step in turn.steps) / sum(step.pairs for step in turn.steps) for turn in turns]
    seconds, cpu = [1 / turn.rate for turn in turns], [1 / turn.cpu_rate for turn in turns]
    return Size(pairs, seconds, cpu, waited, resident=turns[-1].resident, **startup)


def sizes_table(found: list[Size]) -> Table:
    """For people; ratios are to the smallest."""
    table = Table(
        "pairs", "ms/pair", "times the smallest (range)", "in CPU time", "of it waiting", "load (ms/pair)",
        "first check", "check", "order (µs/pair)", "resident MB", "KB more per pair",
        title=f"number of pairs: nano, clips of {PIECE:g} s",
    )  # fmt: skip
    least = found[0]
    for size in found:
        more = size.pairs - least.pairs
        table.add_row(
            f"{size.pairs:,}",
            f"{1e3 * statistics.median(size.seconds_per_pair):.1f}",
            _times(size.seconds_per_pair, least.seconds_per_pair),
            _times(size.cpu_per_pair, least.cpu_per_pair),
            f"{1e3 * statistics.median(size.waited_per_pair):.2f}",
            *(f"{1e3 * seconds / size.pairs:.2f}" for seconds in (size.load, size.first_check, size.check)),
            f"{1e6 * size.order / size.pairs:.1f}",
            f"{size.resident / 1e6:.0f}",
            f"{(size.resident - least.resident) / more / 1e3:.1f}" if more else "",
        )
    return table


def _times(own: list[float], least: list[float]) -> str:
    ratios = np.divide(own, least)
    return f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


# ---------------------------------------------------------------- length of clips


def measure_lengths(lengths: list[float], folder: Path, rounds: int) -> list[Length]:
    """Train with clips of each length, ours and naively by turns."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    write_checkpoint("qwen2_audio", "mid", checkpoint)
    found = []
    for seconds in lengths:
        data = folder / f"data-{seconds:g}"
        write_conversations(data, Conversations(8 * (rounds + 2), seconds=(seconds, seconds)))
        place = Place(str(checkpoint), str(data), (9, 12), 2, 0, "cpu")
        with ExitStack() as stack:
            ours = Player(train_with_us, place, folder / f"run-{seconds:g}", False, False, (), log=folder / "ours.log")
            stack.callback(ours.stop)
            naive = Player(train_naively, place, folder, False, log=folder / "naive.log")
            stack.callback(naive.stop)
            for player in (ours, naive):
                player.play(Order(1))  # warm-up
            turns = [(ours.play(Order(2)), naive.play(Order(1))) for _ in range(rounds)]
            counted = ours.play(Order(1, count=True))
        rates, base = ([turn.rate for turn in own] for own in zip(*turns, strict=True))
        ratios = [one.rate / other.rate for one, other in turns]
        cpu_ratios = [one.cpu_rate / other.cpu_rate for one, other in turns]
        step = counted.steps[0]
        flops, tokens = counted.flops / step.pairs, step.real / step.pairs
        found.append(Length(seconds, rates, base, ratios, cpu_ratios, flops, tokens))
    return found


def lengths_table(found: list[Length]) -> Table:
    """For people."""
    table = Table(
        "clip (s)", "tokens/pair", "GFLOP/pair", "ms/pair", "ms per second of audio", "naive ms/pair",
        "times naive (range)", "in CPU time", title="length of clips: mid, 2 pairs in a batch, cold",
    )  # fmt: skip
    for length in found:
        ours, naive = (1e3 / statistics.median(rates) for rates in (length.ours, length.naive))
        table.add_row(
            f"{length.seconds:g}",
            f"{length.tokens:.0f}",
            f"{length.flops / 1e9:.1f}",
            f"{ours:.0f}",
            f"{ours / (2 * length.seconds):.1f}",
            f"{naive:.0f}",
            *(
                f"{statistics.median(own):.1f} ({min(own):.1f} to {max(own):.1f})"
                for own in (length.ratios, length.cpu_ratios)
            ),
        )
    return table


if __name__ == "__main__":
    main()
