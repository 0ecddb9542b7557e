"""Who is asked and what comes back: replies, errors, and the server that a key is sent to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....data_modules.errors import UserError, shown
from .questions import Question
from .settings import AnswerMode, server_address

ANSWERED, REFUSED, BLOCKED, EMPTY, CUT_OFF = (
    "answered",
    "refused",
    "blocked by safety filter",
    "empty answer",
    "cut off",
)


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer: text read, audio read, written (thoughts included); None where the server does not say."""

    text_in: int | None = None
    audio_in: int | None = None
    out: int | None = None


@dataclass(frozen=True)
class Reply:
    """What came back, with a score in it or without.

    Attributes:
        kind: `ANSWERED`, or why there is nothing to read.
        content: What the model wrote: text, or the arguments of the function it called.
        version: The model that answered, as the server names it.
        usage: Tokens.
        alternatives: First token that might have been written -> natural logarithm of its probability.
    """

    kind: str
    content: str = ""
    version: str | None = None
    usage: Usage = Usage()
    alternatives: Mapping[str, float] = field(default_factory=dict)


class RequestError(Exception):
    """A request without an answer.

    Attributes:
        kind: What goes into statistics, such as ``server error``.
        retry: Whether asking again may help.
        wait: Seconds to wait before, where the server says so.
        limited: The server wants fewer requests.
        final: No other request will do better: a wrong key, no credit, an unknown model.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        retry: bool = False,
        wait: float | None = None,
        limited: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(detail)
        self.kind, self.retry, self.wait, self.limited, self.final = kind, retry, wait, limited, final


class Provider(Protocol):
    """Someone who can be asked.

    Attributes:
        name: ``openai``, ``gemini`` or ``local``.
        model: As the spec names it.
        place: Where questions go: a host name, or this machine.
        elsewhere: Whether that is another server than the vendor's.
        told: What the disclosure says of it after its place.
        free: Whether nothing is paid and nothing leaves this machine.
        modes: Ways to impose the form of an answer, the one that is best with this model first.
        audio_tokens_per_second: For estimates of cost.
        likely_tokens: Of an answer, thoughts included; for estimates too.
        max_tokens: Longest answer that is allowed, thoughts included.
    """

    name: str
    model: str
    place: str
    elsewhere: bool
    told: str
    free: bool
    modes: tuple[AnswerMode, ...]
    audio_tokens_per_second: float
    likely_tokens: int
    max_tokens: int

    def request(self, question: Question) -> dict[str, Any]:
        """The body as it is sent; no key is in it."""
        ...

    async def ask(self, question: Question) -> Reply:
        """Asks once; raises `RequestError` if no answer came."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...


# ---------------------------------------------------------------- servers and keys

# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")


@dataclass(frozen=True)
class Server:
    """Who is asked.

    Attributes:
        url: Its address.
        elsewhere: Whether it is another than the vendor's: then the vendor's prices say nothing about it.
        key: To ask with; None where a server wants none.
        told: For the disclosure: what chose it and which key it gets.
    """

    url: str
    elsewhere: bool
    key: str | None
    told: str

    @property
    def place(self) -> str:
        """Host and path."""
        return self.url.split("://")[-1].removesuffix("/v1")


def server_for(spec: str, base_url: str | None, official: str, url_variable: str, *key_variables: str) -> Server:
    """The server of a judge: `base_url` of its settings, else that of the SDK's own variable, else the vendor's.

    A server in the settings gets no key of the vendor's but the one in ``EMPATHY_JUDGE_API_KEY``, if there is one. A
    server in the SDK's variable gets the key in the SDK's variable, as everywhere else where the SDK is used.

    Args:
        spec: For messages.
        base_url: Of the settings.
        official: Address of the vendor.
        url_variable: Where the SDK looks for another one.
        key_variables: Where the SDK looks for the key, the first that is set first.

    Raises:
        UserError: If the variable holds no address, or the vendor is asked and there is no key.
    """
    url = base_url or os.environ.get(url_variable, "").strip() or official
    try:
        url = server_address(url)
    except ValueError as error:
        raise UserError(f"{spec}: the variable {url_variable} is {shown(url)}; expected {error}") from None
    elsewhere = url != official
    variables = ("EMPATHY_JUDGE_API_KEY",) if elsewhere and base_url is not None else key_variables
    keys = {name: key for name in variables if (key := os.environ.get(name, "").strip())}
    if not keys and not elsewhere:
        raise UserError(f"{spec}: the variable {variables[0]} is not set; set it to your key")
    name, key = next(iter(keys.items()), (None, None))
    chosen = f", as {url_variable} says" if elsewhere and base_url is None else ""
    return Server(url, elsewhere, key, f"{chosen}, with {f'the key in {name}' if name else 'no key'}")


def redact(text: str, key: str | None) -> str:
    """The text without the key, whole or as vendors shorten it."""
    return _KEY.sub("[key]", text.replace(key, "[key]") if key else text)


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
