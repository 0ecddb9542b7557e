"""What a dataset holds and what is wrong with it, seen before training. Bad audio is listed, not raised."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import AudioError
from .audit import audit_splits, refused_kinds, split_columns
from .clip_measures import ClipMeasures, measure_clips
from .ratings import named_raters, raters_of
from .schema import Pair, PairDataset

SILENT_DBFS = -60.0
"""A clip is silent if its RMS level around its mean is below this (dB relative to full scale), as a constant one is."""
CLIPPED_SHARE = 0.001
"""A clip with a larger share of samples at full scale is clipped."""
UNSPLIT = "(none)"
DURATION_BINS = 20
LONG_TAIL = 8.0
"""If the longest clip lasts more than so many medians, equally wide bins would put nearly all clips in one."""


@dataclass(frozen=True)
class ClipProblem:
    """One clip of one pair that deserves a look."""

    kind: str  # `unreadable`, `changed` (not the content that was imported), `silent`, `clipped` or `too_long`
    pair_id: str  # the pair
    clip: str  # `response`, or `context 1` for the first turn
    detail: str  # the measured value or the reason


@dataclass(frozen=True)
class NumberSummary:
    """Count, least, median, greatest and total; None where there is nothing to summarise."""

    count: int
    minimum: float | None
    median: float | None
    maximum: float | None
    total: float


@dataclass(frozen=True)
class Histogram:
    """How many values lie in neighbouring bins; empty without values."""

    edges: tuple[float, ...]  # ends of the bins, ascending; two equal ones where all values are equal
    counts: tuple[int, ...]  # values from one edge up to the next; the last bin holds its upper edge too


@dataclass(frozen=True)
class Inspection:
    """Result of `inspect_dataset`."""

    name: str  # name of the dataset
    synthetic: bool  # whether the ratings were not given by people
    content_hash: str  # of the dataset
    # split (``all`` for the dataset, ``(none)`` for pairs outside of splits) -> number of ``pairs``, ``groups``,
    # ``systems``, ``context_speakers``, ``response_speakers``, ``raters``, ``ratings``, ``rated_pairs``
    counts: Mapping[str, Mapping[str, int]]
    seconds: Mapping[str, NumberSummary]  # ``context`` and ``response`` -> duration of the distinct clips (s)
    durations: Mapping[str, Histogram]  # the same durations in bins (s)
    # dimension -> its ``scale``, and ``count``, ``minimum``, ``mean``, ``maximum`` of the scores (rating points)
    scores: Mapping[str, Mapping[str, Any]]
    # dimension -> how many raters a rated pair has; the total is the number of ratings
    raters_per_pair: Mapping[str, NumberSummary]
    problems: tuple[ClipProblem, ...]  # clips to look at, in the order of pairs
    max_seconds: float  # what counts as too long
    split_by: tuple[str, ...]  # the columns that the splits were made by; empty = not split
    crossings: Mapping[str, Mapping[str, tuple[str, ...]]]  # kind -> value -> the splits it is in, as in `SplitAudit`
    unrated: tuple[str, ...]  # ids of pairs that nobody rated or compared

    @property
    def refused(self) -> tuple[str, ...]:
        """The kinds of `crossings` that are leaks, by the rule of `audit`."""
        return refused_kinds(self.split_by) if self.split_by else ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "refused": self.refused}


def inspect_dataset(dataset: PairDataset, *, max_seconds: float = 30.0) -> Inspection:
    """Counts, scales, durations, and every clip measured once; see `measure_clips`.

    Args:
        dataset: All pairs (not a subset).
        max_seconds: Longer clips are listed as too long.

    Raises:
        DataError: If ``split.yaml`` is not that of these splits.
    """
    measured = measure_clips(dataset)
    problems: list[ClipProblem] = []
    fingerprints: dict[str, set[str]] = {"context": set(), "response": set()}
    for pair in dataset.pairs:
        clip_names = [*(f"context {n}" for n in range(1, len(pair.context) + 1)), "response"]
        for clip, fingerprint in zip(clip_names, dataset.fingerprints[pair.pair_id], strict=True):
            result = measured[fingerprint]
            if isinstance(result, AudioError):
                problems.append(ClipProblem("unreadable", pair.pair_id, clip, str(result)))
            else:
                checks = [
                    ("changed", "the content is not what was imported", result.changed),
                    ("silent", f"RMS {result.dbfs:.0f} dBFS", result.dbfs < SILENT_DBFS),
                    ("clipped", f"{result.clipped:.2%} of samples at full scale", result.clipped > CLIPPED_SHARE),
                    ("too_long", f"{result.seconds:.1f} s", result.seconds > max_seconds),
                ]
                problems += [
                    ClipProblem(kind, pair.pair_id, clip, detail) for kind, detail, applies in checks if applies
                ]
            fingerprints[clip.partition(" ")[0]].add(fingerprint)
    durations = {clip: result.seconds for clip, result in measured.items() if isinstance(result, ClipMeasures)}
    # sorted, so that sums are always the same
    seconds = {
        kind: [durations[clip] for clip in sorted(clips) if clip in durations] for kind, clips in fingerprints.items()
    }
    scores, raters = {}, {}
    for dimension in dataset.card.dimensions:
        ratings: Any = dataset.ratings[dataset.ratings["dimension"] == dimension.name]
        result = _summary(ratings["score"])
        scores[dimension.name] = {
            "scale": dimension.described,
            "higher_is_better": dimension.higher_is_better,
            "count": result.count,
            "minimum": result.minimum,
            "mean": float(np.asarray(ratings["score"], np.float64).mean()) if result.count else None,
            "maximum": result.maximum,
        }
        raters[dimension.name] = _summary(raters_of(ratings, list(dict.fromkeys(ratings["pair_id"]))))
    rated_ids = set(dataset.ratings["pair_id"])
    if dataset.preferences is not None:
        rated_ids |= {*dataset.preferences["chosen_id"], *dataset.preferences["rejected_id"]}
    splits = {pair.split for pair in dataset.pairs} - {None}
    audit = audit_splits(dataset, split_columns(dataset)) if splits else None
    return Inspection(
        name=dataset.card.name,
        synthetic=dataset.card.synthetic,
        content_hash=dataset.card.content_hash,
        counts=_counts(dataset),
        seconds={kind: _summary(values) for kind, values in seconds.items()},
        durations={kind: _histogram(values) for kind, values in seconds.items()},
        scores=scores,
        raters_per_pair=raters,
        problems=tuple(problems),
        max_seconds=max_seconds,
        split_by=audit.by if audit else (),
        crossings=audit.crossings if audit else {},
        unrated=tuple(pair.pair_id for pair in dataset.pairs if pair.pair_id not in rated_ids),
    )


def _summary(values: Iterable[float]) -> NumberSummary:
    numbers = np.array(list(values), np.float64)
    if not len(numbers):
        return NumberSummary(0, None, None, None, 0.0)
    return NumberSummary(
        len(numbers), float(numbers.min()), float(np.median(numbers)), float(numbers.max()), float(numbers.sum())
    )


def _histogram(values: Sequence[float]) -> Histogram:
    """In `DURATION_BINS` bins, equally wide or, where few clips are much longer than the rest, equal in ratio."""
    numbers = np.array(values, np.float64)
    if not len(numbers):
        return Histogram((), ())
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return Histogram((low, high), (len(numbers),))
    spacing = np.geomspace if high > LONG_TAIL * np.median(numbers) else np.linspace
    edges = spacing(low, high, DURATION_BINS + 1)
    # geomspace rounds: the longest clip would fall out of the last bin.
    edges[0], edges[-1] = low, high
    counts, _ = np.histogram(numbers, edges)
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))


def _counts(dataset: PairDataset) -> dict[str, dict[str, int]]:
    by_split: dict[str, list[Pair]] = {"all": list(dataset.pairs)}
    for pair in dataset.pairs:
        by_split.setdefault(pair.split or UNSPLIT, []).append(pair)
    counts = {}
    for name, pairs in by_split.items():
        ids = [pair.pair_id for pair in pairs]
        ratings: Any = dataset.ratings.loc[dataset.ratings["pair_id"].isin(ids)]
        counts[name] = {
            "pairs": len(pairs),
            "groups": len({pair.group_id for pair in pairs}),
            "systems": len({pair.system_id for pair in pairs} - {None}),
            "context_speakers": len({pair.context_speaker for pair in pairs} - {None}),
            "response_speakers": len({pair.response_speaker for pair in pairs} - {None}),
            "raters": named_raters(ratings),
            "ratings": len(ratings),
            "rated_pairs": len(ratings["pair_id"].unique()),
        }
    return counts
