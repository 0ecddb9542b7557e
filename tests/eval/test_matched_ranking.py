"""A judge that hears the voice ranks matched responses first; one that does not is at a half."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges import score_table
from empathy_judge.eval.matched_ranking import crossings, matched_accuracy, matched_against_crossed
from empathy_judge.eval.statistics.bootstrap import Resamples

VOICES = ("target", "neutral", "alternative")


def clip(level: float) -> Clip:
    return Clip(np.full(500, level, dtype=np.float32), 8000)


def level(source: object) -> float:
    assert isinstance(source, Clip)
    return float(source.samples[0])


class LevelJudge:
    """Scores a pair by the levels of its two clips."""

    name, dimensions = "levels", ("fit", "other")
    only_given: str | None = None

    def __init__(self, rule: Callable[[float, float], float]) -> None:
        self._rule = rule

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        fit = [self._rule(level(pair.context[0].audio), level(pair.response)) for pair in pairs]
        return score_table(pairs, self.dimensions, np.array([fit, [1.0] * len(pairs)]).T)


def echo_pairs(scripts: int = 20, systems: int = 2, voices: tuple[str, ...] = VOICES) -> list[Pair]:
    """The level of a clip tells the voice; each answer sounds like the voice it answers."""
    return [
        Pair(
            f"synthesis-{script}-system{system}-{voice}", clip(number + 1 + script / 1000),
            (Turn("user", clip(number + 1 + system / 1000)),), None, f"script_{script}", f"system{system}",
            setting=f"speaker: male / {voice}", response_text=f"{voice} {script}",
        )
        for script in range(scripts) for system in range(systems) for number, voice in enumerate(voices)
    ]  # fmt: skip


def test_accuracy_by_hand() -> None:
    matched, crossed = np.array([3.0, 2.0, 1.0, 5.0, np.nan]), np.array([1.0, 2.0, 4.0, 4.0, 1.0])
    found = matched_accuracy(matched, crossed, np.array(["a", "a", "b", "b", "b"]))
    assert (found.value, found.n, found.dropped) == (0.625, 4, 1)
    assert found.reason == "no interval: 2 groups, at least 5 needed"
    nothing = matched_accuracy(np.array([np.nan]), np.array([1.0]), np.array(["a"]))
    assert (nothing.value, nothing.reason) == (None, "0 comparisons, 1 dropped")
    assert matched_accuracy(np.zeros(0), np.zeros(0), np.zeros(0, str)).reason == "0 comparisons"


def test_the_interval_is_that_of_scripts_drawn_again() -> None:
    rng = np.random.default_rng(0)
    matched, crossed, groups = rng.normal(0.3, 1, 90), rng.normal(size=90), np.repeat(np.arange(30), 3).astype(str)
    found = matched_accuracy(matched, crossed, groups, resamples=200, seed=7)
    resamples = Resamples.draw(groups, 200, seed=7)
    counts = resamples.counts[:, resamples.codes].astype(float)
    draws = (counts * (matched > crossed)).sum(1) / counts.sum(1)
    assert (found.low, found.high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=1e-12)
    assert found.low < 0.6 < found.high


def test_every_pair_meets_the_responses_to_the_other_voices_of_its_script_and_system() -> None:
    pairs = echo_pairs(scripts=2)
    found = crossings(pairs)
    assert len(found) == 2 * 2 * 3 * 2
    by_id = {pair.pair_id: pair for pair in pairs}
    for one in found:
        own, other_id = by_id[one.matched], one.crossed.pair_id.removeprefix(f"{one.matched} x ")
        other = by_id[other_id]
        assert one.crossed.context is own.context
        assert one.crossed.response is other.response
        assert one.crossed.response_text == other.response_text
        assert (own.group_id, own.system_id) == (other.group_id, other.system_id) == (
            one.crossed.group_id, one.crossed.system_id,
        )  # fmt: skip
        assert own.setting != other.setting
    assert len({one.crossed.pair_id for one in found}) == len(found)


@pytest.mark.parametrize(
    ("rule", "accuracy"),
    [
        (lambda context, response: -abs(context - response), 1.0),
        (lambda context, response: abs(context - response), 0.0),
        (lambda context, response: response, 0.5),  # a response-only judge wins as often as it loses
        (lambda context, response: context, 0.5),  # ties
    ],
)
def test_judges_that_listen_and_that_do_not(rule: Callable[[float, float], float], accuracy: float) -> None:
    found = matched_against_crossed(LevelJudge(rule), echo_pairs(), resamples=50)
    assert found["fit"].value == pytest.approx(accuracy, abs=1e-12)
    assert found["fit"].n == 20 * 2 * 6
    assert (found["fit"].low, found["fit"].high) == pytest.approx((accuracy, accuracy), abs=1e-12)
    assert found["other"].value == 0.5


def test_one_voice_cannot_be_crossed() -> None:
    with pytest.raises(DataError, match="of 4 pairs none can be crossed"):
        matched_against_crossed(LevelJudge(lambda context, response: 1.0), echo_pairs(2, 2, VOICES[:1]))
