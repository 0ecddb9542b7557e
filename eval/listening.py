"""Does a judge listen? A verdict on each listening check of a dimension, one on all of them, and voice against words.

The sentences lie in ``check.txt.j2`` and ``listening.txt.j2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ..core.errors import counted
from .checks import CHECKS
from .rendering import sentences
from .report.dimension import CheckReport
from .report.judge import Tone
from .statistics.agreement import MIN_ITEMS, Statistic, is_constant, pearson
from .statistics.bootstrap import Resamples, complete, estimates

Kind = Literal[
    "not_tested", "no_agreement", "durations_only", "context_only", "listens", "response_only", "words_only",
    "timing_only", "uses_voice", "uses_context", "inconclusive",
]  # fmt: skip
CLEAR_DROP = 0.1
"""A listening check that costs less Spearman than this is called small, however certain it is."""

IGNORED = 0.01
"""A judge ignores a change that moves 95 % of its scores by no more than this share of their standard deviation."""


class CheckView(NamedTuple):
    """A listening check as pages show it."""

    title: str
    mark: str
    tone: Tone
    text: str


class Listening(NamedTuple):
    """The sentence on all checks; `kind` is for machines, `text` for people."""

    kind: Kind
    tone: Tone
    text: str


def check_view(name: str, check: CheckReport, full: Statistic) -> CheckView:
    """A listening check, by its key of `CHECKS`, in words; `full` is the Spearman of the unchanged pairs."""
    definition = CHECKS[name]
    mark, tone, ending = _marked(name, check, full)
    (text,) = sentences("check", definition=definition, check=check, full=full, mark=mark, ending=ending)
    return CheckView(definition.title, mark, tone, text)


def _marked(name: str, check: CheckReport, full: Statistic) -> tuple[str, Tone, str]:
    """Mark, tone, and how the sentence ends."""
    definition, remaining, drop = CHECKS[name], check.spearman, check.drop
    if check.n == 0:
        return "not run", "none", ""
    if definition.tolerance is not None:
        if check.judge_sd is None or check.p95_change is None:
            return "undefined", "none", ""
        moves = check.p95_change / check.judge_sd > definition.tolerance
        return ("moves", "warn", definition.if_moves) if moves else ("stays", "good", definition.if_stays)
    if full.value is None:
        return "undefined", "none", ""
    if remaining.value is None:
        return "nothing left", "good" if definition.expects == "drop" else "warn", ""
    if drop.value is None:
        return "undefined", "none", ""
    if drop.low is None:
        return "no interval", "none", ""
    falls = drop.low > 0 and drop.value >= CLEAR_DROP
    # The interval does not tell the fall from none or, where none is wanted, cannot exclude one
    doubtful = (drop.high or 0.0) > CLEAR_DROP if definition.expects == "keep" else drop.value >= CLEAR_DROP
    if doubtful and not falls:
        return "not clear", "none", "too uncertain to call it a fall or none."
    if definition.expects == "keep":
        return ("drops", "warn", definition.if_moves) if falls else ("stays", "good", definition.if_stays)
    if not falls:
        return "no clear drop" if drop.low <= 0 else "small drop", "warn", definition.if_stays
    if name == "silent" and (remaining.low or 0.0) > CLEAR_DROP:
        return "not all of it", "warn", definition.if_stays
    return "drops", "good", definition.if_moves


@dataclass(frozen=True)
class _Reaction:
    """What a check did to the agreement."""

    kind: Literal["falls", "stays", "unclear"]  # see `listening_sentence`
    name: str = ""  # of the check
    size: float = 0.0  # how far the Spearman falls
    # why it is unclear
    why: Literal["", "no_scores", "no_interval", "wide", "vocoder", "no_context_check", "no_voice_check"] = ""
    left: float | None = None  # the Spearman that is left
    is_gone: bool = False  # nothing is left to order items by
    is_clearly_left: bool = False  # the interval of what is left lies above `CLEAR_DROP`
    is_ignored: bool = False  # the scores hardly move
    drop: tuple[float, float] | None = None  # interval of the drop; None where there is none

    @property
    def title(self) -> str:
        """Of the check, inside a sentence."""
        return CHECKS[self.name].title.lower() if self.name else ""

    def is_clearly_below(self, other: _Reaction) -> bool:
        """Whether this drop is clearly larger: its interval lies above the other's. Constant scores lose everything."""
        return self.drop is None or (other.drop is not None and self.drop[0] > other.drop[1])


