"""Providers of answers: replies, errors, the methods that every provider has, and the base of those behind an API with
address, key, and one request whose answer is never trusted.

Requests are sent over plain HTTP: the vendors' SDKs read answers of any length and depth, pass on fields of any type,
and follow redirections with key and audio.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pydantic_core

from ....data_modules.errors import UserError, shown
from ....data_modules.numerals import parse_number
from .questions import Question
from .server_errors import error_in, page_in_words, status_in
from .settings import AnswerMode, PromptedSettings, server_address

ANSWERED, REFUSED, BLOCKED = "answered", "refused", "blocked by safety filter"
EMPTY, CUT_OFF = "empty answer", "cut off"
MOST_BYTES = 4_000_000
"""Largest answer that is read; the expected ones have thousands of bytes."""
ALTERNATIVES = 20
"""Most first tokens whose probabilities either protocol returns."""
_MOST_TOKENS = 10**12  # a larger count is taken as this one, which ends any budget
_CONNECT = 10.0  # seconds; a host that is not there, which costs nothing, is told from an answer that takes long
_SHORTEST_KEY = 12  # characters
_LONGEST_TEXT = 500  # characters of a server's message that are quoted in ours
# Pattern of the vendors' keys: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer: text read, audio read, written (thoughts included); None where the server does not say, or
    says what cannot be."""

    text_in: int | None = None  # all that was read where `audio_in` is None
    audio_in: int | None = None
    out: int | None = None


