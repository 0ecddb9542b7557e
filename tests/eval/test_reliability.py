"""Ceilings against published values, hand counts and simulated raters of known reliability."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.eval.reliability import MIN_RATER_ITEMS, reliability
from scipy.stats import spearmanr

NAN = float("nan")


def long(scores: np.ndarray) -> pd.DataFrame:
    """One row per rating from shape (raters, items); NaN = not rated."""
    raters, items = np.nonzero(~np.isnan(scores))
    return pd.DataFrame(
        {
            "pair_id": [f"p{item}" for item in items],
            "rater_id": [f"r{rater}" for rater in raters],
            "dimension": "d",
            "score": scores[raters, items],
        }
    )


def groups_of(n_items: int, size: int = 1) -> dict[str, str]:
    return {f"p{item}": f"g{item // size}" for item in range(n_items)}


def simulated(
    n: int, raters: int, bias: float, noise: float, missing: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """True scores (sd 1), shape (n,), and ratings, shape (raters, n)."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    scores = truth + bias * rng.normal(size=(raters, 1)) + noise * rng.normal(size=(raters, n))
    scores[rng.random((raters, n)) < missing] = NAN
    return truth, scores


def test_alpha_of_krippendorffs_own_example_with_missing_ratings() -> None:
    # Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", section C: interval alpha 0.849.
    scores = np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
            [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
        ]
    )
    alpha = reliability(long(scores), "d", groups_of(12), resamples=50)["krippendorff_alpha"]
    assert alpha["value"] == pytest.approx(0.849, abs=5e-4)
    assert alpha["n"] == 11  # the last item has one rating


def test_alpha_by_hand() -> None:
    # Items (1, 2) and (3, 3): observed 0.5 (mean over values), expected 2 * 11 / 12 of the values 1, 2, 3, 3.
    # Squared differences over ordered pairs: 2 * (1 + 4 + 4 + 1 + 1 + 0) = 22, over 4 * 3 pairs.
    alpha = reliability(long(np.array([[1.0, 3.0], [2.0, 3.0]])), "d", groups_of(2), resamples=0)
    assert alpha["krippendorff_alpha"]["value"] == pytest.approx(1 - 0.5 / (22 / 12))


def test_leave_one_rater_out_is_the_mean_over_raters_weighted_by_their_items() -> None:
    _, scores = simulated(40, 4, bias=0.5, noise=1.0, missing=0.0, seed=0)
    scores[0, 12:] = NAN  # rater 0 rated 12 items
    scores[1:, 39] = NAN  # and nobody rated the last item
    result = reliability(long(scores), "d", groups_of(40), resamples=0)
    expected = []
    for rater in range(4):
        others = np.nanmean(np.delete(scores, rater, axis=0)[:, :39], axis=0)
        own = scores[rater, :39]
        both = ~np.isnan(own) & ~np.isnan(others)
        expected.append((spearmanr(own[both], others[both])[0], int(both.sum())))
    values, sizes = map(np.array, zip(*expected, strict=True))
    assert sizes.tolist() == [12, 39, 39, 39]
    assert [rater["n"] for rater in result["raters"]] == sizes.tolist()
    assert [rater["spearman"] for rater in result["raters"]] == pytest.approx(values)
    assert result["spearman"]["value"] == pytest.approx((values * sizes).sum() / sizes.sum())
    assert (result["n_items"], result["n_raters"], result["n_ratings"]) == (39, 4, 12 + 3 * 39)


def test_leave_one_rater_out_matches_theory() -> None:
    # One rater and the mean of 5 others, noise 1: Pearson 1 / sqrt(2 * 1.2), and from it Spearman.
    _, scores = simulated(3000, 6, bias=1.0, noise=1.0, missing=0.0, seed=1)
    expected = 6 / np.pi * np.arcsin(1 / np.sqrt(2 * 1.2) / 2)
    found = reliability(long(scores), "d", groups_of(3000), resamples=0)["spearman"]["value"]
    assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("raters", "bias", "noise", "missing"),
    [(6, 0.0, 1.0, 0.0), (7, 2.0, 1.0, 0.0), (6, 0.5, 1.0, 0.15), (6, 0.5, 2.0, 0.15)],
)
def test_the_panel_ceiling_is_what_the_true_scores_reach(
    raters: int, bias: float, noise: float, missing: float
) -> None:
    truth, scores = simulated(1500, raters, bias, noise, missing, seed=2)
    rated = (~np.isnan(scores)).sum(axis=0) >= 2
    truth, scores = truth[rated], scores[:, rated]
    result = reliability(long(scores), "d", groups_of(len(truth)), resamples=0)
    reached = spearmanr(truth, np.nanmean(scores, axis=0))[0]
    assert result["panel_mean"]["value"] == pytest.approx(reached, abs=0.02)
    assert result["panel_reliability"]["value"] == pytest.approx(result["panel_mean"]["value"] ** 2)
    half = result["split_half"]["value"]
    assert result["panel_reliability"]["value"] == pytest.approx(2 * half / (1 + half))


