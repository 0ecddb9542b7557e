"""How a prompted judge is asked: the settings that stand in its spec, and the questions that follow from them."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args
from urllib.parse import urlsplit

import numpy as np
import soundfile

from ....data_modules.audio import AudioSource, decode, probe
from ....data_modules.errors import UserError, shown
from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from .forms import REASON, Form, Number, Preferred, Scores
from .provider import AnswerMode, Message, Question, Sound, Text
from .rubric import RubricName, describe

MAX_RATE = 24_000
"""Hz; clips are sent at their own rate up to this one. Every judge gets the same bytes."""

Hears = Literal["audio", "both", "transcript"]
Mode = Literal["pointwise", "pairwise"]


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens of text read, of audio read, and written."""

    text_in: float
    audio_in: float
    out: float


@dataclass(frozen=True)
class Asking:
    """The settings after the model in a spec: ``openai:gpt-audio-1.5,rubric=attunement,samples=5``.

    Attributes:
        mode: Score each pair, or compare every two responses to a context (in both orders).
        rubric: The construct.
        hears: Both clips; also their transcripts; or the transcripts alone, which shows what words give.
        examples: Rated pairs of the training split that are shown first.
        samples: Times that each question is asked; the scores are averaged.
        opponents: Responses that each is compared with, where the mode is pairwise; 0 = all of its group.
        answers: How the form of the answer is imposed; ``auto`` = as the model supports it.
        temperature: Of sampling; None = 0 for one sample, 1 for several.
        rpm: Requests a minute that the account allows; None = find out.
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
    def heat(self) -> float:
        """The temperature that is used."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0


def parse_asking(settings: Sequence[str], spec: str, here: bool = False) -> Asking:
    """Reads ``name=value`` settings.

    Args:
        settings: What follows the model in a spec.
        spec: The whole, for messages.
        here: Whether the model runs on this machine. It has no settings of a server, and is asked one question at a
            time and, unless a setting says otherwise, each once.

    Raises:
        UserError: If a setting is unknown or has a value that is not accepted.
    """
    readers = {name: read for name, read in _READERS.items() if not (here and name in _OF_SERVERS)}
    found: dict[str, object] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or name not in readers:
            raise UserError(
                f"judge {shown(spec)}: setting {shown(setting)}; accepted: {', '.join(readers)} (NAME=VALUE)"
            )
        try:
            found[name] = readers[name](value)
        except ValueError as error:
            raise UserError(f"judge {shown(spec)}: {name} {shown(value)}; accepted: {error}") from None
    start = Asking(samples=1, concurrency=1, timeout=math.inf) if here else Asking()
    return dataclasses.replace(start, **found)  # pyright: ignore[reportArgumentType]


def _one_of(words: Sequence[str]):
    def read(value: str) -> str:
        if value not in words:
            raise ValueError(", ".join(words))
        return value

    return read


def _whole(least: int, most: int):
    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,6}", value) or not least <= int(value) <= most:
            raise ValueError(f"{least} to {most}")
        return int(value)

    return read


