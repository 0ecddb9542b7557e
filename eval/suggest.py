"""Which pairs to rate next: those where another rating takes most from the error of judge and ratings together.

What is known of a pair is the judge's score, with an error around the true score (the mean of endlessly many raters),
and k ratings with the noise of a rating. Together they have the variance 1 / (1 / error^2 + k / noise^2) (Bayes, normal
errors), and one rating more takes away what it then is less. Both variances come from the pairs that are rated: noise
from ratings of one pair, severities included, since the next rater may be another one; the judge's error from what its
scores, after a straight line, are away from mean ratings beyond that noise. Where a judge says of which scores it is
less sure, its error follows that; else the pairs with the fewest ratings come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from rich.table import Table

from ..data_modules.errors import UserError
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
_LEAST = 0.05  # of the noise of a rating: the judge's error is not taken for smaller
_MOST = 100  # ratings for each pair, on average
_DRAWS = 200  # of pairs at random, for comparison


def suggest(
    judge: Judge, dataset: PairDataset, *, split: str | None = None, ratings: int = 100, seed: int = 0
) -> Report:
    """Which pairs of a split the next ratings are best spent on.

    A rating is one on all dimensions; errors are shares of the scale, root mean squares over dimensions.

    Args:
        judge: What is known of pairs beside their ratings. It should not have been trained on them.
        dataset: Pairs, of which some have two ratings or more.
        split: Which pairs; None = all.
        ratings: How many there will be.
        seed: Of the comparison with pairs at random.

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
        raise UserError(f"--ratings {ratings}: expected at most {_MOST} for each of {len(part.pairs)} pairs")
    table = scored(judge, part.pairs)
    ids = [pair.pair_id for pair in part.pairs]
    falls, counts, squares, known = [], [], [], np.ones(len(ids), dtype=bool)
    most = min(ratings, 20 + 4 * math.ceil(ratings / len(ids)))  # of one pair
    for dimension in shared_dimensions(judge, dataset):
        rows = table[table["dimension"] == dimension.name].set_index("pair_id").reindex(ids)
        given = RatingTable.of(part.ratings, dimension.name, ids)
        where = f"{dataset.root}, {dimension.name}"
        score, uncertainty = (rows[name].to_numpy(np.float64) for name in ("score", "uncertainty"))
        errors, noise = _variances(score, uncertainty, given, where)
        k = given.counts[:, None] + np.arange(most + 1)
        left = 1 / (1 / errors[:, None] + k / noise) / (dimension.maximum - dimension.minimum) ** 2
        known &= np.isfinite(errors)
        falls.append(-np.diff(left))
        counts.append(given.counts)
        squares.append(left[:, 0])
    if not known.any():
        raise UserError(f"judge {judge.name}: none of the {len(ids)} pairs has a score; expected some")
    kept = np.flatnonzero(known)
    fall, square = np.mean(falls, axis=0)[kept], np.mean(squares, axis=0)[kept]
    best = np.argsort(-fall, axis=None, kind="stable")[:ratings]  # falls of a pair shrink: no later one comes first
    suggested = np.bincount(best // most, minlength=len(kept))
    total, rng = np.cumsum(np.pad(fall, ((0, 0), (1, 0))), axis=1), np.random.default_rng(seed)
    drawn = [rng.multinomial(ratings, np.full(len(kept), 1 / len(kept))) for _ in range(_DRAWS)]
    taken = [total[np.arange(len(kept)), np.minimum(own, most)].sum() for own in (suggested, *drawn)]
    now, after, random = (
        math.sqrt(max((square.sum() - own) / len(kept), 0.0)) for own in (0.0, taken[0], np.mean(taken[1:]))
    )
    found = pd.DataFrame(
        {
            "pair_id": [ids[place] for place in kept],
            "group_id": [group_of(part.pairs[place]) for place in kept],
            "ratings": np.min(counts, axis=0)[kept],
            "error": np.sqrt(square),
            "gain": fall[:, 0],
            "suggested": suggested,
        }
    )
    rows = found.sort_values(["suggested", "gain"], ascending=False, kind="stable").to_dict("records")
    sentence = (
        f"{ratings} ratings of these pairs take the expected error of judge and ratings together from {now:.2%} of the "
        f"scale to {after:.2%}, as many of pairs at random to {random:.2%}."
    )
    error = {"now": now, "suggested": after, "random": random}
    named = {"judge": judge.name, "n_pairs": len(kept), "ratings": ratings}
    return {**named, "rows": rows, "error": error, "sentence": sentence}


def _variances(score: np.ndarray, uncertainty: np.ndarray, given: RatingTable, where: str) -> tuple[np.ndarray, float]:
    """Variance of the judge's error around the true score of each pair, NaN = no score, and of a rating's noise."""
    counts, several = given.counts, given.counts > 1
    freedom = int((counts - 1)[several].sum())
    rated = (counts > 0) & np.isfinite(score)
    if freedom < FEWEST or rated.sum() < FEWEST:
        raise UserError(
            f"{where}: {int(rated.sum())} rated pairs and {freedom} ratings beyond the first of a pair; expected "
            f"{FEWEST} of both, to learn the raters' noise and the judge's error"
        )
    means = given.sums / np.maximum(counts, 1)
    noise = float(np.square(given.scores - means[given.items]).sum()) / freedom
    if noise == 0:
        raise UserError(f"{where}: the raters of a pair always agree; one rating of each is enough")
    x, y = score[rated], means[rated]
    line = np.zeros(2) if is_constant(x) else np.polyfit(x, y, 1)
    away = y - (np.polyval(line, x) if line.any() else y.mean())
    error = max(float(np.mean(away**2 - noise / counts[rated])), _LEAST * noise)
    known = np.isfinite(score)
    shape = np.square(uncertainty) if np.isfinite(uncertainty[known]).all() else np.ones(len(score))
    return np.where(known, error * shape / shape[rated].mean(), np.nan), noise


def suggestion_views(found: Report) -> Iterator[Table | str]:
    """The best pairs, and what rating them is worth."""
    rows = [
        (own["pair_id"], str(own["ratings"]), f"{own['error']:.1%}", str(own["suggested"]))
        for own in found["rows"][:10]
    ]
    yield filled_table("rate next", ("pair", "ratings", "error", "more"), [("", rows)])
    yield found["sentence"]
