"""Models of Google: Gemini."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....data_modules.errors import UserError
from .provider import ANSWERED, BLOCKED, CUT_OFF, EMPTY, Reply, RequestError, Usage, redact, retry_after, server_for
from .questions import Message, Question, Text
from .settings import AnswerMode, Settings

_OFFICIAL = "https://generativelanguage.googleapis.com"
_HTTP_LIBRARIES = {"httpx", "httpx2", "aiohttp"}  # the SDK uses what it finds, and lets their errors through
_MOST_BYTES = 20_000_000  # of a request with audio inside
_ALTERNATIVES = 20
_SAFETY = {"SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "RECITATION", "MODEL_ARMOR", "LANGUAGE", "JAILBREAK"}


class GeminiProvider:
    """Implements `Provider` with Google's own SDK.

    Args:
        model: As Google names it.
        settings: `Settings.base_url`, or the variable ``GOOGLE_GEMINI_BASE_URL``, is another server: see `server_for`.

    Raises:
        UserError: If the SDK or the key is missing.
    """

    name = "gemini"
    free = False
    modes: tuple[AnswerMode, ...] = ("schema", "text", "logprobs")
    audio_tokens_per_second = 32.0
    likely_tokens = 600  # most of them thoughts
    max_tokens = 8192

    def __init__(self, model: str, settings: Settings) -> None:
        try:
            from google import genai
            from google.genai import errors, types
        except ImportError:
            raise UserError("gemini: its SDK is not installed; run pip install 'empathy-judge[api]'") from None
        self._genai, self._errors, self._types = genai, errors, types
        self.model = model
        variables = ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "GOOGLE_API_KEY")
        server = server_for(f"gemini:{model}", settings.base_url, _OFFICIAL, *variables)
        self.server, self.elsewhere, self.place, self.told = server, server.elsewhere, server.place, server.told
        self._timeout = settings.timeout
        self._client: Any = None

    def request(self, question: Question) -> dict[str, Any]:
        """See `Provider.request`: the arguments of ``generate_content`` as JSON has them."""
        contents, config = self._arguments(question)
        plain = {"mode": "json", "exclude_none": True, "by_alias": True}
        return {
            "model": self.model,
            "contents": [content.model_dump(**plain) for content in contents],
            "config": config.model_dump(**plain),
        }

    async def ask(self, question: Question) -> Reply:
        """See `Provider.ask`."""
        size = sum(len(sound.wav) for sound in question.sounds) * 4 // 3
        if size > _MOST_BYTES:
            raise RequestError(
                "clips too long", f"{size / 1e6:.0f} MB of audio; expected at most {_MOST_BYTES / 1e6:.0f} MB"
            )
        if self._client is None:
            self._client = self._genai.Client(
                vertexai=False,
                api_key=self.server.key or "none",
                http_options=self._types.HttpOptions(
                    base_url=self.server.url,
                    timeout=int(1000 * self._timeout),
                    retry_options=self._types.HttpRetryOptions(attempts=1),  # as for OpenAI: `Runner` retries
                ),
            )
        contents, config = self._arguments(question)
        try:
            found = await self._client.aio.models.generate_content(model=self.model, contents=contents, config=config)
        except self._errors.APIError as error:
            raise self._error(error) from None
        except ValueError as error:  # JSON or its fields are not what the SDK knows
            raise RequestError("malformed response", redact(str(error), self.server.key), retry=True) from None
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _HTTP_LIBRARIES:
                raise
            text = redact(f"{type(error).__name__}: {error}", self.server.key)
            raise RequestError("connection failed", text, retry=True) from None
        return self._reply(found)

    async def close(self) -> None:
        """See `Provider.close`."""
        if self._client is not None:
            await self._client.aio.aclose()
            self._client = None

    def _arguments(self, question: Question) -> tuple[list[Any], Any]:
        config: dict[str, Any] = {
            "system_instruction": question.system,
            "temperature": question.temperature,
            "max_output_tokens": question.max_tokens,
        }
        if question.mode == "schema":
            config |= {"response_mime_type": "application/json", "response_json_schema": question.form.schema()}
        elif question.mode == "logprobs":
            config |= {"response_logprobs": True, "logprobs": _ALTERNATIVES}
        contents = [self._content(message) for message in question.messages]
        return contents, self._types.GenerateContentConfig(**config)

    def _content(self, message: Message) -> Any:
        parts = [
            self._types.Part.from_text(text=part.text)
            if isinstance(part, Text)
            else self._types.Part.from_bytes(data=part.wav, mime_type="audio/wav")
            for part in message.parts
        ]
        return self._types.Content(role="model" if message.role == "assistant" else "user", parts=parts)

    def _reply(self, found: Any) -> Reply:
        version, usage = found.model_version, _usage(found.usage_metadata)
        feedback = found.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            return Reply(BLOCKED, version=version, usage=usage)
        if not found.candidates:
            return Reply(EMPTY, version=version, usage=usage)
        candidate = found.candidates[0]
        parts = candidate.content.parts or () if candidate.content is not None else ()
        content = "".join(part.text or "" for part in parts if not part.thought)
        reason = candidate.finish_reason.name if candidate.finish_reason is not None else "STOP"
        if reason in _SAFETY:
            return Reply(BLOCKED, content, version, usage)
        kind = CUT_OFF if reason == "MAX_TOKENS" else ANSWERED if content.strip() else EMPTY
        return Reply(kind, content, version, usage, _alternatives(candidate.logprobs_result))

    def _error(self, error: Any) -> RequestError:
        text = redact(f"{error.status}: {error.message}", self.server.key)
        if error.code in (401, 403, 404) or "API_KEY_INVALID" in str(error.details):
            return RequestError(f"HTTP {error.code}", text, final=True)
        if error.code == 429:
            daily = any("PerDay" in quota for quota in _quotas(error.details))
            return RequestError("rate limit", text, retry=True, wait=_wait(error.details), limited=True, final=daily)
        if error.code == 408 or error.code >= 500:
            return RequestError("server error", text, retry=True, wait=_wait(error.details))
        return RequestError(f"HTTP {error.code}", text)


def _details(body: Any) -> list[Mapping[str, Any]]:
    error = body.get("error", body) if isinstance(body, dict) else {}
    found = error.get("details") if isinstance(error, dict) else None
    return [detail for detail in found if isinstance(detail, dict)] if isinstance(found, list) else []


def _wait(body: Any) -> float | None:
    """Seconds, from ``retryDelay`` of google.rpc.RetryInfo."""
    delays = [str(detail.get("retryDelay", "")) for detail in _details(body)]
    return retry_after([(delay.removesuffix("s"), 1.0) for delay in delays if delay.endswith("s")])


def _quotas(body: Any) -> list[str]:
    """The names of the limits that were met, from google.rpc.QuotaFailure."""
    violations = [violation for detail in _details(body) for violation in detail.get("violations") or ()]
    return [str(violation.get("quotaId", "")) for violation in violations if isinstance(violation, dict)]


def _alternatives(result: Any) -> dict[str, float]:
    if result is None or not result.top_candidates:
        return {}
    return {
        one.token: one.log_probability
        for one in result.top_candidates[0].candidates or ()
        if one.token is not None and one.log_probability is not None
    }


def _usage(usage: Any) -> Usage:
    if usage is None or usage.prompt_token_count is None:
        return Usage()
    audio = sum(
        detail.token_count or 0
        for detail in usage.prompt_tokens_details or ()
        if detail.modality is not None and detail.modality.name == "AUDIO"
    )
    out = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return Usage(usage.prompt_token_count - audio, audio, out)