def _real(least: float, most: float):
    def read(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ValueError(f"{least:g} to {most:g}")
        return number

    return read


def _price(value: str) -> Price:
    try:
        prices = [_real(0, 1e6)(part) for part in value.split(":")]
        return Price(*prices)
    except (TypeError, ValueError):
        raise ValueError("TEXT_IN:AUDIO_IN:OUT in dollars for a million tokens, such as 2.5:32:10") from None


def server_address(value: str) -> str:
    """An address without its last slash.

    Raises:
        ValueError: If it is none, or holds a user name or a password; says what is accepted.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ValueError("http://HOST/... or https://HOST/... without a user name or a password")
    return value.rstrip("/")


_READERS = {
    "mode": _one_of(get_args(Mode)),
    "rubric": _one_of(get_args(RubricName)),
    "hears": _one_of(get_args(Hears)),
    "examples": _whole(0, 64),
    "samples": _whole(1, 100),
    "opponents": _whole(0, 1000),
    "answers": _one_of(["auto", *get_args(AnswerMode)]),
    "temperature": _real(0, 2),
    "rpm": _real(0.1, 1e6),
    "concurrency": _whole(1, 1000),
    "timeout": _real(0.1, 3600),
    "price": _price,
    "base_url": server_address,
}
_OF_SERVERS = ("rpm", "concurrency", "timeout", "price", "base_url")


@dataclass(frozen=True)
class Example:
    """A rated pair that a judge is shown: the mean of its raters by dimension (rating points)."""

    pair: Pair
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Manner:
    """How questions are put to a model: `Asking` after what the model can do was settled."""

    asking: Asking
    mode: AnswerMode
    max_tokens: int


def score_form(dimensions: Sequence[Dimension], mode: AnswerMode) -> Form:
    """What an answer about these dimensions must hold; probabilities are those of one number."""
    return Number(dimensions[0]) if mode == "logprobs" else Scores(tuple(dimensions))


def score_question(
    pair: Pair, dimensions: Sequence[Dimension], manner: Manner, examples: Sequence[Example]
) -> Question:
    """Asks for the scores of one pair.

    Raises:
        AudioError: If a clip cannot be used.
        UserError: If a transcript is asked for that the pair does not have.
    """
    asking, mode = manner.asking, manner.mode
    form = score_form(dimensions, mode)
    messages: list[Message] = []
    for example in examples:
        messages.append(Message("user", (*_example_parts(example.pair, asking), Text(_ASK))))
        messages.append(Message("assistant", (Text(_example_answer(example, dimensions, mode)),)))
    ask = _ASK if mode in ("schema", "function") else f"{_ASK} {form.in_words()}"
    messages.append(Message("user", (*_pair_parts(pair, asking), Text(ask))))
    return _question(manner, _system(asking, dimensions, _ONE), messages, form)


def comparison_question(first: Pair, second: Pair, dimensions: Sequence[Dimension], manner: Manner) -> Question:
    """Asks which of two responses to one context is better.

    Raises:
        AudioError: If a clip cannot be used.
        UserError: If a transcript is asked for that a pair does not have.
    """
    asking, mode = manner.asking, manner.mode
    form = Preferred(tuple(dimensions))
    ask = _WHICH if mode in ("schema", "function") else f"{_WHICH} {form.in_words()}"
    parts = (
        *_context_parts(first, asking),
        *_response_parts(first, asking, "First response"),
        *_response_parts(second, asking, "Second response"),
        Text(ask),
    )
    return _question(manner, _system(asking, dimensions, _TWO), [Message("user", parts)], form)


def _question(manner: Manner, system: str, messages: Sequence[Message], form: Form) -> Question:
    return Question(system, tuple(messages), form, manner.mode, manner.asking.heat, manner.max_tokens)


_ONE = "You hear what a person says (the context) and a spoken response to it."
_TWO = "You hear what a person says (the context) and two spoken responses to it."
_READ = "You read the transcript of what a person says (the context) and of a spoken response to it."
_ASK = "Rate the response."
_WHICH = "Which response deserves the higher rating on each quality?"


def _system(asking: Asking, dimensions: Sequence[Dimension], scene: str) -> str:
    scene = _READ if asking.hears == "transcript" and scene is _ONE else scene
    return f"You are a careful rater of speech. {scene}\n\n{describe(asking.rubric, dimensions)}"


def _pair_parts(pair: Pair, asking: Asking) -> list[Text | Sound]:
    return [*_context_parts(pair, asking), *_response_parts(pair, asking, "Response")]


@lru_cache(maxsize=64)
def _example_parts(pair: Pair, asking: Asking) -> tuple[Text | Sound, ...]:
    """The same examples are shown before every question: their clips are decoded once."""
    return tuple(_pair_parts(pair, asking))


def _context_parts(pair: Pair, asking: Asking) -> list[Text | Sound]:
    parts: list[Text | Sound] = []
    if pair.situation:
        parts.append(Text(f"Situation: {pair.situation}"))
    if asking.hears != "transcript":
        for turn in pair.context:
            label = "Context" if len(pair.context) == 1 else f"Context, {turn.role}"
            parts += [Text(f"{label} (audio):"), sound_of(turn.audio)]
    if asking.hears != "audio" and pair.context:
        parts.append(Text(f"Context (transcript): {_transcript(pair, pair.context_text, 'context_text')}"))
    return parts


def _response_parts(pair: Pair, asking: Asking, label: str) -> list[Text | Sound]:
    parts: list[Text | Sound] = []
    if asking.hears != "transcript":
        parts += [Text(f"{label} (audio):"), sound_of(pair.response)]
    if asking.hears != "audio":
        parts.append(Text(f"{label} (transcript): {_transcript(pair, pair.response_text, 'response_text')}"))
    return parts


def _transcript(pair: Pair, text: str | None, column: str) -> str:
    if not text:
        raise UserError(f"pair {shown(pair.pair_id)} has no {column}; accepted: hears=audio, or data with transcripts")
    return text


def sound_of(source: AudioSource) -> Sound:
    """A clip as it is sent: mono, 16 bit, at its own rate up to `MAX_RATE`."""
    rate = min(probe(source).rate, MAX_RATE)
    samples = decode(source, rate)
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1), rate, format="WAV", subtype="PCM_16")
    return Sound(file.getvalue(), len(samples) / rate)


def _example_answer(example: Example, dimensions: Sequence[Dimension], mode: AnswerMode) -> str:
    if mode == "logprobs":  # a whole number: the first digit of 3.8 would teach to say 3
        return f"{example.scores[dimensions[0].name]:.0f}"
    fields = ", ".join(f'"{d.name}": {example.scores[d.name]:.3g}' for d in dimensions)
    return f'{{"{REASON}": "mean of the raters", {fields}}}'
