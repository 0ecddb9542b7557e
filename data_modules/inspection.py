"""What a dataset holds and what is wrong with it, seen before training. Bad audio is listed, not raised."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from .audio import AudioSource, audio_hash, decode, probe
from .errors import AudioError
from .schema import Pair, PairDataset
from .splits import audit_splits, split_columns

SILENT_DBFS = -60.0
"""A clip whose RMS level is below is silent (dB relative to full scale)."""
FULL_SCALE = 0.99
"""Samples from here on count as full scale: the largest value of an 8-bit file is 127/128."""
CLIPPED_SHARE = 0.001
"""A clip with a larger share of samples at full scale is clipped."""
UNSPLIT = "(none)"


@dataclass(frozen=True)
class Problem:
    """One clip of one pair that deserves a look.

    Attributes:
        kind: ``unreadable``, ``changed`` (not the content that was imported), ``silent``, ``clipped`` or
            ``too_long``.
        pair_id: The pair.
        clip: ``response``, or ``context 1`` for the first turn.
        detail: The measured value or the reason.
    """

    kind: str
    pair_id: str
    clip: str
    detail: str


@dataclass(frozen=True)
class Summary:
    """Count, least, median, greatest and total; None where there is nothing to summarise."""

    count: int
    minimum: float | None
    median: float | None
    maximum: float | None
    total: float


@dataclass(frozen=True)
class Inspection:
    """What `inspect_dataset` found.

    Attributes:
        name: Name of the dataset.
        synthetic: Whether the ratings were not given by people.
        content_hash: Of the dataset.
        counts: Split (``all`` for the dataset, ``(none)`` for pairs outside of splits) -> number of
            ``pairs``, ``groups``, ``systems``, ``context_speakers``, ``response_speakers``, ``raters``,
            ``ratings``, ``rated_pairs``.
        seconds: ``context`` and ``response`` -> duration of the distinct clips (s).
        scores: Dimension -> its ``scale``, and ``count``, ``minimum``, ``mean``, ``maximum`` of the scores
            (rating points).
        raters_per_pair: Dimension -> how many raters a rated pair has; the total is the number of ratings.
        problems: Clips to look at, in the order of pairs.
        max_seconds: What counts as too long.
        split_by: The columns that must not cross splits, as in `SplitAudit`.
        crossings: Column -> value -> the splits it is in, as in `SplitAudit`.
        unrated: Ids of pairs without any rating.
    """

    name: str
    synthetic: bool
    content_hash: str
    counts: Mapping[str, Mapping[str, int]]
    seconds: Mapping[str, Summary]
    scores: Mapping[str, Mapping[str, Any]]
    raters_per_pair: Mapping[str, Summary]
    problems: tuple[Problem, ...]
    max_seconds: float
    split_by: tuple[str, ...]
    crossings: Mapping[str, Mapping[str, tuple[str, ...]]]
    unrated: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class _Measured:
    seconds: float | None
    problems: tuple[tuple[str, str], ...]


def inspect_dataset(folder: str | Path, *, max_seconds: float = 30.0) -> Inspection:
    """Counts, scales, durations, and every clip measured once.

    Args:
        folder: The dataset.
        max_seconds: Longer clips are listed as too long.

    Raises:
        DataError: If the tables break the contract, or ``split.yaml`` is not that of these splits.
    """
    dataset = PairDataset.load(folder)
    measured = _measure(dataset, max_seconds)
    rated = set(dataset.ratings["pair_id"])
    clips = [
        (pair.pair_id, clip, fingerprint)
        for pair in dataset.pairs
        for clip, fingerprint in zip(_clip_names(pair), dataset.fingerprints[pair.pair_id], strict=True)
    ]
    problems = tuple(
        Problem(kind, pair_id, clip, detail)
        for pair_id, clip, fingerprint in clips
        for kind, detail in measured[fingerprint].problems
    )
    responses = {fingerprint for _, clip, fingerprint in clips if clip == "response"}
    contexts = {fingerprint for _, clip, fingerprint in clips if clip != "response"}
    splits = {pair.split for pair in dataset.pairs} - {None}
    return Inspection(
        name=dataset.card.name,
        synthetic=dataset.card.synthetic,
        content_hash=dataset.card.content_hash,
        counts=_counts(dataset),
        seconds={
            "context": _summary(measured[f].seconds for f in contexts),
            "response": _summary(measured[f].seconds for f in responses),
        },
        scores=_scores(dataset),
        raters_per_pair={d.name: _raters_per_pair(dataset, d.name) for d in dataset.card.dimensions},
        problems=problems,
        max_seconds=max_seconds,
        split_by=split_columns(dataset) if splits else (),
        crossings=audit_splits(dataset).crossings if splits else {},
        unrated=tuple(pair.pair_id for pair in dataset.pairs if pair.pair_id not in rated),
    )


def _clip_names(pair: Pair) -> list[str]:
    return [*(f"context {n}" for n in range(1, len(pair.context) + 1)), "response"]


def _measure(dataset: PairDataset, max_seconds: float) -> dict[str, _Measured]:
    """Fingerprint -> what was measured, each distinct clip once."""
    sources: dict[str, AudioSource] = {}
    for pair in dataset.pairs:
        clips = [*(turn.audio for turn in pair.context), pair.response]
        sources.update(zip(dataset.fingerprints[pair.pair_id], clips, strict=True))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = track(
            pool.map(lambda item: _measure_clip(item[0], item[1], max_seconds), sources.items()),
            "Inspecting audio",
            len(sources),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        return dict(zip(sources, results, strict=True))


def _measure_clip(fingerprint: str, source: AudioSource, max_seconds: float) -> _Measured:
    try:
        changed = audio_hash(source) != fingerprint
        rate = probe(source).rate
        samples = decode(source, rate)
    except AudioError as error:
        return _Measured(None, (("unreadable", str(error)),))
    seconds = len(samples) / rate
    level = 10 * np.log10(max(float(np.mean(samples.astype(np.float64) ** 2)), 1e-20))
    clipped = float(np.mean(np.abs(samples) >= FULL_SCALE))
    found = [
        ("changed", "the content is not what was imported", changed),
        ("silent", f"RMS {level:.0f} dBFS", level < SILENT_DBFS),
        ("clipped", f"{clipped:.2%} of samples at full scale", clipped > CLIPPED_SHARE),
        ("too_long", f"{seconds:.1f} s", seconds > max_seconds),
    ]
    return _Measured(seconds, tuple((kind, detail) for kind, detail, applies in found if applies))


def _summary(values: Iterable[float | None]) -> Summary:
    known = np.array([value for value in values if value is not None], np.float64)
    if not len(known):
        return Summary(0, None, None, None, 0.0)
    return Summary(len(known), float(known.min()), float(np.median(known)), float(known.max()), float(known.sum()))


def _counts(dataset: PairDataset) -> dict[str, dict[str, int]]:
    parts: dict[str, list[Pair]] = {"all": list(dataset.pairs)}
    for pair in dataset.pairs:
        parts.setdefault(pair.split or UNSPLIT, []).append(pair)
    return {name: _count(dataset, pairs) for name, pairs in parts.items()}


def _count(dataset: PairDataset, pairs: Sequence[Pair]) -> dict[str, int]:
    ids = {pair.pair_id for pair in pairs}
    raters = [
        (pair_id, rater)
        for pair_id, rater in zip(dataset.ratings["pair_id"], dataset.ratings["rater_id"], strict=True)
        if pair_id in ids
    ]
    return {
        "pairs": len(pairs),
        "groups": len({pair.group_id for pair in pairs}),
        "systems": len({pair.system_id for pair in pairs} - {None}),
        "context_speakers": len({pair.context_speaker for pair in pairs} - {None}),
        "response_speakers": len({pair.response_speaker for pair in pairs} - {None}),
        "raters": len({rater for _, rater in raters}),
        "ratings": len(raters),
        "rated_pairs": len({pair_id for pair_id, _ in raters}),
    }


def _scores(dataset: PairDataset) -> dict[str, dict[str, Any]]:
    result = {}
    for dimension in dataset.card.dimensions:
        scores = dataset.ratings.loc[dataset.ratings["dimension"] == dimension.name, "score"].to_numpy(np.float64)
        result[dimension.name] = {
            "scale": dimension.scale,
            "higher_is_better": dimension.higher_is_better,
            "count": len(scores),
            "minimum": float(scores.min()) if len(scores) else None,
            "mean": float(scores.mean()) if len(scores) else None,
            "maximum": float(scores.max()) if len(scores) else None,
        }
    return result


def _raters_per_pair(dataset: PairDataset, dimension: str) -> Summary:
    ratings = dataset.ratings[dataset.ratings["dimension"] == dimension]
    return _summary(float(count) for count in ratings.groupby("pair_id")["rater_id"].nunique())
