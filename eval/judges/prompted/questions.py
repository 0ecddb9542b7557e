"""Questions to a prompted LLM judge about a pair: clips as WAV, a rubric, and the form that its answer must have."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile
import yaml

from ....data_modules.audio import AudioSource, load_clip, resample
from ....data_modules.errors import UserError, shown
from ....data_modules.ratings import LABELS, Dimension
from ....data_modules.schema import Pair
from ....data_modules.steps import STEP_TOLERANCE
from .settings import AnswerMode, PromptedSettings, RubricName

MAX_RATE = 24_000
"""Hz; clips are sent at their own rate up to this one. Every judge gets the same bytes."""
REASON = "reason"
"""The first field of an answer, in which the judge says what it heard."""
UNREADABLE, OUT_OF_RANGE = "unreadable answer", "score out of range"
"""Failures of an answer without a score."""
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
    first, -1 = the second, 0 = a tie. A ``number`` stands alone, for the expectation over its first token.
    """

    dimensions: tuple[Dimension, ...]  # those asked about; exactly one where a number is asked for
    kind: Literal["scores", "verdicts", "number"] = "scores"

    def schema(self) -> dict[str, Any]:
        """The form as a JSON schema."""
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

    def read(self, answer: str, alternatives: Mapping[str, float] | None = None) -> dict[str, float]:
        """Name -> number, from the last JSON object that has all names: models put prose and code fences around it.

        Raises:
            Unread: If the answer does not have the form.
        """
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


# ---------------------------------------------------------------- rubrics


@cache
def _rubrics() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("rubrics.yaml").read_text(encoding="utf-8"))


def describe(rubric: RubricName, dimensions: Sequence[Dimension]) -> str:
    """A rubric of ``rubrics.yaml`` in words, each dimension with the anchored points of its scale.

    Anchors are placed on the nearest possible score; on short scales the inner ones are left out.
    """
    chosen = _rubrics()[rubric]
    paragraphs = [chosen["aim"].replace("{delivery}", _rubrics()["delivery"])]
    for dimension in dimensions:
        anchors = chosen.get("anchors", LABELS)[:: 1 if dimension.higher_is_better else -1]
        lines: dict[str, str] = {}
        # The ends first, then the middle: on a short scale two anchors share a point, and the first one keeps it
        for position in (0, 4, 2, 1, 3):
            value = position / 4 * (dimension.maximum - dimension.minimum)
            if dimension.step is not None:
                value = round(value / dimension.step) * dimension.step
            lines.setdefault(f"{dimension.minimum + value:g}", anchors[position])
        head = f'{dimension.name.replace("_", " ")} ("{dimension.name}"), {dimension.scale}:'
        paragraphs.append("\n".join([head, *(f"  {point} = {lines[point]}" for point in sorted(lines, key=float))]))
    return "\n\n".join(paragraphs)


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
    # how the form is imposed: by a schema, a function to call, in words, or in words with the probabilities of other
    # first tokens
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
    one dimension.

    Raises:
        AudioError: If a clip cannot be used.
        UserError: If a transcript is asked for that the pair does not have.
    """
    shown_first: list[PromptMessage] = []
    for example in examples:
        shown_first.append(PromptMessage("user", (*_example_parts(example.pair, settings), _ASK)))
        shown_first.append(PromptMessage("assistant", (_example_answer(example, dimensions, settings),)))
    scene = _READ if settings.hears == "transcript" else _ONE
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
    if settings.hears != "transcript":
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
