"""Splits that keep related pairs together: by fractions, in folds, or one for each value of a column."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from ..core.errors import DataError, counted, place, shown, system_errors
from ..core.files import replace_file
from .audit import (
    COLUMNS,
    SPLIT_FILE,
    SplitAudit,
    audit_splits,
    find_crossings,
    known_columns,
    read_column,
    refuse_leaks,
    refused_kinds,
    tag_columns,
    values_of,
)
from .near_duplicates import components, near_identical
from .ratings import A_NAME, is_name
from .schema import Pair, PairDataset
from .storage import PAIRS_FILE
from .unchanged import check_unchanged
from .writing import write_splits

DEFAULT_FRACTIONS = MappingProxyType({"train": 0.7, "validation": 0.15, "test": 0.15})
MAX_DEVIATION = 0.25
"""A split whose share of the pairs is further from what was asked is an error, not an approximation."""
_MOST_TRIALS = 32
_MOST_ASSIGNED = 100_000  # components in all trials together: with many components any assignment is even
_LEAST_SPEAKERS = 3
_MAX_FOLD_DEVIATION = 0.5  # of a fold's share


def split_dataset(
    folder: str | Path,
    *,
    by: Sequence[str] = ("group_id",),
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    folds: int | None = None,
    hold_out: Mapping[str, Sequence[str]] | None = None,
    stratify: bool = True,
    seed: int = 0,
    overwrite: bool = False,
) -> SplitAudit:
    """Splits a dataset and writes the column ``split`` and ``split.yaml``.

    Pairs that share a value of any column in `by` form a component (transitively: A and B share the speaker, B and
    C the group) and stay together. Components are assigned by `assign`, by their mean score: every
    dimension is scaled to its range, and reversed where low is good.

    Audio that may not be in two splits by the rule of `audit` keeps groups together, too. Where `by` leaves out
    ``group_id``, groups may cross, and the audit lists them; components are then few and large, two systems that share
    one clip stay apart, and the pairs with that clip are set aside: in no split, and listed in ``split.yaml``.

    Args:
        folder: The dataset.
        by: Some of `audit.COLUMNS`: ``group_id``, ``response_speaker``, ``system_id``, ...; or tags (``tag:NAME``).
        fractions: Split -> share of the pairs; they sum to 1.
        folds: Number of splits of equal size instead, ``fold1`` and so on, at least 2, for cross-validation: train on
            all but two, choose the checkpoint on one of these and test on the other. A fold may be half as large or
            half as large again as asked.
        hold_out: Column of `by` -> values whose components form the split ``test`` alone; the other splits
            share the rest in proportion.
        stratify: Whether to balance mean scores.
        seed: For the order in which components are assigned.
        overwrite: Replace a split that exists.

    Returns:
        The audit; ``split.yaml`` holds it too, with the arguments.

    Raises:
        DataError: If a split exists, a column is unknown or empty somewhere, or the components are too few or
            too large for the fractions. Nothing is written then.
    """
    dataset = _load_unsplit(folder, by, overwrite)
    if folds is not None:
        if not 2 <= folds <= len(dataset.pairs):
            raise DataError(f"{counted(folds, 'fold')}; expected 2 to {len(dataset.pairs)}, the number of pairs")
        shares = {f"fold{number}": 1 / folds for number in range(1, folds + 1)}
        splits = _assign(dataset, _components(dataset, by), shares, _MAX_FOLD_DEVIATION / folds, by, seed, stratify)
        return _write(dataset, splits, {"by": list(by), "folds": folds, "seed": seed, "stratify": stratify})
    held_out = hold_out or {}
    _check_fractions(fractions)
    if held_out:
        _check_hold_out(held_out, by, fractions, dataset)

    def is_held_out(part: Sequence[int]) -> bool:
        return any(read_column(dataset.pairs[n], name) in values for n in part for name, values in held_out.items())

    parts = _components(dataset, by)
    free_parts = [part for part in parts if not is_held_out(part)]
    if not free_parts:
        named = ", ".join(f"{column}={value}" for column, values in held_out.items() for value in values)
        raise DataError(
            f"{dataset.root}: all {counted(len(dataset.pairs), 'pair')} are linked to what is held out by {named}; "
            "expected fewer columns to split by, or fewer values held out"
        )
    shares = {name: fraction for name, fraction in fractions.items() if not held_out or name != "test"}
    splits = _assign(dataset, free_parts, shares, MAX_DEVIATION, by, seed, stratify)
    # Whole components: what is linked to a held-out pair may not be trained on either
    splits.update({position: "test" for part in parts if is_held_out(part) for position in part})
    request = {
        "by": list(by), "fractions": dict(fractions), "seed": seed, "stratify": stratify,
        "hold_out": {column: list(values) for column, values in held_out.items()},
    }  # fmt: skip
    return _write(dataset, splits, request)


def leave_one_out(folder: str | Path, column: str, *, overwrite: bool = False) -> SplitAudit:
    """Splits a dataset by the values of a column: the pairs of one value, and no others, are the fold ``column=value``.

    With ``system_id`` this is leave-one-system-out: the judge is tested on a system that it was not trained on.

    The column is one of `audit.COLUMNS` or a tag (``tag:NAME``). Pairs are set aside as in `split_dataset`.

    Returns:
        The audit; ``split.yaml`` holds it too, with the column.

    Raises:
        DataError: If a split exists, or the column is unknown, empty somewhere, the same everywhere, or holds a text
            that is no name. Nothing is written then.
    """
    dataset = _load_unsplit(folder, (column,), overwrite)
    values = [read_column(pair, column) for pair in dataset.pairs]
    if len(set(values)) < 2:
        raise DataError(f"{dataset.root / PAIRS_FILE}: {column} is {shown(values[0])} throughout; expected two values")
    for row, value in enumerate(values, start=1):
        if not is_name(value):
            where = place(dataset.root / PAIRS_FILE, row, column)
            raise DataError(f"{where}: value {shown(value)}; expected as name of a fold: {A_NAME}")
    splits = {position: f"{column}={value}" for position, value in enumerate(values)}
    return _write(dataset, splits, {"by": [column], "leave_out": column})


def _load_unsplit(folder: str | Path, by: Sequence[str], overwrite: bool) -> PairDataset:
    dataset = PairDataset.load(folder)
    check_unchanged(dataset)
    if not isinstance(dataset.root, Path):
        raise DataError(f"{dataset.root}: splits are not written to an address; expected a local copy of the folder")
    _check_by(by, dataset)
    if not overwrite and any(pair.split is not None for pair in dataset.pairs):
        raise DataError(f"{dataset.root}: it has splits already; expected --overwrite, or an unsplit dataset")
    return dataset


def _components(dataset: PairDataset, by: Sequence[str]) -> list[list[int]]:
    """Positions of the pairs of each component."""
    values = values_of(dataset, by, near_identical(dataset))
    # With groups apart all that would be a leak is kept together; without, pairs are set aside instead (docstring)
    kinds = refused_kinds(by) if "group_id" in by else by
    return components(
        [[(kind, value) for kind in kinds for value in values[kind][n]] for n in range(len(dataset.pairs))]
    )


def _assign(
    dataset: PairDataset,
    parts: Sequence[Sequence[int]],
    shares: Mapping[str, float],
    most: float,
    by: Sequence[str],
    seed: int,
    stratify: bool,
) -> dict[int, str]:
    """Position -> split, for the positions in `parts`; refused where the share of a split is off by more than `most`.

    Parts are balanced by their mean score from 0 (worst) to 1 (best) over all dimensions.
    """
    sizes = [len(part) for part in parts]
    scores = dataset.mean_scores()
    for dimension in dataset.card.dimensions:
        share = (scores[dimension.name] - dimension.minimum) / (dimension.maximum - dimension.minimum)
        # From worst to best on every dimension, or the mean over them would add up opposites
        scores[dimension.name] = share if dimension.higher_is_better else 1 - share
    quality = scores.mean(axis=1)
    means = [float(quality.iloc[list(part)].mean()) for part in parts]
    assigned = assign(sizes, shares, seed, means if stratify else None)
    fraction_sum, total = sum(shares.values()), sum(sizes)
    for name, fraction in shares.items():
        share = sum(sizes[number] for number, split in assigned.items() if split == name) / max(total, 1)
        if share == 0 or abs(share - fraction / fraction_sum) > most:
            raise DataError(
                f"split {name!r} would get {share:.0%} of the pairs instead of {fraction / fraction_sum:.0%}: by "
                f"{', '.join(by)} and shared audio the {counted(total, 'pair')} fall into "
                f"{counted(len(sizes), 'inseparable part')}, the largest of {max(sizes, default=0)}; "
                f"expected other shares, or fewer columns to split by"
            )
    return {position: name for number, name in assigned.items() for position in parts[number]}


def _write(dataset: PairDataset, splits: Mapping[int, str], request: Mapping[str, Any]) -> SplitAudit:
    """Sets aside pairs whose audio is in several of these splits and may not be. Then audits, and writes the splits and
    ``split.yaml``."""
    by = request["by"]
    values = values_of(dataset, by, near_identical(dataset))
    names = [splits[position] for position in range(len(dataset.pairs))]
    aside = set()
    for kind in set(refused_kinds(by)) - set(by):
        crossing = find_crossings(values[kind], names)
        aside |= {
            position for position, pair_values in enumerate(values[kind]) if not crossing.keys().isdisjoint(pair_values)
        }
    new_splits = [None if position in aside else name for position, name in enumerate(names)]
    for name in dict.fromkeys(names):
        if name not in new_splits:
            message = f"every response clip of {name!r} is in another split, too"
            raise DataError(f"{dataset.root}: {message}; expected splits that share no responses")
    pairs = tuple(dataclasses.replace(pair, split=name) for pair, name in zip(dataset.pairs, new_splits, strict=True))
    split = dataclasses.replace(dataset, pairs=pairs)
    assert isinstance(dataset.root, Path)  # _load_unsplit refuses others
    # What was written is audited as training will do it, not as this function means it
    audit = audit_splits(split, by)
    refuse_leaks(split, audit)
    set_aside = [dataset.pairs[position].pair_id for position in sorted(aside)]
    facts = {**request, "set_aside": set_aside, "split_hash": audit.split_hash, "audit": audit.to_dict()}

    def write(temporary: Path) -> None:
        temporary.write_text(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True), encoding="utf-8")
        # before split.yaml is replaced: on a full disk both files stay of the same split
        write_splits(root, new_splits)

    root = dataset.root
    with system_errors(root, "written"):
        replace_file(root / SPLIT_FILE, write)
    return audit


def _check_by(by: Sequence[str], dataset: PairDataset) -> None:
    for column in by or ("nothing",):
        if column not in COLUMNS and column not in tag_columns(dataset.pairs):
            raise DataError(f"split by {shown(column)}; expected {known_columns(dataset.pairs)}")
        empty = [row for row, pair in enumerate(dataset.pairs, start=1) if read_column(pair, column) is None]
        if empty:
            more = f" ({len(empty) - 1} more)" if len(empty) > 1 else ""
            where = place(dataset.root / PAIRS_FILE, empty[0], column)
            raise DataError(f"{where}: empty{more}; expected a value in every row, or another split")


def _check_fractions(fractions: Mapping[str, float]) -> None:
    for name, fraction in fractions.items():
        if not is_name(name) or not 0 < fraction <= 1:
            raise DataError(f"split {shown(name)}: fraction {fraction}; expected more than 0, at most 1")
    total = sum(fractions.values())
    if abs(total - 1) > 1e-6:
        raise DataError(f"fractions {shown(dict(fractions))} sum to {total:g}; expected 1")


def _check_hold_out(
    hold_out: Mapping[str, Sequence[str]], by: Sequence[str], fractions: Mapping[str, float], dataset: PairDataset
) -> None:
    if "test" not in fractions or len(fractions) < 2:
        raise DataError(f"splits {', '.join(fractions)}; expected with values held out: 'test' and another")
    for column, values in hold_out.items():
        if column not in by:
            raise DataError(f"held out by {shown(column)}; expected what is split by: {', '.join(by)}")
        present = {read_column(pair, column) for pair in dataset.pairs}
        for value in values:
            if value not in present:
                listed = ", ".join(sorted(value for value in present if value is not None))
                raise DataError(f"held out {column} {shown(value)}; expected {listed}")


def assign(
    sizes: Sequence[int], fractions: Mapping[str, float], seed: int, scores: Sequence[float] | None = None
) -> dict[int, str]:
    """Component -> split, so that the sizes of the splits have the proportions of the fractions.

    With scores, components are assigned in strata, thirds by score, and of up to 32 such trials the one is taken whose
    shares and mean scores are closest to what was asked and to the mean of all. `sizes` are items in each component,
    `scores` their mean scores from 0 to 1 (NaN = unknown).
    """
    rng = np.random.default_rng(seed)
    if scores is None:
        return _assign_once([range(len(sizes))], sizes, fractions, rng)
    # one trial may end far off where components are few and large; with very many each is even, and takes long
    trials = max(1, min(_MOST_TRIALS, _MOST_ASSIGNED // max(len(sizes), 1)))
    # Thirds by score, so that no split gets only the good or only the bad responses
    rated = [number for number in np.argsort(scores, kind="stable").tolist() if not math.isnan(scores[number])]
    strata = [stratum.tolist() for stratum in np.array_split(np.array(rated, int), 3)]
    strata.append([number for number, score in enumerate(scores) if math.isnan(score)])
    candidates = [_assign_once(strata, sizes, fractions, rng) for _ in range(trials)]
    return min(candidates, key=lambda assigned: _imbalance(assigned, sizes, fractions, scores))


def _assign_once(
    strata: Sequence[Sequence[int]], sizes: Sequence[int], fractions: Mapping[str, float], rng: np.random.Generator
) -> dict[int, str]:
    """Each component goes to the split that is furthest behind its share of all so far, this stratum included.

    Large components come first. Within a factor of two in size the order is random: strictly by size, the
    seed would often change nothing. A split that stays empty takes the smallest component of the largest
    split that can spare one.
    """
    fraction_sum = sum(fractions.values())
    members: dict[str, list[int]] = {name: [] for name in fractions}
    split_sizes = dict.fromkeys(fractions, 0)
    total = 0
    for stratum in strata:
        total += sum(sizes[number] for number in stratum)
        shuffled = [stratum[i] for i in rng.permutation(len(stratum))]
        for number in sorted(shuffled, key=lambda number: -math.floor(math.log2(sizes[number]))):
            # By what a split should have by now, and not of the whole: else the first stratum would fill the smallest
            # split
            name = max(fractions, key=lambda name: fractions[name] / fraction_sum * total - split_sizes[name])
            members[name].append(number)
            split_sizes[name] += sizes[number]
    for name in [name for name in fractions if not members[name]]:
        donor = max(fractions, key=lambda split: (len(members[split]) > 1, split_sizes[split]))
        if len(members[donor]) > 1:
            smallest = min(members[donor], key=lambda number: sizes[number])
            members[donor].remove(smallest)
            members[name].append(smallest)
            split_sizes[donor] -= sizes[smallest]
            split_sizes[name] += sizes[smallest]
    return {number: name for name, numbers in members.items() for number in numbers}


def _imbalance(
    assigned: Mapping[int, str], sizes: Sequence[int], fractions: Mapping[str, float], scores: Sequence[float]
) -> float:
    """Sum over splits of how far the share and the mean score are off; a component counts by its size."""

    def mean(numbers: Iterable[int]) -> float:
        rated = [number for number in numbers if not math.isnan(scores[number])]
        return sum(scores[number] * sizes[number] for number in rated) / max(sum(sizes[number] for number in rated), 1)

    overall = mean(range(len(sizes)))
    result = 0.0
    for name, fraction in fractions.items():
        numbers = [number for number, split in assigned.items() if split == name]
        share = sum(sizes[number] for number in numbers) / sum(sizes)
        result += abs(share - fraction / sum(fractions.values())) + abs(mean(numbers) - overall)
    return result


def kept_together(pairs: Sequence[Pair], every: Sequence[Pair]) -> np.ndarray:
    """What folds keep together, text `(pairs,)`: the speaker of each response, or the group if a speaker is unknown or
    in two splits, or speakers are few. `every` are all pairs of the dataset.
    """
    splits: dict[str | None, set[str | None]] = {}
    for pair in every:
        splits.setdefault(pair.response_speaker, set()).add(pair.split)
    speakers = {pair.response_speaker for pair in pairs}
    by_speaker = (
        None not in speakers
        and len(speakers) >= _LEAST_SPEAKERS
        and all(len(splits[speaker]) == 1 for speaker in speakers)
    )
    return np.array([pair.response_speaker if by_speaker else pair.group_id for pair in pairs], dtype=object)
