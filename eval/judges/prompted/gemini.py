"""Models of Google: Gemini."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .provider import ALTERNATIVES, Provider
from .questions import PromptMessage, Question
from .replies import ANSWERED, BLOCKED, CUT_OFF, EMPTY, Reply, RequestError, Usage, chances, read, retry_after, tokens
from .settings import AnswerMode

# Of a request with audio inside (Google's documentation of inline data); larger ones are refused after the upload
_MOST_BYTES = 20_000_000
_SAFETY = {"SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "RECITATION", "MODEL_ARMOR", "LANGUAGE", "JAILBREAK"}


class GeminiProvider(Provider):
    """See `Provider`."""

    name = "gemini"
    modes: tuple[AnswerMode, ...] = ("schema", "text", "logprobs")
    audio_tokens_per_second = 32.0
    likely_tokens = 600  # most of them thoughts
    max_tokens = 8192
    official = "https://generativelanguage.googleapis.com"
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    def request(self, question: Question) -> dict[str, Any]:
        """The model is part of the address."""
        config: dict[str, Any] = {"temperature": question.temperature, "maxOutputTokens": question.max_tokens}
        if question.mode == "schema":
            config |= {"responseMimeType": "application/json", "responseJsonSchema": question.form.schema()}
        elif question.mode == "logprobs":
            config |= {"responseLogprobs": True, "logprobs": ALTERNATIVES}
        return {
            "contents": [_content(message) for message in question.messages],
            "systemInstruction": {"role": "user", "parts": [{"text": question.system}]},
            "generationConfig": config,
        }

    async def ask(self, question: Question) -> Reply:
        # In megabytes of Base64, which makes four bytes of three
        size = sum(len(sound.wav) for sound in question.sounds) * 4 / 3e6
        if size > _MOST_BYTES / 1e6:
            message = f"{size:.0f} MB of audio; expected at most {_MOST_BYTES / 1e6:.0f} MB"
            raise RequestError("clips too long", message)
        return await super().ask(question)

    def route(self) -> tuple[str, dict[str, str]]:
        # models and tuned models may be named in full
        name = self.model if self.model.startswith(("models/", "tunedModels/")) else f"models/{self.model}"
        return f"/v1beta/{quote(name)}:generateContent", {"x-goog-api-key": self.key or "none"}

    def error(self, status: int, headers: Mapping[str, str], fields: dict[str, Any], text: str) -> RequestError:
        """Google's details tell how long to wait (google.rpc.RetryInfo) and which quota is used up (QuotaFailure)."""
        error, raw = super().error(status, headers, fields, text), fields.get("details")
        details = [detail for detail in raw if isinstance(detail, dict)] if isinstance(raw, list) else []
        delays = [str(detail.get("retryDelay", "")) for detail in details]
        wait = retry_after(*((delay.removesuffix("s"), 1.0) for delay in delays if delay.endswith("s")))
        error.wait = error.wait if wait is None else wait
        error.final |= any(detail.get("reason") == "API_KEY_INVALID" for detail in details)
        # The quota of a day does not come back while a run waits
        error.final |= error.limited and any("PerDay" in str(detail.get("violations")) for detail in details)
        return error

    def reply(self, body: Any) -> Reply:
        version, blocked = read(body, "modelVersion", str), read(body, "promptFeedback.blockReason", str)
        if blocked is not None:
            return Reply(BLOCKED, version=version)
        if not read(body, "candidates", list):
            return Reply(EMPTY, version=version)
        parts = read(body, "candidates.0.content.parts", list) or ()
        content = "".join(read(part, "text", str) or "" for part in parts if not read(part, "thought", bool))
        finish = read(body, "candidates.0.finishReason", str)
        first = read(body, "candidates.0.logprobsResult.topCandidates.0.candidates", list)
        alternatives = chances(first, "logProbability")
        if finish in _SAFETY:
            return Reply(BLOCKED, content, version)
        kind = CUT_OFF if finish == "MAX_TOKENS" else ANSWERED if content.strip() else EMPTY
        return Reply(kind, content, version, alternatives=alternatives)

    def usage(self, body: Any) -> Usage:
        try:
            kinds = read(body, "usageMetadata.promptTokensDetails", list) or ()
        except ValueError:
            kinds = ()
        details = [entry for entry in kinds if isinstance(entry, dict) and entry.get("modality") == "AUDIO"]
        audio = sum(tokens(entry, "tokenCount") or 0 for entry in details) or None
        names = ("prompt", "candidates", "thoughts", "total")
        prompt, answer, thoughts, total = (tokens(body, f"usageMetadata.{name}TokenCount") for name in names)
        written = None if answer is None and thoughts is None else (answer or 0) + (thoughts or 0)
        if prompt is not None and total is not None:  # where nothing was written, the total alone says so
            written = max(written or 0, total - prompt)
        return Usage(None if prompt is None else max(0, prompt - (audio or 0)), audio, written)


def _content(message: PromptMessage) -> dict[str, Any]:
    parts = [
        {"text": part}
        if isinstance(part, str)
        else {"inlineData": {"data": base64.b64encode(part.wav).decode(), "mimeType": "audio/wav"}}
        for part in message.parts
    ]
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}
