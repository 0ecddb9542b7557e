"""Does a judge listen? One sentence that stands on all listening checks of a dimension together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..numerals import number, signed
from ..report_schema import CheckReport, StatisticReport
from ..statistics.agreement import MIN_ITEMS
from .wording import CHECK_TITLES, CLEAR_DROP

Kind = Literal[
    "not_tested",
    "no_agreement",
    "durations_only",
    "context_only",
    "listens",
    "response_only",
    "words_only",
    "timing_only",
    "voice_heard",
    "context_heard",
    "inconclusive",
]

IGNORED = 0.01
"""A judge ignores a change that moves 95 % of its scores by no more than this share of their standard deviation."""


class Listening(NamedTuple):
    """The sentence.

    Attributes:
        kind: For machines.
        tone: ``good``, ``warn`` or ``none``, as pages colour it.
        text: For people; one sentence.
    """

    kind: Kind
    tone: Literal["good", "warn", "none"]
    text: str


@dataclass(frozen=True)
class _Reaction:
    """What a check did to the agreement.

    Attributes:
        kind: See `listening_sentence`.
        said: What the Spearman does, to stand after "its Spearman".
        why: Why it is unclear.
        left: The Spearman that is left.
        is_clearly_left: The interval of what is left lies above `CLEAR_DROP`.
        is_ignored: The scores hardly move.
        is_run: There are scores.
        drop: Interval of the drop; None where there is none.
    """

    kind: Literal["falls", "stays", "unclear"]
    said: str
    why: str = ""
    left: float | None = None
    is_clearly_left: bool = False
    is_ignored: bool = False
    is_run: bool = False
    drop: tuple[float, float] | None = None

    def is_clearly_below(self, other: _Reaction) -> bool:
        """Whether it costs more than the other, interval for interval; constant scores cost all."""
        return self.drop is None or (other.drop is not None and self.drop[0] > other.drop[1])


def listening_sentence(checks: Mapping[str, CheckReport], full: StatisticReport) -> Listening:
    """What the checks together say of the judge.

    Agreement *falls* where the interval of the drop lies above 0 and the drop is at least `CLEAR_DROP`; it *stays*
    where the whole interval lies below that, or the scores hardly move (`IGNORED`); for a Spearman below twice
    `CLEAR_DROP` half of it takes the place of `CLEAR_DROP`. Anything else is *unclear*, and so is a check that was not
    run. The first of these that holds:

    - agreement with silence stays, or more than half of it is clearly left: ``durations_only``;
    - agreement without the response stays, or another response moves no score: ``context_only``;
    - then by two questions. Does it need the context? The swapped context decides: a missing one may only be unfamiliar
      and decides where contexts could not be swapped. Does it hear the voice? Flattened prosody decides, if resynthesis
      alone does not explain its fall; a fall by monotone, whisper or loudness decides where it was not run.

    A judge of words stays through flattened prosody and falls without the words (low-pass); where that was not run, or
    flattened prosody hardly moves the scores, the words are taken for the reason as well. A judge that stays through
    both goes by what is left in both, ``timing_only``.

    Args:
        checks: Name of the probe -> its result on one dimension; those that were run.
        full: Spearman of the unchanged pairs of this dimension.
    """
    if not any(check["n"] for check in checks.values()):
        return Listening("not_tested", "none", "Whether it listens was not tested.")
    if full["value"] is None or full["low"] is None or full["low"] <= 0:
        return _no_agreement(checks, full)
    found = {name: _reaction(name, check, full["value"]) for name, check in checks.items()}
    return _shortcut(found, full["value"]) or _by_two_questions(found)


_CHANGES = {
    "response_only": "without the context",
    "context_swapped": "with another context",
    "flat_prosody": "with flattened voices",
    "monotone": "with every clip at one pitch",
    "whisper": "in whispers",
    "loudness": "at one loudness",
    "low_pass": "without the words",
}
"""The changes that sentences name, in few words."""


def _reaction(name: str, check: CheckReport, full: float) -> _Reaction:
    title, left, drop = CHECK_TITLES[name].lower(), check["spearman"], check["drop"]
    if check["n"] == 0:
        return _Reaction("unclear", "", f"'{title}' gave no scores")
    margin, change = min(CLEAR_DROP, full / 2), _CHANGES.get(name, f"under '{title}'")
    ignored = _ignores(check)
    if left["value"] is None and check["n"] >= MIN_ITEMS:
        return _Reaction("falls", f"is gone {change}", is_run=True)  # the scores are constant
    if drop["value"] is None or drop["low"] is None or drop["high"] is None:
        kind, why, interval = ("stays" if ignored else "unclear"), f"'{title}' has no interval", None
    else:
        kind, why, interval = "unclear", "", (drop["low"], drop["high"])
        if drop["low"] > 0 and drop["value"] >= margin:
            kind = "falls"
        elif drop["high"] < margin or ignored:
            kind = "stays"
        else:
            why = f"'{title}' may change it by anything from {signed(-drop['high'])} to {signed(-drop['low'])}"
    size = abs(drop["value"] or 0.0)
    does = "falls" if (drop["value"] or 0.0) > 0 else "rises"
    said = f"{does} by {number(size)} {change}"
    if kind == "stays":
        said = f"stays as it is {change}" if size < 0.005 else f"{does} by no more than {number(size)} {change}"
    return _Reaction(
        kind, said, why, left["value"], (left["low"] or 0.0) > CLEAR_DROP, ignored, is_run=True, drop=interval
    )


def _ignores(check: CheckReport) -> bool:
    moved, sd = check["p95_change"], check["judge_sd"]
    return moved is not None and sd is not None and moved <= IGNORED * sd


def _no_agreement(checks: Mapping[str, CheckReport], full: StatisticReport) -> Listening:
    text = "Whether it listens cannot be told from its agreement, which is not clearly better than chance"
    if full["value"] is None:
        text = f"Whether it listens cannot be told: {full['reason']}"
    elif full["low"] is None:
        text = f"Whether it listens cannot be told, as its agreement has {full['reason']}"
    deaf = [
        CHECK_TITLES[name].lower() for name, check in checks.items() if check["expects"] == "drop" and _ignores(check)
    ]
    if deaf:
        return Listening(
            "no_agreement", "warn", f"{text}; but these changes do not move its scores: {', '.join(deaf)}."
        )
    return Listening("no_agreement", "none", f"{text}.")


def _shortcut(found: Mapping[str, _Reaction], full: float) -> Listening | None:
    """The sentence on a judge that hears nothing, or not the response; None where there is no sign of either."""
    silent, alone = found.get("silent"), found.get("response_only")
    if (
        silent is not None
        and silent.left is not None
        and (silent.kind == "stays" or (silent.left >= full / 2 and silent.is_clearly_left))
    ):
        # Without the context the situation text is gone as well
        by_response = alone is not None and alone.kind == "stays"
        lengths = "how long the response lasts" if by_response else "the length of the clips or the situation text"
        text = (
            f"Hears durations only: with silence in place of all sound its Spearman is still {number(silent.left)} of "
            f"{number(full)}, so it goes by {lengths}."
        )
        return Listening("durations_only", "warn", text)
    gone, another = found.get("context_only"), found.get("response_swapped")
    if (gone is not None and gone.kind == "stays") or (another is not None and another.is_ignored):
        change = "without the response" if gone is not None and gone.kind == "stays" else "with another response"
        text = f"Does not listen to the response: {change} it says much the same, so it guesses from the context."
        return Listening("context_only", "warn", text)
    return None


def _by_two_questions(found: Mapping[str, _Reaction]) -> Listening:
    context, voice = _context(found), _voice(found)
    rest = _rest(found)

    def say(kind: Kind, tone: Literal["good", "warn", "none"], text: str) -> Listening:
        return Listening(kind, tone, f"{text}{rest}.")

    if voice.kind == "stays":
        return say(*_not_the_voice(found.get("low_pass"), context, voice))
    if (context.kind, voice.kind) == ("falls", "falls"):
        end = "so it hears how things are said and weighs the response against its context"
        return say("listens", "good", f"Listens: its Spearman {context.said} and {voice.said}, {end}")
    if (context.kind, voice.kind) == ("stays", "falls"):
        end = "so it rates how a response sounds, whatever it answers"
        return say(
            "response_only",
            "warn",
            f"Listens to the response only: its Spearman {context.said} but {voice.said}, {end}",
        )
    if context.kind == "stays":
        end = f"whether by voice or words is undecided, as {voice.why}"
        return say("response_only", "warn", f"Rates the response only: its Spearman {context.said}; {end}")
    if voice.kind == "falls":
        end = f"whether it needs the context is undecided, as {context.why}"
        return say("voice_heard", "none", f"Hears how things are said: its Spearman {voice.said}; {end}")
    if context.kind == "falls":
        end = f"whether by voice or words is undecided, as {voice.why}"
        return say(
            "context_heard", "none", f"Weighs the response against its context: its Spearman {context.said}; {end}"
        )
    return say("inconclusive", "none", f"Undecided whether it listens: {context.why}, and {voice.why}")


def _not_the_voice(
    without_words: _Reaction | None, context: _Reaction, voice: _Reaction
) -> tuple[Kind, Literal["warn"], str]:
    """The sentence on a judge that keeps its agreement when voices are flattened."""
    whose = {
        "falls": "of response and context",
        "stays": "of the response alone",
        "unclear": "(those of the response, at least)",
    }[context.kind]
    if without_words is not None and without_words.kind == "stays":
        text = (
            f"Hears neither intonation nor words: its Spearman {voice.said} and {without_words.said}, so it goes by "
            f"what both leave, such as the timing {whose.replace('those', 'that')}"
        )
        return "timing_only", "warn", text
    if without_words is not None and without_words.is_run and without_words.kind == "unclear" and not voice.is_ignored:
        return _neither_shown(without_words, context, voice)
    lost = f" but {without_words.said}" if without_words is not None and without_words.kind == "falls" else ""
    text = (
        f"Goes by the words, not by how they are said: its Spearman {voice.said}{lost}, so it needs the words {whose}"
    )
    return "words_only", "warn", text


def _neither_shown(without_words: _Reaction, context: _Reaction, voice: _Reaction) -> tuple[Kind, Literal["warn"], str]:
    """The sentence where flattened voices cost nothing, move the scores all the same, and words may cost something."""
    open_end = f"whether by words or by something else is undecided, as {without_words.why}"
    if context.kind == "stays":
        text = f"Rates the response only: its Spearman {context.said} and {voice.said}; {open_end}"
        return "response_only", "warn", text
    if context.kind == "falls":
        text = f"Weighs the response against its context, but not by intonation: its Spearman {context.said} but "
        return "context_heard", "warn", f"{text}{voice.said}; {open_end}"
    text = f"Does not need intonation: its Spearman {voice.said}; {open_end}"
    return "inconclusive", "warn", text


def _context(found: Mapping[str, _Reaction]) -> _Reaction:
    """Is the context needed? A swapped one decides where it was possible."""
    swapped, alone = found.get("context_swapped"), found.get("response_only")
    if swapped is not None and swapped.is_run:
        return swapped
    return alone or swapped or _Reaction("unclear", "", "no check changed the context")


def _voice(found: Mapping[str, _Reaction]) -> _Reaction:
    """Is the voice heard? Flattened prosody decides where it was possible."""
    flat = found.get("flat_prosody")
    if flat is not None and flat.is_run:
        return _without_vocoder(flat, found)
    parts = [_without_vocoder(found[name], found) for name in ("monotone", "whisper") if name in found]
    parts += [found["loudness"]] if "loudness" in found else []
    for part in parts:
        if part.kind == "falls":
            return part
    return flat or _Reaction("unclear", "", "no check flattened the voice")


def _without_vocoder(part: _Reaction, found: Mapping[str, _Reaction]) -> _Reaction:
    """Unclear where a fall may be the work of the vocoder: resynthesis falls, and the intervals overlap."""
    control = found.get("resynthesis")
    if part.kind != "falls" or control is None or control.kind != "falls" or part.is_clearly_below(control):
        return part
    return _Reaction("unclear", part.said, "the vocoder alone ('resynthesis') may cost as much")


def _rest(found: Mapping[str, _Reaction]) -> str:
    """What silence leaves of the agreement, where that is clearly more than nothing."""
    silent = found.get("silent")
    if silent is None or silent.left is None or not silent.is_clearly_left:
        return ""
    return f" (though {number(silent.left)} is left when all sound is silenced)"
