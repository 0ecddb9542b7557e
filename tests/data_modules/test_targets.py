"""Training targets and their weights: by hand, by least squares, and inside the scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.data_modules.schema import DatasetCard, Dimension, Pair, PairDataset
from empathy_judge.data_modules.targets import fit_rater_model, item_weights, training_targets, variance_components
from empathy_judge.data_modules.training_items import RatedPairs

NAN = float("nan")


def table(scores: np.ndarray) -> RatingTable:
    """From shape (items, raters), NaN = not rated."""
    items, raters = np.nonzero(~np.isnan(scores))
    return RatingTable(items, raters, scores[items, raters], len(scores), tuple(map(str, range(scores.shape[1]))))


def ragged(*ratings: list[float]) -> RatingTable:
    """From the ratings of each item."""
    most = max(map(len, ratings))
    return table(np.array([[*own, *[NAN] * (most - len(own))] for own in ratings], float))


def dataset(scores: dict[str, np.ndarray], low: float = 1, high: float = 5, step: float | None = None) -> PairDataset:
    """Pairs without audio from dimension -> shape (pairs, raters)."""
    rows = [
        (f"p{item:03d}", f"r{rater}", name, own[item, rater])
        for name, own in scores.items()
        for item, rater in zip(*np.nonzero(~np.isnan(own)), strict=True)
    ]
    card = DatasetCard("made", tuple(Dimension(name, low, high, step) for name in scores), "test", "CC0-1.0", True)
    pairs = tuple(Pair(f"p{item:03d}", b"") for item in range(len(next(iter(scores.values())))))
    ratings = pd.DataFrame(rows, columns=["pair_id", "rater_id", "dimension", "score"])
    return PairDataset(Path("made"), card, pairs, ratings)


def simulated(
    seed: int, *, bias: float, noise: float, missing: float, spread: float = 0.0, n: int = 300, raters: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """True scores (variance 1), shape (n,), and ratings, shape (n, raters). `spread`: of the logarithm of stretches."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    stretch = np.exp(spread * rng.normal(size=raters))
    scores = stretch * (truth[:, None] + noise * rng.normal(size=(n, raters))) + bias * rng.normal(size=raters)
    scores[rng.random(scores.shape) < missing] = NAN
    rated = ~np.isnan(scores).all(axis=1)
    return truth[rated], scores[rated]


def test_the_additive_model_finds_exact_biases_and_keeps_the_mean_of_all_ratings():
    rng = np.random.default_rng(0)
    items, biases = rng.normal(size=30), rng.normal(size=5)
    scores = items[:, None] + biases
    scores[rng.random(scores.shape) < 0.5] = NAN
    scores[0] = NAN
    own = table(scores)
    model = fit_rater_model(own)
    assert model.n_components == 1
    assert np.abs(model.residual).max() < 1e-12
    assert np.diff(model.biases) == pytest.approx(np.diff(biases))
    assert model.biases[own.raters].mean() == pytest.approx(0, abs=1e-12)
    assert np.isnan(model.items[0])
    shift = model.items - items
    assert shift[1:][own.counts[1:] > 0] == pytest.approx(np.nanmax(shift))


def test_the_additive_model_is_least_squares():
    _, scores = simulated(1, bias=1.0, noise=1.0, missing=0.5, n=40, raters=6)
    own = table(scores)
    design = np.concatenate([np.eye(len(scores))[own.items], np.eye(6)[own.raters]], axis=1)
    fitted = design @ np.linalg.lstsq(design, own.scores, rcond=None)[0]
    assert fit_rater_model(own).residual == pytest.approx(own.scores - fitted, abs=1e-10)


def test_a_long_chain_of_many_raters_is_solved():
    rng = np.random.default_rng(2)
    raters = 1200  # more than are solved densely; each shares one item with the next
    scores = np.full((raters - 1, raters), NAN)
    biases, items = rng.normal(size=raters), rng.normal(size=raters - 1)
    for item in range(raters - 1):
        scores[item, item : item + 2] = items[item] + biases[item : item + 2]
    model = fit_rater_model(table(scores))
    assert np.abs(model.residual).max() < 1e-6
    assert np.diff(model.biases) == pytest.approx(np.diff(biases), abs=1e-6)


