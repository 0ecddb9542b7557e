"""Models of OpenAI, and any server that speaks its chat completions: vLLM, SGLang, `transformers serve`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, FiniteFloat, ValidationError

from ....data_modules.audio import Clip
from .provider import ANSWERED, BLOCKED, CUT_OFF, EMPTY, REFUSED, Reply, RequestError, Tokens, Usage
from .questions import Message, Question, Sound, Text, sound_of
from .server import Server, retry_after
from .settings import AnswerMode, Settings

_FUNCTION = "rate"
_OFFICIAL = "https://api.openai.com/v1"
_SILENCE = Clip(np.zeros(8_000, dtype=np.float32), 16_000)
_ALTERNATIVES = 20  # the most that the protocol gives
_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}  # header: variable


class OpenAIProvider:
    """Implements `Provider`.

    Args:
        model: As the server names it.
        settings: `Settings.base_url`, or the variable ``OPENAI_BASE_URL``, is another server: see `Server`.
    """

    name = "openai"
    free = False
    audio_tokens_per_second = 10.0
    likely_tokens = 60
    max_tokens = 400

    def __init__(self, model: str, settings: Settings) -> None:
        self.model = model
        self.server = Server(f"openai:{model}", settings, _OFFICIAL, "OPENAI_BASE_URL", "OPENAI_API_KEY")
        self.elsewhere, self.place, self.told = self.server.elsewhere, self.server.place, self.server.told
        self.close = self.server.close
        self._is_audio_model = not self.elsewhere and "audio" in model
        # audio models take functions and no schema (their model page); of other servers only words can be relied on
        best: AnswerMode = "function" if self._is_audio_model else "text" if self.elsewhere else "schema"
        rest: tuple[AnswerMode, ...] = ("schema", "function", "text", "logprobs")
        self.modes: tuple[AnswerMode, ...] = (best, *(mode for mode in rest if mode != best))

    def request(self, question: Question) -> dict[str, Any]:
        """See `Provider.request`."""
        messages = [{"role": "system", "content": question.system}, *map(_message, question.messages)]
        if self._is_audio_model and not question.sounds:  # these models refuse a request without any audio
            silence = _parts((Text("(This clip is silent and means nothing.)"), sound_of(_SILENCE)))
            messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *silence]}
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": question.temperature}
        body["max_tokens" if self.elsewhere else "max_completion_tokens"] = question.max_tokens
        if self._is_audio_model:
            body["modalities"] = ["text"]
        schema = question.form.schema()
        if question.mode == "schema":
            shape = {"name": _FUNCTION, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        elif question.mode == "function":
            body["tools"] = [{"type": "function", "function": {"name": _FUNCTION, "parameters": schema}}]
            body["tool_choice"] = {"type": "function", "function": {"name": _FUNCTION}}
        elif question.mode == "logprobs":
            body |= {"logprobs": True, "top_logprobs": _ALTERNATIVES}
        return body

    async def ask(self, question: Question) -> Reply:
        """See `Provider.ask`."""
        headers = {"authorization": f"Bearer {self.server.key or 'none'}"}
        if not self.elsewhere:
            headers |= {header: os.environ[name] for header, name in _ACCOUNT.items() if os.environ.get(name)}
        status, told, content = await self.server.post("/chat/completions", headers, self.request(question))
        if status != 200:
            raise self._error(status, told, content)
        return _reply(self.server.parse(_Completion, content))

    def _error(self, status: int, headers: Mapping[str, str], content: bytes) -> RequestError:
        fields, text = self.server.error_in(content)
        wait = retry_after([(headers.get("retry-after-ms"), 1e-3), (headers.get("retry-after"), 1.0)])
        asked = headers.get("x-should-retry")
        if status in (401, 403, 404) or fields.get("code") == "insufficient_quota":
            return RequestError(f"HTTP {status}", text, final=True)
        if status == 429:
            return RequestError("rate limit", text, retry=asked != "false", wait=wait, limited=True)
        retry = asked == "true" or (asked != "false" and (status in (408, 409) or status >= 500))
        return RequestError("server error" if status >= 500 else f"HTTP {status}", text, retry=retry, wait=wait)


def _message(message: Message) -> dict[str, Any]:
    if message.role == "assistant":  # may not be a list of parts on every server
        return {"role": "assistant", "content": "".join(part.text for part in message.parts if isinstance(part, Text))}
    return {"role": message.role, "content": _parts(message.parts)}


def _parts(parts: tuple[Text | Sound, ...]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "input_audio", "input_audio": {"data": base64.b64encode(part.wav).decode(), "format": "wav"}}
        for part in parts
    ]


# ---------------------------------------------------------------- what is read of an answer


class _Function(BaseModel):
    arguments: str


class _Call(BaseModel):
    function: _Function | None = None  # calls of other kinds have none


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Alternative(BaseModel):
    token: str
    logprob: FiniteFloat


class _Token(BaseModel):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Completion(BaseModel):
    choices: list[_Choice]
    model: str | None = None
    usage: Any = None


class _Details(BaseModel):
    audio_tokens: Tokens | None = None


class _Usage(BaseModel):
    prompt_tokens: Tokens
    completion_tokens: Tokens
    prompt_tokens_details: _Details | None = None


def _reply(completion: _Completion) -> Reply:
    version, usage = completion.model, _usage(completion.usage)
    if not completion.choices:
        return Reply(EMPTY, version=version, usage=usage)
    choice = completion.choices[0]
    message = choice.message
    calls = [call.function.arguments for call in message.tool_calls or () if call.function is not None]
    content = calls[0] if calls else message.content or ""
    first = choice.logprobs.content[0] if choice.logprobs and choice.logprobs.content else _Token()
    alternatives = {other.token: other.logprob for other in first.top_logprobs or ()}
    if message.refusal:
        kind, content = REFUSED, message.refusal
    elif choice.finish_reason in ("content_filter", "length"):
        kind = BLOCKED if choice.finish_reason == "content_filter" else CUT_OFF
    else:
        kind = ANSWERED if content.strip() else EMPTY
    return Reply(kind, content, version, usage, alternatives)


def _usage(found: Any) -> Usage:
    try:
        usage = _Usage.model_validate(found)
    except ValidationError:  # the answer counts all the same
        return Usage()
    audio = (usage.prompt_tokens_details and usage.prompt_tokens_details.audio_tokens) or 0
    return Usage(max(0, usage.prompt_tokens - audio), audio, usage.completion_tokens)
