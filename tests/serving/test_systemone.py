"""The judge as a decision model: what clients of the protocol send and get, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.scoring.scorer import Scorer
from empathy_judge.serving import systemone
from empathy_judge.serving.systemone import confidence

from ..models.conftest import saved
from .services import FakeScorer, InProcess, error_of, in_process, live, wav

WORDS = ["not at all", "a little", "somewhat", "clearly", "fully"]
QUESTION = {"type": "score", "instructions": "How well does the voice fit?", "criteria": WORDS}


def url(clip: bytes, kind: str = "audio/wav") -> str:
    return f"data:{kind};base64,{base64.b64encode(clip).decode()}"


CLIPS = [url(wav(0.1, 0.4)), url(wav(0.6, 0.5))]
SENT: dict[str, Any] = {"state": "At the vet.", "questions": {"empathy": QUESTION}, "audio": CLIPS}


@pytest.fixture
def deciding() -> FakeScorer:
    scorer = FakeScorer()
    scorer.knows_levels = True
    return scorer


@pytest.fixture
def service(deciding):
    with in_process(deciding) as service:
        yield service


def ask(service: InProcess, **changed: Any) -> Any:
    body = {name: value for name, value in {**SENT, **changed}.items() if value is not None}
    return service("POST", "/v1/systemone", json=body)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.05, 0.1, 0.2, 0.4, 0.25], 1 / 3),
        ([0.5, 0, 0, 0, 0.5], 0),
        ([0, 0, 0, 0.5, 0.5], 1 - 0.5 / 1.2),
        ([0, 0, 1, 0, 0], 1),
        ([0.25, 0.75], 0.5),
    ],
)
def test_confidence_is_that_of_typesafe(probabilities, expected):
    assert confidence(probabilities) == pytest.approx(expected)


@pytest.mark.parametrize(
    "sent",
    [
        # what typesafe-sdk 0.7.5 sends: `system_one(state={...}, questions={"empathy": Score(...)},
        # extra_body={"audio": [...]})`
        {"state": {"situation": "At the vet."}, "model": "jev-latest"},
        # what litellm 1.110.2 sends: `systemone(model="hosted_vllm/judge", state="...", questions={...}, audio=[...])`
        {"model": "judge"},
        # llama.cpp's name of the list
        {"audio": None, "files": CLIPS},
        # a dimension that is named in the instructions
        {"questions": {"q_0": {**QUESTION, "instructions": "empathy"}}},
    ],
)
def test_what_clients_send_is_answered(service, deciding, sent):
    answer = ask(service, **sent)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    (found,) = body["answers"].values()
    assert found["type"] == "score"
    assert found["score"] == pytest.approx(2.4, abs=1e-3)
    assert found["probabilities"] == pytest.approx({"0": 0, "1": 0, "2": 0.6, "3": 0.4, "4": 0}, abs=1e-3)
    assert found["confidence"] == pytest.approx(1 - 0.4 / 1.2, abs=1e-3)
    assert found["legend"] == dict(zip("01234", WORDS, strict=True))
    assert found["x_rating"] == pytest.approx(3.4, abs=1e-3)
    assert found["x_standard_error"] == 0.5
    assert found["x_high"] - found["x_low"] == pytest.approx(1.8)
    assert body["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert body["model"] == body["judge"]["name"] == "judge"
    assert body["seconds"] == {"context": [0.4], "responses": [0.5]}
    (pair,) = deciding.heard
    assert (len(pair.context), pair.situation) == (1, "At the vet.")


def test_one_request_asks_about_several_dimensions():
    scorer = FakeScorer()
    scorer.knows_levels, scorer.dimensions = True, (Dimension("warmth", 1, 5, 1), Dimension("calm", 0, 1, 0.25))
    with in_process(scorer) as service:
        asked = {"calm": QUESTION, "a": {**QUESTION, "instructions": "warmth"}}
        answers = ask(service, questions=asked).json()["answers"]
        assert error_of(ask(service))[2].endswith("name a dimension of this judge: warmth, calm")
    assert list(answers) == ["calm", "a"]
    assert answers["a"]["score"] == pytest.approx(2.4, abs=1e-3)
    assert len(scorer.heard) == 1


def test_a_real_judge_gives_its_shares(make_judge, tmp_path):
    scales = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 1, 0.5))
    folder = saved(make_judge(head="histogram", scales=scales), tmp_path / "judge")
    scorer = Scorer.from_pretrained(folder, device="cpu", batch_size=2)
    expected = scorer.assess(wav(0.1, 0.4), wav(0.6, 0.5), situation="At the vet.")
    with in_process(scorer) as service:
        questions = {"empathy": QUESTION, "warmth": {**QUESTION, "criteria": WORDS[:3]}}
        answers = ask(service, questions=questions).json()["answers"]
    for scale in scales:
        answer = answers[scale.name]
        assert [*answer["probabilities"].values()] == pytest.approx(expected.levels[scale.name], abs=1e-6)
        rating = scale.minimum + (scale.step or 0) * answer["score"]
        assert rating == pytest.approx(expected.scores[scale.name].score, abs=1e-5)
        assert answer["x_rating"] == pytest.approx(rating, abs=1e-5)
        assert answer["x_standard_error"] is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"questions": {"warmth": QUESTION}}, "questions.warmth: expected an id or instructions"),
        ({"questions": {"empathy": {**QUESTION, "criteria": WORDS[:3]}}}, "questions.empathy.criteria: 3 levels"),
        ({"questions": {"empathy": {"type": "noul", "instructions": "?"}}}, "questions.empathy.type: expected"),
        ({"questions": {"empathy": {**QUESTION, "weight": 1}}}, "questions.empathy.weight: not known; "),
        ({"questions": {"empathy": {**QUESTION, "criteria": [*WORDS[:4], ""]}}}, "questions.empathy.criteria.4: "),
        ({"questions": {}}, "questions: "),
        ({"questions": {"": {**QUESTION, "instructions": "empathy"}}}, "questions..[key]: expected to have at least 1"),
        ({"questions": None}, "questions: missing"),
        ({"audio": None}, "audio: expected clips there, or in files"),
        ({"files": CLIPS}, "audio: expected clips there, or in files"),
        ({"audio": []}, "audio: "),
        ({"audio": CLIPS * 5}, "audio: expected to have at most 9 items"),
        ({"audio": ["http://127.0.0.1/a.wav"]}, "audio, clip 1: expected a data URL such as data:audio/wav;base64"),
        ({"audio": ["file:///etc/passwd"]}, "audio, clip 1: expected a data URL"),
        ({"audio": [CLIPS[0], "UklGRg=="]}, "audio, clip 2: expected a data URL"),
        ({"audio": ["data:audio/wav;base64,?"]}, "audio, clip 1: no Base64"),
        ({"state": {"document": "x"}}, 'state: expected text about the situation, or {"situation": text}'),
        ({"state": [1]}, "state: expected text about the situation"),
        ({"state": "x" * 4001}, "situation: expected to have at most 4000 characters"),
        ({"state": "a <|AUDIO|>"}, "situation text may not contain"),
        ({"images": [CLIPS[0]]}, "images: not known; expected questions, state, model, audio, files"),
        ({"model": 3}, "model: "),
    ],
)
def test_everything_else_is_told_what_is_expected(service, deciding, changed, message):
    status, code, found = error_of(ask(service, **changed))
    assert (status, code) == (422, "invalid")
    assert found.startswith(message)
    assert deciding.heard == []


@pytest.mark.parametrize("first", ["0", ""])
@pytest.mark.parametrize("place", ["body", "questions", "question", "state"])
def test_of_ten_thousand_names_few_are_checked(service, place, first, monkeypatch):
    names, counts = dict.fromkeys([first, *map(str, range(10_000))], 1), []
    monkeypatch.setattr(systemone, "_first", lambda error: counts.append(error.error_count()) or "no")
    changed = {"body": names, "questions": {"questions": names}, "state": {"state": names},
               "question": {"questions": {"empathy": QUESTION | names}}}  # fmt: skip
    assert ask(service, **changed[place]).status_code == 422
    assert counts[0] <= 66  # one question more than there may be, and an id without a letter


def test_half_a_character_is_never_given_back(service, deciding):
    # pydantic 2.14.3 lets it through where a text has no constraint, and no UTF-8 can hold it
    half = json.dumps({**SENT, "questions": {"\ud800": {**QUESTION, "instructions": "empathy"}}})
    answer = service("POST", "/v1/systemone", content=half.encode(), headers={"Content-Type": "application/json"})
    status, code, message = error_of(answer)
    assert (status, code) == (422, "invalid")
    assert "unable to parse raw data as a unicode string" in message
    assert answer.content.decode()
    assert deciding.heard == []


@pytest.mark.parametrize("body", [b"null", b"[]", b'"a"'])
def test_a_body_of_another_type_is_named(service, body):
    answer = service("POST", "/v1/systemone", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer)[2].startswith("the body: expected to be a valid dictionary")


def test_a_clip_that_is_none_is_an_error_of_the_audio(service):
    assert error_of(ask(service, audio=[url(b"no sound")]))[:2] == (422, "bad_audio")
    assert error_of(ask(service, audio=[url(wav(0.5, 11.0))])) == (
        422, "bad_audio", "response: lasts 11.0 s; expected at most 10 s"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"data": {"a": "b"}}, (415, "not_json")),
        ({"json": SENT, "headers": {"Content-Encoding": "zstd"}}, (415, "not_json")),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, (400, "bad_request")),
        ({"content": b"[" * 60_000, "headers": {"Content-Type": "application/json"}}, (400, "bad_request")),
        ({"content": b'{"a": 1, "a": 2}', "headers": {"Content-Type": "application/json"}}, (400, "bad_request")),
        ({"content": b"\xff", "headers": {"Content-Type": "application/json"}}, (400, "bad_request")),
        ({"content": b"[]", "headers": {"Content-Type": "application/json"}}, (422, "invalid")),
        ({"json": {"state": "x" * 2**16}}, (413, "too_large")),
        ({"json": SENT, "params": {"situation": "x"}}, (422, "invalid")),
    ],
)
def test_limits_are_those_of_the_other_routes(deciding, request_, expected):
    with in_process(deciding, max_bytes=2**16) as service:
        assert error_of(service("POST", "/v1/systemone", **request_))[:2] == expected


def test_a_judge_without_a_distribution_says_how_to_train_one(scorer):
    with in_process(scorer, token="sesame") as service:
        assert error_of(ask(service))[:2] == (401, "unauthorized")
        assert error_of(service("GET", "/v1/models"))[:2] == (401, "unauthorized")
        own = {"headers": {"Authorization": "Bearer sesame"}}
        status, code, message = error_of(service("POST", "/v1/systemone", json=SENT, **own))
        assert (status, code) == (501, "no_distribution")
        assert "--judge.head histogram" in message
        (model,) = service("GET", "/v1/models", **own).json()["models"]
    assert model["name"] == "judge"
    assert "empathy" in model["description"]


def test_requests_are_counted_under_their_route(service):
    ask(service)
    assert 'requests_total{route="/v1/systemone",status="200"} 1.0' in service("GET", "/metrics").text


def test_the_client_of_typesafe_works(deciding):
    client = pytest.importorskip("typesafe_sdk", reason="typesafe-sdk is not installed")
    question = client.Score(instructions="How well does the voice fit?", criteria=WORDS)
    asked = {"questions": {"empathy": question}, "extra_body": {"audio": CLIPS}}
    connect = {"api_key": "sesame", "compression": False}  # with Python 3.14 it would send Zstandard
    with live(deciding, token="sesame") as service, client.TypeSafeClient(base_url=service.url, **connect) as own:
        answer = own.system_one(state={"situation": "At the vet."}, **asked).answers["empathy"]
        assert [model.name for model in own.models.list().models] == ["judge"]
        with pytest.raises(client.TypeSafeUnprocessableEntityError, match="name a dimension of this judge"):
            own.system_one(state="", **{**asked, "questions": {"other": question}})
    assert answer.score == pytest.approx(2.4, abs=1e-3)
    assert answer.probabilities[2] == pytest.approx(0.6, abs=1e-3)
    assert answer.legend[4] == "fully"
    (pair,) = deciding.heard
    assert (pair.situation, pair.response.seconds) == ("At the vet.", 0.5)