def test_panels_without_a_common_item_are_corrected_each_by_itself_and_said():
    scores = np.full((6, 4), NAN)
    scores[:3, :2] = np.array([[2.0, NAN], [2, 3], [NAN, 3]])  # r1 is one above r0
    scores[3:, 2:] = np.array([[4.0, NAN], [4, 5], [NAN, 5]])
    targets = training_targets(dataset({"d": scores}), "bias_corrected")
    assert targets.scores[:, 0] == pytest.approx([2.5, 2.5, 2.5, 4.5, 4.5, 4.5])
    (note,) = targets.notes
    assert "2 panels without a common item" in note


def test_on_a_complete_panel_corrected_biases_change_nothing():
    _, scores = simulated(3, bias=0.3, noise=0.3, missing=0.0, n=50)
    made = dataset({"d": np.clip(scores + 3, 1, 5)})
    plain, corrected = (training_targets(made, target).scores for target in ("mean", "bias_corrected"))
    assert corrected == pytest.approx(plain, abs=1e-12)


def test_what_leaves_the_scale_stands_at_its_end_and_is_counted():
    _, scores = simulated(4, bias=2.0, noise=0.5, missing=0.6, n=200)
    scores = np.clip(scores + 3, 1, 5)
    free = fit_rater_model(table(scores)).items
    outside = (free < 1) | (free > 5)
    assert outside.sum() == 3
    targets = training_targets(dataset({"d": scores}), "bias_corrected")
    assert targets.scores[~outside, 0] == pytest.approx(free[~outside])
    assert set(targets.scores[outside, 0]) <= {1.0, 5.0}
    (note,) = targets.notes
    assert f"{outside.sum()} of {len(free)} targets left the scale 1 to 5" in note


def test_single_ratings_are_one_item_per_pair_and_rater():
    first = np.array([[1.0, 2.0], [NAN, NAN], [NAN, 5.0]])
    second = np.array([[NAN, 4.0], [NAN, NAN], [3.0, NAN]])
    rated = RatedPairs(dataset({"a": first, "b": second}), target="single")
    items = [rated[0, index] for index in range(len(rated))]
    assert [item.index for item in items] == [0, 1, 2, 3]
    assert [item.pair.pair_id for item in items] == ["p000", "p000", "p002", "p002"]
    np.testing.assert_array_equal([item.scores for item in items], [[1, NAN], [2, 4], [NAN, 3], [5, NAN]])
    assert [item.weights.tolist() for item in items] == [[1, 0], [1, 1], [0, 1], [1, 0]]
    assert [item.rater for item in items] == [0, 1, 0, 1]
    assert (rated.rater_ids, rated.rater_counts.tolist()) == (("r0", "r1"), [2, 2])
    assert items[0].histogram is None


def test_histogram_of_ratings():
    scores = np.array([[1.0, 1.0, 2.5], [NAN, NAN, NAN], [3.0, 2.0, NAN]])
    made = training_targets(dataset({"d": scores}, 1, 3, 0.5), "mean")
    assert made.histograms is not None
    assert made.histograms[:, 0].tolist() == [[2, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 1]]
    with pytest.raises(DataError, match="dimension d: expected a scale with steps; it has 1 to 3"):
        _ = Dimension("d", 1, 3).steps