def listening_sentence(checks: Mapping[str, CheckReport], full: Statistic) -> Listening:
    """The verdict of all checks together.

    Agreement *falls* where the interval of the drop lies above 0 and the drop is at least `CLEAR_DROP`; it *stays*
    where the whole interval lies below that, or the scores hardly move (`IGNORED`); for a Spearman below twice
    `CLEAR_DROP` half of it takes the place of `CLEAR_DROP`. Anything else is *unclear*, and so is a check that was not
    run. The verdict is the first of these that holds:

    - agreement with silence stays, or more than half of it is clearly left: ``durations_only``;
    - agreement without the response stays, or another response moves no score: ``context_only``;
    - otherwise two questions decide. Does it need the context? The swapped context decides; a missing one, which may
      only be unfamiliar, decides where contexts could not be swapped. Does it hear the voice? Flattened prosody
      decides, if resynthesis alone does not explain its fall; where it was not run, a fall by monotone or loudness.

    A judge of words stays through flattened prosody and falls without the words (low-pass); where that was not run, or
    flattened prosody hardly moves the scores, the words are taken for the reason as well. A judge that stays through
    both goes by what is left in both, ``timing_only``.

    `checks` are the results on one dimension of those that were run; `full` is its Spearman of the unchanged pairs.
    """
    if not any(check.n for check in checks.values()):
        return _said("not_tested", "none")
    if full.value is None or full.low is None or full.low <= 0:
        ignored = [
            CHECKS[name].title.lower()
            for name, check in checks.items()
            if check.expects == "drop" and _is_ignored(check)
        ]
        return _said("no_agreement", "warn" if ignored else "none", full=full, invariant_checks=ignored)
    reactions = {name: _reaction(name, check, full.value) for name, check in checks.items()}
    silent, response_only = reactions.get("silent"), reactions.get("response_only")
    context_only, response_swapped = reactions.get("context_only"), reactions.get("response_swapped")
    remaining = None if silent is None else silent.left
    if silent is not None and remaining is not None and (
        silent.kind == "stays" or (remaining >= full.value / 2 and silent.is_clearly_left)
    ):  # fmt: skip
        # Without the context the situation text is gone as well
        by_response = response_only is not None and response_only.kind == "stays"
        return _said("durations_only", "warn", full=full, silent=silent, by_response=by_response)
    # The response is what is judged, so a judge that does without it is asked nothing else
    without_response = context_only is not None and context_only.kind == "stays"
    if without_response or (response_swapped is not None and response_swapped.is_ignored):
        return _said("context_only", "warn", without_response=without_response)
    context, voice, words = _context(reactions), _voice(reactions), reactions.get("low_pass")
    kind, tone = _by_two_questions(context, voice, words)
    return _said(kind, tone, context=context, voice=voice, without_words=words, silent=silent)


def _said(kind: Kind, tone: Tone, **values: Any) -> Listening:
    return Listening(kind, tone, *sentences("listening", kind=kind, **values))


def _reaction(name: str, check: CheckReport, full: float) -> _Reaction:
    remaining, drop = check.spearman, check.drop
    if check.n == 0:
        return _Reaction("unclear", name, why="no_scores")
    # All scores equal: no order is left, which is the largest fall there is
    if remaining.value is None and check.n >= MIN_ITEMS:
        return _Reaction("falls", name, is_gone=True)  # the scores are constant
    # Of a judge that hardly agrees with people, half of the little agreement is all that it can lose
    size, clearly_left = drop.value or 0.0, (remaining.low or 0.0) > CLEAR_DROP
    ignored, margin = _is_ignored(check), min(CLEAR_DROP, full / 2)
    reaction = _Reaction("unclear", name, size, "wide", remaining.value, False, clearly_left, ignored)
    if drop.low is None or drop.high is None:
        return replace(reaction, kind="stays" if ignored else "unclear", why="no_interval")
    reaction = replace(reaction, drop=(drop.low, drop.high))
    if drop.low > 0 and size >= margin:
        return replace(reaction, kind="falls", why="")
    return replace(reaction, kind="stays", why="") if drop.high < margin or ignored else reaction


