"""The agreement report of judges whose agreement is known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.checks.pairs import context_swapped
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import clusters_of
from empathy_judge.eval.evaluate import evaluate as typed_evaluate
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.judges.scores_file import ScoresFile
from empathy_judge.eval.pages.report import render_page
from empathy_judge.eval.report.dataset import Report
from scipy.stats import kendalltau, pearsonr, spearmanr

from .conftest import AnyJudge, Page, assert_near, sure_judge
from .statistics.conftest import reliability

DEFINED = ("spearman", "pearson", "kendall", "ccc", "mae", "rmse", "bias")


def evaluate(*arguments: Any, **options: Any) -> tuple[Any, pd.DataFrame]:
    """Report and items with the quick checks; what is null or not is for the tests to say, not for a type checker."""
    found = typed_evaluate(*arguments, **{"checks": ("response_only", "context_swapped", "silent"), **options})
    return found.report, found.items


def failing(judge: Any, failed: Sequence[str], missing: Sequence[str]) -> AnyJudge:
    """Another judge, but some pairs fail and some get no row."""

    def score(pairs: Sequence[Pair]) -> pd.DataFrame:
        table = judge.score(pairs)
        table.loc[table["pair_id"].isin(failed), ["score", "status"]] = [math.nan, "refused"]
        return table.loc[~table["pair_id"].isin(missing)]

    return AnyJudge(score, judge.name, judge.dimensions)


def test_statistics_ceilings_and_shares_of_a_noisy_judge(make_dataset, make_tone_judge):
    dataset = make_dataset(n_groups=40, noise=0.8)
    judge = make_tone_judge(noise=0.7)
    report, items = evaluate(judge, dataset, resamples=200, seed=3)
    own = report.dimensions["empathy"]
    test = dataset.subset("test")
    score = np.array([judge.one(pair) for pair in test.pairs])
    human = test.mean_scores()["empathy"].to_numpy()
    for name, function in {"spearman": spearmanr, "pearson": pearsonr, "kendall": kendalltau}.items():
        assert_near(getattr(own, name), function(score, human)[0])
    assert_near(own.bias, (score - human).mean())
    assert own.judge.as_json() == {"mean": pytest.approx(score.mean()), "sd": pytest.approx(score.std())}
    for name in DEFINED:
        assert getattr(own, name).low < getattr(own, name).value < getattr(own, name).high, name
    panel = reliability(
        test.ratings, "empathy", {pair.pair_id: pair.group_id for pair in test.pairs}, resamples=200, seed=3
    )
    assert own.ceiling.as_json() == {name: panel[name] for name in own.ceiling.as_json()}
    ceiling = own.ceiling.panel_mean.value
    assert_near(own.share_of_panel_ceiling, own.spearman.value / ceiling)
    beside = own.like_for_like
    assert beside.rater.value == pytest.approx(own.ceiling.spearman.value)
    assert beside.judge.value < own.spearman.value  # fewer raters are a noisier target
    assert (beside.n_items, beside.n_raters, beside.n_groups) == (120, 4, own.n_groups)
    assert items["score"].tolist() == pytest.approx(score)
    assert items["human_mean"].tolist() == pytest.approx(human)
    assert items["n_raters"].tolist() == [4] * 120


def test_listening_checks_measure_the_fall_on_the_changed_pairs(make_dataset, make_tone_judge):
    dataset = make_dataset(n_groups=40, noise=0.3)
    judge = make_tone_judge(noise=0.1)
    report, items = evaluate(judge, dataset, resamples=100, seed=5)
    test = dataset.subset("test")
    human = test.mean_scores()["empathy"].to_numpy()
    full = np.array([judge.one(pair) for pair in test.pairs])
    changed = {
        "response_only": [judge.one(replace(pair, context=())) for pair in test.pairs],
        "context_swapped": [judge.one(pair) for pair in context_swapped(test.pairs, seed=5)],
    }
    for name, scores in changed.items():
        check = report.checks[name]["empathy"]
        left, before = (pd.Series(v).corr(pd.Series(human), method="spearman") for v in (scores, full))
        assert check.spearman.value == pytest.approx(left)
        assert_near(check.drop, before - left)
        assert check.drop.value > 0.25
        assert check.mean_change == pytest.approx(np.abs(np.array(scores) - full).mean())
        assert (check.n, check.failed) == (120, {})
        assert items[f"{name}_score"].tolist() == pytest.approx(scores)
    # Silence has one tone: what is left is the noise that belongs to the pair.
    assert abs(report.checks["silent"]["empathy"].spearman.value) < 0.25
    for value, results in report.slices["setting"].items():
        chosen = items[items["setting"] == value]
        for name in changed:
            check = results["empathy"].checks[name]
            left, before = (spearmanr(chosen[own], chosen["human_mean"])[0] for own in (f"{name}_score", "score"))
            assert check.n == len(chosen)
            assert check.spearman.value == pytest.approx(left)
            assert_near(check.drop, before - left)
    page = render_page(report, items, dataset)
    assert page.count("what is left of the Spearman inside the slice") == 2


def test_unscored_and_unrated_pairs_are_counted_and_never_filled_in(make_dataset, make_tone_judge):
    dataset, unrated = make_dataset(noise=0.5), "pair-20"
    dataset = replace(dataset, ratings=dataset.ratings.query("pair_id != @unrated"))
    judge = failing(
        make_tone_judge(noise=0.5), failed=["pair-21", "pair-22"], missing=["pair-23", "pair-24", "pair-25"]
    )
    report, items = evaluate(judge, dataset, resamples=50)
    own = report.dimensions["empathy"]
    assert own.coverage.as_json() == {
        "pairs": 60, "rated": 59, "scored": 54, "missing": 3, "failed": {"refused": 2}, "out_of_scale": 0,
    }  # fmt: skip
    assert own.n_items == own.spearman.n == own.ceiling.spearman.n == 54
    used = items.dropna(subset=["score", "human_mean"])
    assert own.spearman.value == pytest.approx(spearmanr(used["score"], used["human_mean"])[0])
    by_id = items.set_index("pair_id")
    assert by_id.loc["pair-21", "status"] == "refused"
    assert by_id.loc["pair-23", "status"] == "missing"
    assert by_id.loc[["pair-21", "pair-23"], "score"].isna().all()
    assert by_id.loc[unrated, "n_raters"] == 0
    assert report.checks["response_only"]["empathy"].n == 54


def test_a_constant_judge_has_errors_but_no_correlation(make_dataset):
    dataset = make_dataset(noise=0.3)
    judge = ConstantJudge.fitted_to(dataset.subset("train"))
    report = evaluate(judge, dataset, resamples=50)[0]
    own = report.dimensions["empathy"]
    human = dataset.subset("test").mean_scores()["empathy"].to_numpy()
    constant = dataset.subset("train").mean_scores()["empathy"].mean()
    beyond = evaluate(ConstantJudge({"empathy": 6.5}), dataset, resamples=0)[0].dimensions["empathy"]
    assert beyond.coverage.out_of_scale == 60
    for name in ("spearman", "pearson", "kendall", "ccc", "icc_a1", "icc_c1", "share_of_panel_ceiling"):
        assert getattr(own, name).value is None, name
        assert getattr(own, name).reason == "the judge scores are constant", name
    assert own.mae.value == pytest.approx(np.abs(constant - human).mean())
    assert own.ceiling.spearman.value > 0.5
    for check in report.checks.values():
        assert check["empathy"].drop.reason == "the judge scores are constant"


def test_a_dimension_without_any_score_is_undefined_beside_one_with_scores(make_dataset, make_tone_judge):
    one_sided = AnyJudge(make_tone_judge(noise=0.3).score, "one-sided", ("empathy", "warmth"))
    dataset = make_dataset(noise=0.3, dimensions=("empathy", "warmth"))
    report = evaluate(one_sided, dataset, resamples=20)[0]
    assert report.dimensions["empathy"].spearman.value is not None
    empty = report.dimensions["warmth"]
    assert (empty.n_items, empty.n_groups, empty.n_raters) == (0, 0, 0)
    assert empty.coverage.missing == 60
    assert empty.judge.as_json() == {"mean": None, "sd": None}
    for name in DEFINED:
        assert (getattr(empty, name).value, getattr(empty, name).reason) == (None, "0 items")
    assert empty.share_of_panel_ceiling.reason == "0 items"
    assert empty.like_for_like.difference.reason == "no rater can be compared: there are no ratings"
    assert empty.ceiling.panel_mean.value is None
    assert report.slices["setting"]["tone_variant"]["warmth"].n_items == 0
    assert report.checks["silent"]["warmth"].n == 0
    json.dumps(report.as_json(), allow_nan=False)


def test_published_means_have_a_ceiling_and_nobody_to_compare_with(make_dataset, make_tone_judge):
    dataset = make_dataset(noise=1.0)
    by_pair = dataset.ratings.groupby(["pair_id", "dimension"], sort=False)["score"]
    means = by_pair.agg(score="mean", sd="std", n="count").reset_index().assign(rater_id="panel")
    judge = make_tone_judge(noise=0.5)
    report, items = evaluate(judge, replace(dataset, ratings=means), resamples=200)
    own, known = report.dimensions["empathy"], evaluate(judge, dataset, resamples=200)[0].dimensions["empathy"]
    assert own.spearman == known.spearman
    assert own.ceiling.panel_mean.value == pytest.approx(known.ceiling.panel_mean.value, abs=0.02)
    assert own.ceiling.panel_mean.low < own.ceiling.panel_mean.value < own.ceiling.panel_mean.high
    share = own.spearman.value / own.ceiling.panel_mean.value
    assert own.share_of_panel_ceiling.value == pytest.approx(share)
    assert (own.verdict.kind, own.verdict.tone) == ("no_rater_can_be_compared", "none")
    assert own.verdict.text.startswith("No rater can be compared: only means of the ratings are known. Spearman with")
    assert f"{100 * share:.0f} % of the noise ceiling" in own.verdict.text
    assert (own.n_raters, set(items["n_raters"])) == (0, {4})
    json.dumps(report.as_json(), allow_nan=False)
    page = Page(render_page(report, items, replace(dataset, ratings=means)))
    assert "60 items in 15 groups, published means" in page.text
    assert "one by one" not in page.text


def test_slices_and_systems(make_dataset, make_tone_judge):
    report, items = evaluate(make_tone_judge(noise=0.5), make_dataset(noise=0.3), resamples=50)
    assert set(report.slices) == {"setting", "system_id"}  # one language is no slice
    for column, values in report.slices.items():
        assert set(values) == set(items[column])
        for value, results in values.items():
            chosen = items[items[column] == value]
            expected = spearmanr(chosen["score"], chosen["human_mean"])[0]
            assert results["empathy"].spearman.value == pytest.approx(expected)
            assert results["empathy"].n_items == len(chosen)
    level = report.dimensions["empathy"].system_level
    means = items.groupby("system_id")[["human_mean", "score"]].mean()
    assert level.n_systems == 4
    assert level.pearson.value == pytest.approx(means.corr().iloc[0, 1])
    assert {row.system_id: row.judge for row in level.systems} == pytest.approx(means["score"].to_dict())


def test_slices_by_tags(make_dataset, make_tone_judge):
    data = make_dataset(n_groups=60, noise=0.3)
    pairs = tuple(
        replace(pair, tags=(("cue", "sad" if n % 3 else "glad"), ("many", str(n % 50)), ("id", pair.pair_id)))
        if n % 5
        else pair
        for n, pair in enumerate(data.pairs)
    )
    data, judge = replace(data, pairs=pairs), make_tone_judge(noise=0.5)
    report, items = evaluate(judge, data, checks=(), resamples=20)
    assert set(report.slices) == {"setting", "system_id", "tag:cue", "tag:many"}  # "id" has more than 100 values
    assert {value: own["empathy"].n_items for value, own in report.slices["tag:cue"].items()} == (
        items["tag:cue"].fillna("(not given)").value_counts().to_dict()
    )
    slices = ["tag:cue", "tag:id", "response_speaker"]
    report, items = evaluate(judge, data, slices=slices, checks=(), resamples=20)
    assert set(report.slices) == {"tag:cue", "tag:id"}  # nobody speaks in more than one
    assert {"tag:cue", "response_speaker"} <= set(items)
    chosen = items[items["tag:cue"] == "glad"]
    found = report.slices["tag:cue"]["glad"]["empathy"].spearman.value
    assert found == pytest.approx(spearmanr(chosen["score"], chosen["human_mean"])[0])


def test_a_file_of_scores_is_measured_but_cannot_take_the_checks(make_dataset, make_tone_judge, tmp_path):
    dataset = make_dataset(noise=0.3)
    judge = make_tone_judge(noise=0.4)
    judge.score(dataset.pairs).to_csv(tmp_path / "s.csv", index=False, columns=["pair_id", "dimension", "score"])
    direct = evaluate(judge, dataset, resamples=50)[0]
    report = evaluate(ScoresFile(tmp_path / "s.csv"), dataset, resamples=50)[0]
    assert report.judge == "scores:s.csv"
    assert report.dimensions["empathy"].spearman == direct.dimensions["empathy"].spearman
    for check in ("response_only", "context_swapped", "silent"):
        result = report.checks[check]["empathy"]
        assert (result.n, result.spearman.value) == (0, None)
        assert result.spearman.reason == "a file of scores cannot score changed pairs"


def test_checks_that_need_a_context_or_groups_say_so(make_dataset, make_tone_judge):
    dataset = make_dataset(n_groups=6)
    reasons = []
    for changes in ({"context": (), "situation": None, "context_text": None}, {"group_id": "g"}):
        pairs = tuple(replace(pair, **changes) for pair in dataset.pairs)
        checks = evaluate(make_tone_judge(), replace(dataset, pairs=pairs), split=None, resamples=10)[0].checks
        reasons.append([checks[name]["empathy"].spearman.reason for name in ("response_only", "context_swapped")])
    assert reasons == [
        ["no pair has a context"] * 2,
        ["no interval: 1 group, at least 5 needed", "all pairs are of one group"],
    ]


def test_the_report_follows_its_schema_and_is_strict_json(make_dataset, make_tone_judge):
    dataset = make_dataset(noise=0.3, dimensions=("empathy", "warmth", "clarity"))
    judges = [
        make_tone_judge(noise=0.3, dimensions=("warmth", "empathy", "humour")),
        failing(make_tone_judge(), failed=["pair-40"], missing=["pair-41"]),
        ConstantJudge({"clarity": 3.0}),
        sure_judge(make_tone_judge(noise=0.3), {"context_variant": 1.0, "tone_variant": 1.0}, (0.2, 0.4)),
    ]
    for judge in judges:
        judge.record = {"artifact": "abc"}
        report = evaluate(judge, dataset, resamples=20)[0]
        assert report.provenance == {"artifact": "abc"}
        assert Report.model_validate_json(json.dumps(report.as_json(), allow_nan=False)) == report
    first = evaluate(judges[0], dataset, resamples=20, checks=(), command="evaluate x")[0]
    assert list(first.dimensions) == ["empathy", "warmth"]
    assert first.left_out.as_json() == {"not_judged": ["clarity"], "not_rated": ["humour"]}
    assert first.checks == {}
    assert first.split_hash == dataset.split_hash()
    assert (first.dataset.synthetic, first.dataset.content_hash) == (True, "c" * 64)
    assert first.command == "evaluate x"
    assert first.versions["numpy"] == np.__version__


def test_the_same_seed_gives_the_same_report(make_dataset, make_tone_judge):
    dataset = make_dataset(noise=0.3)
    first, again, other = (evaluate(make_tone_judge(noise=0.3), dataset, resamples=50, seed=seed) for seed in (1, 1, 2))
    timeless = [report.model_copy(update={"runtime": None}) for report, _ in (first, again)]  # a clock decides it
    assert timeless[0] == timeless[1]
    pd.testing.assert_frame_equal(first[1], again[1])
    assert first[0].dimensions["empathy"].spearman != other[0].dimensions["empathy"].spearman


def test_what_a_user_can_mend_is_a_user_error(make_dataset, make_tone_judge):
    dataset = make_dataset()
    bare = replace(dataset, ratings=dataset.ratings[:0])
    for judge, data, options, message, kind in [
        (
            make_tone_judge(),
            dataset,
            {"slices": ("color",)},
            r"slice 'color'; expected group_id, .*, setting, language",
            DataError,
        ),
        (
            make_tone_judge(dimensions=("charm",)),
            dataset,
            {},
            "tone judge scores charm; .* tones has ratings of empathy",
            DataError,
        ),
        (make_tone_judge(), dataset, {"split": "dev"}, "no pair is in split 'dev'", DataError),
        (
            make_tone_judge(),
            dataset,
            {"checks": ["mono"]},
            "check 'mono'; expected one of response_only, context_only",
            DataError,
        ),
        (make_tone_judge(), bare, {}, "none of the 60 pairs has a rating of empathy", UserError),
    ]:
        with pytest.raises(kind, match=message):
            evaluate(judge, data, **options)


@pytest.mark.parametrize(
    "measure", [typed_evaluate, lambda judge, *rest, **options: compare([judge], *rest, **options)]
)
def test_a_misspelt_argument_is_refused(measure, make_dataset, make_tone_judge):
    with pytest.raises(TypeError, match="unexpected keyword argument 'devise'"):
        measure(make_tone_judge(), make_dataset(), devise="cpu")


def test_a_judge_that_scores_nothing_gets_a_report_that_says_so(make_dataset, make_tone_judge):
    dataset = make_dataset()
    ids = [pair.pair_id for pair in dataset.pairs]
    report, _ = evaluate(failing(make_tone_judge(), failed=ids, missing=[]), dataset)
    own = report.dimensions["empathy"]
    assert (own.n_items, own.coverage.failed, own.spearman.value) == (0, {"refused": 60}, None)
    assert own.verdict.kind == "no_scores"
    assert report.checks == {}
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.parametrize(("cluster", "n_groups"), [("group_id", 15), ("context_speaker", 15), ("system_id", 4)])
def test_intervals_draw_what_was_asked_for(make_dataset, make_tone_judge, cluster, n_groups):
    dataset, judge = make_dataset(noise=0.4), make_tone_judge(noise=0.4)
    report = evaluate(judge, dataset, checks=(), cluster=cluster, resamples=50)[0]
    own = report.dimensions["empathy"]
    assert (own.n_groups, report.cluster) == (n_groups, cluster)
    assert (own.spearman.low is None) == (n_groups < 5)
    assert own.within_group.spearman.groups > 10  # groups of responses stay those of one context


def test_a_pair_that_names_no_cluster_does_not_join_the_one_that_its_id_names(make_dataset):
    """Two pairs without a system; one is called as a system is: it is a cluster of its own as well."""
    dataset = make_dataset()
    first, second, *rest = dataset.pairs
    pairs = (replace(first, system_id=None), replace(second, system_id=None), *rest)
    assert clusters_of(pairs, "system_id") == {pair.pair_id: pair.system_id or pair.pair_id for pair in pairs}
    named = (*pairs[:2], *(replace(pair, system_id=first.pair_id) for pair in rest[:2]), *rest[2:])
    found = clusters_of(named, "system_id")
    assert len({found[first.pair_id], found[second.pair_id], found[rest[0].pair_id], found[rest[2].pair_id]}) == 4
    assert found[rest[0].pair_id] == found[rest[1].pair_id]


def test_bca_intervals_reach_every_statistic(make_dataset, make_tone_judge):
    dataset, judge = make_dataset(noise=0.4), make_tone_judge(noise=0.4)
    plain, bca = (
        evaluate(judge, dataset, checks=("silent",), interval=interval)[0] for interval in ("percentile", "bca")
    )
    assert plain.dimensions["empathy"].spearman == bca.dimensions["empathy"].spearman  # t in both
    for name in ("mae", "loa_upper", "share_of_panel_ceiling"):
        one, other = (getattr(report.dimensions["empathy"], name) for report in (plain, bca))
        assert one.value == other.value
        assert one.low != other.low
        assert abs(one.low - other.low) < 0.1
