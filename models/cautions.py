"""What speaks against trusting a score, found in the clips themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..data_modules.prosody import HOP, MIN_VOICED, RATE
from .clip_facts import ClipFacts
from .domain import Domain

CautionCode = Literal["short", "no_speech", "unlike_training"]
"""``short``: a clip hardly lasts long enough to have a manner of speaking. ``no_speech``: no voice was found in a clip
(whispering has none either). ``unlike_training``: the pair is unlike those that the judge was calibrated on, and its
agreement with people says nothing here."""
SHORT = 0.5
"""Seconds below which a clip is called short: two or three syllables."""


@dataclass(frozen=True, slots=True)
class Caution:
    """Why a score had better not be trusted; it stands all the same.

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
