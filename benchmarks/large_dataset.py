"""200,000 pairs imported, inspected and read by two ranks: memory and throughput against a plain loop, in one run.

Every step runs in a process of its own, whose peak memory is printed (Linux). The plain loop decodes the clips of pair
after pair in the order of the files, in one process. Run: `python benchmarks/large_dataset.py --folder large`
(about 14 GB, deleted at the end).
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from empathy_judge.data_modules.schema import PairDataset
from rich.console import Console
from rich.table import Table
from timing import memory

RATE = 16_000
RANKS = 2
BATCH = 32
GROUP = 8
"""Responses to one context."""
PLAIN_PAIRS = 20_000
ROW_GROUP = 20_000


@dataclass(frozen=True)
class Step:
    """What a step took.

    Attributes:
        result: What it returned.
        seconds: Wall-clock time.
        peak: Greatest resident memory of its process (MB), torch and all else included.
    """

    result: Any
    seconds: float
    peak: float


@dataclass(frozen=True)
class Epoch:
    """One rank's epoch.

    Attributes:
        seen: Position of an item -> how often it came.
        seconds: From the first batch asked for to the last.
        read: Bytes asked of the operating system meanwhile, whether they came from the disk or from its cache.
        worker_peak: Greatest resident memory of a data-loader process (MB); 0 = there is none.
    """

    seen: Counter[int]
    seconds: float
    read: int
    worker_peak: float


@dataclass(frozen=True)
class Outcome:
    """Figures of a run; `main` prints them."""

    steps: dict[str, Step]
    pairs: int
    epochs: list[Epoch]
    plain_rate: float
    stored: int

    @property
    def seen_once(self) -> bool:
        """Every item in exactly one batch of one rank."""
        return seen_once(self.epochs, self.pairs)

    @property
    def amplification(self) -> float:
        """Bytes read in the epoch for each byte that the files of pairs hold."""
        return sum(epoch.read for epoch in self.epochs) / self.stored


def main() -> None:
    """Print a table, and the throughput of two ranks as a multiple of the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where to work; must not exist; deleted at the end")
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--clips", type=int, default=400, help="distinct short clips")
    parser.add_argument("--raters", type=int, default=6, help="ratings of each pair")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes of each rank")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    try:
        found = run(options.folder, options.pairs, options.clips, options.raters, options.workers)
    finally:
        shutil.rmtree(options.folder)
    table = Table("step", "seconds", "peak memory (MB)")
    for name, step in found.steps.items():
        table.add_row(name, f"{step.seconds:.1f}", f"{step.peak:.0f}")
    Console().print(table)
    print(f"{found.pairs} pairs, each seen exactly once in the epoch over {RANKS} ranks: {found.seen_once}")
    rate = found.pairs / max(epoch.seconds for epoch in found.epochs)
    print(f"plain loop: {found.plain_rate:.0f} pairs/s; {RANKS} ranks: {rate:.0f} pairs/s, ", end="")
    print(f"{rate / found.plain_rate:.2f} times the plain loop")
    print(f"bytes read / bytes stored ({found.stored / 2**20:.0f} MB): {found.amplification:.2f}")
    if options.workers:
        print(f"peak memory of a data-loader process: {max(epoch.worker_peak for epoch in found.epochs):.0f} MB")
    sys.exit(0 if found.seen_once else 1)


def run(folder: Path, pairs: int, clips: int, raters: int, workers: int = 0, shard_rows: int = 10_000) -> Outcome:
    """Make a source in `folder`, import, inspect and read it."""
    source, data = folder / "source", folder / "data"
    write_source(source, pairs, clips, raters)
    steps = {"import": _alone(import_source, source / "pairs.csv", data, shard_rows)}
    _alone(write_parquet, source)
    steps |= {
        "import of Parquet": _alone(import_source, source / "pairs.parquet", folder / "same", shard_rows),
        "import of Hugging Face": _alone(import_source, source / "hub", folder / "again", shard_rows),
        "load": _alone(load, data),
        "inspect": _alone(inspect, data),
        "plain loop": _alone(read_plainly, data),
    }
    ranks = read_by_ranks(data, workers)
    steps |= {f"rank {rank} of {RANKS}": step for rank, step in enumerate(ranks)}
    epochs = [step.result for step in ranks]
    hashes = {PairDataset.load(made).card.content_hash for made in (data, folder / "same", folder / "again")}
    assert len(hashes) == 1, "three sources of the same pairs"
    count, seconds = steps["plain loop"].result
    stored = sum(path.stat().st_size for path in data.glob("pairs*/*.parquet"))
    return Outcome(steps, pairs, epochs, count / seconds, stored or (data / "pairs.parquet").stat().st_size)


