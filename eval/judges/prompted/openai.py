"""Models of OpenAI, and any server that speaks its chat completions: vLLM, SGLang, `transformers serve`."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ....data_modules.audio import Clip
from ....data_modules.errors import UserError
from .provider import (
    ANSWERED,
    BLOCKED,
    CUT_OFF,
    EMPTY,
    REFUSED,
    Reply,
    RequestError,
    Usage,
    redact,
    retry_after,
    server_for,
)
from .questions import Message, Question, Sound, Text, sound_of
from .settings import AnswerMode, Settings

_FUNCTION = "rate"
_OFFICIAL = "https://api.openai.com/v1"
_SILENCE = Clip(np.zeros(8_000, dtype=np.float32), 16_000)
_ALTERNATIVES = 20  # the most that the protocol gives


class OpenAIProvider:
    """Implements `Provider` with OpenAI's own SDK.

    Args:
        model: As the server names it.
        settings: `Settings.base_url`, or the variable ``OPENAI_BASE_URL``, is another server: see `server_for`.

    Raises:
        UserError: If the SDK or the key is missing.
    """

    name = "openai"
    free = False
    audio_tokens_per_second = 10.0
    likely_tokens = 60
    max_tokens = 400

    def __init__(self, model: str, settings: Settings) -> None:
        try:
            import openai
        except ImportError:
            raise UserError("openai: its SDK is not installed; run pip install 'empathy-judge[api]'") from None
        self._sdk = openai
        self.model = model
        server = server_for(f"openai:{model}", settings.base_url, _OFFICIAL, "OPENAI_BASE_URL", "OPENAI_API_KEY")
        self.server, self.elsewhere, self.place, self.told = server, server.elsewhere, server.place, server.told
        self._is_audio_model = not server.elsewhere and "audio" in model
        self._timeout = settings.timeout
        # audio models take functions and no schema (their model page); of other servers only words can be relied on
        best: AnswerMode = "function" if self._is_audio_model else "text" if server.elsewhere else "schema"
        rest: tuple[AnswerMode, ...] = ("schema", "function", "text", "logprobs")
        self.modes: tuple[AnswerMode, ...] = (best, *(mode for mode in rest if mode != best))
        self._client: Any = None

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
        if self._client is None:
            self._client = self._sdk.AsyncOpenAI(
                api_key=self.server.key or "none",
                base_url=self.server.url,
                max_retries=0,  # `Runner` retries: the SDK knows nothing of the rate limit and of the budget
                timeout=self._timeout,
            )
        try:
            completion = await self._client.chat.completions.create(**self.request(question))
        except self._sdk.OpenAIError as error:
            raise self._error(error) from None
        except ValueError:
            raise RequestError("malformed response", "the server's answer is not JSON", retry=True) from None
        return _reply(completion)

    async def close(self) -> None:
        """See `Provider.close`."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _error(self, error: Any) -> RequestError:
        sdk, text = self._sdk, redact(str(error), self.server.key)
        for kind, meaning in (
            (sdk.APITimeoutError, "timeout"),
            (sdk.APIConnectionError, "connection failed"),
            (sdk.APIResponseValidationError, "malformed response"),
        ):
            if isinstance(error, kind):
                return RequestError(meaning, text, retry=True)
        if not isinstance(error, sdk.APIStatusError):
            return RequestError("no answer", text, final=True)
        status, headers = error.status_code, error.response.headers
        wait = retry_after([(headers.get("retry-after-ms"), 1e-3), (headers.get("retry-after"), 1.0)])
        asked = headers.get("x-should-retry")
        if status in (401, 403, 404) or error.code == "insufficient_quota":
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


def _reply(completion: Any) -> Reply:
    version, usage = completion.model, _usage(completion.usage)
    if not completion.choices:
        return Reply(EMPTY, version=version, usage=usage)
    choice = completion.choices[0]
    message = choice.message
    calls = [call for call in message.tool_calls or () if call.type == "function"]
    content = calls[0].function.arguments if calls else message.content or ""
    alternatives = {}
    if choice.logprobs is not None and choice.logprobs.content:
        first = choice.logprobs.content[0]
        alternatives = {other.token: other.logprob for other in first.top_logprobs or ()}
    if message.refusal:
        kind, content = REFUSED, message.refusal
    elif choice.finish_reason in ("content_filter", "length"):
        kind = BLOCKED if choice.finish_reason == "content_filter" else CUT_OFF
    else:
        kind = ANSWERED if content.strip() else EMPTY
    return Reply(kind, content, version, usage, alternatives)


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    audio = (details.audio_tokens or 0) if details is not None else 0
    return Usage(usage.prompt_tokens - audio, audio, usage.completion_tokens)
