"""What is asked and answered, whoever is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .forms import Form


@dataclass(frozen=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True)
class Sound:
    """A clip as it is sent.

    Attributes:
        wav: A WAV file, mono, 16 bit.
        seconds: Its duration.
    """

    wav: bytes = field(repr=False)
    seconds: float


@dataclass(frozen=True)
class Message:
    """One turn of the conversation with the judge; an example is a turn of ours and one of the judge's."""

    role: Literal["user", "assistant"]
    parts: tuple[Text | Sound, ...]


AnswerMode = Literal["schema", "function", "text", "logprobs"]


@dataclass(frozen=True)
class Question:
    """What is asked, in nobody's format yet.

    Attributes:
        system: What the judge is told first.
        messages: The last one is the question.
        form: What the answer must hold.
        mode: How the form is imposed: by a schema, a function to call, in words, or in words with the probabilities of
            what else might have been said.
        temperature: Of sampling.
        max_tokens: Longest answer.
    """

    system: str
    messages: tuple[Message, ...]
    form: Form
    mode: AnswerMode
    temperature: float
    max_tokens: int

    @property
    def sounds(self) -> list[Sound]:
        """All clips, in order."""
        return [part for message in self.messages for part in message.parts if isinstance(part, Sound)]

    @property
    def characters(self) -> int:
        """Of all texts."""
        texts = [part.text for message in self.messages for part in message.parts if isinstance(part, Text)]
        return len(self.system) + sum(map(len, texts))

    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that the answer depends on, but who is asked."""
        messages = [
            [message.role, *(part.text if isinstance(part, Text) else _hash(part) for part in message.parts)]
            for message in self.messages
        ]
        content = [self.system, messages, self.form.schema(), self.mode, self.temperature, self.max_tokens]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def _hash(sound: Sound) -> dict[str, str]:
    return {"sha256": hashlib.sha256(sound.wav).hexdigest()}


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer; None where the server does not say.

    Attributes:
        text_in: Of text, read.
        audio_in: Of audio, read.
        out: Written, thoughts included.
    """

    text_in: int | None = None
    audio_in: int | None = None
    out: int | None = None


ANSWERED, REFUSED, BLOCKED, EMPTY, CUT_OFF = (
    "answered",
    "refused",
    "blocked by safety filter",
    "empty answer",
    "cut off",
)


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


class Trouble(Exception):
    """A request without an answer.

    Attributes:
        kind: What goes into statistics, such as ``server error``.
        again: Whether asking again may help.
        wait: Seconds to wait before, where the server says so.
        limited: The server wants fewer requests.
        final: No other request will do better: a wrong key, no credit, an unknown model.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        again: bool = False,
        wait: float | None = None,
        limited: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(detail)
        self.kind, self.again, self.wait, self.limited, self.final = kind, again, wait, limited, final


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
        """Ask once.

        Raises:
            Trouble: If no answer came.
        """
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...
