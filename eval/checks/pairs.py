"""Checks of whole pairs: a side is removed, or contexts or responses are exchanged between pairs.

The ratings stay with the pair, so that they no longer fit the audio after an exchange. A transcript moves with its
audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ...audio.decode import AudioSource, Clip, audio_hash, probe
from ...core.errors import AudioError
from ...data_modules.folds import group_of
from ...data_modules.schema import Pair, Turn

_CONTEXT = ("context", "situation", "context_text", "context_speaker")
_RESPONSE = ("response", "response_text", "response_speaker", "system_id")
# Proposed exchanges per pair; after about 5 the result no longer depends on the start
_MIXING_ROUNDS = 20


def _with(pair: Pair, donor: Pair, names: Sequence[str]) -> Pair:
    return replace(pair, **{name: getattr(donor, name) for name in names})


# ---------------------------------------------------------------- taken away


def response_only(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """The response alone: context turns, situation, context transcript and context speaker are removed.

    A score near the full one means that the judge rates the sound of the response, not its fit to what was said.
    """
    return tuple(replace(pair, context=(), situation=None, context_text=None, context_speaker=None) for pair in pairs)


def context_only(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """The context alone: the response is silence of its duration and rate; its transcript and speaker are removed."""
    silence = _silence([pair.response for pair in pairs])
    return tuple(
        replace(pair, response=silence[pair.response], response_text=None, response_speaker=None) for pair in pairs
    )


def silent(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """Every clip replaced by silence of its duration and rate; transcripts go, the situation stays.

    A judge is left with the durations of the clips and the situation text. The clips share one buffer of zeros. A clip
    that cannot be opened stays, so that the judge reports the error.
    """
    silence = _silence([clip for pair in pairs for clip in pair.clips])
    return tuple(
        replace(
            pair,
            context=tuple(Turn(turn.role, silence[turn.audio]) for turn in pair.context),
            response=silence[pair.response],
            context_text=None,
            response_text=None,
        )
        for pair in pairs
    )


def _silence(sources: Sequence[AudioSource]) -> dict[AudioSource, AudioSource]:
    """Maps each source to silence of its length; a clip that cannot be opened is mapped to itself."""
    lengths: dict[AudioSource, tuple[int, int] | None] = {}
    for source in dict.fromkeys(sources):
        try:
            info = probe(source)
            lengths[source] = round(info.seconds * info.rate), info.rate
        except AudioError:
            lengths[source] = None
    # One buffer for all clips: silence takes no more memory than the longest of them
    zeros = np.zeros(max((length[0] for length in lengths.values() if length), default=0), dtype=np.float32)
    return {source: Clip(zeros[: length[0]], length[1]) if length else source for source, length in lengths.items()}


# ---------------------------------------------------------------- exchanged


def context_swapped(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """Each pair with the context (turns, situation, transcript, speaker) of a pair of another group.

    Each context is given to one pair, so the contexts as a whole stay the same. This is impossible only where one group
    has more than half of the pairs: contexts are then drawn from the other groups with replacement. A context with the
    same audio and situation as the pair's own is avoided where the groups allow it.

    Args:
        pairs: The pairs; at least two groups (`needs_two_groups`).
        seed: The same seed and pairs give the same swap.
    """
    groups, contexts = _codes(map(group_of, pairs)), _codes(context_keys(pairs))
    donors = _donors(groups, contexts, np.random.default_rng(seed))
    return tuple(_with(pair, pairs[donor], _CONTEXT) for pair, donor in zip(pairs, donors, strict=True))


def response_swapped(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """Each pair with the response (clip, transcript, speaker, system) of a pair of its own group.

    Inside a group each response is given to one pair, always one of other audio; where one response has more than half
    of the group's pairs, responses are drawn from the others with replacement. Pairs of a group with one response only
    are left out.

    Args:
        pairs: The pairs; a group with two different responses (`needs_two_responses`).
        seed: The same seed and pairs give the same swap.
    """
    hashed = _hasher()
    codes, groups = _codes(hashed(pair.response) for pair in pairs), _codes(map(group_of, pairs))
    rng, donor_of = np.random.default_rng(seed), dict[int, int]()
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        responses = _codes(codes[members])
        if responses.any():
            donor_of.update(zip(members.tolist(), members[_donors(responses, responses, rng)].tolist(), strict=True))
    return tuple(_with(pairs[index], pairs[donor], _RESPONSE) for index, donor in sorted(donor_of.items()))


def _codes(values: Iterable[Any]) -> np.ndarray:
    """Codes of values from 0, equal for equal values, in sorted order of the values; shape (n,)."""
    return np.unique([*values], return_inverse=True)[1]


def context_keys(pairs: Sequence[Pair]) -> list[str]:
    """One key per pair, equal for pairs with the same context: turns and situation."""
    hashed = _hasher()
    return [
        repr(([(turn.role, hashed(turn.audio)) for turn in pair.context], pair.situation_or_none)) for pair in pairs
    ]


def _hasher() -> Callable[[AudioSource], str]:
    """A cached function that hashes a clip by its content, or by its error if it cannot be read."""

    @cache
    def hashed(source: AudioSource) -> str:
        try:
            return audio_hash(source)
        except AudioError as error:
            return str(error)

    return hashed


def _donors(labels: np.ndarray, avoided: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of n pairs another pair with another label, each used once where the labels allow it; shape (n,).

    Args:
        labels: Shape (n,), codes from 0; at least two different ones.
        avoided: Shape (n,), codes; a donor with the same one is avoided where possible.
        rng: Generator of the choice.
    """
    # Each context once, so that contexts as a whole stay the same, and only their fit to the responses is lost
    if 2 * np.bincount(labels).max() <= len(labels):
        return _permutation(labels, avoided, rng)
    # A label of more than half of the pairs leaves too few donors for each to be used once
    donors = np.empty(len(labels), dtype=np.intp)
    for index in range(len(labels)):
        others = labels != labels[index]
        better = others & (avoided != avoided[index])
        # A donor with the same audio would leave the pair as it was, and the check without effect on it
        donors[index] = rng.choice(np.flatnonzero(better if better.any() else others))
    return donors


