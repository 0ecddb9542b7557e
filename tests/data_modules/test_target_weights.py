"""Weights of training targets: by hand, and in what they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.items import RatedPairs
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.data_modules.schema import DatasetCard, Dimension, Pair, PairDataset
from empathy_judge.data_modules.targets import item_weights, training_targets, variance_components


def table(*ratings: list[float]) -> RatingTable:
    """From the ratings of each item."""
    items = np.repeat(np.arange(len(ratings)), [len(own) for own in ratings])
    raters = np.concatenate([np.arange(len(own)) for own in ratings]).astype(int)
    names = tuple(map(str, range(max(map(len, ratings)))))
    return RatingTable(items, raters, np.concatenate(ratings).astype(float), len(ratings), names)


def test_by_hand():
    # Means 2, 5, 4; grand mean 3.25. Within: (1 + 1) / (4 - 3). Among: (2 * 1.5625 + 3.0625 + 0.5625) / 2 = 3.375.
    # Raters: (4 - 6 / 4) / 2 = 1.25. Between: (3.375 - 2) / 1.25 = 1.1.
    own = table([1, 3], [5], [], [4])
    found = variance_components(own)
    assert (found.within, found.between) == (pytest.approx(2), pytest.approx(1.1))
    two, one = 1.1 / (1.1 + 1), 1.1 / (1.1 + 2)
    mean = (two + 2 * one) / 3
    weights, why = item_weights(own)
    assert weights == pytest.approx([two / mean, one / mean, 0, one / mean])
    assert why is None


def test_on_a_complete_panel_it_is_the_textbook_and_all_weigh_the_same():
    # Shrout and Fleiss (1979), table 2: between mean square 11.24, within 6.26, ICC(1,1) 0.17.
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    found = variance_components(table(*[[float(score) for score in own] for own in ratings]))
    assert found.within == pytest.approx(6.264, abs=5e-3)
    assert found.between == pytest.approx((11.24 - 6.264) / 4, abs=5e-3)
    assert found.between / (found.between + found.within) == pytest.approx(0.17, abs=5e-3)
    assert item_weights(table(*[[float(score) for score in own] for own in ratings]))[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("ratings", "why"),
    [
        ([[1.0], [5.0]], "without an item that has two raters"),
        ([[1.0, 2.0]], "and another item"),
        ([[1.0, 5.0], [5.0, 1.0]], "differ as much as those of different items"),
    ],
)
def test_where_reliability_is_unknown_all_weigh_the_same(ratings, why):
    weights, said = item_weights(table(*ratings, []))
    assert weights.tolist() == [1.0] * len(ratings) + [0.0]
    assert why in said


def test_raters_who_agree_fully_weigh_the_same_and_nobody_weighs_nothing():
    assert item_weights(table([2, 2], [4]))[0].tolist() == [1, 1]
    assert item_weights(RatingTable(np.array([], int), np.array([], int), np.array([]), 2, ()))[0].tolist() == [0, 0]


def test_targets_and_items_carry_them():
    rows = [
        ("p0", "r0", "a", 1), ("p0", "r1", "a", 3), ("p1", "r0", "a", 5), ("p3", "r0", "a", 4), ("p1", "r0", "b", 2),
    ]  # fmt: skip
    made = PairDataset(
        Path("made"),
        DatasetCard("made", (Dimension("a", 1, 5, 1), Dimension("b", 1, 5, 1)), "test", "CC0-1.0", True),
        tuple(Pair(f"p{n}", b"") for n in range(4)),
        pd.DataFrame(rows, columns=["pair_id", "rater_id", "dimension", "score"]).astype({"score": float}),
    )
    by_hand = item_weights(table([1, 3], [5], [], [4]))[0]
    for target in ("mean", "z_scored", "bias_corrected"):
        found = training_targets(made, target, "reliability")
        assert found.weights == pytest.approx(np.stack([by_hand, [0, 1, 0, 0]], axis=1))
        assert found.notes[-1] == (
            "weights, b: no reliability without an item that has two raters, and another item; all ratings weigh the "
            "same"
        )
        assert training_targets(made, target).weights.tolist() == [[1, 0], [1, 1], [0, 0], [1, 0]]
    single = training_targets(made, "single", "reliability").weights
    assert single.tolist() == [[1, 0], [1, 0], [1, 1], [1, 0]]  # one rating each: none is more reliable
    items = RatedPairs(made, weighting="reliability")
    assert items[0, 0].weights.tolist() == pytest.approx([by_hand[0], 0])
