"""Alpha against the `krippendorff` package and Krippendorff's own example; resamples against plain repetition."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics.krippendorff import DISTANCES, Distance, krippendorff_alpha

from .conftest import NAN, own_groups, redrawn, table_of

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", section C
EXAMPLE = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
)


def made() -> np.ndarray:
    """Five raters, forty items, 35 % missing, with zeros: shape (raters, items)."""
    rng = np.random.default_rng(7)
    scores = np.clip(np.round(rng.normal(size=40) * 1.2 + 5 + rng.normal(size=(5, 40))), 0, 9)
    scores[rng.random(scores.shape) < 0.35] = NAN
    return scores


def alpha(scores: np.ndarray, distance: Distance) -> float | None:
    return krippendorff_alpha(table_of(scores), distance, own_groups(scores.shape[1])).value


@pytest.mark.parametrize(
    ("distance", "of_example", "of_made"),
    [  # krippendorff 0.9.0: krippendorff.alpha(scores, level_of_measurement=distance)
        ("nominal", 0.743421052631579, 0.1362539780310026),
        ("ordinal", 0.8153875037548814, 0.5016887325783927),
        ("interval", 0.8491071428571428, 0.5058390005986202),
    ],
)
def test_equals_the_krippendorff_package(distance, of_example, of_made):
    assert alpha(EXAMPLE, distance) == pytest.approx(of_example, abs=1e-9)
    assert alpha(made(), distance) == pytest.approx(of_made, abs=1e-9)


@pytest.mark.parametrize("distance", DISTANCES)
def test_every_resample_is_alpha_of_the_items_that_often(distance):
    scores = made()
    resamples = own_groups(40, 6)
    found = krippendorff_alpha(table_of(scores), distance, resamples)
    repeated = [alpha(scores[:, items], distance) for items in redrawn(resamples)]
    assert found.draws == pytest.approx(repeated, abs=1e-12)
    assert len(set(found.draws)) == 6


def test_counts_items_and_the_single_ratings_that_do_not_count():
    found = krippendorff_alpha(table_of(EXAMPLE), "ordinal", own_groups(12, 200))
    assert (found.n, found.dropped) == (11, 1)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("distance", DISTANCES)
def test_undefined_with_a_reason(distance):
    resamples = own_groups(3, 5)
    constant = krippendorff_alpha(table_of(np.full((2, 3), 0.1)), distance, resamples)
    assert (constant.value, constant.reason) == (None, "the ratings are constant")
    alone = krippendorff_alpha(table_of(np.array([[1.0, 2.0, NAN], [NAN, NAN, 3.0]])), distance, resamples)
    assert alone.reason == "no item with at least two raters"


@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**160])
def test_does_not_depend_on_the_unit(unit):
    """The squares of scores of 1e-300 are 0."""
    for distance in DISTANCES:
        assert alpha(made() * unit, distance) == alpha(made(), distance)
