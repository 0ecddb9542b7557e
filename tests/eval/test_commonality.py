"""Voice and words: judges whose make-up is known get their shares."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.listening import voice_and_words
from empathy_judge.eval.statistics.agreement import as_report
from empathy_judge.eval.statistics.bootstrap import Resamples

N = 4000


def resamples_of(n: int, groups: int | None = None, count: int = 200) -> Resamples:
    return Resamples.draw([str(number % (groups or n)) for number in range(n)], count, seed=0)


def parts(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Independent standard normal columns, exactly uncorrelated: voice, words, timing."""
    columns = np.random.default_rng(seed).normal(size=(n, 3))
    q, _ = np.linalg.qr(columns - columns.mean(0))
    voice, words, timing = (q * np.sqrt(n)).T
    return voice, words, timing


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, -3.0)])
def test_shares_of_a_judge_that_adds_voice_and_words(a, b):
    """full = a voice + b words: shares a^2 and b^2 of a^2 + b^2."""
    voice, words, _ = parts()
    found = voice_and_words(a * voice + b * words, 5 + 0.1 * voice, 3 * words, resamples_of(N, 400))
    total = a * a + b * b
    shares = {"voice": a * a / total, "words": b * b / total, "common": 0, "neither": 0, "index": a * a / total}
    for name, value in (shares | {"words_r": b / np.sqrt(total)}).items():
        assert found[name].value == pytest.approx(value, abs=1e-9), name
    for statistic in (found["voice"], found["words"], found["index"]):
        assert statistic.low - 1e-6 <= statistic.value <= statistic.high + 1e-6
        assert statistic.n == N


def test_the_parts_are_those_of_three_regressions():
    """Against R^2 of least squares, with correlated probes and noise."""
    rng = np.random.default_rng(3)
    voice, words, timing = parts(1, 300)
    full = voice + 0.5 * words + timing + rng.normal(size=300)
    only_voice, only_words = voice + 0.6 * timing + 0.3 * rng.normal(size=300), words + 0.8 * timing

    def r2(*columns: np.ndarray) -> float:
        design = np.column_stack([np.ones(300), *columns])
        residual = full - design @ np.linalg.lstsq(design, full, rcond=None)[0]
        return 1 - residual.var() / full.var()

    both, own_voice, own_words = r2(only_voice, only_words), r2(only_voice), r2(only_words)
    found = voice_and_words(full, only_voice, only_words, resamples_of(300, 60))
    only, other = both - own_words, both - own_voice
    shares = {"voice": only, "words": other, "common": own_voice - only, "neither": 1 - both}
    for name, value in (shares | {"index": only / (only + other)}).items():
        assert found[name].value == pytest.approx(value, abs=1e-9), name


def test_a_judge_of_timing_is_all_common_and_has_no_index():
    _, _, timing = parts(0, 200)
    found = voice_and_words(timing, 2 * timing + 1, -timing, resamples_of(200))
    assert [found[name].value for name in ("common", "voice", "words")] == pytest.approx([1, 0, 0], abs=1e-9)
    assert found["index"].value is None
    assert found["index"].reason == "voice and words explain almost nothing apart"
    assert found["words_r"].value == pytest.approx(-1)


def test_constant_scores_on_a_probe_explain_nothing():
    voice, _, _ = parts(0, 100)
    found = voice_and_words(voice, voice, np.full(100, 3.0), resamples_of(100))
    assert [found[name].value for name in ("voice", "words", "index")] == pytest.approx([1, 0, 1], abs=1e-9)
    assert (found["words_r"].value, found["words_r"].reason) == (None, "the scores without voice are constant")
    nothing = voice_and_words(voice, np.full(100, 2.0), np.full(100, 3.0), resamples_of(100))
    assert (nothing["voice"].value, nothing["neither"].value, nothing["index"].value) == (0.0, 1.0, None)


def test_what_is_undefined_says_why():
    voice, words, _ = parts(0, 12)
    cases = {
        "the judge scores are constant": (np.full(12, 0.1), voice, words),
        "1 item with an infinite score": (np.append(voice[:-1], np.inf), voice, words),
        "9 items with all three scores; at least 10 needed": (voice, np.append(voice[3:], [np.nan] * 3), words),
    }
    for reason, sides in cases.items():
        found = voice_and_words(*sides, resamples_of(12))
        assert {(one["value"], one["reason"]) for one in as_report(found).values()} == {(None, reason)}
    assert found["voice"].dropped == 3
    for n in range(4):
        empty = np.arange(float(n))
        assert voice_and_words(empty, empty, empty, resamples_of(n))["index"].value is None
