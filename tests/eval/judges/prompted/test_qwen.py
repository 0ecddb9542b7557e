"""Qwen-Omni at Alibaba Cloud Model Studio: data URLs, streams, an address for each workspace."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.costs import disclosure, planned
from empathy_judge.eval.judges.prompted.qwen import QwenProvider
from empathy_judge.eval.judges.prompted.settings import parse_settings
from pydantic import TypeAdapter

from ...conftest import dataset_of
from .conftest import EMPATHY, RUNNER
from .servers import GOOD, Response, openai_answer

WORKSPACE = "https://a-workspace.ap-southeast-1.maas.aliyuncs.com/compatible-mode/v1"
COUNTS = {"prompt_tokens": 350, "completion_tokens": 25, "total_tokens": 375}
USAGE = {**COUNTS, "prompt_tokens_details": {"audio_tokens": 100}}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    known = {"id": "c", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "qwen3.5-omni-flash"}
    return {**known, "choices": [choice], **more}


def stream(*chunks: dict[str, Any], done: bool = True) -> Response:
    lines = [f"data: {json.dumps(one)}\n\n" for one in chunks] + ["data: [DONE]\n\n"] * done
    return Response("".join(lines).encode(), headers={"X-Stream": "yes"})


TEXT = json.dumps(GOOD)
SPOKEN = [
    chunk({"role": "assistant", "content": "", "reasoning_content": '{"vocal_empathy": 1}'}),
    chunk({"content": TEXT[:9]}),
    chunk({"content": TEXT[9:]}),
    chunk({"content": ""}, "stop"),
    chunk({}, usage=USAGE) | {"choices": []},
]


def test_a_stream_is_read_as_one_answer(scored):
    from openai.types.chat import ChatCompletionChunk, completion_create_params

    for one in SPOKEN:
        ChatCompletionChunk.model_validate(one)
    found = scored("qwen", stream(*SPOKEN), settings=["samples=1", "price=1:2:3"])
    assert (found.row["status"], found.row["score"]) == (OK, 4)
    assert found.row["meta"]["versions"] == ["qwen3.5-omni-flash"]
    assert found.row["meta"]["cost"] == pytest.approx((250 + 2 * 100 + 3 * 25) / 1e6)
    (request,) = found.requests
    assert request.path == "/v1/chat/completions"
    TypeAdapter(completion_create_params.CompletionCreateParamsStreaming).validate_python(request.body)
    assert (request.body["stream"], request.body["stream_options"]) == (True, {"include_usage": True})
    assert (request.body["modalities"], request.body["max_tokens"]) == (["text"], 8192)
    clips = [part["input_audio"] for part in request.body["messages"][-1]["content"] if part["type"] == "input_audio"]
    assert [one["format"] for one in clips] == ["wav", "wav"]
    for one in clips:
        assert base64.b64decode(one["data"].removeprefix("data:;base64,"), validate=True).startswith(b"RIFF")


def test_functions_arrive_in_pieces(scored):
    pieces = [{"index": 0, "function": {"arguments": part}} for part in (TEXT[:5], TEXT[5:])]
    chunks = [chunk({"tool_calls": [piece]}) for piece in pieces]
    found = scored("qwen", stream(*chunks, chunk({}, "tool_calls")), settings=["samples=1", "answers=function"])
    assert found.row["score"] == 4


@pytest.mark.parametrize(
    ("model", "streams"), [("qwen3.8-omni-flash", False), ("qwen3.5-omni-plus", True), ("qwen-omni-turbo", True)]
)
def test_models_of_today_answer_in_one_piece(model, streams, make_judge, make_pairs):
    provider = QwenProvider(model, parse_settings(["base_url=http://h/v1"], "x"))
    question = make_judge("openai", "http://127.0.0.1:9").tasks(make_pairs(1))[0].build()
    assert ("stream" in provider.request(question)) == streams


def test_an_answer_in_one_piece(scored):
    assert scored("qwen", openai_answer(TEXT)).row["score"] == 4


BAD = {
    "cut short": (stream(*SPOKEN[:2], done=False), "malformed response"),
    "no JSON": (Response(b'data: {"choices": [\n\ndata: [DONE]\n\n'), "malformed response"),
    "nothing": (Response(b"data: [DONE]\n\n"), "malformed response"),
    "another type": (stream(chunk({"content": 7}, "stop")), "malformed response"),
    "lists": (Response(b"data: [[]]\n\ndata: 7\n\n"), "malformed response"),
    "error": (stream(SPOKEN[1], {"error": {"message": "odd audio", "code": 400}}), "HTTP 400"),
    "empty": (stream(chunk({}, "stop")), "empty answer"),
    "cut off": (stream(chunk({"content": '{"reason": "a'}, "length")), "cut off"),
    "filtered": (stream(chunk({"content": ""}, "content_filter")), "blocked by safety filter"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_whole_answer_is_no_score(case, scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    response, status = BAD[case]
    assert scored("qwen", response).row["status"] == status


def test_a_stream_that_drips_ends_in_time(scored, monkeypatch):
    monkeypatch.setattr(f"{RUNNER}.ATTEMPTS", 1)
    slow = stream(*SPOKEN)._replace(drip=0.01)
    assert scored("qwen", slow, settings=["samples=1", "timeout=0.3"]).row["status"] == "timeout"


def test_a_workspace_is_the_vendors(opened, make_pairs, monkeypatch):
    monkeypatch.setenv("DASHSCOPE_API_KEY", "sk-of-the-vendor")
    data = dataset_of([], [], EMPATHY)
    in_spec = opened(f"qwen:qwen3.8-omni-flash,base_url={WORKSPACE}", data)
    monkeypatch.setenv("DASHSCOPE_BASE_URL", WORKSPACE)
    in_variable = opened("qwen:qwen3.8-omni-flash", data)
    for judge in (in_spec, in_variable):
        assert judge.name == "qwen:qwen3.8-omni-flash"
        assert judge.session.provider.key == "sk-of-the-vendor"
        assert "25 tokens for a second" in disclosure(judge, planned(judge, make_pairs(1)), 1)
    other = opened("qwen:qwen3.8-omni-flash,base_url=https://aliyuncs.com.evil.org/v1", data)
    assert other.session.provider.key is None
    assert other.session.budget.price is None
