"""Splits that keep what belongs together on one side, and the audit that training begins with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import yaml

from .dealing import components, deal
from .errors import DataError, place, shown
from .folders import replace_file
from .ratings import is_name
from .schema import PAIRS_FILE, Pair, PairDataset, write_splits

SPLIT_FILE = "split.yaml"
AUDIO = "audio"
"""Name under which `SplitAudit.crossings` lists identical audio."""
DEFAULT_FRACTIONS = MappingProxyType({"train": 0.7, "validation": 0.15, "test": 0.15})
MAX_DEVIATION = 0.25
"""A split whose share of the pairs is further from what was asked is an error, not an approximation."""
_SHOWN_CROSSINGS = 10

_READ: Mapping[str, Callable[[Pair], str | None]] = {
    "group_id": lambda pair: pair.group_id,
    "context_speaker": lambda pair: pair.context_speaker,
    "response_speaker": lambda pair: pair.response_speaker,
    "system_id": lambda pair: pair.system_id,
}


@dataclass(frozen=True)
class SplitAudit:
    """What is in which split, and what is in several.

    Attributes:
        by: The columns that must not cross.
        splits: Split -> ``pairs``, ``share`` (of all pairs), ``groups``, ``systems``, ``speakers`` (of
            responses) and ``mean_scores`` (dimension -> mean of the pairs' mean scores, rating points; None =
            nothing rated).
        unsplit: Pairs without a split.
        crossings: Column of the four that a split can be made by, or `AUDIO` for identical clips by their
            hash -> value -> the splits it is in.
        split_hash: `PairDataset.split_hash`.
    """

    by: tuple[str, ...]
    splits: Mapping[str, Mapping[str, Any]]
    unsplit: int
    crossings: Mapping[str, Mapping[str, tuple[str, ...]]]
    split_hash: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML; of the crossings the count and the first 10."""
        crossings = {
            column: {
                "refused": column in self.by,
                "count": len(values),
                "first": {value: list(values[value]) for value in sorted(values)[:_SHOWN_CROSSINGS]},
            }
            for column, values in self.crossings.items()
        }
        splits = {name: dict(values) for name, values in self.splits.items()}
        return {
            "by": list(self.by), "splits": splits, "unsplit": self.unsplit, "crossings": crossings,
            "split_hash": self.split_hash,
        }  # fmt: skip


