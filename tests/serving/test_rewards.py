"""`POST /v1/reward`: a number for what was heard, a reason for all else, and nothing scored twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from empathy_judge import EmpathyReward
from empathy_judge.data_modules.errors import AudioError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.assessment import Caution
from empathy_judge.scorer import Scorer

from ..conftest import encoded, until
from .services import RATE, FakeScorer, InProcess, in_process, wav


def reward(service: InProcess, *clips: bytes, **fields: Any) -> Any:
    return service.score(*clips, path="/v1/reward", **fields)


def numbers(answer: Any) -> list[float | None]:
    return [own["reward"] for own in answer.json()["rewards"]]


def test_each_response_has_its_reward_or_a_reason(scorer):
    square = encoded(np.sign(np.sin(np.arange(RATE) / 20)).astype(np.float32), 44_100)
    clips = [wav(0.25), b"no sound", wav(0.5, 0.0), b"", square, wav(0.5, 11.0), wav(0.75)]
    with in_process(scorer, processes=True) as service:
        answer = reward(service, *clips, context=[wav(0.1)], situation="Late.")
        first = answer.json()
        again = reward(service, *clips, context=[wav(0.1)], situation="Late.")
        unsure = reward(service, clips[0], context=[wav(0.1)], situation="Late.", deviations="2")
        without = reward(service, wav(0.25), context=[wav(0.1)]).json()
    assert without["rewards"][0]["content"] != first["rewards"][0]["content"]
    assert answer.status_code == 200
    assert list(first) == ["judge", "dimensions", "deviations", "rewards"]
    assert (first["dimensions"], first["deviations"]) == (["empathy"], 0.0)
    assert [own["response"] for own in first["rewards"]] == [*range(1, 8)]
    assert numbers(answer) == [pytest.approx(0.25, abs=1e-3), None, 0.0, None, 0.0, None, pytest.approx(0.75, abs=1e-3)]
    assert [own["standard_error"] for own in first["rewards"]] == [0.125, *[None] * 5, 0.125]
    reasons = [own["reason"] for own in first["rewards"]]
    codes = [None, "not a sound file", "the file is empty", "not a clip", "clipped", "too long", None]
    assert [own and own["code"] for own in reasons] == codes
    assert reasons[1]["text"] == "response 2: not a sound file; expected wav, flac, ogg, mp3, aiff, au"
    assert again.json() == first
    # four were heard: with the context that was left out in the last one; nothing twice
    assert len(scorer.heard) == 4
    assert numbers(unsure) == [pytest.approx(0.25 - 2 * 0.125, abs=1e-3)]


@pytest.mark.parametrize(
    ("caution", "expected"),
    [
        (Caution("unlike_training", "level: -70 dBFS", "pair"), (None, "unlike_training")),
        (Caution("no_speech", "response: no voice", "response"), (0.0, "no_speech")),
        (Caution("no_speech", "context: no voice", "context"), (0.5, None)),
    ],
)
def test_a_judge_that_does_not_know_such_pairs_gives_no_number(caution, expected):
    scorer = FakeScorer()
    scorer.warnings = (caution,)
    with in_process(scorer) as service:
        (found,) = reward(service, wav(0.5)).json()["rewards"]
    number, code = expected
    assert found["reward"] == (number if number is None else pytest.approx(number, abs=1e-3))
    assert (found["reason"] and found["reason"]["code"]) == code


def test_what_is_sent_twice_is_heard_once(scorer):
    """In one request, after one another, and while the first request waits; and whoever hangs up takes nothing away."""
    with in_process(scorer) as service, ThreadPoolExecutor() as pool:
        assert numbers(reward(service, wav(0.5), wav(0.25), wav(0.5))) == pytest.approx([0.5, 0.25, 0.5], abs=1e-3)
        assert len(scorer.heard) == 2
        scorer.open.clear()
        first = pool.submit(reward, service, wav(0.75), wav(0.5))
        until(lambda: len(scorer.heard) == 3)
        second = pool.submit(reward, service, wav(0.75), wav(0.125))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        scorer.open.set()
        assert numbers(first.result(20)) == pytest.approx([0.75, 0.5], abs=1e-3)
        assert numbers(second.result(20)) == pytest.approx([0.75, 0.125], abs=1e-3)
    assert len(scorer.heard) == 4


def test_what_failed_is_asked_again(scorer):
    with in_process(scorer) as service:
        scorer.fails = lambda pair: AudioError("too long for the memory", "too large for the memory")
        failed = reward(service, wav(0.5)).json()["rewards"][0]
        scorer.fails = lambda pair: RuntimeError("a bug")
        assert reward(service, wav(0.5)).status_code == 500
        scorer.fails = lambda pair: None
        assert numbers(reward(service, wav(0.5))) == [pytest.approx(0.5, abs=1e-3)]
    assert (failed["reward"], failed["reason"]["code"]) == (None, "too large for the memory")


def test_what_concerns_all_responses_is_an_error(scorer):
    scorer.dimensions = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 1, 5, 1))
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"context": [b"no sound"]}, "bad_audio", "context: not a sound file; expected wav, flac, ogg, mp3, aiff, au"),
        ({"dimension": "joy"}, "invalid", "dimension; expected empathy, warmth, or none: then all count"),
        ({"deviations": "-1"}, "invalid", "deviations: expected greater than or equal to 0"),
        ({"deviations": "1_0"}, "invalid", "deviations: expected a finite number"),
        ({"deviations": "nan"}, "invalid", "deviations: expected a finite number"),
        ({"level": "0.9"}, "invalid",
         "a part of the form is not known; expected response, context, situation, dimension, deviations"),
        ({"situation": "<|AUDIO|>"}, "invalid", "situation text may not contain <|AUDIO|>"),
    ]  # fmt: skip
    with in_process(scorer) as service:
        for fields, code, message in cases:
            error = reward(service, wav(), **fields).json()["error"]
            assert (error["code"], error["message"]) == (code, message)
        assert reward(service, context=[wav()]).json()["error"]["message"] == "response: missing"
        both = reward(service, wav(0.5))
        one = reward(service, wav(0.5), dimension="warmth")
        scorer.calibration = None
        error = reward(service, wav(), deviations="1").json()["error"]
    assert error["message"] == "deviations: this judge is not calibrated; expected 0"
    assert both.json()["dimensions"] == ["empathy", "warmth"]
    assert one.json()["dimensions"] == ["warmth"]
    assert len(scorer.heard) == 1


def test_a_promise_that_the_judge_cannot_make_is_refused(scorer):
    with in_process(scorer) as service:
        plain = service.score(wav(0.5), wav(0.25), path="/v1/rank").json()["ranking"]
        for value, message in (("0.1", "nothing is known of preferences"), ("0.12", "max_error: expected 0.05, 0.1")):
            error = service.score(wav(), wav(), path="/v1/rank", max_error=value).json()["error"]
            assert error["code"] == "invalid"
            assert message in error["message"]
    assert [own["over_next"] for own in plain] == [None, None]


def test_rewards_are_those_of_python(judge_folder, make_tone):
    tones = ((0.6, 150), (0.8, 240), (0.7, 300))
    files = [encoded(make_tone(seconds, hertz, 0.4, 0.2)) for seconds, hertz in tones]
    scorer = Scorer.from_pretrained(judge_folder, device="cpu", batch_size=2)
    python = EmpathyReward(scorer, lambda completions, **_: files[1:])
    expected = python(["p"] * 2, ["0", "1"], context_audio=[files[0]] * 2, situation=["Late."] * 2)
    with in_process(scorer) as service:
        found = reward(service, *files[1:], context=[files[0]], situation="Late.")
    assert numbers(found) == pytest.approx(expected, abs=1e-6)
    assert expected[0] != expected[1]
