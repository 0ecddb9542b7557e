"""How training grows with the number of pairs: `python benchmarks/growth.py`.

The command `train` on the nano backbone with 1,000 to 100,000 pairs of distinct short clips, embedded: seconds for a
pair, waiting for data, start-up by parts, and memory. The sizes take turns (`timing`); ratios are to the smallest.
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

from empathy_judge.data_modules.audit import check_splits
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones import NANO_FOLDER
from materials import Conversations, write_conversations
from naive import Place
from rich.console import Console
from rich.table import Table
from timing import Order, Player, Turn, Turns, append_row, ratios, spread
from training import train_with_us

BATCH = 32
PIECE = 0.25
"""Length of a clip (seconds)."""
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="in a round")
    parser.add_argument("--json", type=Path, help="file that a line for each size is added to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure_sizes(options.pairs, Path(temporary), options.rounds, options.steps)
    Console(width=170).print(sizes_table(found))
    for size in found:
        append_row(options.json, asdict(size))


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
        Size(
            pairs,
            [1 / turn.rate for turn in own],
            [1 / turn.cpu_rate for turn in own],
            [sum(step.waited for step in turn.steps) / sum(step.pairs for step in turn.steps) for turn in own],
            resident=own[-1].resident,
            **json.loads((folder / f"run-{pairs}" / STARTUP).read_text()),
        )
        for pairs, own in turns.items()
    ]


def start_and_train(turns: Turns, place: Place, run: Path) -> None:
    """Measure the start-up by parts, then train."""
    run.mkdir()
    dataset, load = _timed(lambda: PairDataset.load(place.data))
    _, first_check = _timed(lambda: check_splits(dataset))
    _, check = _timed(lambda: check_splits(dataset))
    data = PairDataModule(place.data, batch_size=place.batch)
    data.setup("fit")
    loader = data.train_dataloader()
    _, order = _timed(lambda: list(loader.sampler))
    startup = {"load": load, "first_check": first_check, "check": check, "order": order}
    (run / STARTUP).write_text(json.dumps(startup))
    train_with_us(turns, place, run)


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = run()
    return made, time.perf_counter() - start


def sizes_table(found: list[Size]) -> Table:
    """For people; ratios are to the smallest."""
    table = Table(
        "pairs", "ms/pair", "times the smallest (range)", "in CPU time", "of it waiting", "load (ms/pair)",
        "first check", "check", "order (µs/pair)", "resident MB", title=f"number of pairs: nano, clips of {PIECE:g} s",
    )  # fmt: skip
    least = found[0]
    for size in found:
        table.add_row(
            f"{size.pairs:,}",
            f"{1e3 * statistics.median(size.seconds_per_pair):.1f}",
            spread(ratios(size.seconds_per_pair, least.seconds_per_pair), ".2f"),
            spread(ratios(size.cpu_per_pair, least.cpu_per_pair), ".2f"),
            f"{1e3 * statistics.median(size.waited_per_pair):.2f}",
            *(f"{1e3 * seconds / size.pairs:.2f}" for seconds in (size.load, size.first_check, size.check)),
            f"{1e6 * size.order / size.pairs:.1f}",
            f"{size.resident / 1e6:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
