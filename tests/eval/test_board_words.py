"""What is said of a board, where words follow from its figures."""

from __future__ import annotations

from typing import Any

import pytest
from empathy_judge import leaderboard
from empathy_judge.eval.board_words import sentences_of
from empathy_judge.eval.report.leaderboard import Measured
from empathy_judge.eval.statistics.agreement import Statistic

from .conftest import only, table
from .test_system_scores import rated


@pytest.fixture
def said(write_scores, tmp_path):
    """What is said of a board of which some fields are changed, of the judge alone or with ratings."""
    rows = table({"v1": 3.0, "v2": 3.5})
    ratings = rated(rows, 10, {"v1": 0.0, "v2": 0.0}, tmp_path / "ratings.csv")

    def said(by_people: bool = False, known: bool = True, **changes: Any) -> str:
        found = leaderboard(write_scores(rows), ratings=ratings if by_people else None)
        return " ".join(sentences_of(only(found).model_copy(update=changes), found.answers, found.ratings, known))

    return said


@pytest.mark.parametrize(
    ("order", "part"),
    [
        (Statistic(None, n=3), "orders systems was not measured"),
        (Statistic(0.9, 0.6, 1.0, n=3), "pairs of its 4 systems it ordered 90 %"),
        (Statistic(0.9, 0.5, 1.0, n=3), "not told apart from chance"),
        (Statistic(0.9, n=3), "not told apart from chance"),
    ],
)
def test_an_order_is_told_from_chance_where_its_interval_is_above_half(order, part, said):
    known = {"dataset": "tones", "synthetic": False, "spearman": Statistic(0.5, 0.4, 0.6, n=20), "n_systems": 4}
    text = said(measured=Measured(**known, pairwise_accuracy=order))
    assert part in text
    assert ("from chance" in text) == ("from chance" in part)


def test_ratings_saved_an_unknown_scale_and_a_refused_board(said):
    assert "would have needed 66 ratings" in said(True, n_ratings=60, ratings_worth=1.1)
    assert "The judge adds nothing" in said(True, n_ratings=60, ratings_worth=1.04)
    assert "a high score is taken as good" in said(known=False)
    refused = said(refused="it is deaf")
    assert "No order is stated" in refused
    assert "is better than" not in refused
