"""The settings of a prompted LLM judge, as they stand after the model in its spec."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from ....data_modules.errors import UserError, shown

RubricName = Literal["vocal", "attunement", "support", "plain"]
Hears = Literal["audio", "both", "transcript"]
Mode = Literal["pointwise", "pairwise"]
AnswerMode = Literal["schema", "function", "text", "logprobs"]


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens of text read, of audio read, and written."""

    text_in: float
    audio_in: float
    out: float


@dataclass(frozen=True)
class Settings:
    """The settings in a spec such as ``openai:gpt-audio-1.5,rubric=attunement,samples=5``.

    Attributes:
        mode: Score each pair, or compare every two responses to a context (in both orders).
        rubric: The construct.
        hears: Both clips; also their transcripts; or the transcripts alone, which shows what words give.
        examples: Rated pairs of the training split that are shown first.
        samples: Times that each question is asked; the scores are averaged.
        opponents: Responses that each is compared with, where the mode is pairwise; 0 = all of its group.
        answers: How the form of the answer is imposed; ``auto`` = as the model supports it.
        temperature: Of sampling; None = 0 for one sample, 1 for several.
        rpm: Requests a minute that the account allows; None = adapt to what the server says.
        concurrency: Most requests under way.
        timeout: Seconds for one request.
        price: Of tokens; None = what is known of the model.
        base_url: Of a server that speaks the same protocol.
    """

    mode: Mode = "pointwise"
    rubric: RubricName = "vocal"
    hears: Hears = "audio"
    examples: int = 0
    samples: int = 3
    opponents: int = 4
    answers: AnswerMode | Literal["auto"] = "auto"
    temperature: float | None = None
    rpm: float | None = None
    concurrency: int = 8
    timeout: float = 120.0
    price: Price | None = None
    base_url: str | None = None

    @property
    def sampling_temperature(self) -> float:
        """The temperature that is used."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0


def parse_settings(words: Sequence[str], spec: str, local: bool = False) -> Settings:
    """Reads ``name=value`` settings.

    Args:
        words: What follows the model in a spec.
        spec: The whole, for messages.
        local: Whether the model runs on this machine. It has no settings of a server, and is asked one question at a
            time and, unless a setting says otherwise, each once.

    Raises:
        UserError: If a setting is unknown or has a wrong value.
    """
    readers = {name: read for name, read in _READERS.items() if not (local and name in _OF_SERVERS)}
    found: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in readers:
            raise UserError(f"judge {shown(spec)}: setting {shown(word)}; expected NAME=VALUE of {', '.join(readers)}")
        try:
            found[name] = readers[name](value)
        except ValueError as error:
            raise UserError(f"judge {shown(spec)}: {name} {shown(value)}; expected {error}") from None
    start = Settings(samples=1, concurrency=1, timeout=math.inf) if local else Settings()
    return dataclasses.replace(start, **found)


def server_address(value: str) -> str:
    """An address without its last slash.

    Raises:
        ValueError: If it is none, or holds a user name or a password; says what is expected.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ValueError("http://HOST/... or https://HOST/... without a user name or a password")
    return value.rstrip("/")


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value

    return read


def _number(least: float, most: float, pattern: str = ".*") -> Callable[[str], float]:
    def read(value: str) -> float:
        try:
            number = float(value) if re.fullmatch(pattern, value) else math.nan
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ValueError(f"{least:g} to {most:g}")
        return number

    return read


def _whole(least: int, most: int) -> Callable[[str], int]:
    return lambda value: int(_number(least, most, r"\d{1,6}")(value))


def _price(value: str) -> Price:
    try:
        return Price(*(_number(0, 1e6)(part) for part in value.split(":")))
    except (TypeError, ValueError):
        raise ValueError("TEXT_IN:AUDIO_IN:OUT in dollars for a million tokens, such as 2.5:32:10") from None


_READERS: dict[str, Callable[[str], Any]] = {
    "mode": _one_of(*get_args(Mode)),
    "rubric": _one_of(*get_args(RubricName)),
    "hears": _one_of(*get_args(Hears)),
    "examples": _whole(0, 64),
    "samples": _whole(1, 100),
    "opponents": _whole(0, 1000),
    "answers": _one_of("auto", *get_args(AnswerMode)),
    "temperature": _number(0, 2),
    "rpm": _number(0.1, 1e6),
    "concurrency": _whole(1, 1000),
    "timeout": _number(0.1, 3600),
    "price": _price,
    "base_url": server_address,
}
_OF_SERVERS = ("rpm", "concurrency", "timeout", "price", "base_url")
