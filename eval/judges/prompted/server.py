"""What providers behind an API share: address, key, and one request whose answer is never trusted.

We ask over HTTP ourselves: the vendors' SDKs read answers of any length and depth, hand on fields of any type, and
follow a redirection with key and audio.
"""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pydantic_core

from ....data_modules.errors import UserError, shown
from .provider import Provider, Reply, RequestError, Usage
from .questions import Question
from .settings import PromptedSettings, server_address

MOST_BYTES = 4_000_000
"""Of an answer; those that are asked for have thousands."""
ALTERNATIVES = 20
"""The most first tokens that either protocol gives the probabilities of."""
_MOST_TOKENS = 10**9  # a count above it is not believed
_LONGEST_TEXT = 500  # characters of a server's own words in our messages
# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")
_T = TypeVar("_T")


class HttpProvider(Provider):
    """Asks `PromptedSettings.base_url`, else the address in the SDK's variable, else the vendor.

    A server in the settings gets no key of the vendor's but the one in ``EMPATHY_JUDGE_API_KEY``, if there is one. A
    server in the SDK's variable gets the key in the SDK's variable, as everywhere else where the SDK is used.

    Args:
        model: As the vendor names it.
        settings: Address and time.
        dry_run: Nothing will be sent, which takes no key.

    Attributes:
        official: Address of the vendor.
        url_variable: Where the vendor's SDK looks for another one.
        key_variables: Where it looks for the key; the first that is set counts.
        key: To ask with; None where a server wants none.

    Raises:
        UserError: If the variable holds no address, httpx is missing, or the vendor is asked without a key.
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
        named = settings.base_url
        url = named or os.environ.get(self.url_variable, "").strip() or self.official
        try:
            self._url = server_address(url)
        except ValueError as error:
            raise UserError(f"{spec}: the variable {self.url_variable} is {shown(url)}; expected {error}") from None
        self.elsewhere = self._url != self.official
        self.place = self._url.split("://")[-1].removesuffix("/v1")
        variables = ("EMPATHY_JUDGE_API_KEY",) if self.elsewhere and named is not None else self.key_variables
        keys = {name: key for name in variables if (key := os.environ.get(name, "").strip())}
        variable, self.key = next(iter(keys.items()), (None, None))
        chosen = f", as {self.url_variable} says" if self.elsewhere and named is None else ""
        self.told = f"{chosen}, with {f'the key in {variable}' if variable else 'no key'}"
        if not (dry_run or self.key or self.elsewhere):
            raise UserError(f"{spec}: the variable {variables[0]} is not set; set it to your key")

    @abstractmethod
    def route(self) -> tuple[str, dict[str, str]]:
        """Path of the request, and headers with the key."""

    @abstractmethod
    def reply(self, body: Any) -> Reply:
        """What an answer of status 200 says, but for its tokens; raises ValueError where a field has another type
        (`read`)."""

    @abstractmethod
    def usage(self, body: Any) -> Usage:
        """The tokens of such an answer; raises ValueError where they are not told or not to be believed."""

    @abstractmethod
    def error(self, status: int, headers: Mapping[str, str], fields: dict[str, Any], text: str) -> RequestError:
        """What an answer of another status says: its fields, and its words without the key."""

    async def ask(self, question: Question) -> Reply:
        status, headers, content = await self._post(question)
        try:
            body = pydantic_core.from_json(content)
        except ValueError as error:
            if status == 200:
                raise self._malformed(str(error)) from None
            body = None
        if status == 200:
            try:
                reply = self.reply(body)
            except ValueError as error:
                raise self._malformed(str(error)) from None
            try:
                return replace(reply, usage=self.usage(body))
            except ValueError:  # the answer counts all the same
                return reply
        inner = body.get("error", body) if isinstance(body, dict) else None
        fields = inner if isinstance(inner, dict) else {}
        said = fields.get("message")
        text = said if isinstance(said, str) else content.decode(errors="replace")
        raise self.error(status, headers, fields, self._redact(text))

    async def _post(self, question: Question) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of the answer."""
        http, content = self._http, b""
        if self._client is None:
            self._client = http.AsyncClient(timeout=self._timeout, limits=http.Limits())  # our runner has limits
        path, headers = self.route()
        try:
            # nothing is unpacked: a few kilobytes may hold gigabytes
            headers["accept-encoding"] = "identity"
            sent = self.request(question)
            async with self._client.stream("POST", self._url + path, headers=headers, json=sent) as response:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise self._malformed(f"longer than {MOST_BYTES / 1e6:g} MB", retry=False)
                return response.status_code, response.headers, content
        except http.TimeoutException as error:
            if not isinstance(error, http.ConnectTimeout):
                told = f"no answer within {self._timeout:g} s"
                raise RequestError("timeout", told, retry=True, billed=True) from None
            raise RequestError("connection failed", self._redact(repr(error)), retry=True) from None
        except (http.HTTPError, http.InvalidURL) as error:
            unsent = isinstance(error, http.ConnectError | http.UnsupportedProtocol)
            raise RequestError("connection failed", self._redact(repr(error)), retry=True, billed=not unsent) from None

    def _malformed(self, text: str, retry: bool = True) -> RequestError:
        told = self._redact(f"the server's answer is not as expected: {text}")
        return RequestError("malformed response", told, retry=retry, billed=True)

    def _redact(self, text: str) -> str:
        """The beginning of a text without the key, whole or as vendors shorten it."""
        text = _KEY.sub("[key]", text.replace(self.key, "[key]") if self.key else text)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


# ---------------------------------------------------------------- fields that are not trusted


def read(body: Any, path: str, kind: type[_T]) -> _T | None:
    """A field of an answer, by a path such as ``choices.0.message``; None where it is absent or null.

    Raises:
        ValueError: If it, or what it lies in, is of another type; a float is finite.
    """
    found = body
    for step in path.split("."):
        inside = list if step.isdigit() else dict
        if not isinstance(found, inside):
            raise ValueError(f"{path}: {type(found).__name__} in place of a {inside.__name__}")
        found = found.get(step) if isinstance(found, dict) else found[int(step)] if int(step) < len(found) else None
        if found is None:
            return None
    if kind is float and type(found) is int and abs(found) < 2**63:
        found = float(found)
    if type(found) is not kind or (isinstance(found, float) and not math.isfinite(found)):
        raise ValueError(f"{path}: {type(found).__name__} in place of a {kind.__name__}")
    return found


def tokens(usage: Any, path: str, required: bool = False) -> int:
    """A count of tokens; 0 where it is absent and not required.

    Raises:
        ValueError: If it is none, or not to be believed.
    """
    found = read(usage, path, int)
    if (found is None and required) or not 0 <= (found or 0) <= _MOST_TOKENS:
        raise ValueError(f"{path}: {found} tokens")
    return found or 0


def retry_after(*values: tuple[str | None, float]) -> float | None:
    """Seconds to wait, from numbers in text and their units; the first that is one, at most an hour."""
    for text, unit in values:
        try:
            wait = float(text or "") * unit
        except ValueError:
            continue
        if 0 <= wait <= 3600:
            return wait
    return None
