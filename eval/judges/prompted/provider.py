"""Interface of providers: replies, errors, and the methods that every provider has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .questions import Question
from .settings import AnswerMode

ANSWERED, REFUSED, BLOCKED = "answered", "refused", "blocked by safety filter"
EMPTY, CUT_OFF = "empty answer", "cut off"


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer: text read, audio read, written (thoughts included); None where the server does not say."""

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
    """A service or local model that answers questions."""

    name: str  # ``openai``, ``gemini`` or ``local``
    model: str  # as the spec names it
    place: str  # where questions go: a host name, or this machine
    elsewhere = False  # whether that is another server than the vendor's, whose prices then say nothing about it
    told = ""  # what the disclosure says of it after its place
    free = False  # whether nothing is paid and nothing leaves this machine
    modes: tuple[AnswerMode, ...]  # ways to impose the form of an answer, the one that is best with this model first
    audio_tokens_per_second: float  # for estimates of cost
    likely_tokens: int  # of an answer, thoughts included; for estimates too
    max_tokens: int  # longest answer that is allowed, thoughts included

    @abstractmethod
    def request(self, question: Question) -> dict[str, Any]:
        """The body of the request as it is sent, without the key."""

    @abstractmethod
    async def ask(self, question: Question) -> Reply:
        """Asks once; raises `RequestError` if no answer came."""

    async def close(self) -> None:  # noqa: B027
        """Closes open connections."""
