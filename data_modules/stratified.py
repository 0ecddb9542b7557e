"""Stratified group splits: inseparable parts of a dataset are assigned to splits. Pure functions on positions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

_MOST_TRIALS = 32
_MOST_ASSIGNED = 100_000  # components in all trials together: with many components any assignment is even


def components(labels: Sequence[Collection[Hashable]]) -> list[list[int]]:
    """Items that are connected through equal labels, directly or through other items.

    Args:
        labels: The labels of each item.

    Returns:
        Positions of the items of each component, both in order of appearance.
    """
    items = len(labels)
    nodes: dict[Hashable, int] = {}
    rows = [position for position, having in enumerate(labels) for _ in having]
    columns = [items + nodes.setdefault(label, len(nodes)) for having in labels for label in having]
    size = items + len(nodes)
    graph = coo_array((np.ones(len(rows)), (rows, columns)), (size, size))
    _, numbers = connected_components(graph, directed=False)
    members: dict[int, list[int]] = defaultdict(list)
    for position in range(items):
        members[int(numbers[position])].append(position)
    return list(members.values())


def assign(
    sizes: Sequence[int], fractions: Mapping[str, float], seed: int, scores: Sequence[float] | None = None
) -> dict[int, str]:
    """Component -> split, so that the sizes of the splits have the proportions of the fractions.

    With scores, components are assigned in strata, thirds by score, and of up to 32 such trials the one is taken whose
    shares and mean scores are closest to what was asked and to the mean of all.

    Args:
        sizes: Items in each component.
        fractions: Split -> positive weight.
        seed: For the order.
        scores: Mean score of each component, from 0 to 1; NaN = unknown.
    """
    rng = np.random.default_rng(seed)
    if scores is None:
        return _assign_once([range(len(sizes))], sizes, fractions, rng)
    known = [0.0 if math.isnan(score) else score for score in scores]
    weights = [0 if math.isnan(score) else size for score, size in zip(scores, sizes, strict=True)]
    trials = max(1, min(_MOST_TRIALS, _MOST_ASSIGNED // max(len(sizes), 1)))
    order = np.argsort(scores, kind="stable").tolist()
    rated = np.array([number for number in order if not math.isnan(scores[number])], int)
    strata = [third.tolist() for third in np.array_split(rated, 3)]
    strata.append([number for number, score in enumerate(scores) if math.isnan(score)])
    candidates = [_assign_once(strata, sizes, fractions, rng) for _ in range(trials)]
    return min(candidates, key=lambda assigned: _imbalance(assigned, sizes, fractions, known, weights))


def _assign_once(
    strata: Sequence[Sequence[int]], sizes: Sequence[int], fractions: Mapping[str, float], rng: np.random.Generator
) -> dict[int, str]:
    """Each component goes to the split that is furthest behind its share of all so far, this stratum included.

    Large components come first. Within a factor of two in size the order is random: strictly by size, the
    seed would often change nothing. A split that stays empty takes the smallest component of the largest
    split that can spare one.
    """
    whole = sum(fractions.values())
    members: dict[str, list[int]] = {name: [] for name in fractions}
    filled = dict.fromkeys(fractions, 0)
    total = 0
    for stratum in strata:
        total += sum(sizes[number] for number in stratum)
        shuffled = [stratum[i] for i in rng.permutation(len(stratum))]
        for number in sorted(shuffled, key=lambda n: -math.floor(math.log2(sizes[n]))):
            name = max(fractions, key=lambda name: fractions[name] / whole * total - filled[name])
            members[name].append(number)
            filled[name] += sizes[number]
    for name in [name for name in fractions if not members[name]]:
        donor = max(fractions, key=lambda other: (len(members[other]) > 1, filled[other]))
        if len(members[donor]) > 1:
            smallest = min(members[donor], key=lambda number: sizes[number])
            members[donor].remove(smallest)
            members[name].append(smallest)
            filled[donor] -= sizes[smallest]
            filled[name] += sizes[smallest]
    return {number: name for name, numbers in members.items() for number in numbers}


def _imbalance(
    assigned: Mapping[int, str],
    sizes: Sequence[int],
    fractions: Mapping[str, float],
    scores: Sequence[float],
    weights: Sequence[int],
) -> float:
    """Sum over splits of how far the share and the mean score are off; a component counts by its size."""
    overall = sum(s * w for s, w in zip(scores, weights, strict=True)) / max(sum(weights), 1)
    result = 0.0
    for name, fraction in fractions.items():
        numbers = [number for number, split in assigned.items() if split == name]
        share = sum(sizes[n] for n in numbers) / sum(sizes)
        mean = sum(scores[n] * weights[n] for n in numbers) / max(sum(weights[n] for n in numbers), 1)
        result += abs(share - fraction / sum(fractions.values())) + abs(mean - overall)
    return result
