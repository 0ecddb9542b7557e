"""Variance components and standard errors of a plan, against simulations and the jackknife."""

from __future__ import annotations

import math

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.planning import components, design_effect, influence, paired_contexts, standard_error
from scipy import stats


def test_variance_components_are_found_in_a_sparse_design():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(30):
        groups = np.repeat(np.arange(80), 4)
        truth = rng.normal(0, 0.8, 80)[groups] + rng.normal(0, 0.6, 320)
        items = np.repeat(np.arange(320), 3)
        raters = np.concatenate([rng.choice(12, 3, replace=False) for _ in range(320)])
        scores = truth[items] + rng.normal(0, 0.5, 12)[raters] + rng.normal(0, 0.7, 960)
        table = RatingTable(items, raters, scores, 320, tuple(f"r{one}" for one in range(12)))
        found.append(components(table, [f"g{one}" for one in groups]))
    assert np.mean(found, axis=0) == pytest.approx([0.64, 0.36, 0.25, 0.49], rel=0.12)
    alone = components(table, [str(one) for one in range(320)])
    assert alone.group == 0
    assert alone.item == pytest.approx(found[-1].group + found[-1].item)


def test_influence_is_what_leaving_an_item_out_changes():
    rng = np.random.default_rng(1)
    human = rng.normal(size=400)
    score = human + rng.normal(size=400)
    own = influence(score, human) * 12
    # Jackknife pseudo-values; the influence is taken before standardising, so that r itself is a part of it
    left = [spearman(np.delete(score, item), np.delete(human, item)) for item in range(400)]
    jackknife = 399 * (spearman(score, human) - np.array(left))
    assert np.corrcoef(own, jackknife)[0, 1] > 0.99
    assert own.std() / math.sqrt(400) == pytest.approx(standard_error(spearman(score, human), 400), rel=0.1)


def test_systems_that_stand_in_every_group_are_no_error():
    rng = np.random.default_rng(2)
    systems, groups = np.tile(np.arange(8), 30), np.repeat(np.arange(30), 8)
    quality = rng.normal(0, 2, 8)[systems]
    human, score = quality + rng.normal(size=240), quality + rng.normal(0, 2, 240)
    assert design_effect(score, human, groups.astype(str)) == pytest.approx(1, abs=0.15)
    assert design_effect(score, human, groups.astype(str), systems.astype(str)) < 0.75
    assert math.isnan(design_effect(np.ones(240), human, groups.astype(str)))


@pytest.mark.parametrize(("spread", "difference", "contexts"), [(1.0, 0.5, 34), (1.0, 0.2, 199), (2.0, 1.0, 34)])
def test_contexts_of_a_paired_test_are_those_of_statsmodels(spread, difference, contexts):
    """`TTestPower().solve_power(d, alpha=0.05, power=0.8)` of 0.15.0: 33.37 pairs for d = 0.5, 198.15 for 0.2."""
    assert paired_contexts(spread, difference, 0.8) == contexts


def test_the_planned_contexts_have_the_promised_power():
    contexts = paired_contexts(0.8, 0.4, 0.8)
    apart = np.random.default_rng(0).normal(0.4, 0.8, (4000, contexts))
    assert (stats.ttest_1samp(apart, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.02)
