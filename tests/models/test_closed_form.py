"""Ridge and kernel regression in closed form, against scikit-learn and against known truths."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.models import closed_form
from empathy_judge.models.closed_form import PENALTIES, FeatureBatch, fit
from scipy.stats import rankdata, spearmanr, zscore
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold

BLOCKS = np.repeat([0, 1], [3, 5])


def portion(n: int = 90, seed: int = 0, dimensions: int = 2, bent: bool = False) -> FeatureBatch:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(n, len(BLOCKS))) * [1, 1, 1, *[2] * 5]
    truth = features[:, :dimensions] + 0.5 * features[:, 3:4]
    if bent:
        truth = 2 * np.abs(features[:, :dimensions])
    targets = 3 + truth + 0.2 * draw.normal(size=truth.shape)
    return FeatureBatch(features, targets, np.ones_like(targets), np.arange(n) // 3)


@pytest.mark.parametrize("width", [None, 0.25])
def test_it_is_ridge_and_kernel_ridge_regression(width, monkeypatch):
    monkeypatch.setattr(closed_form, "PENALTIES", np.array([0.3]))
    data = portion(dimensions=1)
    found = fit(data, BLOCKS, widths=(width,))
    scale = np.repeat([data.features[:, :3].var(0).sum(), data.features[:, 3:].var(0).sum()], [3, 5]) ** -0.5 / 2**0.5
    scaled, new = data.features * scale, portion(20, 1, 1).features
    if width is None:
        reference = Ridge(alpha=0.3).fit(scaled, data.targets[:, 0]).predict(new * scale)
        assert found.landmarks is None
    else:
        # a bias that is not penalised: the same system bordered by ones
        kernel = lambda a, b: np.exp(-width * ((a[:, None] - b[None]) ** 2).sum(-1))  # noqa: E731
        system = np.block(
            [[kernel(scaled, scaled) + 0.3 * np.eye(90), np.ones((90, 1))], [np.ones((1, 90)), np.zeros((1, 1))]]
        )
        solved = np.linalg.solve(system, np.append(data.targets[:, 0], 0))
        reference = kernel(new * scale, scaled) @ solved[:-1] + solved[-1]
    np.testing.assert_allclose(found.predict(new)[:, 0], reference, atol=2e-6)


def test_further_landmarks_are_never_met():
    """Not even by training, which would move the weight of all of them at once."""
    data = portion(bent=True)
    found = fit(data, BLOCKS, widths=(0.25,))
    more = found.with_landmarks(100)
    compared = more.compared(data.features)
    assert compared.shape == (90, 100)
    assert not compared[:, 90:].any()
    np.testing.assert_array_equal(compared[:, :90], found.compared(data.features))
    np.testing.assert_allclose(more.predict(data.features), found.predict(data.features), atol=1e-12)


def test_portions_give_what_all_at_once_gives(monkeypatch):
    """A portion makes folds of its own, so that only the penalty that is chosen may differ."""
    monkeypatch.setattr(closed_form, "PENALTIES", np.array([0.1]))
    data = portion(200)
    pieces = [FeatureBatch(*(values[start : start + 37] for values in data)) for start in range(0, 200, 37)]
    new = portion(30, 2).features
    for widths in ((None,), (0.25,)):
        whole = fit(data, BLOCKS, [data], widths)
        parts = fit(data, BLOCKS, pieces, widths)
        np.testing.assert_allclose(whole.predict(new), parts.predict(new), atol=1e-6)
        assert parts.record["pairs"] == 200


def test_the_kernel_is_chosen_by_what_it_predicts():
    assert fit(portion(240), BLOCKS).record["kernel"] == "linear"
    found = fit(portion(600, bent=True), BLOCKS)
    assert found.record["kernel"] == "gaussian"
    errors = found.record["unexplained"]
    assert errors["gaussian 0.6"] < 0.7 * errors["linear"]


def test_groups_are_left_out_whole():
    """A feature that names the group explains all within it and nothing of others: with groups whole it is not used."""
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 6)
    names, truth = draw.normal(size=(40, 8))[groups], draw.normal(size=40)[groups]
    targets = (truth + 0.01 * draw.normal(size=240))[:, None]
    apart = fit(FeatureBatch(names, targets, np.ones_like(targets), groups), np.zeros(8, int), widths=(None, 0.6))
    mixed = fit(
        FeatureBatch(names, targets, np.ones_like(targets), np.arange(240)), np.zeros(8, int), widths=(None, 0.6)
    )
    assert min(apart.record["unexplained"].values()) > 0.9
    assert min(mixed.record["unexplained"].values()) < 0.1


def test_a_rating_that_is_missing_or_weighs_nothing_does_not_count():
    data, new = portion(120), portion(20, 3).features
    spoiled = data.targets.copy()
    spoiled[5:15, 0], spoiled[20:30, 1] = 1e6, 1e6
    weights = np.ones_like(spoiled)
    weights[5:15, 0] = weights[20:30, 1] = 0
    missing = np.where(weights == 0, np.nan, spoiled)
    by_weight = fit(data._replace(targets=spoiled, weights=weights), BLOCKS, widths=(None,))
    by_absence = fit(data._replace(targets=missing), BLOCKS, widths=(None,))
    np.testing.assert_allclose(by_weight.predict(new), by_absence.predict(new), atol=1e-6)
    assert np.abs(by_absence.predict(new) - fit(data, BLOCKS, widths=(None,)).predict(new)).max() < 0.2


def test_ratings_of_one_group_are_refused():
    data = portion(30)
    with pytest.raises(ValueError, match="fewer than two groups"):
        fit(data._replace(groups=np.zeros(30, dtype=int)), BLOCKS)
    assert len(PENALTIES) > 10


def test_a_dimension_whose_ratings_are_all_equal_has_no_say_in_what_is_chosen():
    """Its squared error and its variance are rounding errors, and their quotient decided on the kernel."""
    data = portion(240, dimensions=1)
    for level in (3.0, 3.1, 13 / 3):
        both = data._replace(
            targets=np.column_stack([data.targets, np.full(240, level)]), weights=np.ones((240, 2)) * 3
        )
        found = fit(both, BLOCKS, may_rank=True)
        alone = fit(data._replace(weights=both.weights[:, :1]), BLOCKS, may_rank=True)
        assert found.record["unexplained"] == pytest.approx(alone.record["unexplained"], rel=1e-9)
        np.testing.assert_allclose(found.predict(data.features)[:, 0], alone.predict(data.features)[:, 0], atol=1e-9)
        np.testing.assert_allclose(found.predict(data.features)[:, 1], level, atol=1e-6)
    # These are ahead on ranks by between once and twice `MIN_GAIN`
    draw = np.random.default_rng(28)
    features = draw.normal(size=(120, 6))
    latent = features @ draw.normal(size=6) + draw.normal(size=120)
    targets = np.column_stack([np.exp(latent / latent.std()), np.full(120, 3.0)])
    skewed = FeatureBatch(features, targets, np.ones((120, 2)), np.arange(120) // 4)
    one = skewed._replace(targets=targets[:, :1], weights=skewed.weights[:, :1])
    assert [fit(data, np.zeros(6, int), may_rank=True).record["ranks"] for data in (one, skewed)] == [True, True]
    equal = fit(both._replace(targets=np.full((240, 2), 3.1)), BLOCKS, may_omit=True, may_rank=True)
    assert equal.unexplained == 1
    np.testing.assert_allclose(equal.predict(data.features), 3.1, atol=1e-6)


@pytest.mark.parametrize("may_rank", [False, True])
def test_a_dimension_without_ratings_is_refused(may_rank):
    data = portion(30)
    without = np.where([False, True], np.nan, data.targets)
    with pytest.raises(ValueError, match="dimension 1 has ratings of fewer than two groups"):
        fit(data._replace(targets=without), BLOCKS, may_rank=may_rank)


FIRST_NINE = np.repeat([0, 1], [9, 3])


def bent_by_the_second_block(n: int, seed: int) -> FeatureBatch:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(n, 12))
    targets = np.abs(features[:, 9:10]) + np.abs(features[:, 10:11]) + 0.1 * draw.normal(size=(n, 1))
    return FeatureBatch(features, targets, np.ones_like(targets), np.arange(n) // 3)


def test_a_first_block_that_says_nothing_is_omitted_and_one_that_speaks_is_not():
    train, new = bent_by_the_second_block(300, 0), bent_by_the_second_block(200, 1)
    kept = fit(train, FIRST_NINE)
    chosen = fit(train, FIRST_NINE, may_omit=True)
    assert (kept.omits_first, chosen.omits_first) == (False, True)
    assert "without the language model" in chosen.in_words([Dimension("empathy", 1, 5, 1)])
    errors = [float(((own.predict(new.features) - new.targets) ** 2).mean()) for own in (kept, chosen)]
    assert errors[1] < 0.6 * errors[0]
    moved = new.features + np.array([5.0] * 9 + [0.0] * 3)
    np.testing.assert_array_equal(chosen.predict(moved), chosen.predict(new.features))
    swapped = train._replace(features=train.features[:, ::-1])  # now the first three carry the ratings
    assert not fit(swapped, 1 - FIRST_NINE[::-1], may_omit=True).omits_first


FOUR = np.repeat([0, 1, 2, 3], 6)


def spoken_by_the_second_of_four(groups: int, per_group: int, seed: int) -> FeatureBatch:
    """Block 1 holds the ratings, blocks 2 and 3 hold nothing, and block 0 never varies."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(groups * per_group, 24)) * (FOUR > 0)
    targets = np.abs(features[:, 6:7]) + np.abs(features[:, 7:8]) + 0.3 * draw.normal(size=(len(features), 1))
    return FeatureBatch(features, targets, np.ones_like(targets), np.arange(len(features)) // per_group)


def test_the_encoder_alone_is_read_where_far_more_groups_say_so_than_chance():
    many = spoken_by_the_second_of_four(60, 5, 0)
    found, new = fit(many, FOUR, may_omit=True), spoken_by_the_second_of_four(40, 5, 1)
    assert found.record["omitted"] == [0, 2, 3]
    assert "of the audio encoder alone" in found.in_words([Dimension("empathy", 1, 5, 1)])
    assert set(found.block_scale[FOUR != 1]) == {0.0}
    all_blocks = fit(many, FOUR)
    assert all_blocks.record["omitted"] == []
    errors = [float(((own.predict(new.features) - new.targets) ** 2).mean()) for own in (found, all_blocks)]
    assert errors[0] < 0.9 * errors[1]
    # the first blocks alone, which a judge of a language model reads, are never told apart by this
    assert fit(many._replace(features=many.features * (FOUR < 2)), FOUR, may_omit=True).record["omitted"] == [0]


def test_of_a_few_groups_a_lead_of_the_encoder_may_be_chance(monkeypatch):
    """The same pairs in five groups, one of which another block speaks of, or in a hundred."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(200, 24)) * (FOUR > 0)
    others = np.where(np.arange(200) < 40, 1.5, 0.0)[:, None] * np.abs(features[:, 12:13])
    targets = np.abs(features[:, 6:7]) + others + 0.7 * draw.normal(size=(200, 1))
    few = FeatureBatch(features, targets, np.ones_like(targets), np.arange(200) // 40)
    assert fit(few, FOUR, may_omit=True).record["omitted"] == [0]
    assert fit(few._replace(groups=np.arange(200) // 2), FOUR, may_omit=True).record["omitted"] == [0, 2, 3]
    monkeypatch.setattr(closed_form, "ERRORS", 0.0)
    assert fit(few, FOUR, may_omit=True).record["omitted"] == [0, 2, 3]


def test_a_block_that_never_varies_takes_no_share():
    """Such as what a head would read of contexts where there are none."""
    data, new = portion(), portion(20, 1).features
    still = fit(data._replace(features=np.pad(data.features, ((0, 0), (0, 4)))), np.repeat([0, 1, 2], [3, 5, 4]))
    np.testing.assert_array_equal(still.predict(np.pad(new, ((0, 0), (0, 4)))), fit(data, BLOCKS).predict(new))


# ---------------------------------------------------------------- ratings or their ranks


def mostly_low(n: int, seed: int) -> FeatureBatch:
    """The second of two dimensions is a few high ratings above many that are all the same; some are missing."""
    data = portion(n, seed)
    targets = np.stack([data.targets[:, 0], np.clip(np.exp(2 * (data.targets[:, 1] - 3)), 1.0, 60.0)], 1)
    targets[::7, 0] = np.nan
    return data._replace(targets=targets)


def test_where_few_ratings_are_far_from_the_others_ranks_are_fitted():
    data, new = mostly_low(300, 0), mostly_low(200, 1)
    by_hand = data.targets.copy()
    for column in range(2):
        known = ~np.isnan(by_hand[:, column])
        given, ranks = by_hand[known, column], rankdata(by_hand[known, column])
        by_hand[known, column] = given.mean() + given.std() * zscore(ranks)
    chosen, ratings = (fit(data, BLOCKS, may_rank=own) for own in (True, False))
    assert (chosen.record["ranks"], ratings.record["ranks"]) == (True, False)
    made = chosen.predict(new.features)
    np.testing.assert_allclose(made, fit(data._replace(targets=by_hand), BLOCKS).predict(new.features), atol=1e-9)
    agreement = [spearmanr(own.predict(new.features)[:, 1], new.targets[:, 1]).statistic for own in (chosen, ratings)]
    assert agreement[0] > agreement[1] + 0.02
    assert made.mean(0) == pytest.approx(np.nanmean(data.targets, 0), rel=0.2)  # in rating points
    words = [own.in_words([Dimension("a", 0, 9), Dimension("b", 0, 60)]) for own in (chosen, ratings)]
    assert "of the variance of the ranks of groups left out" in words[0]
    assert "of the variance of ratings of groups left out" in words[1]


def test_ranks_of_portions_are_those_of_the_sample(monkeypatch):
    monkeypatch.setattr(closed_form, "PENALTIES", np.array([0.1]))
    data = mostly_low(200, 0)
    pieces = [FeatureBatch(*(values[start : start + 37] for values in data)) for start in range(0, 200, 37)]
    whole, parts = (fit(data, BLOCKS, own, (None,), may_rank=True) for own in ([data], pieces))
    assert parts.record["ranks"]
    new = portion(30, 2).features
    np.testing.assert_allclose(whole.predict(new), parts.predict(new), atol=1e-6)


def test_ratings_that_ranks_only_stretch_stay_as_they_are():
    """Of ratings of two kinds the ranks are the same but for scale, and what is fitted is, too."""
    data = portion(120)
    data = data._replace(targets=np.where(data.targets > 3, 4.0, 1.0))
    chosen = fit(data, BLOCKS, may_rank=True)
    assert not chosen.record["ranks"]
    np.testing.assert_array_equal(chosen.predict(data.features), fit(data, BLOCKS).predict(data.features))


def test_a_dimension_that_two_groups_rated_is_fitted_as_without_ranks():
    """In some divisions both groups are in one fold."""
    data = portion(60)
    for other in range(1, 20):
        targets = data.targets.copy()
        targets[~np.isin(data.groups, (0, other)), 1] = np.nan
        made = []
        for may_rank in (False, True):
            try:
                made.append(
                    fit(data._replace(targets=targets), BLOCKS, widths=(None,), may_rank=may_rank).record["pairs"]
                )
            except ValueError as error:
                made.append(str(error))
        assert made[0] == made[1]


def test_agreement_is_that_of_ridge_without_each_fold(monkeypatch):
    monkeypatch.setattr(closed_form, "PENALTIES", np.array([0.3]))
    data = portion(dimensions=1)
    block_scale = closed_form.scale_blocks(data.features, BLOCKS)
    scaled, expected = data.features * block_scale, []
    for kept, out in GroupKFold(5, shuffle=True, random_state=0).split(scaled, groups=data.groups):
        ridge = Ridge(alpha=0.3 * len(kept) / 90).fit(scaled[kept], data.targets[kept, 0])  # for so many pairs
        expected.append(spearmanr(ridge.predict(scaled[out]), data.targets[out, 0]).statistic)
    found = closed_form._NormalEquations(scaled, None, 0).add(data, block_scale).measure(data, block_scale)[1][0]
    assert found == pytest.approx(np.mean(expected), abs=1e-9)
