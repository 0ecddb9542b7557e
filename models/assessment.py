"""What a judge says of one response: the one type of a score, from the network to HTTP answers, tables and rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..data_modules.errors import AudioError
from .cautions import Caution, CautionCode

__all__ = ["Assessment", "Caution", "CautionCode", "Ranked", "Scale", "Score", "in_order"]

# For the OpenAPI document of the service: docstrings of fields describe them, and no field is ever left out
_SCHEMA = {"use_attribute_docstrings": True, "json_schema_serialization_defaults_required": True}


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a dimension, in rating points."""

    minimum: float
    maximum: float
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """A score on one dimension and what is known of its error; null where something is unknown."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _SCHEMA

    score: float
    """Rating points."""
    scale: Scale
    standard_error: float | None = None
    """Of the score as a prediction of the mean rating, in rating points; null without calibration."""
    low: float | None = None
    """Lower end of the interval of this level, in rating points; null where the calibration had too few pairs."""
    high: float | None = None
    """Its upper end."""
    abstained: bool = False
    """The judge is too unsure to be asked; the score stands all the same."""
    label: str | None = None
    """very poor, poor, fair, good or excellent; null where points mean nothing: the judge learned from comparisons."""

    def normalised(self, deviations: float = 0.0) -> float:
        """The score as a share of the scale, 0 (bad end) to 1 (good end).

        Args:
            deviations: Standard errors by which the score is taken to be worse; an unknown one counts as 0.
        """
        width = self.scale.maximum - self.scale.minimum
        share = (self.score - self.scale.minimum) / width
        share = share if self.scale.higher_is_better else 1 - share
        return share - deviations * (self.standard_error or 0.0) / width

    def in_words(self, level: float) -> str:
        """What follows the score in a line of text, given the level of the interval; empty = nothing is known."""
        if self.standard_error is None:
            return ""
        text = f", standard error {self.standard_error:.2f}"
        if self.low is not None and self.high is not None:
            text += f", {100 * level:g} % interval {self.low:.2f} to {self.high:.2f}"
        return text + (", too unsure: the judge abstains" if self.abstained else "")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a judge says of one response.

    Attributes:
        scores: By dimension.
        warnings: Reasons not to trust them; mostly none.
        windows: In which the pair was read, those of the response times those of each context turn: 1 = its clips were
            heard whole, more = one is longer than the backbone hears.
        seconds: Duration of the response; NaN = not measured.
    """

    scores: dict[str, Score]
    warnings: tuple[Caution, ...] = ()
    windows: int = 1
    seconds: float = math.nan

    @property
    def points(self) -> dict[str, float]:
        """The scores alone, rating points by dimension."""
        return {name: own.score for name, own in self.scores.items()}

    def merit(self, dimensions: Collection[str], deviations: float = 0.0) -> float:
        """Mean of the normalised scores on these dimensions, 0 (bad) to 1 (good); see `Score.normalised`."""
        return sum(self.scores[name].normalised(deviations) for name in dimensions) / len(dimensions)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A response and its place among others.

    Attributes:
        index: Its position in the list that was ranked, from 0.
        merit: What the order follows (`Assessment.merit`); None where it has no score.
        found: What the judge says of it, or what is wrong with its audio.
    """

    index: int
    merit: float | None
    found: Assessment | AudioError


def in_order(found: Sequence[Assessment | AudioError], dimensions: Collection[str]) -> list[Ranked]:
    """Responses with the best first; equal ones stay in order, those without a score come last.

    Args:
        found: What the judge says of each.
        dimensions: Names of those that count, equally.
    """
    ranked = [
        Ranked(index, None if isinstance(own, AudioError) else own.merit(dimensions), own)
        for index, own in enumerate(found)
    ]
    return sorted(ranked, key=lambda own: (own.merit is None, -(own.merit or 0.0)))
