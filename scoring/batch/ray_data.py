"""Ray Data (``pip install 'empathy-judge[ray]'``): a manifest scored by a cluster, and a step for any pipeline."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is imported: it would report to its makers

try:
    import ray
    import ray.data
except ImportError as error:
    raise UserError("ray is not installed; expected pip install 'empathy-judge[ray]', or another engine") from error

from ..score_table import Column
from ..scorer import Scorer
from .job import Parts
from .manifest import RowReader
from .scores import score_rows
from .workers import Worker

_MOST_BLOCKS = 1000


def run_ray(parts: Parts, look: Callable[[], object], workers: int | None, device: str | None) -> None:
    """Score what is missing of a job on the Ray cluster that `RAY_ADDRESS` names, or on this machine.

    Chunks and parts are those of the other engine, in a folder that all nodes see, so that the file is the same and
    either engine goes on where the other was stopped. `look` is called after each chunk. `workers` are actors, each
    with a judge (None = one for each GPU of the cluster, or one), on `device` (None = a GPU for each if there are).
    """
    started = not ray.is_initialized()
    if started:
        _start()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        resources: Mapping[str, float] = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        # Until no part is missing, whoever wrote it
        while missing := parts.missing():
            items = [{"chunk": chunk.number} for chunk in missing]
            scored = ray.data.from_items(items, override_num_blocks=min(len(items), _MOST_BLOCKS)).map_batches(
                _ScoreChunks,
                fn_constructor_args=(parts, device),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(workers or gpus or 1, len(items))),
                num_gpus=1 if gpus else 0,
                num_cpus=1,
            )
            for _ in scored.iter_batches(batch_size=None):
                look()
    finally:
        if started:
            ray.shutdown()


def _start() -> None:
    """Start Ray, or join a cluster, without a line of its core: it warns of the actors that Ray Data makes.

    Raises:
        UserError: If the folder for its sockets cannot be used, such as a `TMPDIR` of more than 40 characters.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    stderr = os.dup(2)
    # The core says, outside Python's logging, that it was asked to be silent
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:  # of the cluster
        raise
    except OSError as error:
        raise UserError(
            f"Ray does not start: {error}; expected RAY_TMPDIR to name a short folder, such as /tmp"
        ) from None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


class _ScoreChunks:
    """An actor: scores chunks of a job and writes their parts."""

    def __init__(self, parts: Parts, device: str | None) -> None:
        self._chunks = parts.chunks()
        self._worker = Worker(parts, parts.job.load(device), owner="ray")

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        for number in batch["chunk"]:
            self._worker.score(self._chunks[int(number)])
        return batch


class ScoreBatch:
    """A step of a Ray Data pipeline that adds scores to each row.

        ds = ray.data.read_parquet("pairs")  # response_audio; optionally context_audio, situation, pair_id
        ds.map_batches(ScoreBatch, fn_constructor_args=("judge",), batch_size=256, num_gpus=1,
                       compute=ray.data.ActorPoolStrategy(size=8))

    A clip is bytes or a structure of `bytes` and `path`; a path if a folder is named, in which it lies and which it may
    not leave. The columns are those of `Scorer.columns` and `status`: `ok`, or why a row has no scores. Unknown
    numbers are NaN. Use a multiple of 128 as `batch_size`.
    """

    def __init__(
        self, judge: str | Path, folder: str | Path | None = None, level: float | None = None, **settings: Any
    ) -> None:
        """Load a judge, once in each actor.

        Args:
            judge: Judge folder that every node sees.
            folder: What paths are relative to; None = rows hold their clips.
            level: Of the intervals; None = the usual one.
            **settings: As for `Scorer.from_pretrained`.
        """
        self._scorer = Scorer.from_pretrained(judge, **settings)
        self._reader = RowReader(None if folder is None else Path(folder))
        self._level = level

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Score a batch, column -> values `(rows,)`."""
        self._scorer.predictor.forget()
        count = len(batch["response_audio"])
        cells = [{name: _plain(values[row]) for name, values in batch.items()} for row in range(count)]
        rows = [self._reader.row(str(number), row, f"row {number + 1}") for number, row in enumerate(cells)]
        scored = [row.values for row in score_rows(self._scorer, rows, self._level)]
        # Without the id, which is the place in this batch
        added = list(zip(*scored, strict=True))[1:]
        columns = (*self._scorer.columns, Column("status", "text"))
        scores = {
            # None becomes NaN
            column.name: np.array(values, dtype=np.float64 if column.kind in ("number", "count") else object)
            for column, values in zip(columns, added, strict=True)
        }
        return {**batch, **scores}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
