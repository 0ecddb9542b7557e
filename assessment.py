"""What a judge says of one response: scores, what is known of their errors, and what speaks against trusting them."""

from __future__ import annotations

from dataclasses import dataclass

from .models.cautions import Caution, CautionCode

__all__ = ["Assessment", "Caution", "CautionCode", "UncertainScore"]


@dataclass(frozen=True, slots=True)
class UncertainScore:
    """A score on one dimension and what is known of its error; see `models.calibration` for what that means.

    Attributes:
        score: Rating points.
        standard_error: Of the score as a prediction of the mean rating, rating points; None = unknown.
        low: Lower end of the interval, rating points; None where the calibration had too few pairs for it.
        high: Its upper end.
        abstained: True where the judge is too unsure to be asked; the score stands all the same.
        label: The nearest of the words of `scales.LABELS`; None where scores are no rating points, because the judge
            learned from comparisons alone.
    """

    score: float
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    abstained: bool = False
    label: str | None = None

    def in_words(self, level: float) -> str:
        """What stands behind the score in a line of text, given the level of the interval; empty = nothing is known."""
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
        warnings: What speaks against trusting them; mostly nothing.
    """

    scores: dict[str, UncertainScore]
    warnings: tuple[Caution, ...] = ()

    @property
    def points(self) -> dict[str, float]:
        """The scores alone, rating points by dimension."""
        return {name: own.score for name, own in self.scores.items()}
