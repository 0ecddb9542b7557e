"""What the service answers: scores, rankings, errors; as JSON and in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from ..scoring.assessment import Caution, Scale, Score
from ..scoring.three_way import OverNext

Code = Literal[
    "bad_request", "unauthorized", "other_origin", "not_found", "method_not_allowed", "body_timeout", "too_large",
    "not_multipart", "not_json", "wrong_host", "invalid", "bad_audio", "busy", "head_too_large", "internal",
    "no_distribution", "loading", "stopping", "timeout",
]  # fmt: skip
ERRORS: Mapping[Code, tuple[int, str]] = {
    "bad_request": (400, "the form cannot be read: its end is missing"),
    "unauthorized": (401, "expected the header Authorization: Bearer with the token of this service"),
    "other_origin": (
        403,
        "a page of another origin may not ask; expected the page of this service, or a host of serve --allowed-hosts",
    ),
    "not_found": (404, "no such page"),
    "method_not_allowed": (405, "this page does not know the method"),
    "body_timeout": (408, "the body came too slowly; expected at most 60 s in all, 10 s of silence"),
    "too_large": (413, "the body is too large; expected at most 33554432 bytes"),
    "not_multipart": (415, "Content-Type; expected multipart/form-data with a boundary"),
    "not_json": (415, "Content-Type; expected application/json"),
    "wrong_host": (
        421,
        "this service is not asked by that Host; expected an IP address, localhost, or a name of serve --allowed-hosts",
    ),
    "invalid": (422, "response: missing"),
    "bad_audio": (422, "response: lasts 12.0 s; expected at most 10 s"),
    "busy": (429, "too many requests wait; ask again in 2 s"),
    "head_too_large": (431, "the head of the request is too large; expected at most 16384 bytes"),
    "internal": (500, "the service failed; its log knows more of request 3f0c"),
    "no_distribution": (
        501,
        "this judge predicts no distribution of ratings; expected one that was trained with --judge.head histogram",
    ),
    "loading": (503, "the judge is still being loaded; ask again in 5 s, or wait until GET /readyz answers 200"),
    "stopping": (503, "the service is stopping; ask another one"),
    "timeout": (504, "no score within 60 s; ask again when the service is less busy"),
}
"""HTTP status of each code, and its message, or an example of one."""
SCORING_ERRORS = (400, 403, 408, 413, 415, 422, 429, 500, 503, 504)
"""Statuses of the routes that score."""
DECISION_ERRORS = (*SCORING_ERRORS, 501)


class Problem(Exception):
    """An answer that is an error.

    Args:
        code: For programs.
        message: For people; one line that says what is expected. None = that of `ERRORS`.
        headers: Of the answer.
    """

    def __init__(self, code: Code, message: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message or ERRORS[code][1])
        self.code: Code = code
        self.status = ERRORS[code][0]
        self.headers = headers

    def response(self) -> JSONResponse:
        """The answer, in the one form that all errors have."""
        body = Error(error=ErrorBody(code=self.code, message=str(self)))
        return JSONResponse(body.model_dump(), self.status, headers=self.headers)


class ClientGone(Exception):
    """The client hung up."""


# ---------------------------------------------------------------- answers

_IN_WINDOWS = (
    "In how many the pair was read: 1 = its clips were heard whole; more = one is longer than the judge hears."
)


class JudgeId(BaseModel):
    """Who judged."""

    name: str
    version: str = Field(description="Changes with the weights, the calibration and everything else in judge.json.")


class Seconds(BaseModel):
    """Duration of what was heard."""

    context: list[float] = Field(description="Of each turn, oldest first.")
    responses: list[float]


class Answer(BaseModel):
    """What all answers about responses have."""

    judge: JudgeId
    level: float = Field(description="Share of pairs that the intervals shall cover.")
    seconds: Seconds


class Scored(Answer):
    """The score of one response."""

    scores: dict[str, Score] = Field(description="By dimension.")
    warnings: tuple[Caution, ...]
    levels: dict[str, tuple[float, ...]] | None = Field(
        default=None,
        exclude_if=lambda levels: levels is None,
        description="By dimension, the share of raters expected at each step of the scale, the lowest first; left out "
        "where the judge predicts no distribution.",
    )
    windows: int = Field(description=_IN_WINDOWS)


class Ranked(BaseModel):
    """One of several responses."""

    response: int = Field(description="Its place in the form, from 1.")
    scores: dict[str, Score]
    warnings: tuple[Caution, ...]
    windows: int = Field(description=_IN_WINDOWS)
    over_next: OverNext | None = Field(
        description="What people will say of it and the next one; null = not known, or there is no next one."
    )


class Ranking(Answer):
    """Several responses to one context, best first."""

    dimension: str = Field(description="What they are ranked by.")
    ranking: list[Ranked]


class Reason(BaseModel):
    """Why a response has no reward, or the lowest."""

    code: str = Field(
        description="`no_speech`, `clipped`, `the file is empty` (no samples) and `too short`: the lowest, for the "
        "policy broke it. All others: there is no reward, for the judge did not hear it (`not a clip`: 0 bytes), or "
        "does not know such pairs (`unlike_training`)."
    )
    text: str = Field(description="For people.")


class RewardOf(BaseModel):
    """The reward of one response."""

    response: int = Field(description="Its place in the form, from 1.")
    content: str = Field(
        description="SHA-256 of response, context and situation as they were sent. What has the same one gets the same "
        "reward from the same judge, and is not scored again."
    )
    reward: float | None = Field(description="0 (bad end of the scale) to 1 (good end); null = none, leave it out.")
    standard_error: float | None = Field(description="Of the score, as a share of the scale; null where it is unknown.")
    reason: Reason | None = Field(description="null = the reward is what the judge says.")


class Rewards(BaseModel):
    """Rewards of responses to one context, in their order."""

    judge: JudgeId
    dimensions: list[str] = Field(description="What counted, equally.")
    deviations: float = Field(description="Standard errors by which each score was taken to be worse.")
    rewards: list[RewardOf]


class ScoreAnswer(BaseModel):
    """The answer to a question of type `score`."""

    type: Literal["score"] = "score"
    score: float = Field(description="Mean level, counted from 0: the mean of the probabilities.")
    confidence: float = Field(
        ge=0,
        le=1,
        description="By TypeSafe AI's formula: 1 less the mean distance from the most likely level, over that which "
        "equal probabilities have from the middle of the scale; at least 0.",
    )
    legend: dict[str, str] = Field(description="Level -> its text in the request.")
    probabilities: dict[str, float] = Field(description="Level -> the share of raters that is expected there.")
    x_rating: float = Field(description="The score of `/v1/score`, rating points; calibrated where the judge is.")
    x_standard_error: float | None = Field(description="Of it; null without calibration.")
    x_low: float | None = Field(description="Lower end of its interval; null where it is unknown.")
    x_high: float | None = Field(description="Upper end.")


class NoTokens(BaseModel):
    """What clients of the protocol expect to be billed for."""

    input_tokens: Literal[0] = 0
    output_tokens: Literal[0] = 0


class Decision(Answer):
    """The answers to questions about one response."""

    model: str = Field(description="The name of the judge.")
    answers: dict[str, ScoreAnswer] = Field(description="By the id of the question.")
    usage: NoTokens = NoTokens()
    warnings: tuple[Caution, ...] = Field(description="Reasons not to trust the answers; mostly none.")


class Model(BaseModel):
    """The judge as a model."""

    name: str
    description: str
    release_date: str = Field(description="Empty: it is not known.")


class Models(BaseModel):
    """The models of the service: its judge."""

    models: list[Model]


class AboutDimension(BaseModel):
    """A quality that is judged."""

    name: str
    scale: Scale


class About(BaseModel):
    """The judge and the limits of the service."""

    judge: JudgeId
    dimensions: list[AboutDimension]
    calibrated: bool = Field(description="Scores come with standard errors and intervals.")
    max_seconds: float = Field(description="Longest clip.")
    max_bytes: int = Field(description="Largest request.")


class ErrorBody(BaseModel):
    """What went wrong."""

    code: Code
    message: str = Field(description="One line that says what is expected.")


class Error(BaseModel):
    """The form of all errors."""

    error: ErrorBody


def responses(*statuses: int, token: bool) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for the OpenAPI document: these statuses, and those that any route may answer with."""
    possible: list[int] = [*statuses, 421, *([401] if token else [])]
    errors: dict[int | str, dict[str, Any]] = {}
    for status in sorted(possible):
        examples = {
            code: {"value": {"error": {"code": code, "message": message}}}
            for code, (number, message) in ERRORS.items()
            if number == status
        }
        content = {"application/json": {"examples": examples}}
        errors[status] = {"model": Error, "description": HTTPStatus(status).phrase, "content": content}
    return errors
