"""One rank's epoch of training without a model: the product's data set, sampler and data loader, all clips decoded.

`python read_as_rank.py DATA RANK RANKS WORKERS` prints JSON: the positions seen, bytes that were read, and the greatest
resident memory of any of its processes (MB).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from empathy_judge.data_modules.audio import decode
from empathy_judge.data_modules.items import RatedPairs
from empathy_judge.data_modules.sampling import Blocks, EpochBatches, EpochOrder, FixedSize, Position, row_groups
from empathy_judge.data_modules.schema import PairDataset
from torch.utils.data import DataLoader

RATE, BATCH = 16_000, 32


def decode_batch(items: list[Any]) -> tuple[list[int], int, int, float]:
    """Positions, and process, bytes read and peak memory so far (MB) of the process that decoded."""
    for item in items:
        decode(item.pair.context[0].audio, RATE)
        decode(item.pair.response, RATE)
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return [item.index for item in items], os.getpid(), psutil.Process().io_counters().read_chars, int(peak) / 1024


def main(data: str, rank: int, ranks: int, workers: int) -> None:
    pairs = RatedPairs(PairDataset.load(data))
    groups = row_groups(pairs.pairs)
    assert groups is not None
    order = EpochOrder(len(pairs), shuffle=True, rank=rank, ranks=ranks, blocks=Blocks(groups, BATCH, workers))
    batches = EpochBatches(FixedSize(order, BATCH), Position())
    _, own, before, peak = decode_batch([pairs[0, 0]])  # imports what decoding needs, and is no part of the epoch
    seen, read, peaks = [], {own: before}, [peak]
    for indices, process, total, peak in DataLoader(
        pairs,
        batch_sampler=batches,  # pyright: ignore[reportArgumentType]
        collate_fn=decode_batch,
        num_workers=workers,
    ):
        seen += indices
        read[process] = total
        peaks.append(peak)
    read[own] = psutil.Process().io_counters().read_chars - before
    print(json.dumps({"seen": seen, "read": sum(read.values()), "peak": max(peaks)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
