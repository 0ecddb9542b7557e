"""Facts about ratings and preferences of a dataset, by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, PairDataset
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.eval.inspection import inspection_facts, most_disputed, rating_bins

from .conftest import EMPATHY, pair_rows, rating_rows


def ratings_of(**scores: list[float]) -> pd.DataFrame:
    rows = [(pair_id, f"r{n}", score) for pair_id, own in scores.items() for n, score in enumerate(own)]
    return pd.DataFrame(rows, columns=["pair_id", "rater_id", "score"])


def test_the_most_disputed_items_in_their_order():
    ratings = ratings_of(
        single=[5], agreed=[3, 3, 3], mild=[3, 4], wide=[1, 5], tied_b=[2, 4, 2, 4], tied_a=[4, 2, 4, 2],
        three=[1, 3, 2],
    )  # fmt: skip
    found = most_disputed(ratings)
    # mild (2 raters) has sqrt(1/2), three has 1, the tied ones sqrt(4/3), wide sqrt(8)
    assert [item.pair_id for item in found] == ["wide", "tied_a", "tied_b", "three", "mild"]
    assert [item.spread for item in found] == pytest.approx([8**0.5, (4 / 3) ** 0.5, (4 / 3) ** 0.5, 1, 0.5**0.5])
    assert found[1].ratings == (("r1", 2.0), ("r3", 2.0), ("r0", 4.0), ("r2", 4.0))
    equal = most_disputed(ratings_of(a=[2, 3, 4], b=[2, 2, 3, 4, 4], c=[1, 2, 3]))  # all have exactly 1: more raters
    assert [(item.pair_id, item.spread) for item in equal] == [("b", 1.0), ("a", 1.0), ("c", 1.0)]


@pytest.mark.parametrize(
    ("dimension", "edges"),
    [
        (EMPATHY, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
        (Dimension("half", -1, 0, 0.5), [-1.25, -0.75, -0.25, 0.25]),
        (Dimension("fine", 0, 100, 1), list(np.linspace(0, 100, 21))),
        (Dimension("free", 0, 1), list(np.linspace(0, 1, 21))),
        (Dimension("twenty-one", 0, 20, 1), list(np.arange(22) - 0.5)),
    ],
)
def test_bins_of_a_scale(dimension, edges):
    np.testing.assert_allclose(rating_bins(dimension), edges, atol=1e-12)


def test_facts_of_ratings_and_preferences(tmp_path):
    ratings = rating_rows().query("pair_id != 'pair-07'")
    ratings = ratings.drop(ratings.query("pair_id == 'pair-03' and rater_id == 'rater-0'").index)
    compared = [
        ("pair-00", "pair-01", "a", 1.0), ("pair-01", "pair-00", "b", 2.0),  # they differ
        ("pair-02", "pair-03", "a", 1.0), ("pair-02", "pair-03", "b", 2.0),  # alike
        ("pair-04", "pair-05", "a", 0.0), ("pair-05", "pair-04", "b", 0.0),  # both call it a tie
        ("pair-06", "pair-08", "c", 1.0),
    ]  # fmt: skip
    preferences = pd.DataFrame(
        [(*row[:3], "empathy", row[3]) for row in compared],
        columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"],
    )
    card = DatasetCard("tones", (EMPATHY,), "a test", "CC0-1.0")
    write_dataset(tmp_path / "data", card, pd.DataFrame(pair_rows(), dtype=object), ratings, preferences)
    (tmp_path / "data" / "skipped.csv").write_text('where,reason\n"a.csv, row 3","cut off, ""badly"""\n')
    facts = inspection_facts(PairDataset.load(tmp_path / "data"))
    own = facts.ratings["empathy"]
    assert own.pairs_by_raters == {0: 1, 3: 1, 4: 28}
    expected = [int((ratings["score"] == step).sum()) for step in (1, 2, 3, 4, 5)]
    assert [*own.scores.counts] == expected
    assert np.sum(list(own.scores_by_rater.values()), axis=0).tolist() == expected
    assert sum(own.scores_by_rater["rater-0"]) == 28
    assert [rater.n_ratings for rater in own.raters] == [28, 29, 29, 29]
    assert facts.preferences["empathy"].as_json() == {
        "comparisons": 7, "raters": 3, "ties": 2, "couples": 4, "shared_couples": 3, "unanimous_couples": 2,
        "disputed": [{"pair_ids": ["pair-00", "pair-01"], "votes": [1, 0, 1]}],
    }  # fmt: skip
    assert [*facts.skipped] == [{"where": "a.csv, row 3", "reason": 'cut off, "badly"'}]
    assert json.loads(json.dumps(facts.as_json(), allow_nan=False))["ratings"]["empathy"]["pairs_by_raters"]["0"] == 1
