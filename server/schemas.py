"""The JSON that the service answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ..assessment import Assessment, CautionCode, UncertainScore
from ..best_of import in_order
from ..data_modules.schema import Dimension
from .loaded import Loaded
from .problems import Code
from .service import Heard
from .settings import Settings

_SCORE: JsonValue = {
    "score": 3.87,
    "standard_error": 0.31,
    "low": 3.34,
    "high": 4.4,
    "abstained": False,
    "label": "good",
    "scale": {"minimum": 1.0, "maximum": 5.0, "higher_is_better": True},
}
_BEST: JsonValue = {"response": 2, "scores": {"vocal_empathy": _SCORE}, "warnings": []}
_JUDGE: JsonValue = {"name": "judge", "version": "5c682829dbb2e541"}
_SCORED: JsonValue = {
    "judge": _JUDGE,
    "level": 0.9,
    "seconds": {"context": [3.2], "responses": [4.05]},
    "scores": {"vocal_empathy": _SCORE},
    "warnings": [],
}
_RANKING: JsonValue = {
    "judge": _JUDGE,
    "level": 0.9,
    "seconds": {"context": [3.2], "responses": [4.05, 2.9]},
    "dimension": "vocal_empathy",
    "ranking": [_BEST],
}


class Scale(BaseModel):
    """Of a dimension, in rating points."""

    minimum: float
    maximum: float
    higher_is_better: bool


class Score(BaseModel):
    """On one dimension, and what is known of its error. Null = unknown."""

    score: float = Field(description="Rating points.")
    standard_error: float | None = Field(
        description="Of the score as a prediction of the mean rating; null without calibration."
    )
    low: float | None = Field(description="Lower end of the interval of this level.")
    high: float | None = Field(description="Its upper end.")
    abstained: bool = Field(description="The judge is too unsure to be asked; the score stands all the same.")
    label: str | None = Field(description="very poor, poor, fair, good or excellent; null where points mean nothing.")
    scale: Scale


class Warning_(BaseModel):
    """Why a score had better not be trusted."""

    model_config = ConfigDict(title="Warning")
    code: CautionCode
    about: Literal["context", "response", "pair"]
    text: str


class JudgeId(BaseModel):
    """Who judged."""

    name: str
    version: str = Field(description="Changes with the weights, the calibration and everything else in judge.json.")


class Seconds(BaseModel):
    """Duration of what was heard."""

    context: list[float] = Field(description="Of each turn, oldest first.")
    responses: list[float]


class _Answer(BaseModel):
    judge: JudgeId
    level: float = Field(description="Share of pairs that the intervals shall cover.")
    seconds: Seconds


class Scored(_Answer):
    """The score of one response."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SCORED]})
    scores: dict[str, Score] = Field(description="By dimension.")
    warnings: list[Warning_]


class Ranked(BaseModel):
    """One of several responses."""

    response: int = Field(description="Its place in the form, from 1.")
    scores: dict[str, Score]
    warnings: list[Warning_]


class Ranking(_Answer):
    """Several responses to one context, best first."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RANKING]})
    dimension: str = Field(description="What they are ranked by.")
    ranking: list[Ranked]


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
    message: str = Field(description="One line that says what is accepted.")


class Error(BaseModel):
    """The form of all errors."""

    error: ErrorBody


def scored(judge: Loaded, settings: Settings, heard: Heard) -> Scored:
    """The answer about one response."""
    (only,) = heard.assessments
    return Scored(
        judge=_id(judge, settings),
        level=heard.level,
        seconds=_seconds(heard),
        scores=_scores(only, judge.scorer.dimensions),
        warnings=_warnings(only),
    )


def ranking(judge: Loaded, settings: Settings, heard: Heard, dimension: Dimension) -> Ranking:
    """The answer about several; of equal ones the first comes first."""
    order = in_order(heard.assessments, [dimension])
    return Ranking(
        judge=_id(judge, settings),
        level=heard.level,
        seconds=_seconds(heard),
        dimension=dimension.name,
        ranking=[
            Ranked(
                response=own.index + 1,
                scores=_scores(own.found, judge.scorer.dimensions),
                warnings=_warnings(own.found),
            )
            for own in order
            if isinstance(own.found, Assessment)
        ],
    )


def about(judge: Loaded, settings: Settings) -> About:
    """The judge and its limits."""
    return About(
        judge=_id(judge, settings),
        dimensions=[AboutDimension(name=own.name, scale=_scale(own)) for own in judge.scorer.dimensions],
        calibrated=judge.scorer.calibration is not None,
        max_seconds=judge.max_seconds,
        max_bytes=settings.max_bytes,
    )


def _id(judge: Loaded, settings: Settings) -> JudgeId:
    return JudgeId(name=settings.name, version=judge.version)


def _seconds(heard: Heard) -> Seconds:
    return Seconds(context=list(heard.context_seconds), responses=list(heard.response_seconds))


def _warnings(assessment: Assessment) -> list[Warning_]:
    return [Warning_(code=warning.code, about=warning.about, text=warning.text) for warning in assessment.warnings]


def _scores(assessment: Assessment, dimensions: Sequence[Dimension]) -> dict[str, Score]:
    return {own.name: _score(assessment.scores[own.name], own) for own in dimensions}


def _score(score: UncertainScore, dimension: Dimension) -> Score:
    return Score(
        score=score.score,
        standard_error=score.standard_error,
        low=score.low,
        high=score.high,
        abstained=score.abstained,
        label=score.label,
        scale=_scale(dimension),
    )


def _scale(dimension: Dimension) -> Scale:
    return Scale(minimum=dimension.minimum, maximum=dimension.maximum, higher_is_better=dimension.higher_is_better)