def _is_ignored(check: CheckReport) -> bool:
    change, sd = check.p95_change, check.judge_sd
    return change is not None and sd is not None and change <= IGNORED * sd


def _by_two_questions(context: _Reaction, voice: _Reaction, words: _Reaction | None) -> tuple[Kind, Tone]:
    if voice.kind == "stays":
        if words is not None and words.kind == "stays":
            return "timing_only", "warn"
        if words is None or words.why == "no_scores" or words.kind == "falls" or voice.is_ignored:
            return "words_only", "warn"
        # Flattened voices cost nothing, move the scores all the same, and words may cost something
        kinds: dict[str, Kind] = {"stays": "response_only", "falls": "uses_context", "unclear": "inconclusive"}
        return kinds[context.kind], "warn"
    if context.kind == "stays":
        return "response_only", "warn"
    if voice.kind == "falls":
        return ("listens", "good") if context.kind == "falls" else ("uses_voice", "none")
    return ("uses_context" if context.kind == "falls" else "inconclusive"), "none"


def _context(found: Mapping[str, _Reaction]) -> _Reaction:
    """Whether the context is needed: decided by the swapped context where that check was possible."""
    swapped, response_only = found.get("context_swapped"), found.get("response_only")
    # Swapped contexts are as familiar to the judge as its own; none at all may be unlike anything in its training
    if swapped is not None and swapped.why != "no_scores":
        return swapped
    return response_only or swapped or _Reaction("unclear", why="no_context_check")


def _voice(found: Mapping[str, _Reaction]) -> _Reaction:
    """Whether the voice is heard: decided by flattened prosody where that check was possible."""
    flat = found.get("flat_prosody")
    if flat is not None and flat.why != "no_scores":
        return _without_vocoder(flat, found)
    # loudness is flattened without the vocoder
    parts = [_without_vocoder(found["monotone"], found)] if "monotone" in found else []
    parts += [found["loudness"]] if "loudness" in found else []
    falls = [part for part in parts if part.kind == "falls"]
    return falls[0] if falls else flat or _Reaction("unclear", why="no_voice_check")


def _without_vocoder(part: _Reaction, found: Mapping[str, _Reaction]) -> _Reaction:
    """The reaction; unclear where the vocoder may explain the fall: resynthesis falls too, and intervals overlap."""
    control = found.get("resynthesis")
    if part.kind != "falls" or control is None or control.kind != "falls" or part.is_clearly_below(control):
        return part
    return _Reaction("unclear", part.name, why="vocoder")


# ---------------------------------------------------------------- voice and words

MIN_ITEMS_HERE = 10
"""Fewest items of `voice_and_words`: five per definition."""

LEAST_UNIQUE = 0.01
"""Share of the variance that voice and words must explain apart for an index; below it the index is mostly noise."""

VOICE_CHECK, WORDS_CHECK = "low_pass", "flat_prosody"
"""The checks that keep the voice and the words; keys of `checks.CHECKS`."""

_PARTS = {
    "voice": "",
    "words": "",
    "common": "",
    "neither": "",
    "index": "voice and words explain almost nothing apart",
    "voice_r": "the scores without words are constant",
    "words_r": "the scores without voice are constant",
}  # and why each is undefined