def test_constant_biases_of_raters_who_rate_everything_cost_the_panel_nothing() -> None:
    _, scores = simulated(200, 6, bias=0.0, noise=1.0, missing=0.0, seed=3)
    biased = scores + np.arange(6)[:, None] * 3
    fair, skewed = (reliability(long(s), "d", groups_of(200), resamples=0) for s in (scores, biased))
    assert skewed["panel_mean"]["value"] == pytest.approx(fair["panel_mean"]["value"], abs=1e-9)
    assert skewed["spearman"]["value"] == pytest.approx(fair["spearman"]["value"], abs=1e-9)
    assert skewed["krippendorff_alpha"]["value"] < fair["krippendorff_alpha"]["value"] / 2


def test_intervals_hold_the_value_and_shrink_with_more_groups() -> None:
    widths = []
    for n in (60, 600):
        _, scores = simulated(n, 5, bias=0.3, noise=1.0, missing=0.1, seed=4)
        result = reliability(long(scores), "d", groups_of(n, size=3), resamples=200)
        for name in ("spearman", "panel_mean", "split_half", "panel_reliability", "krippendorff_alpha"):
            assert result[name]["low"] <= result[name]["value"] <= result[name]["high"], name
        widths.append(result["spearman"]["high"] - result["spearman"]["low"])
    assert widths[1] < widths[0] / 2


def test_the_same_seed_gives_the_same_result() -> None:
    _, scores = simulated(50, 5, 0.3, 1.0, 0.1, seed=5)
    assert reliability(long(scores), "d", groups_of(50), resamples=50, seed=7) == reliability(
        long(scores), "d", groups_of(50), resamples=50, seed=7
    )


def test_raters_who_cannot_be_compared_are_listed_with_the_reason() -> None:
    _, scores = simulated(30, 4, 0.0, 0.5, 0.0, seed=6)
    scores[0, MIN_RATER_ITEMS - 1 :] = NAN
    scores[1] = 3.0
    result = reliability(long(scores), "d", groups_of(30), resamples=0)
    few, constant, *others = result["raters"]
    assert (few["spearman"], few["reason"]) == (None, "shares 9 items with other raters, at least 10 needed")
    assert (constant["spearman"], constant["reason"]) == (
        None,
        "this rater or the mean of the others is constant",
    )
    assert result["spearman"]["value"] == pytest.approx(np.mean([rater["spearman"] for rater in others]))


def test_a_single_rater_leaves_everything_undefined() -> None:
    result = reliability(long(np.arange(20.0)[None]), "d", groups_of(20), resamples=20)
    for name in ("spearman", "panel_mean", "split_half", "panel_reliability", "krippendorff_alpha"):
        assert result[name]["value"] is None, name
        assert result[name]["reason"], name


def test_raters_who_disagree_leave_no_panel_ceiling() -> None:
    scores = np.stack([np.arange(20.0), -np.arange(20.0)])
    result = reliability(long(scores), "d", groups_of(20), resamples=20)
    assert result["spearman"]["value"] == pytest.approx(-1.0)
    assert result["split_half"]["value"] == pytest.approx(-1.0)
    assert result["panel_mean"]["value"] is None
    assert result["panel_mean"]["reason"] == "the halves of the panel do not agree (Spearman -1.000)"


def test_other_dimensions_and_other_pairs_do_not_count() -> None:
    _, scores = simulated(30, 3, 0.0, 1.0, 0.0, seed=8)
    table = long(scores)
    more = pd.concat([table, table.assign(dimension="other", score=0.0), table.assign(pair_id="x" + table["pair_id"])])
    assert reliability(more, "d", groups_of(30), resamples=20) == reliability(table, "d", groups_of(30), resamples=20)


@pytest.fixture
def published() -> Path:
    root = os.environ.get("EMPATHY_JUDGE_REAL_DATA")
    folder = Path(root, "empathic_communication") if root else None
    if folder is None or not folder.is_dir():
        pytest.skip("EMPATHY_JUDGE_REAL_DATA does not hold empathic_communication")
    return folder


def test_alphas_of_the_published_expert_ratings(published: Path) -> None:
    # Kumar et al. (2026), stored notebook output; quoted in the README beside the data.
    rows = [line.split("|")[1:4] for line in (published / "README.md").read_text().splitlines()]
    alphas = {
        (dataset.strip(), dimension.strip()): float(value)
        for dataset, dimension, value in (row for row in rows if len(row) == 3)
        if value.strip().replace(".", "", 1).isdigit() and "." in value
    }
    assert len(alphas) == 21
    with (published / "ratings_long.csv").open(newline="") as file:
        ratings = [row for row in csv.DictReader(file) if row["annotator"] in ("expert1", "expert2", "expert3")]
    for (dataset, dimension), alpha in alphas.items():
        own = [row for row in ratings if row["dataset"] == dataset and row["dimension"] == dimension]
        table = pd.DataFrame(
            {
                "pair_id": [row["row"] for row in own],
                "rater_id": [row["annotator"] for row in own],
                "dimension": dimension,
                "score": [float(row["score"]) for row in own],
            }
        )
        result = reliability(table, dimension, {row["row"]: row["row"] for row in own}, resamples=0)
        assert result["n_items"] == 50
        assert round(result["krippendorff_alpha"]["value"], 3) == alpha, (dataset, dimension)
