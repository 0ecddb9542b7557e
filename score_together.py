"""A manifest scored by several processes, as `accelerate launch` (or torchrun) starts them: the file of one process."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from torch import distributed as dist

from .data_modules.errors import UserError
from .score_files import read_pairs, score_rows, write_header, write_rows
from .scorer import Scorer

# A process that is done waits for the slowest
_PATIENCE = timedelta(days=7)


def processes(device: str | None, to_file: bool) -> PartialState | None:
    """Who scores together, and on which device this process does; None where it is alone.

    Args:
        device: As the user has it; None = a GPU for each process if there are some.
        to_file: Whether a manifest is scored into a file.

    Raises:
        UserError: If the processes would get into each other's way.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if not to_file:
        raise UserError("score: in several processes; accepted: JUDGE --manifest FILE --out FILE")
    if device not in (None, "cpu"):
        raise UserError(
            f"--device {device} in several processes, each of which has a GPU of its own; accepted: no --device, or cpu"
        )
    return PartialState(cpu=device == "cpu" or not torch.cuda.is_available(), timeout=_PATIENCE)


def score_share(scorer: Scorer, manifest: Path, out: Path, level: float, state: PartialState) -> int:
    """As `score_files.score_manifest`; each process scores consecutive batches, and the first puts the rows together.

    Batches are those that one process would make, so that the scores are its scores.

    Args:
        scorer: The judge, on the device of this process.
        manifest: As for `score_manifest`, in a folder that all processes see.
        out: Appears when it is complete, in a folder that all processes see.
        level: Of the intervals of a calibrated judge.
        state: Of this process.

    Returns:
        How many rows have no score, of all processes.

    Raises:
        DataError: As `score_manifest`.
    """
    pairs, size = read_pairs(manifest), scorer.batch_size
    batches = -(-len(pairs) // size)
    first, last = (size * (batches * (state.process_index + end) // state.num_processes) for end in (0, 1))
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = [out.with_name(f".{out.name}.{rank}.unfinished") for rank in range(state.num_processes)]
    own = parts[state.process_index]
    try:
        with open(own, "w", encoding="utf-8", newline="") as file:
            if state.is_main_process:
                write_header(scorer, file)
            failed = write_rows(scorer, score_rows(scorer, pairs[first:last], level, not state.is_main_process), file)
        total = torch.tensor(failed, device=state.device)
        dist.all_reduce(total)  # waits for all
        if state.is_main_process:
            _join(parts)
            os.replace(own, out)
        state.wait_for_everyone()
        state.destroy_process_group()
    finally:
        own.unlink(missing_ok=True)
    return int(total)


def _join(parts: list[Path]) -> None:
    """Append all others to the first."""
    with open(parts[0], "ab") as whole:
        for part in parts[1:]:
            with open(part, "rb") as file:
                shutil.copyfileobj(file, whole)