@dataclass(frozen=True)
class Reply:
    """The reply of a model, with or without a score."""

    kind: str  # `ANSWERED`, or why there is nothing to read
    content: str = ""  # what the model wrote: text, or the arguments of the function it called
    version: str | None = None  # the model that answered, as the server names it
    usage: Usage = Usage()  # tokens
    # first token that might have been written -> natural logarithm of its probability
    alternatives: Mapping[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class RequestError(Exception):
    """A request without an answer."""

    kind: str  # what goes into statistics, such as ``server error``
    detail: str = ""  # the server's words
    retry: bool = False  # whether asking again may help
    wait: float | None = None  # seconds to wait before, where the server says so
    limited: bool = False  # the server wants fewer requests
    final: bool = False  # no other request will do better: a wrong key, no credit, an unknown model
    billed: bool = False  # the model may have answered, so that the vendor may want money for it

    def __str__(self) -> str:
        return self.detail


class Provider(ABC):
    """A service that answers questions."""

    name: str  # ``openai`` or ``gemini``
    model: str  # as the spec names it
    place: str  # where questions go: a host name
    elsewhere = False  # whether that is another server than the vendor's, whose prices then say nothing about it
    told = ""  # what the disclosure says of it after its place
    modes: tuple[AnswerMode, ...]  # ways to impose the form of an answer, the one that is best with this model first
    audio_tokens_per_second: float  # for estimates of cost
    likely_tokens: int  # of an answer, thoughts included; for estimates too
    max_tokens: int  # longest answer that is allowed, thoughts included

    @abstractmethod
    def request(self, question: Question) -> dict[str, Any]:
        """The body of the request as it is sent, without the key."""

    def seconds(self, question: Question) -> float:
        """Seconds of audio in the request."""
        return sum(sound.seconds for sound in question.sounds)

    @abstractmethod
    async def ask(self, question: Question) -> Reply:
        """Asks once; raises `RequestError` if no answer came."""

    async def close(self) -> None:  # noqa: B027
        """Closes open connections."""


# ---------------------------------------------------------------- providers behind an API


class HttpProvider(Provider):
    """Sends requests to `PromptedSettings.base_url`, else to the address in the SDK's variable, else to the vendor.

    A server in the settings never gets the vendor's key, only the one in ``EMPATHY_JUDGE_API_KEY``, if that is set. A
    server in the SDK's variable gets the key in the SDK's variable, as with the SDK itself.

    Args:
        model: Name of the model at the vendor.
        settings: Address and timeout.
        dry_run: Whether nothing will be sent, so that no key is needed.

    Attributes:
        official: Address of the vendor.
        url_variable: Environment variable in which the vendor's SDK looks for another address.
        key_variables: Environment variables in which it looks for the key; the first that is set counts.
        key: Key for requests; None where a server needs none.

    Raises:
        UserError: If the variable holds no address, httpx is missing, the vendor is asked without a key, or no
            header can hold the key.
    """

    official: ClassVar[str]
    url_variable: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        spec = f"{self.name}:{model}"
        try:
            import httpx
        except ImportError:
            raise UserError(f"{spec}: httpx is not installed; run pip install 'empathy-judge[api]'") from None
        self.model, self._http, self._timeout, self._client = model, httpx, settings.timeout, None
        base_url = settings.base_url
        url = base_url or os.environ.get(self.url_variable, "").strip() or self.official
        try:
            self._url = server_address(url)
        except ValueError as error:
            raise UserError(f"{spec}: the variable {self.url_variable} is {shown(url)}; expected {error}") from None
        self.elsewhere = self._url != self.official
        self.place = self._url.split("://")[-1].removesuffix("/v1")
        variables = ("EMPATHY_JUDGE_API_KEY",) if self.elsewhere and base_url is not None else self.key_variables
        keys = {name: key for name in variables if (key := os.environ.get(name, "").strip())}
        variable, self.key = next(iter(keys.items()), (None, None))
        chosen = f", as {self.url_variable} says" if self.elsewhere and base_url is None else ""
        self.told = f"{chosen}, with {f'the key in {variable}' if variable else 'no key'}"
        if not (dry_run or self.key or self.elsewhere):
            raise UserError(f"{spec}: the variable {variables[0]} is not set; set it to your key")
        if self.key and not (self.key.isascii() and self.key.isprintable()):  # httpx would print it as refused
            raise UserError(f"{spec}: {variable} holds a line break or more than ASCII; set it to your key alone")

    @abstractmethod
    def route(self) -> tuple[str, dict[str, str]]:
        """Path of the request, and headers with the key."""

    @abstractmethod
    def reply(self, body: Any) -> Reply:
        """Parses an answer of status 200, without its usage; raises ValueError where a field has another type
        (`read`)."""

    @abstractmethod
    def usage(self, body: Any) -> Usage:
        """The tokens of such an answer; None for each count that is missing or no count."""

    @abstractmethod
    def error(self, status: int, headers: Mapping[str, str], fields: dict[str, Any], text: str) -> RequestError:
        """The error for an answer of another status, from its fields, and its text without the key."""

    async def ask(self, question: Question) -> Reply:
        status, headers, content = await self._post(question)
        body = None
        try:
            body = pydantic_core.from_json(content)
        except ValueError as error:
            if status == 200:
                raise self._no_json(content, str(error)) from None
        fields = error_in(body)
        if status != 200 or fields is not None:
            raise self._refusal(status, headers, fields or {}, body, content)
        try:
            reply = self.reply(body)
        except ValueError as error:
            raise self._malformed(f"{error}: {_beginning(content)}") from None
        version = reply.version and self._without_key(reply.version)
        reply = replace(reply, content=self._without_key(reply.content), version=version)
        return replace(reply, usage=_possible(self.usage(body), question, reply))

    def _refusal(
        self, status: int, headers: Mapping[str, str], fields: dict[str, Any], body: Any, content: bytes
    ) -> RequestError:
        """The error for an answer of another status, or for the error in one of status 200."""
        message = fields.get("message")
        text = message if isinstance(message, str) and message.strip() else _beginning(content)
        code = status if status != 200 else status_in(fields)
        if code is None:
            error = RequestError("error in place of an answer", self._redact(text))
        else:
            named = f"HTTP {code} " if code >= 500 else ""  # these are all of one kind
            error = self.error(code, headers, fields, named + self._redact(text))
        try:
            written = bool(self.reply(body).content)
        except ValueError:
            written = False
        usage = self.usage(body)
        # whatever the status: without tokens and without a word, no model has answered
        error.billed = written or bool(usage.text_in or usage.audio_in or usage.out)
        return error

    async def _post(self, question: Question) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of the answer."""
        http, content = self._http, b""
        if self._client is None:
            patience = http.Timeout(self._timeout, connect=min(_CONNECT, self._timeout or _CONNECT))
            self._client = http.AsyncClient(timeout=patience, limits=http.Limits())  # our runner has limits
        path, headers = self.route()
        try:
            # nothing is decompressed: a few kilobytes may contain gigabytes
            headers["accept-encoding"] = "identity"
            body = self.request(question)
            async with self._client.stream("POST", self._url + path, headers=headers, json=body) as response:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise self._malformed(f"longer than {MOST_BYTES / 1e6:g} MB", retry=False)
                return response.status_code, response.headers, content
        except http.TimeoutException as error:
            if not isinstance(error, http.ConnectTimeout):
                message = f"no answer within {self._timeout:g} s"
                raise RequestError("timeout", message, retry=True, billed=True) from None
            raise RequestError("connection failed", self._redact(repr(error)), retry=True) from None
        except (http.HTTPError, http.InvalidURL) as error:
            unsent = isinstance(error, http.ConnectError | http.UnsupportedProtocol)
            raise RequestError("connection failed", self._redact(repr(error)), retry=True, billed=not unsent) from None

    def _no_json(self, content: bytes, problem: str) -> RequestError:
        """A page of a proxy, which no model has written, or an answer that is broken."""
        if not content.lstrip().startswith(b"<"):
            return self._malformed(problem)
        page = self._redact(f"a web page in place of an answer: {page_in_words(_beginning(content))}")
        return RequestError("malformed response", page, retry=True)

    def _malformed(self, text: str, retry: bool = True) -> RequestError:
        message = self._redact(f"the server's answer is not as expected: {text}")
        return RequestError("malformed response", message, retry=retry, billed=True)

    def _redact(self, text: str) -> str:
        """The beginning of a text, with the key removed, also where the vendor shortened it."""
        text = _KEY.sub("[key]", text.replace(self.key, "[key]") if self.key else text)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."

    def _without_key(self, text: str) -> str:
        """What a model wrote, with the key removed; a short word in its place, as local servers take, is no secret."""
        return text.replace(self.key, "[key]") if self.key and len(self.key) >= _SHORTEST_KEY else text

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


# ---------------------------------------------------------------- fields that are not trusted


def read(body: Any, path: str, kind: type[_T]) -> _T | None:
    """A field of an answer, by a path such as ``choices.0.message``; None where it is absent or null.

    Raises:
        ValueError: If it, or a container of it, is of another type, or a float is not finite.
    """
    value = _field(body, path)
    if value is None:
        return None
    if kind is float and type(value) is int and abs(value) < 2**63:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{path}: {type(value).__name__} in place of a {kind.__name__}")
    return value


def tokens(body: Any, path: str) -> int | None:
    """A count of tokens, rounded up; None where it is absent or no count: of another type, negative, not finite."""
    try:
        count = _field(body, path)
    except ValueError:
        return None
    if type(count) not in (int, float) or not 0 <= count < math.inf:
        return None
    return min(math.ceil(count), _MOST_TOKENS)


def _field(body: Any, path: str) -> Any:
    value = body
    for step in path.split("."):
        container = list if step.isdigit() else dict
        if not isinstance(value, container):
            raise ValueError(f"{path}: {type(value).__name__} in place of a {container.__name__}")
        value = value.get(step) if isinstance(value, dict) else value[int(step)] if int(step) < len(value) else None
        if value is None:
            return None
    return value


def _possible(usage: Usage, question: Question, reply: Reply) -> Usage:
    """The counts that can be: each question has text, a clip has tokens, and so has what was written."""
    return Usage(
        usage.text_in or None,
        usage.audio_in or (None if question.sounds else usage.audio_in),
        usage.out or (None if reply.content.strip() else usage.out),
    )


def _beginning(content: bytes) -> str:
    """Enough of an answer to quote it."""
    return content[: 4 * _LONGEST_TEXT].decode(errors="replace").strip()


def retry_after(*values: tuple[str | None, float]) -> float | None:
    """Seconds to wait, from pairs of a text and its unit in seconds: the first valid number, at most an hour."""
    for text, unit in values:
        try:
            wait = parse_number(text or "") * unit
        except ValueError:
            continue
        if 0 <= wait <= 3600:
            return wait
    return None
