"""The server that is asked: its address, its key, and one request whose answer is never trusted.

We ask over HTTP ourselves: the vendors' SDKs read answers of any length and depth, hand on fields of any type, and
follow a redirection with key and audio.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic
import pydantic_core

from ....data_modules.errors import UserError, shown
from .provider import RequestError
from .settings import Settings, server_address

MOST_BYTES = 4_000_000
"""Of an answer; those that are asked for have thousands."""
_LONGEST_TEXT = 500  # characters of a server's own words in our messages
# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")
_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class Server:
    """Who is asked: `Settings.base_url`, else the address in the SDK's own variable, else the vendor.

    A server in the settings gets no key of the vendor's but the one in ``EMPATHY_JUDGE_API_KEY``, if there is one. A
    server in the SDK's variable gets the key in the SDK's variable, as everywhere else where the SDK is used.

    Args:
        spec: For messages.
        settings: Address and time.
        official: Address of the vendor.
        url_variable: Where the vendor's SDK looks for another one.
        key_variables: Where it looks for the key, the first that is set first.

    Attributes:
        url: Its address.
        elsewhere: Whether it is another than the vendor's: then the vendor's prices say nothing about it.
        key: To ask with; None where a server wants none.
        told: For the disclosure: what chose it and which key it gets.

    Raises:
        UserError: If the variable holds no address, or httpx is missing.
    """

    def __init__(self, spec: str, settings: Settings, official: str, url_variable: str, *key_variables: str) -> None:
        try:
            import httpx
        except ImportError:
            raise UserError(f"{spec}: httpx is not installed; run pip install 'empathy-judge[api]'") from None
        self._http, self._timeout = httpx, settings.timeout
        self._client: Any = None
        named = settings.base_url
        url = named or os.environ.get(url_variable, "").strip() or official
        try:
            self.url = server_address(url)
        except ValueError as error:
            raise UserError(f"{spec}: the variable {url_variable} is {shown(url)}; expected {error}") from None
        self.elsewhere = self.url != official
        variables = ("EMPATHY_JUDGE_API_KEY",) if self.elsewhere and named is not None else key_variables
        keys = {name: key for name in variables if (key := os.environ.get(name, "").strip())}
        self._no_key = f"{spec}: the variable {variables[0]} is not set; set it to your key"
        name, self.key = next(iter(keys.items()), (None, None))
        chosen = f", as {url_variable} says" if self.elsewhere and named is None else ""
        self.told = f"{chosen}, with {f'the key in {name}' if name else 'no key'}"

    def require_key(self) -> None:
        """Whoever is to be asked gets a key, unless it may want none.

        Raises:
            UserError: If the vendor is asked, and there is no key.
        """
        if self.key is None and not self.elsewhere:
            raise UserError(self._no_key)

    @property
    def place(self) -> str:
        """Host and path."""
        return self.url.split("://")[-1].removesuffix("/v1")

    async def post(self, path: str, headers: Mapping[str, str], body: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Sends JSON; status, headers and content of the answer.

        Raises:
            RequestError: If none came, it was cut off, or it is longer than `MOST_BYTES`.
        """
        http = self._http
        if self._client is None:
            self._client = http.AsyncClient(timeout=self._timeout, limits=http.Limits())  # our runner has limits
        content = b""
        try:
            # nothing is unpacked: a few kilobytes may hold gigabytes
            sent = {**headers, "accept-encoding": "identity"}
            async with self._client.stream("POST", self.url + path, headers=sent, json=body) as response:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        told = f"the server's answer is longer than {MOST_BYTES / 1e6:g} MB"
                        raise self._malformed(told, retry=False)
                return response.status_code, response.headers, content
        except (http.ConnectError, http.ConnectTimeout, http.UnsupportedProtocol) as error:
            raise RequestError("connection failed", self.redact(repr(error)), retry=True) from None
        except http.TimeoutException:
            raise RequestError("timeout", f"no answer within {self._timeout:g} s", retry=True, billed=True) from None
        except (http.HTTPError, http.InvalidURL) as error:
            raise RequestError("connection failed", self.redact(repr(error)), retry=True, billed=True) from None

    def parse(self, model: type[_Model], content: bytes) -> _Model:
        """The fields of `model` in an answer of status 200.

        Raises:
            RequestError: If it is no JSON, or a field has another type.
        """
        try:
            return model.model_validate_json(content)
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise self._malformed(f"the server's answer is not as expected: {place} {first['msg']}") from None

    def error_in(self, content: bytes) -> tuple[dict[str, Any], str]:
        """What a server says of an error, of whatever form: its fields, and its words without the key."""
        try:
            body = pydantic_core.from_json(content)
        except ValueError:
            body = None
        inner = body.get("error", body) if isinstance(body, dict) else None
        fields = inner if isinstance(inner, dict) else {}
        said = fields.get("message")
        return fields, self.redact(said if isinstance(said, str) else content.decode(errors="replace"))

    def redact(self, text: str) -> str:
        """The beginning of a text without the key, whole or as vendors shorten it."""
        text = _KEY.sub("[key]", text.replace(self.key, "[key]") if self.key else text)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."

    def _malformed(self, text: str, retry: bool = True) -> RequestError:
        return RequestError("malformed response", self.redact(text), retry=retry, billed=True)

    async def close(self) -> None:
        """Gives connections back."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def retry_after(values: Sequence[tuple[str | None, float]]) -> float | None:
    """Seconds to wait, from numbers in text and their units; the first that is one, at most an hour."""
    for text, unit in values:
        try:
            wait = float(text or "") * unit
        except ValueError:
            continue
        if 0 <= wait <= 3600:
            return wait
    return None
