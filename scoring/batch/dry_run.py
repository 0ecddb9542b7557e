"""`score --dry-run`: how many pairs would be scored, of how much audio, in which passes, memory and time."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...audio.decode import AudioSource, known_by, probe
from ...core.errors import AudioError, UserError, counted
from ...core.processes import available_cores, duration
from ...data_modules.schema import Pair
from ...models.judge import EmpathyJudge
from ...models.windows import MOST_WINDOWS
from ...models.work import CUDA_CONTEXT, GIB, RATE, SCORING, of_a_clip, of_a_token, of_the_rate, weight_bytes
from ..artifact import LoadedJudge, described
from ..batches import bytes_per_token, tokens_in
from ..predictor import ON_CPU, ON_GPU, SPREAD, choose_device
from .manifest import Row

_BLOCK, _KEPT = 1024, 100_000
"""Rows whose headers are read together, and clips whose lengths are remembered."""
# Work of the tower is counted for a clip of this length and taken to grow with the seconds
_CLIP_SECONDS = 8.0
_LARGE = 1e9
"""Weights from which on the measured share holds: a GPU waits for the host where the model is small."""


@dataclass(frozen=True)
class ScoringPlan:
    """What scoring would do; as JSON `score --dry-run --json`."""

    rows: int
    done_before: int  # rows that an earlier command has done
    failed: dict[str, int]  # rows that would have no scores, by kind, as far as headers and texts tell
    first_failure: str | None
    minutes: float  # of audio, each clip once
    tokens: int  # of all pairs that can be scored, question and audio
    tokens_per_pair: tuple[int, int]  # fewest, most
    device: str
    batch_pairs: int  # most pairs of a pass
    batch_tokens: int | None  # most tokens of a pass; None = their number is no limit
    weight_bytes: int
    pass_bytes: int  # what a layer holds at once, at most, in the largest pass
    gpu_bytes: int | None  # memory of the GPU; None = no GPU is asked about
    fits: bool | None
    operations: float  # floating-point operations of all rows
    h200_pairs_per_second: float | None  # predicted; None = nothing like it was measured
    source: str  # of that figure, or why there is none

    @property
    def scored(self) -> int:
        """Rows that would have scores."""
        return self.rows - sum(self.failed.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "tokens_per_pair": list(self.tokens_per_pair)}

    def lines(self) -> Iterator[str]:
        """What a person reads."""
        before = f" ({self.done_before:,} of them done before)" if self.done_before else ""
        yield f"rows: {self.rows:,}{before}, that can be scored: {self.scored:,}"
        for kind, count in self.failed.items():
            yield f"without scores: {count:,} ({kind})"
        if self.first_failure:
            yield f"  first: {self.first_failure}"
        fewest, most = self.tokens_per_pair
        tokens = f"{fewest} to {most}" if fewest < most else f"{most}"
        yield f"audio: {duration(60 * self.minutes)}, each clip once (by headers); tokens a pair: {tokens}"
        limit = "" if self.batch_tokens is None else f" and {self.batch_tokens:,} tokens"
        yield f"passes on {self.device}: at most {counted(self.batch_pairs, 'pair')}{limit}"
        memory = f"memory: weights {self.weight_bytes / GIB:.2f} GiB, the largest pass {self.pass_bytes / GIB:.2f} GiB"
        if self.gpu_bytes is not None:
            verdict = "fits" if self.fits else "does not fit"
            memory += f", CUDA runtime {CUDA_CONTEXT / GIB:.1f} GiB (assumed); GPU of {self.gpu_bytes / GIB:.0f} GiB: "
            memory += verdict
        yield memory
        if self.h200_pairs_per_second is None:
            yield f"time: not predicted; {self.source}"
        else:
            rate, left = self.h200_pairs_per_second, self.scored - min(self.done_before, self.scored)
            yield f"time: {duration(left / rate)} on one H200, {rate:,.3g} pairs/s, predicted: {self.source}"


def dry_run(
    judge: Path,
    rows: Iterable[Row],
    *,
    backbone: str | None = None,
    device: str | None = None,
    quantization: str | None = None,
    windows: bool = True,
    batch_size: int | None = None,
    level: float | None = None,
    gpu_gib: float | None = None,
    done_before: int = 0,
) -> ScoringPlan:
    """Say what scoring would do, without weights, and without decoding a clip or writing anything.

    A clip that breaks off in its middle, and weights that are damaged, are found by scoring alone.

    Args:
        judge: As in scoring, like the others that have the names of arguments of `Scorer.from_pretrained`.
        rows: What would be scored.
        level: Of intervals: a judge that is not calibrated is refused.
        gpu_gib: A GPU of this memory that the question is about, in place of the device here.
        done_before: Rows that an earlier command has done.

    Raises:
        UserError: If there is no such judge, it is broken, or the device cannot be used.
    """
    on_gpu, free, memory = _device(device, gpu_gib)
    loaded = described(judge, backbone)
    if level is not None and loaded.calibration is None:
        raise UserError(f"{judge}: no intervals: {loaded.not_calibrated}")
    # `long_clips` of the judge says how it was trained; in scoring the caller's option decides
    shapes = loaded.judge
    shapes.settings = replace(shapes.settings, long_clips="window" if windows else "refuse")
    found = _Found(shapes)
    blocks = iter(rows)
    while block := list(itertools.islice(blocks, _BLOCK)):
        found.add(block)
    weights = _weights(loaded, quantization)
    pairs = batch_size or (ON_GPU if on_gpu else ON_CPU)
    tokens = tokens_in(shapes, free - weights) if on_gpu else math.inf
    # One pair that is larger than the limit is a pass of its own
    largest = min(max(tokens, found.most), pairs * found.most)
    pass_bytes = largest * bytes_per_token(shapes)
    scored = found.rows - found.failed.total()
    work = _work(loaded, found)
    rate, source = None, _NO_RATE_ON_A_CPU
    # Also where there is no GPU here: the prediction is for an H200, which one asks about before renting it
    large = sum(weight.numel() for weight in shapes.network.parameters()) >= _LARGE
    if on_gpu and not large:
        source = "only a 7B judge was measured on a GPU, and with a small one a GPU waits for the host"
    elif large and device != "cpu" and scored:
        rate, source = RATE * SCORING * scored / work, of_the_rate(SCORING)
    return ScoringPlan(
        rows=found.rows,
        done_before=done_before,
        failed=dict(found.failed.most_common()),
        first_failure=found.first_failure,
        minutes=round(found.seconds / 60, 3),
        tokens=found.tokens,
        tokens_per_pair=(found.fewest if scored else 0, found.most),
        device="a GPU" if on_gpu else "the CPU",
        batch_pairs=pairs,
        batch_tokens=int(tokens) if on_gpu else None,
        weight_bytes=round(weights),
        pass_bytes=round(pass_bytes),
        gpu_bytes=memory,
        fits=None if memory is None else weights + pass_bytes <= free,
        operations=work,
        h200_pairs_per_second=rate,
        source=source,
    )


_NO_RATE_ON_A_CPU = (
    "nothing was measured on a CPU that holds for another: score a few rows, which says pairs per second"
)


def _device(name: str | None, gpu_gib: float | None) -> tuple[bool, float, int | None]:
    """Whether a GPU is asked about, what is free on it, and what it has (bytes)."""
    if gpu_gib is not None:
        return True, gpu_gib * GIB - CUDA_CONTEXT, round(gpu_gib * GIB)
    device = choose_device(None if name == SPREAD else name)
    if device.type != "cuda":
        return False, math.inf, None
    free, total = torch.cuda.mem_get_info(device)
    return True, float(free), total


def _weights(loaded: LoadedJudge, quantization: str | None) -> float:
    """Bytes of the weights in the form in which scoring holds them."""
    judge, export = loaded.judge, loaded.description.get("export")
    form = quantization or loaded.description["settings"]["quantization"]
    if export and export["quantization"] != "none":
        # Weights that are stored in few bits stay so, whatever is asked for
        form = export["quantization"]
    return weight_bytes(judge.backbone, judge.own_modules(), form)


def _work(loaded: LoadedJudge, found: _Found) -> float:
    """Operations for what was found; each pair is read alone."""
    judge, members = loaded.judge, len(loaded.description.get("members") or [None])
    tower = of_a_clip(judge.backbone, min(_CLIP_SECONDS, judge.backbone.max_seconds)).forward
    # A frozen tower is the same in all members of an ensemble, and hears each clip once
    towers = members if judge.trains_tower else 1
    heard = tower * found.seconds / min(_CLIP_SECONDS, judge.backbone.max_seconds)
    return members * found.tokens * of_a_token(judge.backbone).forward + towers * heard


class _Found:
    """What headers and texts say of rows; memory does not grow with their number."""

    def __init__(self, judge: EmpathyJudge) -> None:
        self._judge, self._longest = judge, judge.longest_clip(judge.settings.long_clips)
        self._lengths: OrderedDict[Hashable, float | AudioError] = OrderedDict()
        self.failed: Counter[str] = Counter()
        self.first_failure: str | None = None
        self.rows = self.tokens = 0
        self.fewest, self.most = sys.maxsize, 0
        self.seconds = 0.0

    def add(self, rows: Sequence[Row]) -> None:
        """Look at some rows."""
        sources = {known_by(source): source for row in rows if isinstance(row.pair, Pair) for source in row.pair.clips}
        new = {key: source for key, source in sources.items() if key not in self._lengths}
        # Reading a header is waiting for the disk, which on a network file system takes most of the time
        with ThreadPoolExecutor(available_cores()) as threads:
            for key, length in zip(new, threads.map(self._length, new.values()), strict=True):
                self._lengths[key] = length
                self.seconds += 0.0 if isinstance(length, AudioError) else length
        for row in rows:
            self.rows += 1
            try:
                self._count(row)
            except AudioError as error:
                self.failed[error.kind] += 1
                self.first_failure = self.first_failure or str(error)
        # The oldest go first: rows that share a clip mostly stand together. One that comes back is counted again
        while len(self._lengths) > _KEPT:
            self._lengths.popitem(last=False)

    def _length(self, source: AudioSource) -> float | AudioError:
        try:
            return probe(source, max_seconds=self._longest).seconds
        except AudioError as error:
            return error

    def _count(self, row: Row) -> None:
        if isinstance(row.pair, AudioError):
            raise row.pair
        judge, seconds = self._judge, dict[AudioSource, float]()
        for source in row.pair.clips:
            length = self._lengths[known_by(source)]
            if isinstance(length, AudioError):
                raise length
            seconds[source] = length
        number, audio = judge.rows_of(row.pair, seconds)
        if number > MOST_WINDOWS:
            raise AudioError(f"pair {row.pair_id!r}: its clips together make {number} windows", "too long")
        judge.check_text(row.pair, audio)
        tokens = number * (judge.question_tokens(row.pair) + audio)
        self.tokens, self.most, self.fewest = self.tokens + tokens, max(self.most, tokens), min(self.fewest, tokens)
