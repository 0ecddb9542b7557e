"""Collects ratings and preferences one by one; one that cannot be used is an error that names its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..errors import DataError, shown
from ..ratings import PREFERENCE_COLUMNS, RATING_COLUMNS, Dimension, is_name


@dataclass
class Ratings:
    """Scores on one scale for all dimensions.

    Attributes:
        minimum: Lowest score (rating points).
        maximum: Highest score (rating points).
        whole: Whether only whole scores are accepted.
    """

    minimum: float
    maximum: float
    whole: bool = False
    _scores: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _places: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def add(self, pair_id: str, rater: Any, dimension: str, score: Any, where: str) -> None:
        """Takes one score in.

        Raises:
            DataError: If it is no score on the scale, the rater has no name, or has scored the same thing before.
        """
        _check_rater(rater, where)
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        on_scale = is_number and self.minimum <= score <= self.maximum  # NaN is outside too
        if not on_scale or (self.whole and score != int(score)):
            number = "whole number" if self.whole else "number"
            accepted = f"a {number} from {self.minimum:g} to {self.maximum:g}"
            raise DataError(f"{where}: value {shown(score)}; accepted: {accepted}")
        key = (pair_id, rater, dimension)
        if key in self._scores:
            raise DataError(f"{where}: rater {shown(rater)} has scored this at {self._places[key]} already")
        self._scores[key] = float(score)
        self._places[key] = where

    def pair_ids(self) -> set[str]:
        """The pairs that have a score."""
        return {pair_id for pair_id, _, _ in self._scores}

    def frame(self) -> pd.DataFrame:
        """Columns `RATING_COLUMNS`."""
        rows = [(*key, score) for key, score in self._scores.items()]
        return pd.DataFrame(rows, columns=pd.Index(RATING_COLUMNS)).astype({"score": "float64"})

    def scale(self, name: str) -> Dimension:
        """The dimension `name`; in steps of 1 if every score is whole, else without steps."""
        whole = self.whole or all(score.is_integer() for score in self._scores.values())
        return Dimension(name, self.minimum, self.maximum, 1 if whole else None)


@dataclass
class Preferences:
    """Comparisons of two pairs; strength 0 = tie."""

    _strengths: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    _places: dict[tuple[str, str, str, str], str] = field(default_factory=dict)

    def add(self, chosen: str, rejected: str, rater: Any, dimension: str, strength: float, where: str) -> None:
        """Takes one comparison in.

        Raises:
            DataError: If both are the same pair, the rater has no name, or has said the same before.
        """
        _check_rater(rater, where)
        if chosen == rejected:
            raise DataError(f"{where}: both clips are the same; accepted: two different clips")
        key = (chosen, rejected, rater, dimension)
        if key in self._strengths:
            raise DataError(f"{where}: rater {shown(rater)} has compared these at {self._places[key]} already")
        self._strengths[key] = strength
        self._places[key] = where

    def frame(self) -> pd.DataFrame:
        """Columns `PREFERENCE_COLUMNS`."""
        rows = [(*key, strength) for key, strength in self._strengths.items()]
        return pd.DataFrame(rows, columns=pd.Index(PREFERENCE_COLUMNS)).astype({"strength": "float64"})


def _check_rater(rater: Any, where: str) -> None:
    if not is_name(rater):
        raise DataError(f"{where}: rater {shown(rater)}; accepted: text without line breaks, not empty")
