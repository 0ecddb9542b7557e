"""How much of a judge's variance comes from the voice, and how much from the words.

A judge's scores are held against its own scores on two probes: one keeps the voice and removes the words
(``low_pass``), one keeps the words and flattens the voice (``flat_prosody``). Commonality analysis (Newton and
Spurrell, 1967; Nimon and Reio, 2011) divides the variance of the full scores:

- ``voice``: what only the scores without words explain, R^2 - r(full, words)^2;
- ``words``: what only the scores without voice explain, R^2 - r(full, voice)^2;
- ``common``: what either explains, r(full, voice)^2 + r(full, words)^2 - R^2;
- ``neither``: 1 - R^2.

R^2 is that of the regression of the full scores on both. The four parts add up to 1. The index is voice / (voice +
words): 1 = of what one of them alone explains, all is voice; 0 = all is words.

Where it misleads:

- Both probes keep timing (tempo, pauses, duration) and the situation text; in the data words and voice may also go
  together. All of that is ``common``, never ``voice`` or ``words``. Where it is large the index stands on little.
- It says nothing about people: a judge that follows some irrelevant trait of the voice has the index 1.
- A score that needs words and voice together (a friendly word in a cold voice) is ``neither``, as is a disturbance by
  the change of sound itself. A large ``neither`` says that the probes do not reach the judge.
- Low-pass filtering removes what voice quality has above 400 Hz, so a judge of breathiness loses ``voice``; a vocoder
  leaves traces of phonation in the envelope, which count as ``words``.
- ``common`` below 0 is suppression: together both explain more than apart.
- Squares forget signs: scores that turn round without words still count as ``voice``. See ``voice_r``, ``words_r``.
- With n items the parts of an unrelated probe are near 1 / n, not 0; below `MIN_ITEMS_HERE` items nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .statistics.agreement import Statistic, is_constant, pearson
from .statistics.bootstrap import Resamples, with_interval

MIN_ITEMS_HERE = 10
"""Fewest items: five per probe."""

LEAST_UNIQUE = 0.01
"""Share of the variance that voice and words must explain apart for an index; below it is a ratio of two noises."""

VOICE_PROBE, WORDS_PROBE = "low_pass", "flat_prosody"
"""The probes that keep the voice and the words; keys of `probes.PROBES`."""


@dataclass(frozen=True)
class VoiceAndWords:
    """The parts of the variance of a judge's scores, with intervals; see the module for their meaning.

    Attributes:
        voice: Share that only the voice explains.
        words: Share that only the words explain.
        common: Share that either explains; below 0 where they suppress each other.
        neither: Share that neither explains.
        index: voice / (voice + words).
        voice_r: Pearson correlation of the full scores with those without words.
        words_r: The same with those without voice.
    """

    voice: Statistic
    words: Statistic
    common: Statistic
    neither: Statistic
    index: Statistic
    voice_r: Statistic
    words_r: Statistic


def voice_and_words(
    full: np.ndarray, voice_only: np.ndarray, words_only: np.ndarray, resamples: Resamples
) -> VoiceAndWords:
    """Divides the variance of a judge's scores between voice and words.

    Args:
        full: Shape (n,), scores of the unchanged pairs, rating points.
        voice_only: Shape (n,), of the same pairs with the words removed.
        words_only: Shape (n,), of the same pairs with the voice flattened.
        resamples: Draws over the same n items.

    Returns:
        Statistics of the items that have all three scores; the others are dropped and counted. All are undefined, with
        the reason, for fewer than `MIN_ITEMS_HERE` items, infinite scores, or constant full scores. Constant scores on
        a probe explain nothing: their squared correlation counts as 0, while ``voice_r`` or ``words_r`` is undefined.
        The index is undefined where voice and words together explain less than `LEAST_UNIQUE` apart.
    """
    sides = np.stack([np.asarray(side, dtype=np.float64) for side in (full, voice_only, words_only)])
    kept = np.flatnonzero(~np.isnan(sides).any(axis=0))
    n, dropped = len(kept), sides.shape[1] - len(kept)
    sides, seen = sides[:, kept], resamples.select(kept)
    reason = _refusal(sides)
    if reason is not None:
        nothing = Statistic(None, n=n, dropped=dropped, reason=reason)
        return VoiceAndWords(*[nothing] * 7)

    pairs = [(sides[0], sides[1]), (sides[0], sides[2]), (sides[1], sides[2])]
    r = np.array([pearson(x, y) for x, y in pairs])[:, None]
    draws = np.stack([seen.draws(lambda items, x=x, y=y: pearson(x[items], y[items])) for x, y in pairs])
    # A resample in which the full scores are constant has no variance to divide
    empty = np.isnan(seen.draws(lambda items: pearson(sides[0][items], sides[0][items])))

    def finish(point: np.ndarray, drawn: np.ndarray, why: str = "") -> Statistic:
        if np.isnan(point[0]):
            return Statistic(None, n=n, dropped=dropped, reason=why)
        drawn = np.where(empty, np.nan, drawn)
        return with_interval(Statistic(float(point[0]), n=n, dropped=dropped), drawn, seen)

    parts, drawn_parts = _commonality(r), _commonality(draws)
    voice, words, common, neither = map(finish, parts, drawn_parts)
    return VoiceAndWords(
        voice,
        words,
        common,
        neither,
        index=finish(_index(parts), _index(drawn_parts), "voice and words explain almost nothing apart"),
        voice_r=finish(r[0], draws[0], "the scores without words are constant"),
        words_r=finish(r[1], draws[1], "the scores without voice are constant"),
    )


def _refusal(sides: np.ndarray) -> str | None:
    n = sides.shape[1]
    if n < MIN_ITEMS_HERE:
        return f"{n} items with all three scores; at least {MIN_ITEMS_HERE} needed"
    if infinite := int(np.isinf(sides).any(axis=0).sum()):
        return f"{infinite} items with an infinite score"
    return "the judge scores are constant" if is_constant(sides[0]) else None


def _commonality(r: np.ndarray) -> np.ndarray:
    """Voice, words, common, neither (4, rows) from the correlations (3, rows): full-voice, full-words, voice-words."""
    voice, words, both = np.nan_to_num(r)  # a constant side explains nothing
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = (voice**2 + words**2 - 2 * voice * words * both) / (1 - both**2)
    # Two probes that say the same explain together what each explains
    explained = np.where(1 - both**2 > 1e-12, explained, np.maximum(voice**2, words**2))
    explained = np.clip(explained, np.maximum(voice**2, words**2), 1.0)
    return np.stack([explained - words**2, explained - voice**2, voice**2 + words**2 - explained, 1 - explained])


def _index(parts: np.ndarray) -> np.ndarray:
    unique = parts[0] + parts[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(unique >= LEAST_UNIQUE, parts[0] / unique, np.nan)
