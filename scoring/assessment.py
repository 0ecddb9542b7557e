"""What a judge says of one response: the one type of a score, from the network to HTTP answers, tables and rewards; and
reasons not to trust it.

Cautions are found in the clips themselves and in how they differ from those of the calibration: durations, levels,
pitch, turns of the context. A pair inside these ranges may still be unlike the training data, in its language or in
what is said, which nothing here notices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..audio.decode import CLIPPED
from ..audio.prosody import HOP, MIN_VOICED, RATE, ClipFacts
from ..core.errors import AudioError
from ..data_modules.ratings import LABELS, Dimension

CautionCode = Literal["short", "no_speech", "unlike_training"]
"""``short``: a clip hardly lasts long enough to have a manner of speaking. ``no_speech``: no voice was found in a clip
(whispering has none either). ``unlike_training``: the pair is unlike those that the judge was calibrated on, and its
agreement with people says nothing here."""
SHORT = 0.5
"""Seconds below which a clip is called short: two or three syllables."""
_WIDER_SECONDS = 1.25  # factor at both ends
_WIDER_LEVEL = 6.0  # dB
_WIDER_PITCH = 2 ** (3 / 12)  # factor: three semitones
_TURNS = "turns of context"
_UNITS = {"seconds": " s", "level": " dBFS", "pitch": " Hz"}


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
        """The score as a share of the scale, 0 (bad end) to 1 (good end), worse by so many standard errors; an unknown
        one counts as 0.
        """
        width = self.scale.maximum - self.scale.minimum
        share = (self.score - self.scale.minimum) / width
        share = share if self.scale.higher_is_better else 1 - share
        return share - deviations * (self.standard_error or 0.0) / width

    def in_words(self, level: float) -> str:
        """The text that follows the score in a line, given the level of the interval; empty = nothing is known."""
        if self.standard_error is None:
            return ""
        text = f", standard error {self.standard_error:.2f}"
        if self.low is not None and self.high is not None:
            text += f", {100 * level:g} % interval {self.low:.2f} to {self.high:.2f}"
        return text + (", too unsure: the judge abstains" if self.abstained else "")


def label(dimension: Dimension, score: float) -> str:
    """The nearest of `LABELS` to a score in rating points. A score midway between two gets the better one. Where
    low scores are good, the lowest is excellent."""
    share = (score - dimension.minimum) / (dimension.maximum - dimension.minimum)
    share = share if dimension.higher_is_better else 1 - share
    # `floor` of a half more and not `round`, which takes halves to the even number
    return LABELS[int(np.clip(np.floor(share * (len(LABELS) - 1) + 0.5), 0, len(LABELS) - 1))]


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a judge says of one response.

    Attributes:
        scores: By dimension.
        warnings: Reasons not to trust them; mostly none.
        windows: In which the pair was read, those of the response times those of each context turn: 1 = its clips were
            read as a whole, more = one is longer than the backbone reads at once.
        seconds: Duration of the response; NaN = not measured.
        levels: By dimension the share of raters that the judge expects at each step of the scale, the lowest first;
            None where its head gives no distribution. The shares are those of the head: a calibration moves scores and
            not them, so that their mean may differ from a calibrated score.
    """

    scores: dict[str, Score]
    warnings: tuple[Caution, ...] = ()
    windows: int = 1
    seconds: float = math.nan
    levels: dict[str, tuple[float, ...]] | None = None

    @property
    def points(self) -> dict[str, float]:
        """The scores alone, rating points by dimension."""
        return {name: score.score for name, score in self.scores.items()}

    def merit(self, dimensions: Collection[str], deviations: float = 0.0) -> float:
        """Mean of the normalised scores on these dimensions, 0 (bad) to 1 (good); see `Score.normalised`."""
        return sum(self.scores[name].normalised(deviations) for name in dimensions) / len(dimensions)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A response and its place among others: its position in the list that was ranked (from 0), the merit that the
    order follows (None where it has no score), and what the judge says of it, or what is wrong with its audio."""

    index: int
    merit: float | None
    found: Assessment | AudioError


def in_order(found: Sequence[Assessment | AudioError], dimensions: Collection[str]) -> list[Ranked]:
    """Sort responses, the best first, by the mean of the named dimensions; equal ones keep their order, those without a
    score come last.
    """
    ranked = [
        Ranked(index, None if isinstance(outcome, AudioError) else outcome.merit(dimensions), outcome)
        for index, outcome in enumerate(found)
    ]
    # Sorting is stable: equal ones keep their order
    return sorted(ranked, key=lambda response: (response.merit is None, -(response.merit or 0.0)))


@dataclass(frozen=True)
class Domain:
    """Ranges of the calibration pairs, a little widened at both ends."""

    n: Annotated[int, Field(ge=0)]  # pairs
    # lowest and highest value by name: `turns of context`, `response seconds`, `context seconds` (of its last turn),
    # and `level` and `pitch` of any of both clips: a voice that occurred as context is known
    ranges: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            if not -math.inf < low <= high < math.inf:
                raise ValueError(f"range of {name} {low:g} to {high:g}; expected finite, rising numbers")

    def departures(self, clips: Sequence[ClipFacts]) -> list[str]:
        """What about a pair lies outside the ranges, in words; usually nothing. Its clips are those of the context
        turns, then that of the response.
        """
        outside = []
        for what, name, value in _values(clips):
            low, high = self.ranges.get(name, (-math.inf, math.inf))
            if not low <= value <= high:
                unit = _UNITS.get(name.rpartition(" ")[2], "")
                outside.append(f"{what}: {value:.3g}{unit}, calibrated on {low:.3g} to {high:.3g}{unit}")
        return outside


def fit_domain(pairs: Sequence[Sequence[ClipFacts]]) -> Domain:
    """The ranges of one or more pairs, each given by its clips as for `departures`."""
    observed: dict[str, list[float]] = {}
    for clips in pairs:
        for _, name, value in _values(clips):
            observed.setdefault(name, []).append(value)
    return Domain(len(pairs), {name: _wider(name, min(values), max(values)) for name, values in observed.items()})


def _values(clips: Sequence[ClipFacts]) -> list[tuple[str, str, float]]:
    """Each measurement of a pair: in words, name of its range, value. Clips without a voice have no pitch."""
    *turns, response = clips
    values = [(_TURNS, _TURNS, float(len(turns)))]
    for what, facts in (("response", response), *((("context", turns[-1]),) if turns else ())):
        values.append((f"seconds of the {what}", f"{what} seconds", facts.seconds))
        values.append((f"level of the {what}", "level", facts.level))
        if not math.isnan(facts.pitch):
            values.append((f"pitch of the {what}", "pitch", facts.pitch))
    return values


def _wider(name: str, low: float, high: float) -> tuple[float, float]:
    if name == _TURNS:
        return low, high
    if name.endswith("level"):
        return low - _WIDER_LEVEL, high + _WIDER_LEVEL
    factor = _WIDER_SECONDS if name.endswith("seconds") else _WIDER_PITCH
    # By a factor, as pitch and duration are heard; levels are in dB already
    return low / factor, high * factor


@dataclass(frozen=True, slots=True)
class Caution:
    """A reason not to trust a score: a code for programs, a text for people (which clip, what was found, what would be
    usual), and what is unusual."""

    code: CautionCode
    text: str
    about: Literal["context", "response", "pair"]


def cautions(clips: Sequence[ClipFacts], domain: Domain | None) -> tuple[Caution, ...]:
    """What is wrong with a pair, given its clips as for `departures` and the domain of the judge (None = unknown)."""
    reasons: list[Caution] = []
    turns = len(clips) - 1
    for number, clip in enumerate(clips):
        name = "response" if number == turns else "context" if turns == 1 else f"context, turn {number + 1}"
        about = "response" if number == turns else "context"
        if clip.seconds < SHORT:
            reasons.append(Caution("short", f"{name}: lasts {clip.seconds:.2f} s; usual: at least {SHORT} s", about))
        if not clip.voiced:
            text = f"{name}: less than {MIN_VOICED * HOP / RATE:g} s with a voice in {clip.seconds:.2f} s"
            reasons.append(Caution("no_speech", text, about))
    if domain is not None and (departures := domain.departures(clips)):
        reasons.append(Caution("unlike_training", "; ".join(departures), "pair"))
    return tuple(reasons)


# As a reward

ENDED = ("the file is empty", "too short")
"""Kinds of errors of a response in which the policy said nothing."""
OF_THE_POLICY = (*ENDED, "no_speech", "clipped")
"""Codes of failures that the policy caused. It never causes those of a file or of a limit of the judge."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What a response is worth.

    Attributes:
        reward: From 0 (bad end of the scale) to 1 (good end); None = the judge has not scored it, or is not to be
            believed here.
        standard_error: Of the score, as a share of the scale; None where it is unknown.
        code: Why there is none, or why it is the lowest: the kind of an `AudioError`, ``no_speech``, ``clipped``,
            ``unlike_training``, ``no finite score``; None = it is what the judge says.
        text: The same for people.
    """

    reward: float | None
    standard_error: float | None = None
    code: str | None = None
    text: str | None = None


def reward_of(
    found: Assessment | AudioError,
    dimensions: Sequence[str],
    deviations: float = 0.0,
    limits: tuple[float, float] = (0.0, 1.0),
    clipped: bool = False,
) -> Reward:
    """The reward of a response.

    Args:
        found: What the judge says of it. An error is of the response, not of its context.
        dimensions: Dimensions that count, equally.
        deviations: Standard errors by which each score is taken to be worse.
        limits: Lowest and highest reward.
        clipped: See `audio.decode.is_clipped`.

    Returns:
        The lowest reward where the policy broke the response: it is empty, without a voice, or clipped. None where it
        was not scored, or is outside the ranges of the pairs that the judge was calibrated on.
    """
    low, high = limits
    if isinstance(found, AudioError):
        return Reward(low if found.kind in ENDED else None, None, found.kind, str(found))
    # The context is not the doing of the policy
    warned = {caution.code: caution.text for caution in found.warnings if caution.about != "context"}
    if "no_speech" in warned:
        return Reward(low, None, "no_speech", warned["no_speech"])
    if clipped:
        return Reward(low, None, "clipped", f"response: {100 * CLIPPED:g} % or more of its samples are at full scale")
    if "unlike_training" in warned:
        return Reward(None, None, "unlike_training", warned["unlike_training"])
    # Before the limits, so that a cautious reward may reach the lowest
    merit = found.merit(dimensions, deviations)
    if not math.isfinite(merit):
        return Reward(None, None, "no finite score", "response: the judge has no finite score for it")
    unknown = any(found.scores[name].standard_error is None for name in dimensions)
    error = None if unknown else found.merit(dimensions) - found.merit(dimensions, 1.0)
    return Reward(min(max(merit, low), high), error)
