"""DNSMOS as a judge: the published figures, on any scale, and no score for a clip that cannot be read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair
from empathy_judge.eval.judges import OK, check_score_table

RATE = 16_000


@pytest.fixture(scope="module")
def judge():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("speechmos")
    from empathy_judge.eval.judges.baselines.acoustic import QualityJudge

    scales = Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10), Dimension("coldness", 0, 4, 1, False)
    return QualityJudge(scales)


@pytest.mark.parametrize("seconds", [0.2, 9.5, 10.5, 12.3])
def test_it_is_what_the_published_program_computes(judge, seconds, make_buzz):
    dnsmos = pytest.importorskip("speechmos.dnsmos", exc_type=ImportError)  # needs librosa, which we do not
    samples = make_buzz(150.0, seconds) + np.random.default_rng(0).normal(0, 0.01, round(seconds * RATE))
    expected = dnsmos.run(samples.astype(np.float32), RATE)["ovrl_mos"]
    assert judge.mos(samples) == pytest.approx(expected, abs=1e-6)


def test_speech_is_better_than_noise_and_the_order_holds_on_every_scale(judge):
    from empathy_judge.data_modules.espeak import Tone, Voice, speak

    speech, rate = speak("The parcel came on Tuesday.", Voice("en-us", "m", 105, 1.0), Tone())
    noise = np.random.default_rng(0).normal(0, 0.05, len(speech)).astype(np.float32)
    pairs = [
        Pair("clean", Clip(speech, rate)),
        Pair("noisy", Clip(speech + noise, rate)),
        Pair("hiss", Clip(noise, rate)),
    ]
    table = judge.score(pairs)
    check_score_table(table, judge, pairs)
    empathy, warmth, coldness = (table.loc[table["dimension"] == d, "score"].to_numpy() for d in judge.dimensions)
    assert empathy[0] > empathy[1] + 0.5 > empathy[2] + 0.5
    np.testing.assert_allclose(warmth, (empathy - 1) * 2.5)
    np.testing.assert_allclose(coldness, 5 - empathy)  # a good recording is not cold


def test_a_clip_that_cannot_be_read_has_a_status_and_the_context_does_not_matter(judge, tmp_path, make_buzz):
    good = Pair("good", Clip(make_buzz(150.0), RATE))
    bad = dataclasses.replace(good, pair_id="bad", response=tmp_path / "none.wav")
    table = judge.score([bad, good])
    assert table["status"].tolist() == [f"{tmp_path / 'none.wav'}: no such file"] * 3 + [OK] * 3
    assert table["score"].isna().tolist() == [True] * 3 + [False] * 3
