"""Judges that listen, and those that only seem to, each get their own sentence; their voice and words, their shares."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.checks import CHECKS
from empathy_judge.eval.listening import Listening, check_view, listening_sentence, voice_and_words
from empathy_judge.eval.report.dimension import CheckReport
from empathy_judge.eval.statistics.bootstrap import Resamples

from .conftest import check_of, statistic

FULL = 0.8


def check(
    name: str, drop: float | None, width: float = 0.05, *, n: int = 60, p95: float = 1.0, full: float = FULL
) -> CheckReport:
    """A check that costs `drop` of `full`, with an interval of half this width; None = constant scores."""
    nothing = statistic(None, None, None, "the judge scores are constant")
    if drop is None:
        return check_of(name, nothing, nothing, p95=p95, n=n)
    left = statistic(full - drop, full - drop - width, full - drop + width)
    return check_of(name, left, statistic(drop, drop - width, drop + width), p95=p95, n=n)


def sentence(full: float = FULL, widths: dict[str, float] | None = None, **drops: float | None) -> Listening:
    """Of a judge whose Spearman falls so far by each check."""
    checks = {name: check(name, drop, (widths or {}).get(name, 0.05), full=full) for name, drop in drops.items()}
    return listening_sentence(checks, statistic(full, full - 0.05, full + 0.05))


HEARS_BOTH = {"response_only": 0.4, "context_swapped": 0.5, "silent": None, "flat_prosody": 0.45, "low_pass": 0.02}


@pytest.mark.parametrize(
    ("changed", "kind", "tone"),
    [
        ({}, "listens", "good"),
        ({"context_swapped": 0.01, "response_only": 0.0}, "response_only", "warn"),
        ({"context_swapped": 0.01}, "response_only", "warn"),  # a missing context may only be unfamiliar
        ({"response_only": 0.0}, "listens", "good"),
        ({"flat_prosody": 0.01, "low_pass": 0.6}, "words_only", "warn"),
        ({"flat_prosody": 0.01, "low_pass": 0.15}, "words_only", "warn"),
        ({"flat_prosody": -0.02, "low_pass": 0.01}, "timing_only", "warn"),
        ({"flat_prosody": 0.01, "low_pass": 0.08}, "uses_context", "warn"),  # by words or not: unclear
        ({"flat_prosody": 0.01, "low_pass": 0.08, "context_swapped": 0.01}, "response_only", "warn"),
        ({"silent": 0.0}, "durations_only", "warn"),
        ({"silent": 0.3}, "durations_only", "warn"),  # 0.5 of 0.8 is left
        ({"silent": 0.6}, "listens", "good"),
        ({"context_only": 0.01}, "context_only", "warn"),
        ({"context_only": 0.5}, "listens", "good"),
        ({"resynthesis": 0.44}, "uses_context", "none"),
        ({"resynthesis": 0.2}, "listens", "good"),
    ],
)
def test_each_judge_has_its_sentence(changed, kind, tone):
    found = sentence(**HEARS_BOTH | changed)
    assert (found.kind, found.tone) == (kind, tone)
    assert found.text.count(". ") == 0
    assert found.text.endswith(".")


def test_the_sentence_names_its_evidence():
    assert sentence(**HEARS_BOTH).text == (
        "Listens: its Spearman falls by 0.50 with another context and falls by 0.45 with flattened voices, so it hears "
        "how things are said and weighs the response against its context."
    )
    text = sentence(**HEARS_BOTH | {"silent": 0.6}).text
    assert text.endswith(" (though 0.20 is left when all sound is silenced).")
    text = sentence(**HEARS_BOTH | {"silent": 0.0}).text
    assert "with silence in place of all sound its Spearman is still 0.80 of 0.80" in text
    assert "the length of the clips, or the situation if there is one." in text
    assert "how long the response lasts" in sentence(**HEARS_BOTH | {"silent": 0.0, "response_only": 0.0}).text
    text = sentence(**HEARS_BOTH | {"flat_prosody": 0.0, "low_pass": 0.6}).text
    assert "stays as it is with flattened voices but falls by 0.60 without the words" in text


@pytest.mark.parametrize(
    ("wide", "kind"),
    [
        (("context_swapped",), "uses_voice"),
        (("flat_prosody",), "uses_context"),
        (("context_swapped", "flat_prosody"), "inconclusive"),
    ],
)
def test_wide_intervals_leave_it_open(wide, kind):
    found = sentence(widths=dict.fromkeys(wide, 0.6), **HEARS_BOTH)
    assert (found.kind, found.tone) == (kind, "none")
    for name in wide:
        low, high = -HEARS_BOTH[name] - 0.6, -HEARS_BOTH[name] + 0.6  # type: ignore[operator]
        said = f"'{CHECKS[name].title.lower()}' may change it by anything from {low:+.2f} to {high:+.2f}"
        assert said.replace("-", "\N{MINUS SIGN}") in found.text.replace("-", "\N{MINUS SIGN}")


def test_without_clear_agreement_nothing_is_claimed_but_deafness():
    checks = {"silent": check("silent", 0.0, p95=0.0), "context_swapped": check("context_swapped", 0.0)}
    found = listening_sentence(checks, statistic(0.1, -0.1, 0.3))
    assert (found.kind, found.tone) == ("no_agreement", "warn")
    assert found.text.endswith("but these changes do not move its scores: both silent.")
    found = listening_sentence({"silent": check("silent", 0.5)}, statistic(0.5, None, None, "no interval: 3 groups"))
    assert found.text == "Whether it listens cannot be told, as its agreement has no interval: 3 groups."
    found = listening_sentence({"silent": check("silent", None)}, statistic(None, None, None, "it is constant"))
    assert (found.kind, found.text) == ("no_agreement", "Whether it listens cannot be told: it is constant.")


def test_checks_that_were_not_run():
    assert listening_sentence({}, statistic(0.8, 0.7, 0.9)).kind == "not_tested"
    none = check("silent", None, n=0).model_copy(update={"mean_change": None, "p95_change": None, "judge_sd": None})
    assert listening_sentence({"silent": none}, statistic(0.8, 0.7, 0.9)).kind == "not_tested"
    found = sentence(silent=None)
    assert (found.kind, found.text) == (
        "inconclusive",
        "Undecided whether it listens: no check changed the context, and no check flattened the voice.",
    )
    assert sentence(response_only=0.4, monotone=0.3).kind == "listens"
    assert sentence(response_only=0.4, monotone=0.3, resynthesis=0.3).kind == "uses_context"
    assert sentence(response_only=0.4, loudness=0.3, resynthesis=0.3).kind == "listens"


def test_a_weak_judge_must_lose_half_not_a_tenth():
    """Of a Spearman of 0.12, a loss of 0.08 is a fall, and keeping it within 0.1 is no proof that it stays."""
    narrow = {"context_swapped": 0.02, "flat_prosody": 0.02}
    assert sentence(0.12, narrow, context_swapped=0.08, flat_prosody=0.08).kind == "listens"
    found = sentence(0.12, {"context_swapped": 0.02, "flat_prosody": 0.06}, context_swapped=0.08, flat_prosody=0.03)
    assert found.kind == "uses_context"


# ---------------------------------------------------------------- voice and words


N = 4000


def resamples_of(n: int, groups: int | None = None, count: int = 200) -> Resamples:
    return Resamples.sample([str(number % (groups or n)) for number in range(n)], count, seed=0)


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
    for share in (found["voice"], found["words"], found["index"]):
        assert share.low - 1e-6 <= share.value <= share.high + 1e-6
        assert share.n == N


def test_the_parts_are_those_of_three_regressions():
    """Against R^2 of least squares, with correlated checks and noise."""
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


def test_constant_scores_on_a_check_explain_nothing():
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
        assert {(one.value, one.reason) for one in found.values()} == {(None, reason)}
    assert found["voice"].dropped == 3
    for n in range(4):
        empty = np.arange(float(n))
        assert voice_and_words(empty, empty, empty, resamples_of(n))["index"].value is None


@pytest.mark.parametrize(
    ("name", "left", "drop", "mark"),
    [
        ("response_only", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "drops"),
        ("response_only", statistic(0.78, 0.70, 0.85), statistic(0.02, -0.02, 0.06), "no clear drop"),
        ("context_swapped", statistic(0.74, 0.68, 0.80), statistic(0.06, 0.03, 0.09), "small drop"),
        ("context_swapped", statistic(0.85, 0.80, 0.90), statistic(-0.05, -0.09, -0.01), "no clear drop"),
        ("silent", statistic(0.05, -0.10, 0.20), statistic(0.75, 0.60, 0.90), "drops"),
        ("silent", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "not all of it"),
        ("response_only", statistic(0.40, None, None), statistic(0.40, None, None), "no interval"),
        ("response_swapped", statistic(0.46, 0.10, 0.80), statistic(0.34, -0.06, 0.74), "not clear"),
        ("low_pass", statistic(0.78, 0.70, 0.85), statistic(0.02, -0.02, 0.06), "stays"),
        ("low_pass", statistic(0.72, 0.60, 0.85), statistic(0.08, -0.02, 0.18), "not clear"),
        ("low_pass", statistic(0.40, 0.30, 0.50), statistic(0.40, 0.30, 0.50), "drops"),
    ],
)
def test_the_verdict_on_a_listening_check(name, left, drop, mark):
    check = check_of(name, left, drop)
    view = check_view(name, check, statistic(0.8, 0.75, 0.85))
    assert view.mark == mark
    assert f"{left.value:.2f}" in view.text
    assert "Scores move by 0.50 rating points on average, 62 % of their standard deviation;" in view.text
    assert "95 % of them by no more than 1.20." in view.text


@pytest.mark.parametrize(("p95", "mark", "tone"), [(0.19, "stays", "good"), (0.21, "moves", "warn")])
def test_scores_that_must_stay_are_held_against_their_tolerance(p95, mark, tone):
    """Of a standard deviation of 0.8 points, a quarter: 0.2 points."""
    check = check_of("gain", statistic(0.8, 0.7, 0.9), statistic(0.0, -0.1, 0.1), p95=p95)
    view = check_view("gain", check, statistic(0.8, 0.75, 0.85))
    assert (view.mark, view.tone) == (mark, tone)
    assert f"move by no more than {p95 / 0.8:.0%} of their".replace("%", " %") in view.text
