"""Predicted shares of raters in the report of a judge: beside a constant and people, on its page, in its files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import Dimension, PairDataset
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.judges import check_score_table, score_table
from empathy_judge.eval.pages.report import markdown_comparison, render_comparison, render_page
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import Report
from empathy_judge.eval.statistics.distributions import penalties
from empathy_judge.eval.views import comparison_views, notes

from .conftest import AnyJudge, Page

SCALE = Dimension("empathy", 1, 5, 1)


@pytest.fixture(scope="module")
def truth() -> dict[str, np.ndarray]:
    """Shares of all raters of each pair."""
    shares = np.random.default_rng(5).dirichlet(np.full(5, 1.0), 80)
    return {f"pair-{number}": own for number, own in enumerate(shares)}


@pytest.fixture
def rated(make_dataset, truth) -> PairDataset:
    """60 measured pairs and 20 of the split `train`, with five raters of the truth; the first measured one has one."""
    made, rng = make_dataset(raters=1), np.random.default_rng(6)
    rows = [
        (pair, f"rater-{rater}", "empathy", float(rng.choice(5, p=shares) + 1))
        for pair, shares in truth.items()
        for rater in range(1 if pair == "pair-20" else 5)
    ]
    ratings = pd.DataFrame(rows, columns=pd.Index(["pair_id", "rater_id", "dimension", "score"]))
    return replace(made, card=replace(made.card, dimensions=(SCALE,)), ratings=ratings)


def judge_of(shares: dict[str, Any]) -> AnyJudge:
    """A judge that gives these shares, and scores their mean; what stands in `meta` as that of a prompted judge."""

    def score(pairs: Any) -> pd.DataFrame:
        means = [[1 + np.asarray(shares[pair.pair_id]) @ np.arange(5)] for pair in pairs]
        return score_table(pairs, ("empathy",), np.array(means), metas=metas(pairs))

    def metas(pairs: Any) -> list[dict[str, Any]]:
        return [{"levels": {"empathy": list(shares[pair.pair_id])}} for pair in pairs]

    return AnyJudge(score)


def counts_of(dataset: PairDataset, pairs: list[str]) -> np.ndarray:
    return np.array([
        np.bincount(dataset.ratings.loc[dataset.ratings["pair_id"] == pair, "score"].astype(int) - 1, minlength=5)
        for pair in pairs
    ])  # fmt: skip


def test_the_truth_is_better_than_a_constant_and_one_rater(rated, truth, tmp_path):
    results = evaluate(judge_of(truth), rated, split="test", checks=(), resamples=60)
    own: Any = results.report.dimensions["empathy"].rating_distribution
    measured = [pair.pair_id for pair in rated.pairs if pair.split == "test"]
    counts = counts_of(rated, measured)
    expected = penalties(np.stack([truth[pair] for pair in measured]), counts)
    training = counts_of(rated, [pair.pair_id for pair in rated.pairs if pair.split == "train"])
    constant = penalties((training / training.sum(1, keepdims=True)).mean(0), counts)
    assert own.constant_from == "train"
    for score, judged, same in zip((own.rps, own.log_score), expected, constant, strict=True):
        assert score.judge.value == pytest.approx(judged.mean())
        assert score.constant.value == pytest.approx(same.mean())
        assert score.from_constant.value == pytest.approx((judged - same).mean())
        assert score.from_constant.high < 0
        assert score.from_one_rater.high < 0
        assert (score.judge.n, score.one_rater.n, score.one_rater.dropped) == (60, 59, 1)
        # five raters are nearer to the truth of an item than one, and not as near as the truth
        assert score.judge.value < score.panel.value < score.one_rater.value
    assert [level.at_least for level in own.reliability] == [2, 3, 4, 5]
    for step, level in enumerate(own.reliability, start=1):
        assert sum(point.n for point in level.curve) == 60
        predicted = np.stack([truth[pair][step:].sum() for pair in measured])
        assert sum(point.n * point.score for point in level.curve) == pytest.approx(predicted.sum())
        assert np.corrcoef([[point.score, point.human] for point in level.curve], rowvar=False)[0, 1] > 0.8

    page = Page(render_page(results.report, results.items, results.dataset))
    page.assert_alone()
    assert "Does it know how raters spread?" in page.text
    assert "better than the same shares for all pairs" in " ".join(notes(results.report))
    results.save(tmp_path)
    again = read_report(tmp_path / "agreement.json", Report).dimensions["empathy"].rating_distribution
    assert again is not None
    assert again.rps.judge.value == own.rps.judge.value
    statistics = pd.read_csv(tmp_path / "results.csv")["statistic"]
    assert "rating_distribution.rps.from_constant" in set(statistics)
    # the file of its scores is a judge of the same figures, up to the six digits of a cell
    file = evaluate(f"scores:{tmp_path / 'items.csv'}", rated, split="test", checks=(), resamples=60)
    copied: Any = file.report.dimensions["empathy"].rating_distribution
    assert copied.rps.judge.value == pytest.approx(own.rps.judge.value, abs=1e-5)


def test_a_comparison_says_it_of_each_judge_with_shares(rated, truth):
    blurred = AnyJudge(judge_of({name: 0.5 * own + 0.1 for name, own in truth.items()}).score, name="blurred")
    plain = AnyJudge(lambda pairs: score_table(pairs, ("empathy",), np.full((len(pairs), 1), 3.0)), name="plain")
    found = compare([judge_of(truth), blurred, plain], rated, split="test", checks=(), resamples=60)
    printed = " ".join(view for view in comparison_views(found.reports, found.rankings) if isinstance(view, str))
    page = Page(render_comparison(found.reports, found.rankings))
    for text in (page.text, markdown_comparison(found.reports, found.rankings), printed):
        assert text.count("ranked probability score") == 2
        for report in found.reports[:2]:
            shares: Any = report.dimensions["empathy"].rating_distribution
            assert f"ranked probability score {shares.rps.judge.value:.3g}" in text


def test_a_judge_without_shares_has_nothing_of_it(rated, truth):
    plain = AnyJudge(lambda pairs: score_table(pairs, ("empathy",), np.full((len(pairs), 1), 3.0)))
    other_steps = judge_of({name: np.append(own, 0.0)[[0, 1, 2, 3, 4]] for name, own in truth.items()})
    assert (
        "rating_distribution"
        not in evaluate(plain, rated, split="test", checks=(), resamples=0).report.dimensions["empathy"].as_json()
    )
    halves = replace(rated, card=replace(rated.card, dimensions=(replace(SCALE, step=0.5),)))
    found = evaluate(other_steps, halves, split="test", checks=(), resamples=20).report.dimensions["empathy"]
    assert found.rating_distribution is None


def test_without_other_rated_pairs_the_constant_is_that_of_the_measured_ones(rated, truth):
    part = replace(rated, pairs=tuple(pair for pair in rated.pairs if pair.split == "test"))
    own: Any = evaluate(judge_of(truth), part, split="test", checks=(), resamples=20).report.dimensions["empathy"]
    counts = counts_of(rated, [pair.pair_id for pair in part.pairs])
    shares = counts / counts.sum(1, keepdims=True)
    assert own.rating_distribution.constant_from == "measured pairs"
    assert own.rating_distribution.rps.constant.value == pytest.approx(penalties(shares.mean(0), counts).rps.mean())


def test_shares_that_are_none_are_refused(rated, truth):
    for broken in ([0.5, 0.5, 0.5, 0, 0], [1.2, -0.2, 0, 0, 0], [float("nan")] * 5):
        judge = judge_of({**truth, "pair-3": broken})
        table = judge.score([pair for pair in rated.pairs if pair.pair_id != "pair-3"])
        table = pd.concat([table, table.iloc[:1].assign(pair_id="pair-3", levels=[tuple(broken)])])
        with pytest.raises(ValueError, match="shares that sum to 1"):
            check_score_table(table, judge, rated.pairs)