def seen_once(epochs: Sequence[Epoch], pairs: int) -> bool:
    """Whether each of the pairs is in exactly one batch of one rank."""
    seen = sum((epoch.seen for epoch in epochs), Counter())
    return len(seen) == pairs and set(seen.values()) == {1}


def read_by_ranks(data: Path, workers: int) -> list[Step]:
    """An epoch read by `RANKS` processes that begin together, each with data-loader processes of its own.

    Args:
        data: The dataset.
        workers: Data-loader processes of each rank.

    Returns:
        Of each rank; the result is what `read_as_rank` returns.
    """
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(RANKS)
    with ProcessPoolExecutor(RANKS, spawn, initializer=_share_barrier, initargs=(start,)) as pool:
        ranks = [pool.submit(_measured, read_as_rank, data, rank, workers) for rank in range(RANKS)]
        return [future.result() for future in ranks]


def _alone(function: Callable[..., Any], *arguments: Any) -> Step:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, function, *arguments).result()


def _measured(function: Callable[..., Any], *arguments: Any) -> Step:
    start = time.perf_counter()
    result = function(*arguments)
    return Step(result, time.perf_counter() - start, _peak())


def _peak() -> float:
    """Of this process (MB)."""
    return memory("VmHWM") / 2**20


def write_source(folder: Path, pairs: int, clips: int, raters: int) -> None:
    """Tables as people bring them: a few hundred short clips, repeated; contexts shared by a group of responses."""
    rng = np.random.default_rng(0)
    (folder / "clips").mkdir(parents=True)
    for number in range(clips):
        samples = 0.1 * rng.standard_normal(int(rng.uniform(0.15, 0.3) * RATE))
        soundfile.write(folder / f"clips/{number}.wav", samples, RATE)
    groups = np.arange(pairs) // GROUP
    ids = [f"p{number:06d}" for number in range(pairs)]
    table = {
        "pair_id": ids,
        "group_id": [f"g{group}" for group in groups],
        "system_id": [f"s{number % 5}" for number in range(pairs)],
        "context_audio": [f"clips/{group % clips}.wav" for group in groups],
        "response_audio": [f"clips/{clip}.wav" for clip in rng.integers(clips, size=pairs)],
    }
    pd.DataFrame(table).to_csv(folder / "pairs.csv", index=False)
    number, rater = np.divmod(np.arange(pairs * raters), raters)
    ratings = {
        "pair_id": np.repeat(ids, raters),
        "rater_id": [f"r{one % 50}" for one in number + rater],
        "score": rng.integers(1, 6, pairs * raters),
    }
    pd.DataFrame(ratings).to_csv(folder / "ratings.csv", index=False)


def write_parquet(source: Path) -> None:
    """The same pairs with the audio inside, in two files of few large row groups."""
    rows = pd.read_csv(source / "pairs.csv", dtype=str)
    clips = {path: (source / path).read_bytes() for path in {*rows["context_audio"], *rows["response_audio"]}}
    audio = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    files = [source / "pairs.parquet", source / "hub/train.parquet"]
    files[1].parent.mkdir()
    schema = pa.schema([(name, audio if name.endswith("_audio") else pa.string()) for name in rows])
    with pq.ParquetWriter(files[0], schema) as whole:
        for start in range(0, len(rows), ROW_GROUP):
            part: list[dict[str, Any]] = pd.DataFrame(rows[start : start + ROW_GROUP]).to_dict(orient="records")
            for row in part:
                row |= {name: {"bytes": clips[row[name]], "path": None} for name in row if name.endswith("_audio")}
            whole.write_table(pa.Table.from_pylist(part, schema))
    os.link(*files)


