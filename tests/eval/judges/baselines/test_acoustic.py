"""The baselines that hear: what the acoustic one learns, from whom, and clips that cannot be measured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.audio.functionals import FUNCTIONALS, functionals
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.schema import Pair, PairDataset, Turn
from empathy_judge.eval.judges import OK, check_score_table
from empathy_judge.eval.judges.baselines import acoustic
from empathy_judge.eval.judges.baselines.acoustic import OURS, AcousticJudge, ClipFeatures, Measures
from scipy.stats import spearmanr

RATE = 16_000
NAMES = ("pitch_median", "level", "harmonicity_mean", "seconds")
FEW = Measures(NAMES, lambda samples: functionals(samples)[[list(FUNCTIONALS).index(name) for name in NAMES]])
"""Some of them, which is faster."""


@pytest.fixture(scope="module")
def judge(delivered) -> AcousticJudge:
    return AcousticJudge(delivered.subset("train"), FEW)


def scores(judge: AcousticJudge, dataset: PairDataset, dimension: str = "empathy") -> np.ndarray:
    table = judge.score(dataset.pairs)
    return table.loc[table["dimension"] == dimension, "score"].to_numpy(np.float64)


def test_it_learns_what_context_and_response_say_of_unseen_groups(delivered):
    test = delivered.subset("test")
    judge = AcousticJudge(delivered.subset("train"))
    table = judge.score(test.pairs)
    check_score_table(table, judge, test.pairs)
    assert judge.dimensions == ("empathy", "warmth")
    for dimension in judge.dimensions:
        human = test.mean_scores()[dimension].to_numpy()
        rated = ~np.isnan(human)
        assert spearmanr(scores(judge, test, dimension)[rated], human[rated])[0] > 0.9
    assert table["score"].between(0, 10).all()


def test_only_the_pairs_it_is_given_teach_it(judge, delivered):
    test_ids = {pair.pair_id for pair in delivered.subset("test").pairs}
    ratings = delivered.ratings.copy()
    ratings.loc[ratings["pair_id"].isin(test_ids), "score"] = 1.0
    other = dataclasses.replace(delivered, ratings=ratings)
    again = AcousticJudge(other.subset("train"), FEW)
    np.testing.assert_array_equal(scores(again, delivered), scores(judge, delivered))
    ratings.loc[~ratings["pair_id"].isin(test_ids), "score"] = 2.0
    taught = AcousticJudge(dataclasses.replace(other, ratings=ratings).subset("train"), FEW)
    np.testing.assert_allclose(scores(taught, delivered), 2.0)


def test_the_same_audio_gets_the_same_score_in_any_order(judge, delivered):
    forward = judge.score(delivered.pairs).set_index(["pair_id", "dimension"])["score"]
    backward = judge.score(delivered.pairs[::-1]).set_index(["pair_id", "dimension"])["score"]
    alone = judge.score(delivered.pairs[5:6]).set_index(["pair_id", "dimension"])["score"]
    np.testing.assert_array_equal(backward.loc[forward.index], forward)
    np.testing.assert_allclose(alone, forward.loc[alone.index], rtol=1e-12)
    shuffled = dataclasses.replace(delivered, pairs=delivered.pairs[::-1])
    again = AcousticJudge(shuffled.subset("train"), FEW)
    np.testing.assert_allclose(scores(again, delivered), scores(judge, delivered), rtol=1e-6)


def test_features_are_context_response_and_their_difference(make_buzz):
    low, high = (Clip(make_buzz(hertz), RATE) for hertz in (110.0, 220.0))
    pairs = [
        make_pair("both", high, [low]),
        make_pair("turns", high, [high, low]),  # the last turn is answered
        make_pair("alone", high, []),
    ]
    found, statuses = ClipFeatures(OURS).of(pairs)
    assert statuses == [OK] * 3
    count = len(OURS.names)
    pitch = OURS.names.index("pitch_median")
    assert found[0, pitch] == pytest.approx(12, abs=0.3)
    assert found[0, count + pitch] == pytest.approx(24, abs=0.3)
    assert found[0, 2 * count + pitch] == pytest.approx(12, abs=0.3)
    np.testing.assert_array_equal(found[1], found[0])
    assert np.isnan(found[2, :count]).all()
    assert np.isnan(found[2, 2 * count :]).all()
    np.testing.assert_array_equal(found[2, count : 2 * count], found[0, count : 2 * count])


def test_every_distinct_clip_is_decoded_once_and_kept(dataset_folder, monkeypatch):
    read: list[object] = []
    decode = acoustic.decode
    monkeypatch.setattr(acoustic, "decode", lambda source, rate: read.append(source) or decode(source, rate))
    pairs = PairDataset.load(dataset_folder).pairs
    features = ClipFeatures(OURS)
    first, _ = features.of(pairs)
    assert len(read) == len(set(read)) == 8 + 24
    again, _ = features.of(pairs[::-1])
    assert len(read) == 8 + 24
    np.testing.assert_array_equal(again[::-1], first)


def test_a_clip_that_cannot_be_read_costs_its_pair_and_no_other(judge, delivered, tmp_path):
    missing = tmp_path / "none.wav"
    test = delivered.subset("test").pairs
    broken = (
        dataclasses.replace(test[0], response=missing),
        dataclasses.replace(test[1], context=(Turn("user", missing),)),
        test[2],
    )
    table = judge.score(broken)
    assert table["status"].tolist() == [f"{missing}: no such file"] * 4 + [OK] * 2
    assert table["score"].isna().tolist() == [True] * 4 + [False] * 2
    np.testing.assert_allclose(table["score"].iloc[4:], judge.score(test[2:3])["score"])

    train = delivered.subset("train")
    damaged = dataclasses.replace(
        train, pairs=(dataclasses.replace(train.pairs[0], response=missing), *train.pairs[1:])
    )
    record = AcousticJudge(damaged, FEW).record
    assert record["unusable_pairs"] == 1
    assert record["fitted"]["empathy"]["pairs"] == 47


@pytest.mark.filterwarnings("error")
def test_missing_measures_have_scores_and_no_warning(judge, delivered):
    """Without a context, and without a voice, a pair is scored by what there is; contexts may be missing throughout."""
    alone = [dataclasses.replace(pair, context=()) for pair in delivered.subset("test").pairs]
    hiss = Clip(np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32), RATE)
    table = judge.score([*alone, dataclasses.replace(alone[0], pair_id="hiss", response=hiss)])
    assert (table["status"] == OK).all()
    pairs = tuple(dataclasses.replace(pair, context=()) for pair in delivered.pairs)
    without = AcousticJudge(dataclasses.replace(delivered, pairs=pairs).subset("train"), FEW)
    human = delivered.subset("test").mean_scores()["warmth"].to_numpy()
    rated = ~np.isnan(human)
    found = scores(without, dataclasses.replace(delivered, pairs=pairs).subset("test"), "warmth")
    assert spearmanr(found[rated], human[rated])[0] > 0.9


def test_too_few_groups_are_refused_in_one_line(delivered):
    one = dataclasses.replace(delivered, pairs=delivered.pairs[:3])
    with pytest.raises(DataError, match=r"acoustic cannot be fitted, there are not two groups .* empathy, warmth"):
        AcousticJudge(one)


def test_egemaps_measures_what_opensmile_measures(make_buzz):
    pytest.importorskip("opensmile")
    from empathy_judge.eval.judges.baselines.acoustic import egemaps

    measures = egemaps()
    assert len(measures.names) == 88
    clips = [Clip(make_buzz(hertz, 1.0), RATE) for hertz in (100.0, 150.0, 200.0)]
    found, statuses = ClipFeatures(measures).of([make_pair(f"p{n}", clip, []) for n, clip in enumerate(clips)])
    assert statuses == [OK] * 3
    pitch = found[:, 88 + measures.names.index("F0semitoneFrom27.5Hz_sma3nz_amean")]
    np.testing.assert_allclose(pitch, 12 * np.log2(np.array([100, 150, 200]) / 27.5), atol=0.1)
    alone = measures.measure(clips[1].samples)  # not in threads
    np.testing.assert_array_equal(found[1, 88:176], alone)
    assert np.isnan(measures.measure(make_buzz(150.0, 0.05))).all()  # too short for it


@pytest.mark.parametrize("gain", [0.5, 0.1, 0.37])
def test_a_gain_changes_the_sound_level_of_egemaps_alone(make_buzz, gain):
    """In opensmile 2.6 it changes many (findings/measures_of_half_the_level.sh)."""
    opensmile = pytest.importorskip("opensmile")
    from empathy_judge.eval.judges.baselines.acoustic import egemaps

    measures = egemaps()
    noise = np.random.default_rng(0).normal(0, 2e-4, RATE)
    syllables = np.clip(np.sin(2 * np.pi * 1.7 * np.arange(RATE) / RATE), 0, 1)
    clip = (0.8 * make_buzz(150.0, 1.0) * syllables + noise).astype(np.float32)
    full, quiet = measures.measure(clip), measures.measure(clip * np.float32(gain))
    level = measures.names.index("equivalentSoundLevel_dBp")
    assert quiet[level] - full[level] == pytest.approx(20 * np.log10(gain), abs=1e-3)
    np.testing.assert_allclose(np.delete(quiet, level), np.delete(full, level), rtol=1e-3, atol=1e-4)
    smile = opensmile.Smile(opensmile.FeatureSet.eGeMAPSv02, opensmile.FeatureLevel.Functionals)
    itself, half = (smile.process_signal(own, RATE).to_numpy().ravel() for own in (clip, clip * np.float32(0.5)))
    assert (np.abs(half - itself) > 0.01 * np.abs(itself)).sum() > 15
    assert measures.measure(np.zeros(RATE, np.float32))[level] < -60  # silence


def make_pair(name: str, response: Clip, context: list[Clip]):
    return Pair(name, response, tuple(Turn("user", clip) for clip in context), group_id=name)
