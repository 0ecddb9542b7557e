"""Models of OpenAI, and any server that speaks its chat completions: vLLM, SGLang, `transformers serve`."""

from __future__ import annotations

import base64
import os
from typing import Any

import numpy as np

from ....audio.decode import Clip
from .provider import ALTERNATIVES, Provider
from .questions import PromptMessage, Question, Sound, sound_of
from .replies import ANSWERED, BLOCKED, CUT_OFF, EMPTY, REFUSED, Reply, Usage, chances, read, tokens
from .settings import AnswerMode, PromptedSettings

_FUNCTION = "rate"
# Audio models refuse a request without a clip, such as one about transcripts alone; half a second costs least
_SILENCE = Clip(np.zeros(8_000, dtype=np.float32), 16_000)
_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}  # header: variable


class OpenAIProvider(Provider):
    """See `Provider`."""

    name = "openai"
    audio_tokens_per_second = 10.0
    likely_tokens = 60
    max_tokens = 400
    official = "https://api.openai.com/v1"
    url_variable = "OPENAI_BASE_URL"
    key_variables = ("OPENAI_API_KEY",)
    before_audio = ""  # what stands before the base64 of a clip

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        super().__init__(model, settings, dry_run)
        self._is_openai = self.official == OpenAIProvider.official and not self.elsewhere
        self._is_audio_model = self._is_openai and "audio" in model
        if not self._is_openai:
            # Most open models read 12 to 32 tokens for a second of audio; the estimate shall not be too low
            self.audio_tokens_per_second = 32.0
        # Audio models take functions but no schema (their model page); on other servers only text always works
        best: AnswerMode = "function" if self._is_audio_model else "schema" if self._is_openai else "text"
        rest: tuple[AnswerMode, ...] = ("schema", "function", "text", "logprobs")
        self.modes = (best, *(mode for mode in rest if mode != best))

    def request(self, question: Question) -> dict[str, Any]:
        turns = [_message(message, self.before_audio) for message in question.messages]
        messages = [{"role": "system", "content": question.system}, *turns]
        if self._is_audio_model and not question.sounds:
            silence = [_part("(This clip is silent and means nothing.)"), _part(sound_of(_SILENCE))]
            messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *silence]}
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": question.temperature}
        body["max_completion_tokens" if self._is_openai else "max_tokens"] = question.max_tokens
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
            body |= {"logprobs": True, "top_logprobs": ALTERNATIVES}
        return body

    def seconds(self, question: Question) -> float:
        silence = len(_SILENCE.samples) / _SILENCE.rate if self._is_audio_model and not question.sounds else 0.0
        return super().seconds(question) + silence

    def route(self) -> tuple[str, dict[str, str]]:
        headers = {"authorization": f"Bearer {self.key or 'none'}"}
        if self._is_openai:
            headers |= {header: os.environ[name] for header, name in _ACCOUNT.items() if os.environ.get(name)}
        return "/chat/completions", headers

    def reply(self, body: Any) -> Reply:
        choices = read(body, "choices", list)
        if choices is None:
            raise ValueError("choices: absent")
        version = read(body, "model", str)
        if not choices:
            return Reply(EMPTY, version=version)
        choice = choices[0]
        if read(choice, "message", dict) is None:
            raise ValueError("choices.0.message: absent")
        calls = [read(call, "function.arguments", str) for call in read(choice, "message.tool_calls", list) or ()]
        content = next((call for call in calls if call is not None), None) or read(choice, "message.content", str) or ""
        alternatives = chances(read(choice, "logprobs.content.0.top_logprobs", list), "logprob")
        finish, refusal = read(choice, "finish_reason", str), read(choice, "message.refusal", str)
        if refusal:
            kind, content = REFUSED, refusal
        elif finish in ("content_filter", "length"):
            kind = BLOCKED if finish == "content_filter" else CUT_OFF
        else:
            kind = ANSWERED if content.strip() else EMPTY
        return Reply(kind, content, version, alternatives=alternatives)

    def usage(self, body: Any) -> Usage:
        audio = tokens(body, "usage.prompt_tokens_details.audio_tokens")
        names = ("prompt", "completion", "total")
        prompt, written, total = (tokens(body, f"usage.{name}_tokens") for name in names)
        if prompt is not None and written is not None and total is not None:
            written = max(written, total - prompt)  # some servers count thoughts in the total alone
        return Usage(None if prompt is None else max(0, prompt - (audio or 0)), audio, written)


def _message(message: PromptMessage, before_audio: str) -> dict[str, Any]:
    if message.role == "assistant":  # may not be a list of parts on every server
        return {"role": "assistant", "content": "".join(part for part in message.parts if isinstance(part, str))}
    return {"role": message.role, "content": [_part(part, before_audio) for part in message.parts]}


def _part(part: str | Sound, before_audio: str = "") -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = before_audio + base64.b64encode(part.wav).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