def import_source(table: Path, out: Path, shard_rows: int) -> None:
    """The command of a user."""
    from empathy_judge import cli

    importer = "hugging-face" if table.is_dir() else "table"
    ratings = next(folder for folder in table.parents if (folder / "ratings.csv").is_file()) / "ratings.csv"
    words = ["import", importer, str(table), "--ratings", str(ratings)]
    words += ["--dimension", "empathy=1:5:1", "--embed-audio", "--shard-rows", str(shard_rows), "--out", str(out)]
    if cli.main(words):
        raise SystemExit("import failed")


def load(data: Path) -> int:
    """Tables read and checked."""

    return len(PairDataset.load(data).pairs)


def inspect(data: Path) -> int:
    """The command of a user: clips measured, raters compared, the audit; the number of pairs."""
    from empathy_judge import cli
    from empathy_judge.commands import BAD_USAGE

    printed = io.StringIO()
    with redirect_stdout(printed):
        if cli.main(["inspect", str(data), "--json"]) == BAD_USAGE:
            raise SystemExit("inspect failed")
    return json.loads(printed.getvalue())["counts"]["all"]["pairs"]


def read_plainly(data: Path) -> tuple[int, float]:
    """Number of pairs read and the seconds it took, without loading the dataset."""
    from empathy_judge.data_modules.audio import decode

    pairs = PairDataset.load(data).pairs[:PLAIN_PAIRS]
    decode(pairs[0].response, RATE)
    start = time.perf_counter()
    for pair in pairs:
        decode(pair.context[0].audio, RATE)
        decode(pair.response, RATE)
    return len(pairs), time.perf_counter() - start


def read_as_rank(data: Path, rank: int, workers: int) -> Epoch:
    """An epoch of training without a model: the product's data set, sampler and data loader, and all clips decoded."""
    from empathy_judge.data_modules.items import RatedPairs
    from empathy_judge.data_modules.sampling import Blocks, EpochBatches, EpochSampler, FixedSize, Position, row_groups
    from torch.utils.data import DataLoader

    pairs = RatedPairs(PairDataset.load(data))
    groups = row_groups(pairs.pairs)
    assert groups is not None
    blocks = Blocks(groups, BATCH, workers)
    sampler = EpochSampler(len(pairs), shuffle=True, rank=rank, ranks=RANKS, blocks=blocks)
    loader = DataLoader(
        pairs,
        batch_sampler=EpochBatches(FixedSize(sampler, BATCH), Position()),
        collate_fn=decode_batch,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # as in training; a spawned rank would spawn them
    )
    seen: Counter[int] = Counter()
    read = {os.getpid(): 0}
    peaks = {}
    decode_batch([pairs[0, 0]])  # imports what decoding needs, and is no part of the epoch
    _barrier.wait()
    before, start = _read_so_far(), time.perf_counter()
    for indices, process, total, peak in loader:
        seen.update(indices)
        read[process] = total
        peaks[process] = peak
    seconds = time.perf_counter() - start
    read[os.getpid()] = _read_so_far() - before
    peaks.pop(os.getpid(), None)
    return Epoch(seen, seconds, sum(read.values()), max(peaks.values(), default=0.0))


def decode_batch(items: list[Any]) -> tuple[list[int], int, int, float]:
    """Positions, and process, bytes read and peak memory so far of the process that decoded."""
    from empathy_judge.data_modules.audio import decode

    for item in items:
        decode(item.pair.context[0].audio, RATE)
        decode(item.pair.response, RATE)
    return [item.index for item in items], os.getpid(), _read_so_far(), _peak()


def _read_so_far() -> int:
    return psutil.Process().io_counters().read_chars


def _share_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


_barrier: Any = None


if __name__ == "__main__":
    main()
