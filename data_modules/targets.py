"""What a judge is trained to predict: one number per pair and dimension out of the ratings of several people.

- ``mean``: the plain mean over raters.
- ``z_scored``: each rater's scores on the common mean and spread, then averaged. Mends raters who are strict and raters
  who use little of the scale. It takes each rater's items for a fair sample: where raters saw items of different
  quality, part of that difference is lost.
- ``bias_corrected``: the item's part of the additive rater model (`fit_rater_model`). Mends strict and lenient raters,
  also where they saw different items. Biases of raters whom no chain of common items connects cannot be compared: each
  such panel is corrected by itself, so that the mean of its ratings stays, and the notes say so.
- ``single``: no number per pair: each rater's judgement of a pair is a training item of its own, which says whose.

All are in rating points and inside the scale, so that the judge's head and its scores keep their meaning. On a complete
panel ``bias_corrected`` equals ``mean``, because biases that hit every item alike change nothing between items.

Beside each target, where the scales have steps, stands how many raters gave each score, for heads that predict how
people spread. These counts are of ratings as they were given, whatever the target mends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from .rater_model import fit_rater_model
from .rating_table import RatingTable
from .ratings import Dimension
from .schema import PairDataset
from .target_weights import reliability_weights

TargetName = Literal["mean", "z_scored", "bias_corrected", "single"]
Weighting = Literal["equal", "reliability"]

MIN_RATER_RATINGS = 10
"""A rater with fewer ratings has no mean and spread worth the name; `z_scored` leaves such ratings as they are."""

MAX_STEPS = 1001
"""With more scores on a scale there are no histograms: they would fill the memory, and nearly all counts are 0."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Training items and what they should score.

    Attributes:
        pairs: Shape (items,), position of each item's pair in the dataset, rising.
        scores: Shape (items, dimensions), float64, rating points; NaN = not rated.
        weights: Shape (items, dimensions), float64, how much each score counts; 0 where there is none, on average 1
            over the others.
        histograms: Shape (items, dimensions, steps), int32, how many raters gave each score, the lowest first; steps
            that a shorter scale does not have are 0. For ``single`` the one rating of that rater. None where a
            dimension has no steps or more than `MAX_STEPS`.
        raters: Shape (items,), int64, position in `rater_ids` of who gave the ratings; None unless the target is
            ``single``.
        rater_ids: The raters, sorted, each with at least one item; empty unless the target is ``single``.
        notes: What was done that a person should know, one line each.
    """

    pairs: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    histograms: np.ndarray | None = None
    raters: np.ndarray | None = None
    rater_ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def training_targets(dataset: PairDataset, target: TargetName, weighting: Weighting = "equal") -> Targets:
    """Targets from the ratings of the pairs in `dataset`: for training pass the training split alone.

    Args:
        dataset: Pairs and their ratings.
        target: As the module says. ``single`` gives one item per pair and rater, which holds all dimensions that this
            rater gave, and none for a pair without ratings; the others give one item per pair.
        weighting: ``equal``: every score counts 1; ``reliability``: the more, the more raters stand behind it
            (`reliability_weights`). Single ratings always count 1.
    """
    if target == "single":
        return _single(dataset)
    positions = np.arange(len(dataset.pairs))
    scores, notes = _mean(dataset) if target == "mean" else _corrected(dataset, target)
    weights, remarks = (_equal_weights(scores), ()) if weighting == "equal" else reliability_weights(dataset)
    notes = (*notes, *(f"weights, {remark}" for remark in remarks))
    return Targets(positions, scores, weights, _histograms(dataset), notes=notes)


def item_means(table: RatingTable) -> np.ndarray:
    """Mean over raters, shape (items,), NaN = not rated."""
    return np.where(table.counts > 0, table.sums / np.maximum(table.counts, 1), np.nan)


def z_scored_means(table: RatingTable) -> tuple[np.ndarray, int]:
    """Means over raters of scores that were brought to the common mean and spread.

    A score becomes ``mean + spread * (score - rater's mean) / rater's standard deviation``; mean and spread are those
    of all raters who take part (spread: root mean square), each weighted by their ratings. The ratings of others, with
    fewer than `MIN_RATER_RATINGS` ratings or the same score throughout, count as they are.

    Returns:
        Shape (items,), rating points, not clipped, NaN = not rated; and the number of raters who do not take part.
    """
    n_raters = len(table.rater_ids)
    counts = np.bincount(table.raters, minlength=n_raters)
    means = np.bincount(table.raters, weights=table.scores, minlength=n_raters) / counts
    deviations = table.scores - means[table.raters]
    spreads = np.sqrt(np.bincount(table.raters, weights=deviations**2, minlength=n_raters) / counts)
    takes_part = (counts >= MIN_RATER_RATINGS) & (spreads > 1e-9)
    if not takes_part.any():
        return item_means(table), n_raters
    weights = counts[takes_part]
    centre = np.average(means[takes_part], weights=weights)
    spread = np.sqrt(np.average(spreads[takes_part] ** 2, weights=weights))
    with np.errstate(divide="ignore", invalid="ignore"):
        aligned = centre + spread * deviations / spreads[table.raters]
    aligned = np.where(takes_part[table.raters], aligned, table.scores)
    return item_means(RatingTable(table.items, table.raters, aligned, table.n_items, table.rater_ids)), int(
        (~takes_part).sum()
    )


def rating_histogram(table: RatingTable, dimension: Dimension) -> np.ndarray:
    """How often an item got each score of the scale.

    Returns:
        Shape (items, steps), int64, the lowest score first; zeros where nobody rated.

    Raises:
        DataError: If the scale has no steps.
    """
    steps = dimension.steps
    found = np.bincount(table.items * steps + _step(table.scores, dimension), minlength=table.n_items * steps)
    return found.reshape(table.n_items, steps)


def _z_scored(table: RatingTable) -> tuple[np.ndarray, list[str]]:
    values, left_out = z_scored_means(table)
    if not left_out:
        return values, []
    why = f"fewer than {MIN_RATER_RATINGS} ratings or a constant score"
    return values, [f"the ratings of {left_out} of {len(table.rater_ids)} raters count as they are ({why})"]


def _bias_corrected(table: RatingTable) -> tuple[np.ndarray, list[str]]:
    model = fit_rater_model(table)
    if model.n_components <= 1:
        return model.items, []
    return model.items, [
        f"the raters fall into {model.n_components} panels without a common item; biases are corrected within each, "
        "differences between panels stay"
    ]


_PER_ITEM: Mapping[str, Callable[[RatingTable], tuple[np.ndarray, list[str]]]] = {
    "z_scored": _z_scored,
    "bias_corrected": _bias_corrected,
}


def _mean(dataset: PairDataset) -> tuple[np.ndarray, tuple[str, ...]]:
    return dataset.mean_scores().to_numpy(), ()


def _corrected(dataset: PairDataset, target: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Scores of shape (pairs, dimensions), made by dimension and kept inside the scale; and notes."""
    pair_ids = [pair.pair_id for pair in dataset.pairs]
    columns, notes = [], []
    for dimension in dataset.card.dimensions:
        table = RatingTable.of(dataset.ratings, dimension.name, pair_ids)
        values, remarks = _PER_ITEM[target](table)
        inside = np.clip(values, dimension.minimum, dimension.maximum)
        if clipped := int((np.abs(inside - values) > 1e-9).sum()):
            of = f"{clipped} of {np.isfinite(values).sum()} targets"
            remarks = [*remarks, f"{of} left the scale {dimension.scale} and stand at its end"]
        columns.append(inside)
        notes += [f"{dimension.name}, {target}: {remark}" for remark in remarks]
    return np.stack(columns, axis=1), tuple(notes)


def _single(dataset: PairDataset) -> Targets:
    pair_ids = pd.Index([pair.pair_id for pair in dataset.pairs], dtype=object)
    names = [dimension.name for dimension in dataset.card.dimensions]
    rows = dataset.ratings.assign(position=pair_ids.get_indexer(pd.Index(dataset.ratings["pair_id"])))
    wide = rows.pivot(index=["position", "rater_id"], columns="dimension", values="score").sort_index()
    raters, rater_ids = pd.factorize(wide.index.get_level_values("rater_id"), sort=True)
    scores = wide.reindex(columns=names).to_numpy(np.float64)
    return Targets(
        wide.index.get_level_values("position").to_numpy(np.int64),
        scores,
        _equal_weights(scores),
        _single_histograms(scores, dataset.card.dimensions),
        raters.astype(np.int64),
        tuple(map(str, rater_ids)),
    )


def _equal_weights(scores: np.ndarray) -> np.ndarray:
    return np.isfinite(scores).astype(np.float64)


def _histograms(dataset: PairDataset) -> np.ndarray | None:
    """Of all raters of each pair, as `Targets.histograms`."""
    dimensions, pair_ids = dataset.card.dimensions, [pair.pair_id for pair in dataset.pairs]
    counts = _no_counts(len(pair_ids), dimensions)
    if counts is None:
        return None
    for column, dimension in enumerate(dimensions):
        table = RatingTable.of(dataset.ratings, dimension.name, pair_ids)
        counts[:, column, : dimension.steps] = rating_histogram(table, dimension)
    return counts


def _single_histograms(scores: np.ndarray, dimensions: Sequence[Dimension]) -> np.ndarray | None:
    """Of one rating per item and dimension `(items, dimensions)`, as `Targets.histograms`."""
    counts = _no_counts(len(scores), dimensions)
    if counts is None:
        return None
    for column, dimension in enumerate(dimensions):
        rated = np.flatnonzero(np.isfinite(scores[:, column]))
        counts[rated, column, _step(scores[rated, column], dimension)] = 1
    return counts


def _no_counts(items: int, dimensions: Sequence[Dimension]) -> np.ndarray | None:
    if any(dimension.step is None or dimension.steps > MAX_STEPS for dimension in dimensions):
        return None
    return np.zeros((items, len(dimensions), max(dimension.steps for dimension in dimensions)), np.int32)


def _step(scores: np.ndarray, dimension: Dimension) -> np.ndarray:
    """Number of the step of each score, the lowest 0."""
    return np.rint((scores - dimension.minimum) / (dimension.step or 1)).astype(np.int64)