def _permutation(labels: np.ndarray, avoided: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random permutation (n,) in which no donor has the label of its pair.

    Pairs are sorted by label and shifted by the size of the largest label, which gives one such permutation. Random
    exchanges between two or three pairs mix it, if they keep it valid and do not add donors to be avoided. (With three
    labels of equal size, no two pairs can exchange, but three can.)
    """
    n = len(labels)
    shuffled = rng.permutation(n)
    # Shuffled before: a stable sort would otherwise give every seed the same start
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    start = np.empty(n, dtype=np.intp)
    start[order] = np.roll(order, -int(np.bincount(labels).max()))
    donors, label, avoid = start.tolist(), labels.tolist(), avoided.tolist()
    for a, b, c in rng.integers(n, size=(_MIXING_ROUNDS * n, 3)).tolist():
        x, y, z = donors[a], donors[b], donors[c]
        if label[y] != label[a] and label[x] != label[b]:
            if (avoid[y] == avoid[a]) + (avoid[x] == avoid[b]) <= (avoid[x] == avoid[a]) + (avoid[y] == avoid[b]):
                donors[a], donors[b] = y, x
        elif a != c != b and label[y] != label[a] and label[z] != label[b] and label[x] != label[c]:
            added = (avoid[y] == avoid[a]) + (avoid[z] == avoid[b]) + (avoid[x] == avoid[c])
            if added <= (avoid[x] == avoid[a]) + (avoid[y] == avoid[b]) + (avoid[z] == avoid[c]):
                donors[a], donors[b], donors[c] = y, z, x
    return np.array(donors)


# ---------------------------------------------------------------- why a check is not possible


def needs_context(pairs: Sequence[Pair]) -> str | None:
    """Refuses pairs of which none has a context."""
    if any(pair.context or pair.situation_or_none or pair.context_text for pair in pairs):
        return None
    return "no pair has a context"


def needs_two_groups(pairs: Sequence[Pair]) -> str | None:
    """Refuses pairs without a context, or all of one group."""
    one_group = len({group_of(pair) for pair in pairs}) < 2
    return needs_context(pairs) or ("all pairs are of one group" if one_group else None)


def needs_two_responses(pairs: Sequence[Pair]) -> str | None:
    """Refuses pairs of which no group has two different responses."""
    seen: dict[str, str] = {}
    hashed = _hasher()
    for pair in pairs:
        response = hashed(pair.response)
        if seen.setdefault(group_of(pair), response) != response:
            return None
    return "no group has two different responses"
