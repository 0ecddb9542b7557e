"""What speaks against trusting a score, found in the clips themselves and in how they differ from those of the
calibration.

Ranges of what can be measured and named: durations, levels, pitch, turns of the context. A pair inside them may still
be unlike the training data, in its language or in what is said, which nothing here notices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from ..data_modules.audio import Clip, decode
from ..data_modules.prosody import HOP, MIN_VOICED, RATE, steady_pitch, track

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


class ClipFacts(NamedTuple):
    """One clip.

    Attributes:
        seconds: Duration.
        level: RMS of the frames that are no pauses, dB relative to full scale.
        voiced: Seconds in which a voice has a pitch; 0 where there are too few to tell.
        pitch: Median fundamental frequency in Hz; NaN without a voice.
    """

    seconds: float
    level: float
    voiced: float
    pitch: float


def clip_facts(windows: Sequence[np.ndarray], rate: int) -> ClipFacts:
    """Measure a decoded clip.

    Args:
        windows: Mono samples, one piece after the other.
        rate: Hz.
    """
    samples = np.concatenate(windows)
    resampled = samples if rate == RATE else decode(Clip(samples, rate), RATE)
    frames = track(resampled)
    pitch = steady_pitch(frames)
    voiced = np.count_nonzero(~np.isnan(pitch))
    power = np.mean(10 ** (frames.level[frames.active] / 10))
    return ClipFacts(
        seconds=len(samples) / rate,
        level=float(10 * np.log10(power)),
        voiced=voiced * HOP / RATE,
        pitch=float(np.nanmedian(pitch)) if voiced else math.nan,
    )


@dataclass(frozen=True)
class Domain:
    """Ranges of the calibration pairs, a little widened at both ends.

    Attributes:
        n: Pairs.
        ranges: Lowest and highest value by name: `turns of context`, `response seconds`, `context seconds` (of its last
            turn), and `level` and `pitch` of any of both clips: a voice that occurred as context is known.
    """

    n: Annotated[int, Field(ge=0)]
    ranges: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            if not -math.inf < low <= high < math.inf:
                raise ValueError(f"range of {name} {low:g} to {high:g}; expected finite, rising numbers")

    def departures(self, clips: Sequence[ClipFacts]) -> list[str]:
        """What of a pair lies outside, in words; usually nothing.

        Args:
            clips: Of the context turns, then of the response.
        """
        found = []
        for what, name, value in _values(clips):
            low, high = self.ranges.get(name, (-math.inf, math.inf))
            if not low <= value <= high:
                unit = _UNITS.get(name.rpartition(" ")[2], "")
                found.append(f"{what}: {value:.3g}{unit}, calibrated on {low:.3g} to {high:.3g}{unit}")
        return found


def fit_domain(pairs: Sequence[Sequence[ClipFacts]]) -> Domain:
    """The ranges of some pairs.

    Args:
        pairs: Of each pair its clips, as for `departures`; at least one.
    """
    found: dict[str, list[float]] = {}
    for clips in pairs:
        for _, name, value in _values(clips):
            found.setdefault(name, []).append(value)
    return Domain(len(pairs), {name: _wider(name, min(values), max(values)) for name, values in found.items()})


def _values(clips: Sequence[ClipFacts]) -> Iterator[tuple[str, str, float]]:
    """What is known of a pair: in words, the name of its range, the value. Clips without a voice have no pitch."""
    *turns, response = clips
    yield _TURNS, _TURNS, float(len(turns))
    for what, own in (("response", response), *((("context", turns[-1]),) if turns else ())):
        yield f"seconds of the {what}", f"{what} seconds", own.seconds
        yield f"level of the {what}", "level", own.level
        if not math.isnan(own.pitch):
            yield f"pitch of the {what}", "pitch", own.pitch


def _wider(name: str, low: float, high: float) -> tuple[float, float]:
    if name == _TURNS:
        return low, high
    if name.endswith("level"):
        return low - _WIDER_LEVEL, high + _WIDER_LEVEL
    factor = _WIDER_SECONDS if name.endswith("seconds") else _WIDER_PITCH
    return low / factor, high * factor


@dataclass(frozen=True, slots=True)
class Caution:
    """A reason not to trust a score.

    Attributes:
        code: For programs.
        text: For people: which clip, what was found, and what would be usual.
        about: What is unusual.
    """

    code: CautionCode
    text: str
    about: Literal["context", "response", "pair"]


def cautions(clips: Sequence[ClipFacts], domain: Domain | None) -> tuple[Caution, ...]:
    """What is wrong with a pair.

    Args:
        clips: Of the context turns, then of the response.
        domain: Of the judge; None = unknown.
    """
    found: list[Caution] = []
    turns = len(clips) - 1
    for number, clip in enumerate(clips):
        name = "response" if number == turns else "context" if turns == 1 else f"context, turn {number + 1}"
        about = "response" if number == turns else "context"
        if clip.seconds < SHORT:
            found.append(Caution("short", f"{name}: lasts {clip.seconds:.2f} s; usual: at least {SHORT} s", about))
        if not clip.voiced:
            text = f"{name}: less than {MIN_VOICED * HOP / RATE:g} s with a voice in {clip.seconds:.2f} s"
            found.append(Caution("no_speech", text, about))
    if domain is not None and (departures := domain.departures(clips)):
        found.append(Caution("unlike_training", "; ".join(departures), "pair"))
    return tuple(found)
