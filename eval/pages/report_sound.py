"""What a person hears and reads of the items on which judge and people differ most."""

from __future__ import annotations

from typing import Any

from ...data_modules.ratings import RatingTable
from ...data_modules.schema import PairDataset
from .dot_strip import dot_strip
from .playable import Players
from .sound_pieces import heard

_CLEAR_OF = 0.12
"""Ends of the scale nearer than this share of it to the judge's score are not written, so that figures stay apart."""


def disagreements(
    rows: list[dict[str, Any]],
    dimension: str,
    scale: tuple[float, float],
    dataset: PairDataset,
    players: Players,
) -> list[dict[str, Any]]:
    """The items of `rows` with their players and single ratings.

    Args:
        rows: Rows of `evaluate.Evaluation.items` with a score and ratings; others of the dataset are left out.
        dimension: Of the ratings.
        scale: Lowest and highest rating.
        dataset: What was judged.
        players: Where the clips go.
    """
    pairs = {pair.pair_id: pair for pair in dataset.pairs}
    known = [row for row in rows if row["pair_id"] in pairs]
    table = RatingTable.of(dataset.ratings, dimension, [row["pair_id"] for row in known])
    found = []
    for number, row in enumerate(known):
        own = table.items == number
        ratings = sorted(
            zip((table.rater_ids[rater] for rater in table.raters[own]), map(float, table.scores[own]), strict=True),
            key=lambda rating: (rating[1], rating[0]),
        )
        found.append(
            {
                **row,
                "ratings": ratings,
                "strip": dot_strip(ratings, scale, _ticks(row["score"], scale)) if ratings else "",
                "heard": heard(pairs[row["pair_id"]], players),
            }
        )
    return found


def _ticks(score: float, scale: tuple[float, float]) -> list[float]:
    """The ends of the scale, and last the judge's score, which the page marks."""
    low, high = scale
    inside = min(max(score, low), high)
    return [end for end in scale if abs(end - inside) > _CLEAR_OF * (high - low)] + [round(score, 2)]
