"""A provider of answers: address, key, and one request whose answer is never trusted.

Requests are sent over plain HTTP. `docs/architecture.md` says why not through the vendors' SDKs or LiteLLM.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pydantic_core

from ....core.errors import UserError, counted, shown
from .questions import Question
from .replies import Reply, RequestError, Usage, error_in, page_in_words, retry_after, status_in
from .settings import AnswerMode, PromptedSettings, server_address

MOST_BYTES = 4_000_000
"""Largest answer that is read; the expected ones have thousands of bytes."""
ALTERNATIVES = 20
"""Most first tokens whose probabilities either protocol returns."""
# Seconds. It is not the timeout of an answer: a host that is not there costs nothing, a late answer may be billed
_CONNECT = 10.0
# Characters. A shorter word, as local servers take one, is no secret and may well stand in what a model writes
_SHORTEST_KEY = 12
_LONGEST_TEXT = 500  # characters of a server's message that are quoted in ours
# Pattern of the vendors' keys: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")


class Provider(ABC):
    """Sends requests to `PromptedSettings.base_url`, else to the address in the SDK's variable, else to the vendor.

    A server in the settings never gets the vendor's key, only the one in ``EMPATHY_JUDGE_API_KEY``, if that is set. A
    server in the SDK's variable gets the key in the SDK's variable, as with the SDK itself. A subclass is a vendor's
    protocol: five values, and how a request and an answer look.

    Args:
        model: Name of the model at the vendor.
        settings: Address and timeout.
        dry_run: Whether nothing will be sent, so that no key is needed.

    Raises:
        UserError: If the variable holds no address, httpx is missing, the vendor is asked without a key, or no
            header can hold the key.
    """

    name: str  # of the vendor, such as ``openai``
    listed: str  # the model in `prices.PRICES` and `prices.RETIRED`
    host: str  # where questions go
    elsewhere: bool  # whether that is another server than the vendor's, whose prices then say nothing about it
    access: str  # what the disclosure says after the host: who chose it, and which key it gets
    key: str | None  # for requests; None where a server needs none
    modes: tuple[AnswerMode, ...]  # ways to impose the form of an answer, the one that is best with this model first
    audio_tokens_per_second: float  # for estimates of cost
    likely_tokens: int  # of an answer, thoughts included; for estimates too
    max_tokens: int  # longest answer that is allowed, thoughts included
    clips: str = ""  # how clips are sent, one of `clip_forms`
    official: ClassVar[str]  # address of the vendor; empty = there is none that all use
    domains: ClassVar[tuple[str, ...]] = ()  # of the vendor, where customers have addresses of their own
    models: ClassVar[tuple[str, ...]] = ()  # all that there are, the usual one first; empty = any name
    clip_forms: ClassVar[tuple[str, ...]] = ()  # values of `PromptedSettings.clips`, the usual one first
    url_variable: ClassVar[str]  # environment variable in which the vendor's SDK looks for another address
    key_variables: ClassVar[tuple[str, ...]]  # those in which it looks for the key; the first that is set counts

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        model = model or next(iter(self.models), "")
        spec = f"{self.name}:{model}"
        if self.models and model not in self.models:
            raise UserError(f"{spec}: expected {self.name}:{' or '.join(self.models)}; the service names no model")
        if settings.clips not in ("auto", *self.clip_forms):
            others = f"expected one of {', '.join(self.clip_forms)}" if self.clip_forms else "clips are sent in one way"
            raise UserError(f"{spec}: clips={settings.clips}; {others}")
        if self.clip_forms:
            self.clips = self.clip_forms[0] if settings.clips == "auto" else settings.clips
        try:
            import httpx
        except ImportError:
            raise UserError(f"{spec}: httpx is not installed; run pip install 'empathy-judge[api]'") from None
        self.listed = f"{self.name}:{model.removeprefix('models/')}"  # Google's may be named in full
        self.model, self._http, self._timeout, self._client = model, httpx, settings.timeout, None
        url = settings.base_url or os.environ.get(self.url_variable, "").strip() or self.official
        if not url:
            raise UserError(f"{spec}: has no server of its own; expected {spec},base_url=http://HOST:PORT")
        try:
            self._url = server_address(url)
        except ValueError as error:
            raise UserError(f"{spec}: the variable {self.url_variable} is {shown(url)}; expected {error}") from None
        place = urlsplit(self._url)
        own = place.scheme == "https" and any(f".{place.hostname}".endswith(f".{one}") for one in self.domains)
        self.elsewhere = self._url != self.official and not own
        self.host = self._url.split("://")[-1].removesuffix("/v1")
        variables = ("EMPATHY_JUDGE_API_KEY",) if self.elsewhere and settings.base_url else self.key_variables
        keys = {name: key for name in variables if (key := os.environ.get(name, "").strip())}
        variable, self.key = next(iter(keys.items()), (None, None))
        self._key_variable = variables[0]
        chosen = f", as {self.url_variable} says" if self.elsewhere and not settings.base_url else ""
        self.access = f"{chosen}, with {f'the key in {variable}' if variable else 'no key'}"
        if not (dry_run or self.key or self.elsewhere):
            raise UserError(f"{spec}: the variable {variables[0]} is not set; set it to your key")
        # No header can hold it; httpx would say so in an error that quotes the key
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise UserError(f"{spec}: {variable} holds a line break or more than ASCII; set it to your key alone")

    # ------------------------------------------------------------ the protocol

    @abstractmethod
    def request(self, question: Question) -> dict[str, Any]:
        """The body of the request as it is sent, without the key."""

    @abstractmethod
    def route(self) -> tuple[str, dict[str, str]]:
        """Path of the request, and headers with the key."""

    def decode(self, content: bytes) -> Any:
        """What an answer holds; ValueError where it is not JSON."""
        return pydantic_core.from_json(content)

    @abstractmethod
    def reply(self, body: Any) -> Reply:
        """The answer in a body of status 200, without its usage; ValueError where a field has another type."""

    @abstractmethod
    def usage(self, body: Any) -> Usage:
        """The tokens of such an answer; None for each count that is missing or no count."""

    def error(self, status: int, headers: Mapping[str, str], fields: dict[str, Any], text: str) -> RequestError:
        """The error for an answer of another status, from its fields, and its text without the key."""
        wait = retry_after((headers.get("retry-after-ms"), 1e-3), (headers.get("retry-after"), 1.0))
        hint = headers.get("x-should-retry")
        if status in (401, 402, 403, 404) or fields.get("code") == "insufficient_quota":
            return RequestError(f"HTTP {status}", text, final=True)
        if status == 429:
            return RequestError("rate limit", text, retry=hint != "false", wait=wait, limited=True)
        retry = hint == "true" or (hint != "false" and (status in (408, 409) or status >= 500))
        return RequestError("server error" if status >= 500 else f"HTTP {status}", text, retry=retry, wait=wait)

    def seconds(self, question: Question) -> float:
        """Seconds of audio in the request."""
        return sum(sound.seconds for sound in question.sounds)

    def clips_in_words(self, question: Question) -> str:
        """How many clips a request has, for the disclosure."""
        return f"{counted(len(question.sounds), 'clip')} for each question (WAV)"

    def body(self, question: Question) -> dict[str, Any]:
        """The request as arguments of httpx."""
        return {"json": self.request(question)}

    # ------------------------------------------------------------ one request

    async def ask(self, question: Question) -> Reply:
        """Asks once; raises `RequestError` if no answer came."""
        status, headers, content = await self._post(question)
        body = None
        try:
            body = self.decode(content)
        except ValueError as error:
            if status == 200 and content.lstrip().startswith(b"<"):  # of a proxy: no model has written it
                page = f"a web page in place of an answer: {page_in_words(_beginning(content))}"
                raise RequestError("malformed response", self._redact(page), retry=True) from None
            if status == 200:
                raise self._malformed(str(error)) from None
        fields = error_in(body)
        if status != 200 or fields is not None:
            raise self._refusal(status, headers, fields or {}, body, content)
        try:
            reply = self.reply(body)
        except ValueError as error:
            raise self._malformed(f"{error}: {_beginning(content)}") from None
        usage = self.usage(body)
        # A count of 0 cannot be: each question has text, a clip has tokens, and so has what was written
        possible = Usage(
            usage.text_in or None,
            usage.audio_in or (None if question.sounds else usage.audio_in),
            usage.out or (None if reply.content.strip() else usage.out),
        )
        version = reply.version and self._without_key(reply.version)
        return replace(reply, content=self._without_key(reply.content), version=version, usage=possible)

    async def close(self) -> None:
        """Closes open connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, question: Question) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of the answer. Redirections are not followed: the clips go to this host alone."""
        http, content = self._http, b""
        if self._client is None:
            patience = http.Timeout(self._timeout, connect=min(_CONNECT, self._timeout))
            self._client = http.AsyncClient(timeout=patience, limits=http.Limits())  # our runner has limits
        path, headers = self.route()
        # Nothing is decompressed: a few kilobytes may contain gigabytes
        headers["accept-encoding"] = "identity"
        try:
            request = self._client.stream("POST", self._url + path, headers=headers, **self.body(question))
            async with request as response:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise self._malformed(f"longer than {MOST_BYTES / 1e6:g} MB", retry=False)
                return response.status_code, response.headers, content
        except (http.HTTPError, http.InvalidURL) as error:
            unsent = isinstance(error, http.ConnectError | http.ConnectTimeout | http.UnsupportedProtocol)
            if isinstance(error, http.TimeoutException) and not unsent:
                message = f"no answer within {self._timeout:g} s"
                raise RequestError("timeout", message, retry=True, billed=True) from None
            raise RequestError("connection failed", self._redact(repr(error)), retry=True, billed=not unsent) from None

    def _refusal(
        self, status: int, headers: Mapping[str, str], fields: dict[str, Any], body: Any, content: bytes
    ) -> RequestError:
        """The error for an answer of another status, or for the error in one of status 200."""
        message = fields.get("message")
        text = self._redact(message if isinstance(message, str) and message.strip() else _beginning(content))
        code = status if status != 200 else status_in(fields)
        if code == 401 and not self.key:  # a key of the vendor is not sent to another address
            text += f" (no key was sent: the variable {self._key_variable} is not set)"
        if code is None:
            error = RequestError("error in place of an answer", text)
        else:  # statuses of 500 and above are all of one kind
            error = self.error(code, headers, fields, f"HTTP {code} {text}" if code >= 500 else text)
        try:
            reply = self.reply(body)
            written = bool(reply.content or reply.levels)
        except ValueError:
            written = False
        usage = self.usage(body)
        # Whatever the status: without tokens and without a word, no model has answered
        error.billed = written or bool(usage.text_in or usage.audio_in or usage.out)
        return error

    def _malformed(self, text: str, retry: bool = True) -> RequestError:
        message = self._redact(f"the server's answer is not as expected: {text}")
        return RequestError("malformed response", message, retry=retry, billed=True)

    def _redact(self, text: str) -> str:
        """The beginning of a text, with the key removed, also where the vendor shortened it."""
        text = _KEY.sub("[key]", text.replace(self.key, "[key]") if self.key else text)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."

    def _without_key(self, text: str) -> str:
        """What a model wrote, with the key removed."""
        return text.replace(self.key, "[key]") if self.key and len(self.key) >= _SHORTEST_KEY else text


def _beginning(content: bytes) -> str:
    """Enough of an answer to quote it."""
    return content[: 4 * _LONGEST_TEXT].decode(errors="replace").strip()
