"""The routes: scores, rankings and rewards, who may ask, and pages that are not there."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from empathy_judge import EmpathyReward
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.scoring.assessment import Caution
from empathy_judge.scoring.scorer import Scorer
from empathy_judge.serving.records import JsonLines

from ..conftest import encoded
from .services import RATE, FakeScorer, error_of, in_process, numbers, reward, wav


def test_a_score_comes_with_all_that_is_known_of_it(shared):
    service, _ = shared
    answer = service.score(wav(0.5, 0.5), context=[wav(0.1, 0.75)], level="0.8", situation="A dog ran away.")
    assert answer.status_code == 200
    body = answer.json()
    score = body["scores"]["empathy"]
    assert score["score"] == pytest.approx(3.0, abs=1e-3)
    assert score["high"] - score["low"] == pytest.approx(1.6)  # the fake judge's intervals are as wide as the level
    assert (score["standard_error"], score["abstained"], score["label"]) == (0.5, False, "fair")
    assert score["scale"] == {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True}
    assert body["seconds"] == {"context": [0.75], "responses": [0.5]}
    assert body["level"] == 0.8
    assert body["warnings"] == []
    assert body["judge"]["name"] == "judge"
    assert len(body["judge"]["version"]) == 16
    assert "levels" not in body


def test_the_shares_of_raters_come_with_a_score(scorer):
    scorer.knows_levels = True
    with in_process(scorer) as service:
        body = service.score(wav(0.6)).json()
    assert body["scores"]["empathy"]["score"] == pytest.approx(3.4, abs=1e-3)
    assert body["levels"]["empathy"] == pytest.approx([0, 0, 0.6, 0.4, 0], abs=1e-3)


def test_the_judge_gets_the_turns_of_a_conversation_with_who_speaks(shared):
    service, scorer = shared
    clips = [wav(0.1, 0.2), wav(0.2, 0.3), wav(0.3, 0.4)]
    assert service.score(wav(), context=clips, situation="At the vet.").status_code == 200
    pair = scorer.heard[-1]
    turns = [(turn.role, turn.audio.seconds) for turn in pair.context]
    assert turns == [("user", 0.2), ("assistant", 0.3), ("user", 0.4)]
    assert pair.situation == "At the vet."
    assert pair.response.rate == 16_000


def test_warnings_are_passed_on():
    scorer = FakeScorer()
    scorer.warnings = (Caution("short", "response: lasts 0.2 s", "response"),)
    with in_process(scorer) as service:
        warnings = service.score(wav()).json()["warnings"]
    assert warnings == [{"code": "short", "about": "response", "text": "response: lasts 0.2 s"}]


def test_a_real_judge_scores_over_http_as_it_does_in_python(judge_folder, make_tone):
    def clip(seconds: float, hertz: float, rate: int, kind: str) -> bytes:
        return encoded(make_tone(seconds, hertz, 0.4, 0.2, rate), rate, kind)

    contexts = [clip(0.6, 150, 16_000, "WAV"), clip(0.8, 180, 44_100, "FLAC"), clip(0.5, 200, 8_000, "WAV")]
    answers = [clip(0.7, 300, 22_050, "OGG"), clip(0.9, 250, 16_000, "WAV"), clip(0.4, 350, 48_000, "FLAC")]
    scorer = Scorer.from_pretrained(judge_folder, device="cpu", batch_size=2)
    expected = scorer.score(contexts, answers, situation=["Late.", None, None])
    with in_process(Scorer.from_pretrained(judge_folder, device="cpu", batch_size=2), processes=True) as service:
        assert service("GET", "/v1/judge").json()["calibrated"] is False
        texts: list[dict[str, str]] = [{"situation": "Late."}, {}, {}]
        with ThreadPoolExecutor() as pool:
            sent = [
                pool.submit(service.score, own, context=[before], **text)
                for own, before, text in zip(answers, contexts, texts, strict=True)
            ]
        got = [future.result().json()["scores"] for future in sent]
        special = service.score(answers[0], situation="<|AUDIO|>")
        unknown = service.score(answers[0], level="0.9")
        cut, long = (service.score(clip(seconds, 200, 8_000, "WAV")) for seconds in (31.0, 101.0))
    for wanted, found in zip(expected, got, strict=True):
        assert {name: own["score"] for name, own in found.items()} == pytest.approx(wanted, abs=1e-5)
        assert found["empathy"]["standard_error"] is None
    assert error_of(special)[:2] == error_of(unknown)[:2] == (422, "invalid")
    assert "level: this judge is not calibrated" in error_of(unknown)[2]
    assert [answer.json()["windows"] for answer in (sent[0].result(), cut)] == [1, 4]
    assert error_of(long) == (422, "bad_audio", "response: lasts 101.0 s; expected at most 100 s")


def test_the_best_response_comes_first(shared):
    service, _ = shared
    answer = service.score(wav(0.2), wav(0.9), wav(0.5), context=[wav(0.1)], path="/v1/rank").json()
    assert [own["response"] for own in answer["ranking"]] == [2, 3, 1]
    assert answer["dimension"] == "empathy"
    assert answer["ranking"][0]["scores"]["empathy"]["score"] == pytest.approx(4.6, abs=1e-3)


def test_ranking_needs_a_dimension_where_there_are_several_and_knows_which_end_is_good():
    scorer = FakeScorer()
    scorer.dimensions = (Dimension("warmth", 1, 5), Dimension("harshness", 1, 5, higher_is_better=False))
    with in_process(scorer) as service:
        clips = (wav(0.2), wav(0.9))
        status, code, message = error_of(service.score(*clips, path="/v1/rank"))
        assert (status, code, message) == (422, "invalid", "dimension; expected warmth, harshness")
        worst = service.score(*clips, path="/v1/rank", dimension="harshness").json()
        best = service.score(*clips, path="/v1/rank", dimension="warmth").json()
    assert [own["response"] for own in worst["ranking"]] == [1, 2]
    assert [own["response"] for own in best["ranking"]] == [2, 1]


def test_a_promise_that_the_judge_cannot_make_is_refused(scorer):
    with in_process(scorer) as service:
        plain = service.score(wav(0.5), wav(0.25), path="/v1/rank").json()["ranking"]
        for value, message in (("0.1", "nothing is known of preferences"), ("0.12", "max_error: expected 0.05, 0.1")):
            error = service.score(wav(), wav(), path="/v1/rank", max_error=value).json()["error"]
            assert error["code"] == "invalid"
            assert message in error["message"]
    assert [own["over_next"] for own in plain] == [None, None]


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


def test_who_has_no_token_gets_no_score(caplog):
    caplog.set_level(logging.DEBUG)
    with in_process(FakeScorer(), token="open sesame") as service:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}):
            for request in ("POST /v1/score", "POST /v1/rank", "GET /v1/judge", "GET /metrics"):
                answer = service(*request.split(), headers=headers)
                assert error_of(answer)[:2] == (401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer open sesame"}
        assert service("POST", "/v1/score", files={"response": wav()}, headers=right).status_code == 200
        assert service("GET", "/metrics", headers=right).status_code == 200
        for path in ("/healthz", "/readyz", "/", "/openapi.json"):
            assert service("GET", path).status_code == 200
        for path in ("/healthz", "/readyz", "/"):
            assert (service("HEAD", path).status_code, service("HEAD", path).content) == (200, b"")
        assert "sesame" not in service("GET", "/").text
        schemes = service("GET", "/openapi.json").json()["components"]["securitySchemes"]
        assert schemes["HTTPBearer"]["scheme"] == "bearer"
        assert "sesame" not in repr(service.app.state.service.settings)
    assert not any("sesame" in JsonLines().format(record) for record in caplog.records)
    with in_process(FakeScorer(), token="open sesame", open_metrics=True) as service:
        assert service("GET", "/metrics").status_code == 200


def test_the_judge_and_the_limits_can_be_asked_for(shared):
    service, _ = shared
    body = service("GET", "/v1/judge").json()
    assert body["dimensions"] == [
        {"name": "empathy", "scale": {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True}}
    ]
    assert (body["max_seconds"], body["max_bytes"], body["calibrated"]) == (10.0, 2**25, True)
