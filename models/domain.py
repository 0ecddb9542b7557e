"""Which pairs a judge was calibrated on: elsewhere, its agreement with people is a guess.

Ranges of what can be measured and named: durations, levels, pitch, turns of the context. A pair inside them may still
be unlike the training data, in its language or in what is said, which nothing here notices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .clip_facts import ClipFacts

_WIDER_SECONDS = 1.25  # factor at both ends
_WIDER_LEVEL = 6.0  # dB
_WIDER_PITCH = 2 ** (3 / 12)  # factor: three semitones
_TURNS = "turns of context"
_UNITS = {"seconds": " s", "level": " dBFS", "pitch": " Hz"}


@dataclass(frozen=True)
class Domain:
    """Ranges of the calibration pairs, with some room at both ends.

    Attributes:
        n: Pairs.
        ranges: Lowest and highest value by name: `turns of context`, `response seconds`, `context seconds` (of its last
            turn), and `level` and `pitch` of any of both clips: a voice that was heard as context is known.
    """

    n: int
    ranges: Mapping[str, tuple[float, float]]

    def departures(self, clips: Sequence[ClipFacts]) -> list[str]:
        """What of a pair lies outside, in words; mostly nothing.

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
