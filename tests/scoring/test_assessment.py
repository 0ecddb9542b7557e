"""What a pair is like, and whether it is like those that a judge was calibrated on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.audio.prosody import ClipFacts, clip_facts
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.scoring.assessment import cautions, fit_domain, label


def facts(seconds=2.0, level=-20.0, voiced=1.0, pitch=200.0) -> ClipFacts:
    return ClipFacts(seconds, level, voiced, pitch)


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_facts_of_a_clip(make_tone, rate):
    tone = make_tone(1.2, 220, 0.5, rate=rate)
    found = clip_facts(np.array_split(tone, 2), rate)
    assert found.seconds == pytest.approx(1.2)
    assert found.pitch == pytest.approx(220, rel=0.02)
    assert found.voiced > 1.0
    whole = decode(Clip(tone, rate), 16_000)
    assert found.level == pytest.approx(10 * np.log10(np.mean(whole**2)), abs=0.5)
    silence = clip_facts([np.zeros(8_000, np.float32)], 16_000)
    assert (silence.seconds, silence.voiced) == (0.5, 0.0)
    assert math.isnan(silence.pitch)
    assert silence.level < -100


def test_a_pair_is_compared_with_the_pairs_of_the_calibration():
    domain = fit_domain([(facts(2, -20), facts(3, -25, pitch=180)), (facts(4, -22), facts(6, -18, pitch=240))])
    assert domain.n == 2
    assert domain.ranges["response seconds"] == pytest.approx((3 / 1.25, 6 * 1.25))
    assert domain.ranges["level"] == pytest.approx((-31, -12))
    assert domain.ranges["pitch"] == pytest.approx((180 / 2**0.25, 240 * 2**0.25))
    assert domain.departures([facts(3), facts(5)]) == []
    assert domain.departures([facts(3), facts(7.6)]) == ["seconds of the response: 7.6 s, calibrated on 2.4 to 7.5 s"]
    assert domain.departures([facts(5)]) == ["turns of context: 0, calibrated on 1 to 1"]
    quiet = domain.departures([facts(3, -50), facts(5, pitch=80.0)])
    assert quiet == [
        "pitch of the response: 80 Hz, calibrated on 151 to 285 Hz",
        "level of the context: -50 dBFS, calibrated on -31 to -12 dBFS",
    ]
    assert (
        domain.departures([facts(3), facts(5, voiced=0, pitch=math.nan)]) == []
    )  # of what is not there nothing is said


def test_cautions_name_the_turn():
    found = cautions([facts(), facts(0.2), facts(voiced=0.0)], fit_domain([(facts(), facts())]))
    assert [(one.code, one.text.split(":")[0]) for one in found] == [
        ("short", "context, turn 2"),
        ("no_speech", "response"),
        ("unlike_training", "turns of context"),
    ]
    assert cautions([], None) == ()


def test_words_for_points_of_a_scale():
    up, down = Dimension("empathy", 1, 5, 1), Dimension("hostility", 0, 10, higher_is_better=False)
    assert [label(up, score) for score in (1, 1.49, 1.5, 3.2, 4.6, 5)] == [
        "very poor", "very poor", "poor", "fair", "excellent", "excellent",
    ]  # fmt: skip
    assert [label(down, score) for score in (0, 2, 10)] == ["excellent", "good", "very poor"]
