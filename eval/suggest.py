"""Which pairs to rate next: those where another rating most reduces the error of judge and ratings together.

What is known of a pair is the judge's score, with an error around the true score (the mean of endlessly many raters),
and k ratings with the noise of a rating. Together they have the variance 1 / (1 / error^2 + k / noise^2) (Bayes, normal
errors); the gain of one more rating is the fall of this variance. Both variances come from the rated pairs. The noise
comes from ratings of the same pair, severities included, since the next rater may be another one. The judge's error is
the variance of mean ratings around a straight line in its scores, less that noise. Where a judge states how sure it is
of each score, its error follows that; else the pairs with the fewest ratings come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from rich.table import Table

from ..data_modules.errors import UserError, counted
from ..data_modules.ratings import RatingTable
from ..data_modules.schema import PairDataset
from .evaluate import scored, shared_dimensions
from .judges import Judge
from .probes.pairs import group_of
from .rendering import filled_table
from .results import Report
from .statistics.agreement import is_constant

FEWEST = 10
"""Rated pairs, and ratings beyond the first of a pair, from which variances can be learned."""
_LEAST = 0.05  # smallest variance of the judge's error, as a share of the noise of a rating
_MOST = 100  # ratings for each pair, on average
_DRAWS = 200  # random allocations of ratings to pairs, for comparison


def suggest(
    judge: Judge, dataset: PairDataset, *, split: str | None = None, ratings: int = 100, seed: int = 0
) -> Report:
    """Which pairs of a split the next ratings are best spent on.

    A rating is one on all dimensions; errors are shares of the scale, root mean squares over dimensions.

    Args:
        judge: Source of the scores. It should not have been trained on the ratings of these pairs.
        dataset: Pairs, of which some have two ratings or more.
        split: Which pairs; None = all.
        ratings: Number of ratings to collect.
        seed: Seed of the comparison with random pairs.

    Returns:
        ``rows``, the best pair first: ``pair_id, group_id``, ``ratings`` so far (of the dimension with the fewest),
        ``error`` now, ``gain`` = fall of its square by the next rating, ``suggested`` of the ratings; ``error`` of
        all pairs: ``now``, ``suggested``, ``random``; ``sentence``.

    Raises:
        UserError: If too little is rated to learn the raters' noise or the judge's error, or no pair can be scored.
        DataError: If judge and dataset share no dimension.
    """
    part = dataset.subset(split)
    if ratings > _MOST * len(part.pairs):
        raise UserError(f"--ratings {ratings}: expected at most {_MOST} for each of {counted(len(part.pairs), 'pair')}")
    table = scored(judge, part.pairs)
    ids = [pair.pair_id for pair in part.pairs]
    dimensions = shared_dimensions(judge, dataset)
    scores = table.pivot(index="pair_id", columns="dimension", values="score")
    scores = scores.reindex(index=ids, columns=[dimension.name for dimension in dimensions])
    scored_pairs = np.flatnonzero(np.isfinite(scores).all(axis=1))
    if len(scored_pairs) == 0:
        raise UserError(f"judge {judge.name}: none of the {counted(len(ids), 'pair')} has a score; expected some")
    falls, counts, squares = [], [], []
    limit = min(ratings, 20 + 4 * math.ceil(ratings / len(scored_pairs)))  # of one pair
    for dimension in dimensions:
        rows = table[table["dimension"] == dimension.name].set_index("pair_id").reindex(ids)
        rating_table = RatingTable.of(part.ratings, dimension.name, ids)
        where = f"{dataset.root}, {dimension.name}"
        score, uncertainty = (rows[name].to_numpy(np.float64) for name in ("score", "uncertainty"))
        errors, noise = _variances(score, uncertainty, rating_table, where)
        rated = rating_table.counts[scored_pairs]
        k = rated[:, None] + np.arange(limit + 1)
        variances = 1 / (1 / errors[scored_pairs, None] + k / noise) / (dimension.maximum - dimension.minimum) ** 2
        falls.append(-np.diff(variances))
        counts.append(rated)
        squares.append(variances[:, 0])
    fall, square = np.mean(falls, axis=0), np.mean(squares, axis=0)
    best = np.argsort(-fall, axis=None, kind="stable")[:ratings]  # falls of a pair shrink: no later one comes first
    suggested = np.bincount(best // limit, minlength=len(scored_pairs))
    total, rng = np.cumsum(np.pad(fall, ((0, 0), (1, 0))), axis=1), np.random.default_rng(seed)
    random_draws = [rng.multinomial(ratings, np.full(len(scored_pairs), 1 / len(scored_pairs))) for _ in range(_DRAWS)]
    reductions = [
        total[np.arange(len(scored_pairs)), np.minimum(allocation, limit)].sum()
        for allocation in (suggested, *random_draws)
    ]
    now, after, random = (
        math.sqrt(max((square.sum() - reduction) / len(scored_pairs), 0.0))
        for reduction in (0.0, reductions[0], np.mean(reductions[1:]))
    )
    frame = pd.DataFrame(
        {
            "pair_id": [ids[position] for position in scored_pairs],
            "group_id": [group_of(part.pairs[position]) for position in scored_pairs],
            "ratings": np.min(counts, axis=0),
            "error": np.sqrt(square),
            "gain": fall[:, 0],
            "suggested": suggested,
        }
    )
    rows = frame.sort_values(["suggested", "gain"], ascending=False, kind="stable").to_dict("records")
    sentence = (
        f"{counted(ratings, 'rating of these pairs takes', 'ratings of these pairs take')} "
        f"the expected error of judge and ratings together from {now:.2%} of the "
        f"scale to {after:.2%}, as many of pairs at random to {random:.2%}."
    )
    error = {"now": now, "suggested": after, "random": random}
    summary = {"judge": judge.name, "n_pairs": len(scored_pairs), "ratings": ratings}
    return {**summary, "rows": rows, "error": error, "sentence": sentence}


def _variances(score: np.ndarray, uncertainty: np.ndarray, given: RatingTable, where: str) -> tuple[np.ndarray, float]:
    """Variance of the judge's error for each pair (NaN = no score), and variance of the noise of a rating."""
    counts, several = given.counts, given.counts > 1
    freedom = int((counts - 1)[several].sum())
    rated = (counts > 0) & np.isfinite(score)
    if freedom < FEWEST or rated.sum() < FEWEST:
        raise UserError(
            f"{where}: {counted(int(rated.sum()), 'rated pair')} and {counted(freedom, 'rating')} beyond the first of "
            f"a pair; expected {FEWEST} of both, to learn the raters' noise and the judge's error"
        )
    noise = float(np.square(given.scores - given.means[given.items]).sum()) / freedom
    if noise == 0:
        raise UserError(f"{where}: the raters of a pair always agree; one rating of each is enough")
    x, y = score[rated], given.means[rated]
    line = np.zeros(2) if is_constant(x) else np.polyfit(x, y, 1)
    residuals = y - (np.polyval(line, x) if line.any() else y.mean())
    left = len(y) - 1 - bool(line.any())  # degrees of freedom: the line follows few pairs closely
    error = max(float(np.square(residuals).sum()) / left - float(np.mean(noise / counts[rated])), _LEAST * noise)
    known = np.isfinite(score)
    is_stated = np.isfinite(uncertainty[known]).all() and (uncertainty[known] > 0).all()  # 0 says nothing
    shape = np.square(uncertainty) if is_stated else np.ones(len(score))
    return np.where(known, error * shape / shape[rated].mean(), np.nan), noise


def suggestion_views(found: Report) -> Iterator[Table | str]:
    """The best pairs, and what rating them is worth."""
    rows = [
        (row["pair_id"], str(row["ratings"]), f"{row['error']:.1%}", str(row["suggested"]))
        for row in found["rows"][:10]
    ]
    yield filled_table("rate next", ("pair", "ratings", "error", "more"), [("", rows)])
    yield found["sentence"]
