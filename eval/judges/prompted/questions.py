"""Questions to a prompted LLM judge about a pair: clips as WAV, a rubric, and the form that its answer must have."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import soundfile

from ....audio.decode import AudioSource, load_clip, resample
from ....core.errors import UserError, shown
from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from ....data_modules.steps import STEP_TOLERANCE
from .rubrics import CHOICES, choice_questions, describe, level_questions
from .settings import AnswerMode, PromptedSettings

MAX_RATE = 24_000
"""Hz; clips are sent at their own rate up to this one. Every judge gets the same bytes."""
REASON = "reason"
"""The first field of an answer, in which the judge says what it heard."""
UNREADABLE, OUT_OF_RANGE = "unreadable answer", "score out of range"
WRONG_LEVELS, NO_DISTRIBUTION = "levels missing or foreign", "probabilities do not sum to 1"
"""Failures of an answer without a score; the last two are those of a decision model."""
_SUM = (0.99, 1.01)  # of the probabilities of an answer: servers round each of them
_LONGEST = 20_000  # characters of an answer that are parsed; hostile answers can make parsing slow
# A number and nothing else: of "4/5", "3-4" or "four of 5" nobody knows which is meant, and Python reads 1_0 as 10
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
# The same behind a label, as in "**Score:** 4."
_ALONE = re.compile(
    rf"(?:[\s*`\"']*[^\W\d]+(?: [^\W\d]+){{0,2}}[*`\"']*\s*[:=])?[\s*`\"']*({_NUMBER.pattern})[\s*`\"'.]*"
)
_PREFERENCE = {"first": 1.0, "tie": 0.0, "second": -1.0}


# ---------------------------------------------------------------- forms of an answer


class Unread(Exception):
    """An answer from which no score can be read; its text goes into statistics, such as `UNREADABLE`."""


@dataclass(frozen=True)
class AnswerForm:
    """The content that an answer must have.

    ``scores`` are a number for each dimension, on its scale (rating points). Numbers between its steps are taken as
    they are; numbers outside are not clipped to it. ``verdicts`` name for each dimension the better response: 1 = the
    first, -1 = the second, 0 = a tie. A ``number`` stands alone, for the expectation over its first token. A decision
    model gives ``levels``, the probabilities of the steps of each scale, or ``choices``, those of `CHOICES`, which make
    a verdict between 1 and -1.
    """

    dimensions: tuple[Dimension, ...]  # those asked about; exactly one where a number is asked for
    kind: Literal["scores", "verdicts", "number", "levels", "choices"] = "scores"
    questions: Mapping[str, Any] = field(default_factory=dict)  # to a decision model, by dimension, in order

    def schema(self) -> dict[str, Any]:
        """The form as a JSON schema, or the questions of a decision model."""
        if self.questions:
            return {**self.questions}
        if self.kind == "number":
            return _object({self.dimensions[0].name: {"type": "number"}})
        asks = "how the voices differ" if self.kind == "verdicts" else "what the voices sound like"
        fields: dict[str, Any] = {REASON: {"type": "string", "description": f"{asks}, one sentence"}}
        for dimension in self.dimensions:
            low, high = (int(x) if float(x).is_integer() else x for x in (dimension.minimum, dimension.maximum))
            is_integer = dimension.step is not None and all(
                float(x).is_integer() for x in (dimension.step, dimension.minimum)
            )
            kind = "integer" if is_integer else "number"
            scale = {"type": kind, "description": dimension.scale, "minimum": low, "maximum": high}
            fields[dimension.name] = {"type": "string", "enum": [*_PREFERENCE]} if self.kind == "verdicts" else scale
        return _object(fields)

    def in_words(self) -> str:
        """The form as an instruction, for models that take no schema."""
        if self.kind == "number":
            return f"Answer with one number alone, {self.dimensions[0].scale}."
        choice = '"first" or "second" or "tie"'
        fields = ", ".join(
            f'"{d.name}": {choice if self.kind == "verdicts" else f"<{d.scale}>"}' for d in self.dimensions
        )
        return f'Answer with one JSON object and nothing else: {{"{REASON}": "<one sentence>", {fields}}}'

    def read(
        self,
        answer: str,
        alternatives: Mapping[str, float] | None = None,
        levels: Mapping[str, Sequence[float | None]] | None = None,
    ) -> dict[str, float]:
        """Name -> number, from the last JSON object that has all names: models put prose and code fences around it.

        Raises:
            Unread: If the answer does not have the form.
        """
        if self.kind == "levels":
            return {d.name: _expected_level(read_levels(levels or {}, d), d) for d in self.dimensions}
        if self.kind == "choices":
            chosen = {d.name: _distribution(levels or {}, d.name, len(CHOICES)) for d in self.dimensions}
            return {name: first - second for name, (first, second) in chosen.items()}
        if self.kind == "number":
            (dimension,) = self.dimensions
            if (expected := _expected_score(alternatives or {}, dimension)) is not None:
                return {dimension.name: expected}
            if not (alone := _ALONE.fullmatch(answer.strip()[:_LONGEST])):
                raise Unread(UNREADABLE)
            return {dimension.name: _on_scale(alone[1], dimension)}
        objects = [value for value in _objects(answer[-_LONGEST:]) if all(d.name in value for d in self.dimensions)]
        if not objects:
            raise Unread(UNREADABLE)
        if self.kind == "scores":
            return {d.name: _on_scale(objects[-1][d.name], d) for d in self.dimensions}
        preferred = {d.name: str(objects[-1][d.name]).strip().lower() for d in self.dimensions}
        if not _PREFERENCE.keys() >= {*preferred.values()}:
            raise Unread(UNREADABLE)
        return {name: _PREFERENCE[which] for name, which in preferred.items()}


def read_levels(levels: Mapping[str, Sequence[float | None]], dimension: Dimension) -> list[float]:
    """The probabilities of the steps of a scale, lowest first, from `Reply.levels`; they sum to 1.

    Raises:
        Unread: If there is not one for each step, one is none, or their sum is off by more than 1 %.
    """
    return _distribution(levels, dimension.name, dimension.steps)


def _distribution(levels: Mapping[str, Sequence[float | None]], name: str, count: int) -> list[float]:
    given = levels.get(name, ())
    if len(given) != count:
        raise Unread(WRONG_LEVELS)
    numbers = [number for number in given if number is not None]
    total = sum(numbers)
    if len(numbers) != len(given) or not _SUM[0] <= round(total, 9) <= _SUM[1]:
        raise Unread(NO_DISTRIBUTION)
    return [number / total for number in numbers]


def _expected_level(probabilities: Sequence[float], dimension: Dimension) -> float:
    """The mean of a distribution over the steps of a scale, in rating points."""
    assert dimension.step is not None
    index = sum(number * probability for number, probability in enumerate(probabilities))
    return min(dimension.minimum + dimension.step * index, float(dimension.maximum))


def _expected_score(alternatives: Mapping[str, float], dimension: Dimension) -> float | None:
    """The mean of the scores on the scale that the first token could have been, weighted by their probabilities (Liu et
    al., 2023, G-Eval; `Reply.alternatives`); None where no token is one. Each score must be a single token: a digit."""
    weights: dict[float, float] = {}
    for token, logarithm in alternatives.items():
        text = token.strip()
        if re.fullmatch(r"-?\d+", text) and dimension.minimum <= float(text) <= dimension.maximum:
            # a server may report a logarithm above 0; no probability is above 1
            weights[float(text)] = weights.get(float(text), 0.0) + math.exp(min(0.0, logarithm))
    total = sum(weights.values())
    return sum(score * weight for score, weight in weights.items()) / total if total > 0 else None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield value
        start = text.find("{", end)


def _on_scale(value: Any, dimension: Dimension) -> float:
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise Unread(UNREADABLE)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Unread(UNREADABLE)
    # As for ratings: a number may miss the end of the scale by what floats round
    slack = STEP_TOLERANCE * (dimension.maximum - dimension.minimum)
    if not dimension.minimum - slack <= number <= dimension.maximum + slack:
        raise Unread(OUT_OF_RANGE)
    return number


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


# ---------------------------------------------------------------- questions


@dataclass(frozen=True)
class Sound:
    """A clip as it is sent: a WAV file, mono, 16 bit, and its duration in seconds."""

    wav: bytes = field(repr=False)
    seconds: float


@dataclass(frozen=True)
class PromptMessage:
    """One turn of the conversation with the judge; an example is a user turn and an assistant turn."""

    role: Literal["user", "assistant"]
    parts: tuple[str | Sound, ...]  # words and clips, in the order in which a judge gets them


@dataclass(frozen=True)
class Question:
    """A question, independent of the vendor's format."""

    system: str  # the instructions
    messages: tuple[PromptMessage, ...]  # the last one is the question
    form: AnswerForm  # what the answer must hold
    # how the form is imposed: by a schema, a function to call, in words, in words with the probabilities of other first
    # tokens, or by the questions of a decision model
    mode: AnswerMode
    temperature: float  # of sampling
    max_tokens: int  # longest answer

    @property
    def sounds(self) -> list[Sound]:
        """All clips, in order."""
        return [part for message in self.messages for part in message.parts if isinstance(part, Sound)]

    @property
    def texts(self) -> list[str]:
        """All texts but the system prompt, in order."""
        return [part for message in self.messages for part in message.parts if isinstance(part, str)]

    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that the answer depends on, except the model that is asked."""
        messages = [
            [message.role]
            + [p if isinstance(p, str) else {"sha256": hashlib.sha256(p.wav).hexdigest()} for p in message.parts]
            for message in self.messages
        ]
        content = [self.system, messages, self.form.schema(), self.mode, self.temperature, self.max_tokens]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class Example:
    """A rated pair that a judge is shown: the mean of its raters by dimension (rating points)."""

    pair: Pair
    scores: Mapping[str, float]


_ONE = "You hear what a person says (the context) and a spoken response to it."
_TWO = "You hear what a person says (the context) and two spoken responses to it."
_REPLY = "You hear a spoken response to what a person said (the context)."
_REPLIES = "You hear two spoken responses to what a person said (the context)."
_READ = "You read the transcript of what a person says (the context) and of a spoken response to it."
_ASK = "Rate the response."
_WHICH = "Which response deserves the higher rating on each quality?"


def score_question(
    pair: Pair,
    dimensions: Sequence[Dimension],
    settings: PromptedSettings,
    max_tokens: int,
    examples: Sequence[Example] = (),
) -> Question:
    """Asks for the scores of one pair, after rated examples.

    `PromptedSettings.answers` must be a way that the model supports, not ``auto``; with ``logprobs`` there is exactly
    one dimension, with ``levels`` there are no examples and each scale has steps.

    Raises:
        AudioError: If a clip cannot be used.
        UserError: If a transcript is asked for that the pair does not have.
    """
    scene = _READ if settings.hears == "transcript" else _REPLY if settings.clips == "response" else _ONE
    if settings.answers == "levels":
        asked = AnswerForm(tuple(dimensions), "levels", level_questions(settings.rubric, dimensions))
        said = PromptMessage("user", tuple(_pair_parts(pair, settings)))
        return Question(scene, (said,), asked, "levels", 0.0, max_tokens)
    shown_first: list[PromptMessage] = []
    for example in examples:
        shown_first.append(PromptMessage("user", (*_example_parts(example.pair, settings), _ASK)))
        shown_first.append(PromptMessage("assistant", (_example_answer(example, dimensions, settings),)))
    form = AnswerForm(tuple(dimensions), "number" if settings.answers == "logprobs" else "scores")
    return _question(settings, max_tokens, scene, shown_first, _pair_parts(pair, settings), _ASK, form)


def comparison_question(
    first: Pair, second: Pair, dimensions: Sequence[Dimension], settings: PromptedSettings, max_tokens: int
) -> Question:
    """Asks which of two responses to one context is better; see `score_question`."""
    parts = [
        *_pair_parts(first, settings, "First response"),
        *_side(settings, "Second response", [("Second response", second.response)], second, "response_text"),
    ]
    if settings.answers == "levels":
        asked = AnswerForm(tuple(dimensions), "choices", choice_questions(settings.rubric, dimensions))
        scene = _REPLIES if settings.clips == "response" else _TWO
        return Question(scene, (PromptMessage("user", tuple(parts)),), asked, "levels", 0.0, max_tokens)
    return _question(settings, max_tokens, _TWO, (), parts, _WHICH, AnswerForm(tuple(dimensions), "verdicts"))


def _question(
    settings: PromptedSettings,
    max_tokens: int,
    scene: str,
    before: Sequence[PromptMessage],
    parts: Sequence[str | Sound],
    ask: str,
    form: AnswerForm,
) -> Question:
    mode = settings.answers
    assert mode != "auto"
    ask = ask if mode in ("schema", "function") else f"{ask} {form.in_words()}"
    system = f"You are a careful rater of speech. {scene}\n\n{describe(settings.rubric, form.dimensions)}"
    messages = (*before, PromptMessage("user", (*parts, ask)))
    return Question(system, messages, form, mode, settings.sampling_temperature, max_tokens)


def _pair_parts(pair: Pair, settings: PromptedSettings, label: str = "Response") -> list[str | Sound]:
    """Situation, context and response, as clips, transcripts or both."""
    labels = ["Context"] if len(pair.context) == 1 else [f"Context, {turn.role}" for turn in pair.context]
    turns = [(clip_label, turn.audio) for clip_label, turn in zip(labels, pair.context, strict=True)]
    return [
        *([f"Situation: {pair.situation_or_none}"] if pair.situation_or_none else []),
        *(_side(settings, "Context", turns, pair, "context_text") if pair.context else []),
        *_side(settings, label, [(label, pair.response)], pair, "response_text"),
    ]


@lru_cache(maxsize=64)
def _example_parts(pair: Pair, settings: PromptedSettings) -> list[str | Sound]:
    """`_pair_parts` of an example, cached: the same examples are shown before every question."""
    return _pair_parts(pair, settings)


def _side(
    settings: PromptedSettings, label: str, clips: Sequence[tuple[str, AudioSource]], pair: Pair, column: str
) -> Iterator[str | Sound]:
    """Labelled clips, the transcript in a column of the pair, or both, depending on `settings.hears`."""
    left_out = label == "Context" and settings.clips == "response"
    if settings.hears != "transcript" and not left_out:
        for clip_label, source in clips:
            yield f"{clip_label} (audio):"
            yield sound_of(source)
    if settings.hears != "audio":
        text = getattr(pair, column)
        if not text:
            problem = f"pair {shown(pair.pair_id)} has no {column}"
            raise UserError(f"{problem}; expected transcripts in the data, or hears=audio")
        yield f"{label} (transcript): {text}"


def sound_of(source: AudioSource) -> Sound:
    """A clip as it is sent: mono, 16 bit, at its own rate up to `MAX_RATE`."""
    clip = load_clip(source)
    rate = min(clip.rate, MAX_RATE)
    samples = resample(clip.samples, clip.rate, rate)
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1), rate, format="WAV", subtype="PCM_16")
    return Sound(file.getvalue(), len(samples) / rate)


def _example_answer(example: Example, dimensions: Sequence[Dimension], settings: PromptedSettings) -> str:
    if settings.answers == "logprobs":  # rounded to a whole number: the first digit of 3.8 would teach the answer 3
        return f"{example.scores[dimensions[0].name]:.0f}"
    fields = ", ".join(f'"{d.name}": {example.scores[d.name]:.3g}' for d in dimensions)
    return f'{{"{REASON}": "mean of the raters", {fields}}}'