def split_dataset(
    folder: str | Path,
    *,
    by: Sequence[str] = ("group_id",),
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    hold_out: Mapping[str, Sequence[str]] | None = None,
    stratify: bool = True,
    seed: int = 0,
    overwrite: bool = False,
) -> SplitAudit:
    """Splits a dataset and writes the column ``split`` and ``split.yaml``.

    Pairs that share a value of any column in `by` form a component (transitively: A and B share the speaker,
    B and C the group) and stay together. Where `by` leaves out ``group_id``, groups may cross, and the audit
    lists them. Components are dealt out as `dealing.deal` says, by their mean score: every dimension is
    scaled to its range and turned so that high is good.

    Args:
        folder: The dataset.
        by: Some of ``group_id``, ``context_speaker``, ``response_speaker``, ``system_id``.
        fractions: Split -> share of the pairs; they sum to 1.
        hold_out: Column of `by` -> values whose components form the split ``test`` alone; the other splits
            share the rest in proportion.
        stratify: Whether to balance mean scores.
        seed: For the order in which components are dealt out.
        overwrite: Replace a split that exists.

    Returns:
        The audit; ``split.yaml`` holds it too, with the arguments.

    Raises:
        DataError: If a split exists, a column is unknown or empty somewhere, or the components are too few or
            too large for the fractions. Nothing is written then.
    """
    dataset = PairDataset.load(folder)
    by = tuple(by)
    _check_by(by, dataset)
    _check_fractions(fractions)
    if hold_out:
        _check_hold_out(hold_out, by, fractions, dataset)
    if not overwrite and any(pair.split is not None for pair in dataset.pairs):
        raise DataError(f"{dataset.root}: it has splits already; accepted: --overwrite, or an unsplit dataset")
    splits: list[str | None] = ["test"] * len(dataset.pairs)
    free = []
    for component in components([[_READ[column](pair) for pair in dataset.pairs] for column in by]):
        if not _is_held_out([dataset.pairs[i] for i in component], hold_out or {}):
            free.append(component)
    shares = {name: fraction for name, fraction in fractions.items() if not hold_out or name != "test"}
    sizes = [len(component) for component in free]
    dealt = deal(sizes, shares, seed, _mean_quality(dataset, free) if stratify else None)
    _check_shares(dealt, sizes, shares, by)
    for number, name in dealt.items():
        for position in free[number]:
            splits[position] = name
    write_splits(folder, splits)
    audit = audit_splits(PairDataset.load(folder), by)
    request = {
        "seed": seed, "by": list(by), "fractions": dict(fractions), "stratify": stratify,
        "hold_out": {column: list(values) for column, values in (hold_out or {}).items()},
        "split_hash": audit.split_hash, "audit": audit.to_dict(),
    }  # fmt: skip
    text = yaml.safe_dump(request, sort_keys=False, allow_unicode=True)
    replace_file(Path(folder) / SPLIT_FILE, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return audit


def audit_splits(dataset: PairDataset, by: Sequence[str] = ("group_id",)) -> SplitAudit:
    """Counts what is in each split and lists what is in several; nothing is judged here.

    Args:
        dataset: All pairs (not a subset).
        by: The columns that must not cross.
    """
    members: dict[str, list[Pair]] = defaultdict(list)
    for pair in dataset.pairs:
        if pair.split is not None:
            members[pair.split].append(pair)
    crossings = {column: _crossings(dataset, lambda pair, read=read: [read(pair)]) for column, read in _READ.items()}
    crossings[AUDIO] = _crossings(dataset, lambda pair: dataset.fingerprints[pair.pair_id])
    means = dataset.mean_scores()
    return SplitAudit(
        by=tuple(by),
        splits={name: _describe(pairs, len(dataset.pairs), means) for name, pairs in sorted(members.items())},
        unsplit=sum(pair.split is None for pair in dataset.pairs),
        crossings=crossings,
        split_hash=dataset.split_hash(),
    )


def check_splits(dataset: PairDataset) -> SplitAudit:
    """The audit that training and evaluation begin with.

    The columns that must not cross are `split_columns`.

    Args:
        dataset: All pairs (not a subset).

    Raises:
        DataError: If one of them crosses splits, or ``split.yaml`` belongs to other splits than
            ``pairs.parquet`` has.
    """
    by = split_columns(dataset)
    audit = audit_splits(dataset, by)
    for column in by:
        if not audit.crossings[column]:
            continue
        value, splits = min(audit.crossings[column].items())
        rows = [
            (row, pair.split)
            for row, pair in enumerate(dataset.pairs, start=1)
            if _READ[column](pair) == value and pair.split is not None
        ]
        row = next(row for row, split in rows if split != rows[0][1])
        more = f" ({len(audit.crossings[column]) - 1} more)" if len(audit.crossings[column]) > 1 else ""
        raise DataError(
            f"{place(dataset.root / PAIRS_FILE, row, 'split')}: {column} {shown(value)} is in "
            f"{' and '.join(splits)}{more}; accepted: each {column} in one split, as `empathy-judge split "
            "--overwrite` makes them"
        )
    return audit


def split_columns(dataset: PairDataset) -> tuple[str, ...]:
    """The columns that the splits were made by, from ``split.yaml``; without that file, ``group_id``.

    Args:
        dataset: All pairs (not a subset).

    Raises:
        DataError: If ``split.yaml`` belongs to other splits than ``pairs.parquet`` has.
    """
    path = dataset.root / SPLIT_FILE
    if not path.exists():
        return ("group_id",)
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
        by, split_hash = tuple(stored["by"]), stored["split_hash"]
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        raise DataError(f"{path}: not readable; accepted: the file that `empathy-judge split` writes") from None
    if split_hash != dataset.split_hash() or not set(by) <= set(_READ):
        raise DataError(f"{path}: belongs to other splits than {PAIRS_FILE} has; run `empathy-judge split --overwrite`")
    return by


def _crossings(dataset: PairDataset, read: Callable[[Pair], Iterable[str | None]]) -> dict[str, tuple[str, ...]]:
    """Value -> its splits, where there are several."""
    splits: dict[str, set[str]] = defaultdict(set)
    for pair in dataset.pairs:
        for value in read(pair):
            if value is not None and pair.split is not None:
                splits[value].add(pair.split)
    return {value: tuple(sorted(names)) for value, names in splits.items() if len(names) > 1}


def _describe(pairs: Sequence[Pair], total: int, means: pd.DataFrame) -> dict[str, Any]:
    averages = means.loc[[pair.pair_id for pair in pairs]].mean()
    return {
        "pairs": len(pairs),
        "share": len(pairs) / total,
        "groups": len({pair.group_id for pair in pairs}),
        "systems": len({pair.system_id for pair in pairs} - {None}),
        "speakers": len({pair.response_speaker for pair in pairs} - {None}),
        "mean_scores": {str(name): None if math.isnan(mean) else float(mean) for name, mean in averages.items()},
    }


def _check_by(by: Sequence[str], dataset: PairDataset) -> None:
    for column in by or ("nothing",):
        if column not in _READ:
            raise DataError(f"split by {shown(column)}; accepted: {', '.join(_READ)}")
        empty = [row for row, pair in enumerate(dataset.pairs, start=1) if _READ[column](pair) is None]
        if empty:
            more = f" ({len(empty) - 1} more)" if len(empty) > 1 else ""
            where = place(dataset.root / PAIRS_FILE, empty[0], column)
            raise DataError(f"{where}: empty{more}; accepted: a value in every row, or another split")


def _check_fractions(fractions: Mapping[str, float]) -> None:
    for name, fraction in fractions.items():
        if not is_name(name) or not 0 < fraction <= 1:
            raise DataError(f"split {shown(name)}: fraction {fraction}; accepted: more than 0, at most 1")
    total = sum(fractions.values())
    if abs(total - 1) > 1e-6:
        raise DataError(f"fractions {shown(dict(fractions))} sum to {total:g}; accepted: 1")


def _check_hold_out(
    hold_out: Mapping[str, Sequence[str]],
    by: Sequence[str],
    fractions: Mapping[str, float],
    dataset: PairDataset,
) -> None:
    if "test" not in fractions or len(fractions) < 2:
        raise DataError(f"splits {', '.join(fractions)}; accepted with values held out: 'test' and another")
    for column, values in hold_out.items():
        if column not in by:
            raise DataError(f"held out by {shown(column)}; accepted: what is split by: {', '.join(by)}")
        known = {_READ[column](pair) for pair in dataset.pairs}
        for value in values:
            if value not in known:
                has = ", ".join(sorted(value for value in known if value is not None))
                raise DataError(f"held out {column} {shown(value)}; accepted: {has}")


def _is_held_out(pairs: Sequence[Pair], hold_out: Mapping[str, Sequence[str]]) -> bool:
    return any(_READ[column](pair) in values for column, values in hold_out.items() for pair in pairs)


def _mean_quality(dataset: PairDataset, members: Sequence[Sequence[int]]) -> list[float]:
    """Mean score of each component, from 0 (worst) to 1 (best) over all dimensions; NaN = not rated."""
    scaled = dataset.mean_scores()
    for dimension in dataset.card.dimensions:
        share = (scaled[dimension.name] - dimension.minimum) / (dimension.maximum - dimension.minimum)
        scaled[dimension.name] = share if dimension.higher_is_better else 1 - share
    pairs = scaled.mean(axis=1)
    return [float(pairs.iloc[list(positions)].mean()) for positions in members]


def _check_shares(
    assigned: Mapping[int, str], sizes: Sequence[int], fractions: Mapping[str, float], by: Sequence[str]
) -> None:
    """Refuses splits that have little to do with the fractions: components too few or too large."""
    total, whole = sum(sizes[number] for number in assigned), sum(fractions.values())
    for name, fraction in fractions.items():
        share = sum(sizes[n] for n, split in assigned.items() if split == name) / max(total, 1)
        if share == 0 or abs(share - fraction / whole) > MAX_DEVIATION:
            raise DataError(
                f"split {name!r} would get {share:.0%} of the pairs instead of {fraction / whole:.0%}: by "
                f"{', '.join(by)} the {total} pairs fall into {len(sizes)} inseparable parts, the largest of "
                f"{max(sizes, default=0)}; accepted: other fractions, or fewer columns to split by"
            )
