"""What the service answers: scores, rankings, errors; as JSON and in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.responses import JSONResponse

from ..models.assessment import Caution, Scale, Score
from ..models.three_way import BesideNext
from ..scorer import Scorer

Code = Literal[
    "bad_request", "unauthorized", "other_origin", "not_found", "method_not_allowed", "head_timeout", "body_timeout",
    "too_large", "uri_too_long", "not_multipart", "wrong_host", "invalid", "bad_audio", "busy", "head_too_large",
    "internal", "not_implemented", "loading", "stopping", "timeout", "bad_version",
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
    "head_timeout": (408, "the head of the request came too slowly"),
    "body_timeout": (408, "the body came too slowly; expected at most 60 s in all, 10 s of silence"),
    "too_large": (413, "the body is too large; expected at most 33554432 bytes"),
    "uri_too_long": (414, "the address of the request is too long; expected at most 16384 bytes"),
    "not_multipart": (415, "Content-Type; expected multipart/form-data with a boundary of at most 70 characters"),
    "wrong_host": (
        421,
        "this service is not asked by that Host; expected an IP address, localhost, or a name of serve --allowed-hosts",
    ),
    "invalid": (422, "response: missing"),
    "bad_audio": (422, "response: lasts 12.0 s; expected at most 10 s"),
    "busy": (429, "too many requests wait; ask again in 2 s"),
    "head_too_large": (431, "the head of the request is too large; expected at most 16384 bytes"),
    "internal": (500, "the service failed; its log knows more of request 3f0c"),
    "not_implemented": (501, "Transfer-Encoding; expected chunked, or none"),
    "loading": (503, "the judge is still being loaded; ask again in 5 s, or wait until GET /readyz answers 200"),
    "stopping": (503, "the service is stopping; ask another one"),
    "timeout": (504, "no score within 60 s; ask again when the service is less busy"),
    "bad_version": (505, "expected HTTP/1.1 or HTTP/1.0"),
}
"""HTTP status of each code, and its message, or an example of one."""
SCORING_ERRORS = (400, 403, 408, 413, 415, 422, 429, 500, 503, 504)
"""Statuses of the routes that score."""
_TITLES = {
    400: "The form cannot be read.",
    401: "The token is missing or wrong.",
    403: "A page of another origin asks.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is no form.",
    421: "The service is not asked by that name.",
    422: "A field is missing or wrong, or a clip cannot be used.",
    429: "Too many requests wait; Retry-After says when to ask again.",
    500: "The service failed.",
    503: "The judge is being loaded, or the service is stopping.",
    504: "There was no score in time.",
}


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

_SCORE: JsonValue = {
    "score": 3.87,
    "standard_error": 0.31,
    "low": 3.34,
    "high": 4.4,
    "abstained": False,
    "label": "good",
    "scale": {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True},
}
_ANSWER: dict[str, JsonValue] = {
    "judge": {"name": "judge", "version": "5c682829dbb2e541"},
    "level": 0.9,
    "seconds": {"context": [3.2], "responses": [4.05, 2.9]},
}
_OF_RESPONSE: dict[str, JsonValue] = {"scores": {"vocal_empathy": _SCORE}, "warnings": [], "windows": 1}
_SCORED: JsonValue = {**_ANSWER, "seconds": {"context": [3.2], "responses": [4.05]}, **_OF_RESPONSE}
_RANKING: JsonValue = {
    **_ANSWER,
    "dimension": "vocal_empathy",
    "ranking": [{"response": 2, **_OF_RESPONSE, "over_next": None}],
}
_REWARDS: JsonValue = {
    "judge": {"name": "judge", "version": "5c682829dbb2e541"},
    "dimensions": ["vocal_empathy"],
    "deviations": 0.5,
    "rewards": [
        {"response": 1, "content": f"{7:064x}", "reward": 0.68, "standard_error": 0.08, "reason": None},
        {
            "response": 2,
            "content": f"{8:064x}",
            "reward": None,
            "standard_error": None,
            "reason": {"code": "not a sound file", "text": "response 2: not a sound file; expected wav, flac, ogg"},
        },
    ],
}


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

    model_config = ConfigDict(json_schema_extra={"examples": [_SCORED]})
    scores: dict[str, Score] = Field(description="By dimension.")
    warnings: tuple[Caution, ...]  # with scores, windows and seconds an `Assessment`
    windows: int = Field(description=_IN_WINDOWS)


class Ranked(BaseModel):
    """One of several responses."""

    response: int = Field(description="Its place in the form, from 1.")
    scores: dict[str, Score]
    warnings: tuple[Caution, ...]
    windows: int = Field(description=_IN_WINDOWS)
    over_next: BesideNext | None = Field(
        description="What people will say of it and the next one; null = not known, or there is no next one."
    )


class Ranking(Answer):
    """Several responses to one context, best first."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RANKING]})
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

    model_config = ConfigDict(json_schema_extra={"examples": [_REWARDS]})
    judge: JudgeId
    dimensions: list[str] = Field(description="What counted, equally.")
    deviations: float = Field(description="Standard errors by which each score was taken to be worse.")
    rewards: list[RewardOf]


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


class Health(BaseModel):
    """How the service is."""

    status: str


class ErrorBody(BaseModel):
    """What went wrong."""

    code: Code
    message: str = Field(description="One line that says what is expected.")


class Error(BaseModel):
    """The form of all errors."""

    error: ErrorBody


# ---------------------------------------------------------------- the OpenAPI document


def responses(*statuses: int, token: bool) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for FastAPI.

    Args:
        *statuses: Statuses that it may answer with.
        token: Whether it wants a token.
    """
    errors: dict[int | str, dict[str, Any]] = {}
    possible: list[int] = [*statuses, 421, *([401] if token else [])]
    for status in sorted(possible):
        headers: dict[str, Any] = {
            "X-Request-ID": {
                "description": "Of this request, in the log too; the client may choose it.",
                "schema": {"type": "string", "maxLength": 64},
            }
        }
        if status in (429, 503):
            headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
        examples = {
            code: {"value": {"error": {"code": code, "message": message}}}
            for code, (number, message) in ERRORS.items()
            if number == status
        }
        errors[status] = {
            "model": Error,
            "description": _TITLES[status],
            "headers": headers,
            "content": {"application/json": {"examples": examples}},
        }
    return errors


def tailor(document: dict[str, Any], scorer: Scorer) -> None:
    """Write what only the judge knows into the whole OpenAPI document: its dimensions, and that without intervals no
    level is accepted, and without known preferences no `max_error`."""
    dimensions = [dimension.name for dimension in scorer.dimensions]
    for path in ("/v1/score", "/v1/rank", "/v1/reward"):
        body = document["paths"][path]["post"]["requestBody"]
        properties = body["content"]["multipart/form-data"]["schema"]["properties"]
        if scorer.calibration is None:
            properties.pop("level", None)
            properties.pop("deviations", None)
        if not scorer.knows_preferences:
            properties.pop("max_error", None)
        if "dimension" in properties:
            # it may be left out or be empty where there is only one dimension, and for a reward
            optional = len(dimensions) == 1 or path == "/v1/reward"
            properties["dimension"]["enum"] = [*dimensions, ""] if optional else dimensions
