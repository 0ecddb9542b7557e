"""The judge as a decision model: questions of the System One protocol (TypeSafe AI), in JSON with clips as data URLs.

Protocol and clients ask for levels of a scale and get a probability for each. A judge answers with the shares of
raters that it expects, on its own dimensions alone: the words of a question are not read, only given back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from starlette.requests import Request

from ..core.errors import counted, shown
from ..core.json_text import parse_json
from ..data_modules.schema import Dimension
from ..scoring.assessment import Assessment
from .forms import IntervalForm, body_of
from .schemas import Code, Problem, ScoreAnswer
from .settings import MAX_TURNS, Limits

_MOST_QUESTIONS, _MOST_LEVELS = 64, 1001
_DATA_URL = re.compile(r"data:audio/[\w.+-]+(;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
_CLIPS = Field(default=None, min_length=1, max_length=MAX_TURNS + 1)
_STRICT = ConfigDict(extra="forbid", strict=True)
# What is given back. Without a constraint pydantic 2 lets half a character through ("\ud800"), which no UTF-8 can hold
_Text = Annotated[str, StringConstraints(min_length=1)]


class _Closed(BaseModel):
    model_config = _STRICT

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_name(cls, values: Any) -> Any:
        """Says as much as 300,000, whose errors take seconds."""
        if not isinstance(values, dict):
            return values
        unknown = next((name for name in values if name not in cls.model_fields), None)
        if unknown is None:
            return values
        return {name: values[name] for name in (*cls.model_fields, unknown) if name in values}


class Situation(_Closed):
    """A state that is an object."""

    situation: str = Field(description="Text about the situation, as raters were given it.")


class Question(_Closed):
    """A question about a dimension of the judge."""

    type: Literal["score"]
    instructions: str = Field(default="", description="The name of the dimension, where the id of the question is not.")
    criteria: list[_Text] = Field(
        min_length=2,
        max_length=_MOST_LEVELS,
        description="A text for each step of the scale, the lowest rating first. The texts are given back, not read.",
    )


def _few(questions: Any) -> Any:
    """All questions, or one more than there may be: pydantic looks at all of them before it counts."""
    return dict(islice(questions.items(), _MOST_QUESTIONS + 1)) if isinstance(questions, dict) else questions


class DecisionRequest(_Closed):
    """What `/v1/systemone` takes."""

    questions: Annotated[dict[_Text, Question], BeforeValidator(_few)] = Field(min_length=1, max_length=_MOST_QUESTIONS)
    state: str | Situation = Field(default="", description="Text about the situation, as raters were given it.")
    model: str | None = Field(default=None, description="Any; there is one judge.")
    audio: list[str] | None = _CLIPS
    files: list[str] | None = _CLIPS

    @classmethod
    def body(cls) -> dict[str, Any]:
        """The request as the OpenAPI document has it."""
        schema = cls.model_json_schema()
        kinds = schema.pop("$defs")
        schema["properties"]["questions"]["additionalProperties"] = kinds["Question"]
        schema["properties"]["state"]["anyOf"][1] = kinds["Situation"]
        for name in ("audio", "files"):
            schema["properties"][name]["description"] = (
                "Clips as data URLs (`data:audio/wav;base64,...`): the last one is the response that is judged, those "
                "before it the context, oldest first. `audio` or `files`; nothing is fetched."
            )
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class DecisionForm(IntervalForm):
    """A request as the service scores it."""

    MEDIA: ClassVar[str] = "application/json"
    WRONG_MEDIA: ClassVar[Code] = "not_json"

    response: bytes
    questions: dict[str, Question]

    def asked(self, dimensions: Sequence[Dimension]) -> dict[str, Dimension]:
        """The dimension of each question.

        Raises:
            Problem: If a question names none, or has another number of levels than its scale has steps.
        """
        by_name, found = {dimension.name: dimension for dimension in dimensions}, {}
        for name, question in self.questions.items():
            where, dimension = _place("questions", name), by_name.get(name) or by_name.get(question.instructions)
            if dimension is None:
                expected = f"expected an id or instructions that name a dimension of this judge: {', '.join(by_name)}"
                raise Problem("invalid", f"{where}: {expected}")
            if len(question.criteria) != dimension.steps:
                expected = f"expected {dimension.steps}, one for each step from {dimension.scale}, lowest first"
                raise Problem("invalid", f"{where}.criteria: {counted(len(question.criteria), 'level')}; {expected}")
            found[name] = dimension
        return found


async def receive_decision(
    request: Request, form: type[DecisionForm], limits: Limits, count: Callable[[int], None]
) -> DecisionForm:
    """Read a request, in memory; arguments and errors are those of `forms.receive`."""
    body = bytearray()
    async for piece in body_of(request, limits, count):
        body += piece
    # Megabytes of Base64 would hold up all others
    return await asyncio.to_thread(_parsed, bytes(body), form)


def _parsed(body: bytes, form: type[DecisionForm]) -> DecisionForm:
    try:
        sent = DecisionRequest.model_validate(parse_json(body))
        state = sent.state if isinstance(sent.state, str) else sent.state.situation
        *context, response = _clips_of(sent)
        return form(context=context, response=response, situation=state, questions=sent.questions)
    except ValidationError as error:
        raise Problem("invalid", _first(error)) from None
    # Lists within lists, some thousand deep, exhaust Python's stack
    except (ValueError, RecursionError) as error:
        raise Problem("bad_request", f"the body is no JSON: {error}") from None


def _place(*parts: str) -> str:
    """Where something stands; names are those of a stranger."""
    # Without the quotes
    return shown(".".join(parts))[1:-1]


def _first(error: ValidationError) -> str:
    """The first problem in a line, without the values, which are those of a stranger."""
    problem = error.errors(include_input=False)[0]
    place = [str(part) for part in problem["loc"]]
    expected = {
        "extra_forbidden": f"not known; expected {', '.join(DecisionRequest.model_fields)}",
        "literal_error": "expected a question of type score",
        "missing": "missing",
    }
    if len(place) > 1 and problem["type"] == "extra_forbidden":
        expected["extra_forbidden"] = "not known; expected type, instructions and criteria"
    # A union gives an error for each of its members, and none of them names both
    if place[:1] == ["state"]:
        place, expected = ["state"], {problem["type"]: 'expected text about the situation, or {"situation": text}'}
    reason = expected.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return f"{_place(*place) or 'the body'}: {re.sub(r'^[A-Z][a-z]+ should', 'expected to', reason)}"


def _clips_of(sent: DecisionRequest) -> list[bytes]:
    """The clips in a request, in order."""
    if (sent.audio is None) == (sent.files is None):
        raise Problem("invalid", "audio: expected clips there, or in files: the last one is the response")
    name, urls = ("audio", sent.audio) if sent.audio is not None else ("files", sent.files or [])
    clips = []
    for number, url in enumerate(urls, start=1):
        head, where = _DATA_URL.match(url), f"{name}, clip {number}"
        if head is None:
            expected = "expected a data URL such as data:audio/wav;base64,...; nothing is fetched"
            raise Problem("invalid", f"{where}: {expected}")
        try:
            clips.append(base64.b64decode(url[head.end() :], validate=True))
        except (binascii.Error, ValueError):
            raise Problem("invalid", f"{where}: no Base64; expected the bytes of a sound file") from None
    return clips


def confidence(probabilities: Sequence[float]) -> float:
    """How sure a distribution over levels is, 0 to 1, as TypeSafe AI computes it: 1 less the mean distance from the
    most likely level, over that which equal probabilities have from the middle of the scale; at least 0."""
    levels = range(len(probabilities))
    likely, middle = max(levels, key=lambda level: probabilities[level]), (len(probabilities) - 1) / 2
    distance = sum(share * abs(level - likely) for level, share in zip(levels, probabilities, strict=True))
    return max(0.0, 1 - distance / (sum(abs(level - middle) for level in levels) / len(probabilities)))


def answers_of(form: DecisionForm, asked: Mapping[str, Dimension], found: Assessment) -> dict[str, ScoreAnswer]:
    """The answer to each question."""
    answers = {}
    for name, dimension in asked.items():
        shares, score = (found.levels or {})[dimension.name], found.scores[dimension.name]
        answers[name] = ScoreAnswer(
            score=sum(level * share for level, share in enumerate(shares)),
            confidence=confidence(shares),
            legend={str(level): text for level, text in enumerate(form.questions[name].criteria)},
            probabilities={str(level): share for level, share in enumerate(shares)},
            x_rating=score.score,
            x_standard_error=score.standard_error,
            x_low=score.low,
            x_high=score.high,
        )
    return answers
