"""Listening checks: the same pairs with something removed, exchanged, or with changed sound.

A check returns changed pairs with the same ids, to be scored and compared with the unchanged human ratings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.errors import DataError, shown
from ...data_modules.schema import Pair
from ..report.dimension import Expects
from . import pairs, recording, voice


@dataclass(frozen=True)
class Check:
    """A change to pairs, and its meaning. Reports build sentences from the texts."""

    name: str  # key in reports; ``<name>_score`` in tables of items
    title: str  # in headings
    expects: Expects  # what it must do to a judge that listens
    change: str  # what was done, as the beginning of a sentence: "With ..., Spearman falls ..."
    removes: str  # what it takes away
    keeps: str  # what it leaves, and what it does besides
    if_moves: str  # what a fall of agreement (of ``same``: a change of scores) says of the judge; ends a sentence
    if_stays: str  # what it says that there is none; ends a sentence
    # changed pairs, with the same ids, from pairs and a seed; a pair that it leaves out cannot be changed
    apply: Callable[[Sequence[Pair], int], tuple[Pair, ...]]
    refuses: Callable[[Sequence[Pair]], str | None] = lambda pairs: None  # why it is not possible; None = possible
    tolerance: float | None = None  # of ``same``: 95 % of scores move by no more than this share of their deviation
    by_clip: bool = False  # each clip is changed by itself: pairs can be taken in portions, which saves memory


def _by_clip(change: recording.ClipChange, **options: bool) -> dict[str, Any]:
    """The fields of a check that changes each clip by itself."""
    return {"apply": recording.by_clip(change, **options), "by_clip": True}


_CHECKS = (
    Check(
        name="response_only",
        title="Response only",
        expects="drop",
        change="Without context and situation",
        removes="what was said before the response",
        keeps="the response",
        if_moves="the judge weighs the response against what was said before it.",
        if_stays="a shortcut. The judge rates the response by itself, whatever it answers.",
        apply=pairs.response_only,
        refuses=pairs.needs_context,
    ),
    Check(
        name="context_only",
        title="Context only",
        expects="drop",
        change="With silence in place of the response",
        removes="the response",
        keeps="context, situation, and how long the response lasts",
        if_moves="the judge rates the response, not only what it answers.",
        if_stays="a shortcut. The judge guesses the rating from the context or the length of the response.",
        apply=pairs.context_only,
        refuses=pairs.needs_context,
    ),
    Check(
        name="silent",
        title="Both silent",
        expects="drop",
        change="With silence of the same length in place of all sound",
        removes="all sound and its transcripts",
        keeps="how long the clips last, and the situation if there is one",
        if_moves="the scores come from the sound.",
        if_stays="part of the score comes from how long clips last (or the situation if there is one), not the sound.",
        apply=pairs.silent,
    ),
    Check(
        name="context_swapped",
        title="Context swapped",
        expects="drop",
        change="With the context of a pair of another group",
        removes="the fit of the response to what it answers",
        keeps="the response; the contexts as a whole",
        if_moves="the judge hears which context the response belongs to.",
        if_stays="the judge gives much the same verdict whatever the response answers.",
        apply=pairs.context_swapped,
        refuses=pairs.needs_two_groups,
    ),
    Check(
        name="response_swapped",
        title="Response swapped in its group",
        expects="drop",
        change="With another response of the same group",
        removes="the response that was rated",
        keeps="the context; the responses to it as a whole",
        if_moves="the judge hears which of the responses it is given.",
        if_stays="the judge rates the context or the script, whatever is answered.",
        apply=pairs.response_swapped,
        refuses=pairs.needs_two_responses,
    ),
    Check(
        name="flat_prosody",
        title="Words without prosody",
        expects="drop",
        change="With one pitch, one loudness and one voice quality for all clips",
        removes="pitch, intonation, loudness and voice quality",
        keeps="the words and their timing; a vocoder's buzz comes in",
        if_moves="the judge uses how the words are said.",
        if_stays="the judge needs the words and their timing only, not how they are said.",
        **_by_clip(voice.flat_prosody),
    ),
    Check(
        name="low_pass",
        title="Prosody without words",
        expects="keep",
        change=f"With everything above {recording.LOW_PASS:g} Hz removed, and the words with it",
        removes="the words and most of the timbre; transcripts go too",
        keeps="pitch, timing and the course of loudness",
        if_moves="the judge needs the words, or a clear sound, more than pitch, timing and loudness.",
        if_stays="pitch, timing and loudness are enough for the judge.",
        **_by_clip(recording.low_pass, keeps_words=False),
    ),
    Check(
        name="monotone",
        title="Monotone",
        expects="drop",
        change="With every clip at one pitch, its own median",
        removes="intonation",
        keeps="words, timing, loudness, register; a vocoder's buzz comes in (see resynthesis)",
        if_moves="the judge hears intonation, unless resynthesis alone costs as much.",
        if_stays="the judge does not need intonation.",
        **_by_clip(voice.monotone),
    ),
    Check(
        name="loudness",
        title="Loudness flattened",
        expects="drop",
        change="With all speech at one loudness",
        removes="how loud a clip is, and where in it",
        keeps="pitch, words, timing, voice quality",
        if_moves="the judge hears loudness.",
        if_stays="the judge does not need loudness.",
        **_by_clip(voice.level_flattened),
    ),
    Check(
        name="resynthesis",
        title="Resynthesis",
        expects="keep",
        change="Through the vocoder of monotone, with its own pitch and voice",
        removes="the fine structure of the voice",
        keeps="words, pitch, timing, loudness, envelope; a vocoder's buzz comes in",
        if_moves="the vocoder itself disturbs the judge: read monotone and words without prosody beside this.",
        if_stays="the vocoder does not disturb the judge.",
        **_by_clip(voice.resynthesis),
    ),
    Check(
        name="speaker",
        title="Another speaker",
        expects="keep",
        change="With each clip as of a smaller or larger speaker (pitch and formants by a semitone)",
        removes="who speaks",
        keeps="intonation, words, timing, loudness",
        if_moves="the judge depends on who speaks.",
        if_stays="the judge does not mind who speaks.",
        **_by_clip(voice.other_speaker),
    ),
    Check(
        name="noise",
        title="Noise",
        expects="keep",
        change=f"With noise {recording.SNR:g} dB below the speech",
        removes="what is softer than the noise, such as breath",
        keeps="words, pitch, timing, loudness",
        if_moves="the judge depends on a clean recording.",
        if_stays="the judge does not mind noise.",
        **_by_clip(recording.noisy),
    ),
    Check(
        name="codec",
        title="Codec",
        expects="keep",
        change="Through a small MP3 file",
        removes="what the codec takes for inaudible",
        keeps="words, pitch, timing, loudness",
        if_moves="the judge depends on the codec.",
        if_stays="the judge does not mind the codec.",
        **_by_clip(recording.coded),
    ),
    Check(
        name="gain",
        title="Gain",
        expects="same",
        change=f"With each clip {recording.GAIN:g} dB louder or softer",
        removes="the level of the recording",
        keeps="everything else",
        if_moves="part of the score is the level of the recording, which a microphone's distance changes as much.",
        if_stays="the level of the recording does not matter to the judge.",
        **_by_clip(recording.gained),
        tolerance=0.25,
    ),
)
CHECKS: Mapping[str, Check] = {check.name: check for check in _CHECKS}
"""Every check by its name, in the order in which reports show them."""

DEFAULT_CHECKS = ("response_only", "context_swapped", "silent", "flat_prosody", "low_pass")
"""Default checks of `evaluate`: they test for shortcuts past the context, and words against voice."""


def choose(names: Sequence[str] | Literal["all"]) -> tuple[Check, ...]:
    """The checks of these names in the order of `CHECKS`, each once; ``all`` = every one.

    Raises:
        DataError: If there is no check of a name; the message lists those that exist.
    """
    if isinstance(names, str) and names != "all":
        names = (names,)
    unknown = [] if names == "all" else [name for name in names if name not in CHECKS]
    if unknown:
        raise DataError(f"check {shown(unknown[0])}; expected one of {', '.join(CHECKS)}")
    return tuple(check for check in CHECKS.values() if names == "all" or check.name in names)