def test_histograms_stand_beside_every_target_where_all_scales_have_steps():
    first = np.array([[1.0, 1.0, 5.0], [NAN, NAN, NAN]])
    second = np.array([[NAN, 2.0, NAN], [NAN, 4.0, NAN]])
    made = dataset({"a": first, "b": second}, step=1)
    panel = [[[2, 0, 0, 0, 1], [0, 1, 0, 0, 0]], [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]]]
    for target in ("mean", "bias_corrected"):
        found = training_targets(made, target)
        assert found.histograms.tolist() == panel, target
        assert found.weights.tolist() == [[1, 1], [0, 1]]
        assert found.raters is None
    single = training_targets(made, "single").histograms
    assert single.tolist() == [
        [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
        [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
        [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]],
    ]


def test_a_shorter_scale_ends_in_zeros_and_a_scale_of_too_many_steps_has_no_histogram():
    made = dataset({"a": np.array([[5.0]]), "b": np.array([[1.0]])}, step=1)
    short = Dimension("b", 0, 2, 1)
    two = dataclasses.replace(made, card=dataclasses.replace(made.card, dimensions=(made.card.dimensions[0], short)))
    for target in ("mean", "single"):
        found = training_targets(two, target).histograms
        assert found.tolist() == [[[0, 0, 0, 0, 1], [0, 1, 0, 0, 0]]]
        for step, has_none in ((None, True), (5 / 1000, False), (5 / 1001, True)):
            one = dataset({"a": np.array([[5.0]])}, high=6, step=step)
            assert (training_targets(one, target).histograms is None) == has_none


def test_pairs_nobody_rated_and_dimensions_without_ratings_stay_undefined():
    scores = np.array([[1.0, 2.0], [NAN, NAN]])
    made = dataset({"d": scores, "e": np.full((2, 2), NAN)})
    for target in ("mean", "bias_corrected"):
        np.testing.assert_array_equal(training_targets(made, target).scores, [[1.5, NAN], [NAN, NAN]], err_msg=target)
    empty = dataclasses.replace(made, ratings=made.ratings.iloc[:0])
    assert np.isnan(training_targets(empty, "bias_corrected").scores).all()
    assert training_targets(empty, "single").scores.shape == (0, 2)


def test_weights_by_hand():
    # Means 2, 5, 4; grand mean 3.25. Within: (1 + 1) / (4 - 3). Among: (2 * 1.5625 + 3.0625 + 0.5625) / 2 = 3.375.
    # Raters: (4 - 6 / 4) / 2 = 1.25. Between: (3.375 - 2) / 1.25 = 1.1.
    own = ragged([1, 3], [5], [], [4])
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
    found = variance_components(ragged(*ratings))
    assert found.within == pytest.approx(6.264, abs=5e-3)
    assert found.between == pytest.approx((11.24 - 6.264) / 4, abs=5e-3)
    assert found.between / (found.between + found.within) == pytest.approx(0.17, abs=5e-3)
    assert item_weights(ragged(*ratings))[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("ratings", "why"),
    [
        ([[1.0], [5.0]], "without an item that has two raters"),
        ([[1.0, 2.0]], "and another item"),
        ([[1.0, 5.0], [5.0, 1.0]], "differ as much as those of different items"),
    ],
)
def test_where_reliability_is_unknown_all_weigh_the_same(ratings, why):
    weights, said = item_weights(ragged(*ratings, []))
    assert weights.tolist() == [1.0] * len(ratings) + [0.0]
    assert why in said


def test_raters_who_agree_fully_weigh_the_same_and_nobody_weighs_nothing():
    assert item_weights(ragged([2, 2], [4]))[0].tolist() == [1, 1]
    assert item_weights(RatingTable(np.array([], int), np.array([], int), np.array([]), 2, ()))[0].tolist() == [0, 0]


def test_targets_and_items_carry_weights():
    first = np.array([[1, 3], [5, NAN], [NAN, NAN], [4, NAN]])
    made = dataset({"a": first, "b": np.where(first == 5, 2.0, NAN)}, step=1)
    by_hand = item_weights(table(first))[0]
    for target in ("mean", "bias_corrected"):
        found = training_targets(made, target, "reliability")
        assert found.weights == pytest.approx(np.stack([by_hand, [0, 1, 0, 0]], axis=1))
        assert found.notes[-1].startswith("weights, b: no reliability without an item that has two raters")
        assert training_targets(made, target).weights.tolist() == [[1, 0], [1, 1], [0, 0], [1, 0]]
    single = training_targets(made, "single", "reliability").weights
    assert single.tolist() == [[1, 0], [1, 0], [1, 1], [1, 0]]  # one rating each: none is more reliable
    assert RatedPairs(made, weighting="reliability")[0, 0].weights.tolist() == pytest.approx([by_hand[0], 0])
