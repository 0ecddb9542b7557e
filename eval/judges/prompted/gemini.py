"""Models of Google: Gemini."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, FiniteFloat, ValidationError

from .provider import ANSWERED, BLOCKED, CUT_OFF, EMPTY, Reply, RequestError, Tokens, Usage
from .questions import Message, Question, Text
from .server import Server, retry_after
from .settings import AnswerMode, Settings

_OFFICIAL = "https://generativelanguage.googleapis.com"
_MOST_BYTES = 20_000_000  # of a request with audio inside
_ALTERNATIVES = 20
_SAFETY = {"SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "RECITATION", "MODEL_ARMOR", "LANGUAGE", "JAILBREAK"}


class GeminiProvider:
    """Implements `Provider`.

    Args:
        model: As Google names it.
        settings: `Settings.base_url`, or the variable ``GOOGLE_GEMINI_BASE_URL``, is another server: see `Server`.
    """

    name = "gemini"
    free = False
    modes: tuple[AnswerMode, ...] = ("schema", "text", "logprobs")
    audio_tokens_per_second = 32.0
    likely_tokens = 600  # most of them thoughts
    max_tokens = 8192

    def __init__(self, model: str, settings: Settings) -> None:
        self.model = model
        variables = ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "GOOGLE_API_KEY")
        self.server = Server(f"gemini:{model}", settings, _OFFICIAL, *variables)
        self.elsewhere, self.place, self.told = self.server.elsewhere, self.server.place, self.server.told
        self.close = self.server.close

    def request(self, question: Question) -> dict[str, Any]:
        """See `Provider.request`; the model stands in the address."""
        config: dict[str, Any] = {"temperature": question.temperature, "maxOutputTokens": question.max_tokens}
        if question.mode == "schema":
            config |= {"responseMimeType": "application/json", "responseJsonSchema": question.form.schema()}
        elif question.mode == "logprobs":
            config |= {"responseLogprobs": True, "logprobs": _ALTERNATIVES}
        return {
            "contents": [_content(message) for message in question.messages],
            "systemInstruction": {"role": "user", "parts": [{"text": question.system}]},
            "generationConfig": config,
        }

    async def ask(self, question: Question) -> Reply:
        """See `Provider.ask`."""
        size = sum(len(sound.wav) for sound in question.sounds) * 4 // 3
        if size > _MOST_BYTES:
            raise RequestError(
                "clips too long", f"{size / 1e6:.0f} MB of audio; expected at most {_MOST_BYTES / 1e6:.0f} MB"
            )
        # models and tuned models may be named in full
        name = self.model if self.model.startswith(("models/", "tunedModels/")) else f"models/{self.model}"
        path = f"/v1beta/{quote(name)}:generateContent"
        headers = {"x-goog-api-key": self.server.key or "none"}
        status, _, content = await self.server.post(path, headers, self.request(question))
        if status != 200:
            raise self._error(status, content)
        return _reply(self.server.parse(_Answer, content))

    def _error(self, status: int, content: bytes) -> RequestError:
        fields, text = self.server.error_in(content)
        said = fields.get("details")
        details = [detail for detail in said if isinstance(detail, dict)] if isinstance(said, list) else []
        # google.rpc.RetryInfo and google.rpc.QuotaFailure
        delays = [str(detail.get("retryDelay", "")) for detail in details]
        wait = retry_after([(delay.removesuffix("s"), 1.0) for delay in delays if delay.endswith("s")])
        if status in (401, 403, 404) or any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return RequestError(f"HTTP {status}", text, final=True)
        if status == 429:
            daily = any("PerDay" in str(detail.get("violations")) for detail in details)
            return RequestError("rate limit", text, retry=True, wait=wait, limited=True, final=daily)
        if status == 408 or status >= 500:
            return RequestError("server error", text, retry=True, wait=wait)
        return RequestError(f"HTTP {status}", text)


def _content(message: Message) -> dict[str, Any]:
    parts = [
        {"text": part.text}
        if isinstance(part, Text)
        else {"inlineData": {"data": base64.b64encode(part.wav).decode(), "mimeType": "audio/wav"}}
        for part in message.parts
    ]
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}


# ---------------------------------------------------------------- what is read of an answer


class _Part(BaseModel):
    text: str | None = None
    thought: bool | None = None


class _Content(BaseModel):
    parts: list[_Part] | None = None


class _Alternative(BaseModel):
    token: str | None = None
    logProbability: FiniteFloat | None = None


class _Token(BaseModel):
    candidates: list[_Alternative] | None = None


class _Logprobs(BaseModel):
    topCandidates: list[_Token] | None = None


class _Candidate(BaseModel):
    content: _Content | None = None
    finishReason: str | None = None
    logprobsResult: _Logprobs | None = None


class _Feedback(BaseModel):
    blockReason: str | None = None


class _Answer(BaseModel):
    candidates: list[_Candidate] | None = None
    promptFeedback: _Feedback | None = None
    usageMetadata: Any = None
    modelVersion: str | None = None


class _Details(BaseModel):
    modality: str | None = None
    tokenCount: Tokens | None = None


class _Usage(BaseModel):
    promptTokenCount: Tokens
    promptTokensDetails: list[_Details] | None = None
    candidatesTokenCount: Tokens | None = None
    thoughtsTokenCount: Tokens | None = None


def _reply(found: _Answer) -> Reply:
    version, usage = found.modelVersion, _usage(found.usageMetadata)
    if found.promptFeedback is not None and found.promptFeedback.blockReason is not None:
        return Reply(BLOCKED, version=version, usage=usage)
    if not found.candidates:
        return Reply(EMPTY, version=version, usage=usage)
    candidate = found.candidates[0]
    parts = (candidate.content or _Content()).parts or ()
    content = "".join(part.text or "" for part in parts if not part.thought)
    if candidate.finishReason in _SAFETY:
        return Reply(BLOCKED, content, version, usage)
    kind = CUT_OFF if candidate.finishReason == "MAX_TOKENS" else ANSWERED if content.strip() else EMPTY
    first = ((candidate.logprobsResult or _Logprobs()).topCandidates or [_Token()])[0].candidates or ()
    chances = {one.token: one.logProbability for one in first if one.token is not None}
    alternatives = {token: chance for token, chance in chances.items() if chance is not None}
    return Reply(kind, content, version, usage, alternatives)


def _usage(found: Any) -> Usage:
    try:
        usage = _Usage.model_validate(found)
    except ValidationError:  # the answer counts all the same
        return Usage()
    audio = sum(own.tokenCount or 0 for own in usage.promptTokensDetails or () if own.modality == "AUDIO")
    out = (usage.candidatesTokenCount or 0) + (usage.thoughtsTokenCount or 0)
    return Usage(max(0, usage.promptTokenCount - audio), audio, out)