def voice_and_words(
    full: np.ndarray, voice_only: np.ndarray, words_only: np.ndarray, resamples: Resamples
) -> dict[str, Statistic]:
    """How much of a judge's variance comes from the voice, and how much from the words.

    A judge's scores are compared with its own scores on two checks: one keeps the voice and removes the words
    (``low_pass``), one keeps the words and flattens the voice (``flat_prosody``). Commonality analysis (Newton and
    Spurrell, 1967; Nimon and Reio, 2011) divides the variance of the full scores:

    - ``voice``: what only the scores without words explain, R^2 - r(full, words)^2;
    - ``words``: what only the scores without voice explain, R^2 - r(full, voice)^2;
    - ``common``: what either explains, r(full, voice)^2 + r(full, words)^2 - R^2;
    - ``neither``: 1 - R^2.

    R^2 is that of the regression of the full scores on both. The four parts add up to 1. The index is voice / (voice +
    words): 1 = of what one of them alone explains, all is voice; 0 = all is words.

    Where it misleads:

    - Both checks keep timing (tempo, pauses, duration) and the situation text; in the data words and voice may also go
      together. All of that is ``common``, never ``voice`` or ``words``. Where it is large the index stands on little.
    - It says nothing about people: a judge that follows some irrelevant trait of the voice has the index 1.
    - A score that needs words and voice together (a friendly word in a cold voice) is ``neither``, as is a disturbance
      by the change of sound itself. A large ``neither`` says that the checks do not reach the judge.
    - Low-pass filtering removes what voice quality has above 400 Hz, so a judge of breathiness loses ``voice``; a
      vocoder leaves traces of phonation in the envelope, which count as ``words``.
    - ``common`` below 0 is suppression: together both explain more than apart.
    - Squares forget signs: scores that turn round without words still count as ``voice``. See ``voice_r``, ``words_r``.
    - With n items the parts of an unrelated definition are near 1 / n, not 0.

    All scores have shape (n,), of the same pairs: unchanged, with the words removed, with the voice flattened.

    Returns:
        The four shares, ``index``, and ``voice_r`` and ``words_r``: Pearson correlation of the full scores with those
        without words, and with those without voice. They stand on the items that have all three scores; the others are
        dropped and counted. All are undefined, with the reason, for fewer than `MIN_ITEMS_HERE` items, infinite scores,
        or constant full scores. Constant scores on a definition explain nothing: their squared correlation counts as 0,
        while ``voice_r`` or ``words_r`` is undefined. The index is undefined where voice and words together explain
        less than `LEAST_UNIQUE` apart.
    """
    usable, point = complete(full, voice_only, words_only)
    reason = point.reason
    if point.n < MIN_ITEMS_HERE:
        reason = f"{counted(point.n, 'item')} with all three scores; at least {MIN_ITEMS_HERE} needed"
    elif reason is None and is_constant(full[usable]):
        reason = "the judge scores are constant"
    if reason is not None:
        return dict.fromkeys(_PARTS, replace(point, reason=reason))
    return estimates(_commonality, full, voice_only, words_only, resamples=resamples, reasons=_PARTS)


def _commonality(full: np.ndarray, voice_only: np.ndarray, words_only: np.ndarray) -> list[float]:
    """The values of `_PARTS`."""
    if len(full) < MIN_ITEMS or is_constant(full):
        return [np.nan] * len(_PARTS)
    voice_r, words_r = pearson(full, voice_only), pearson(full, words_only)
    voice, words, both = np.nan_to_num(
        [voice_r, words_r, pearson(voice_only, words_only)]
    )  # constant: explains nothing
    # Two predictors explain no less than the better one, whatever rounding says
    lower_bound = max(voice**2, words**2)
    # Two checks with the same scores explain together no more than each one alone
    unshared = 1 - both**2
    explained = (voice**2 + words**2 - 2 * voice * words * both) / unshared if unshared > 1e-12 else lower_bound
    explained = min(max(explained, lower_bound), 1.0)
    by_voice, by_words = explained - words**2, explained - voice**2
    index = by_voice / (by_voice + by_words) if by_voice + by_words >= LEAST_UNIQUE else np.nan
    return [by_voice, by_words, voice**2 + words**2 - explained, 1 - explained, index, voice_r, words_r]
