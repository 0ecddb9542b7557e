"""Listening checks: the same pairs with something taken away. A judge that listens scores them worse.

Each check returns new pairs, in the same order and with the same ids, to be scored and compared with the
unchanged human ratings. A transcript says what the audio says, so it goes wherever its audio goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..data_modules.audio import AudioSource, Clip, audio_hash, probe
from ..data_modules.errors import DataError
from ..data_modules.schema import Pair, Turn

_MIXING_ROUNDS = 20  # proposed exchanges per pair; after about 5 the first arrangement is forgotten


def response_only(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The response alone: context turns, situation, context transcript and context speaker are removed.

    A score near the full one means that the judge rates the sound of the answer, not its fit to what was
    said.
    """
    return tuple(
        dataclasses.replace(pair, context=(), situation=None, context_text=None, context_speaker=None) for pair in pairs
    )


def context_swapped(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """Each pair with the context (turns, situation, transcript, speaker) of a pair of another group.

    Each context is given to one pair, so the contexts as a whole stay the same. Only where one group holds
    more than half of the pairs is that impossible: contexts are then drawn from the other groups with
    replacement. A context with the same audio and situation as the own one is avoided where the groups allow.

    Args:
        pairs: The pairs; at least two groups.
        seed: The same seed and pairs give the same swap.

    Raises:
        DataError: If all pairs are of one group.
        AudioError: If a context file cannot be read.
    """
    groups = np.unique([group_of(pair) for pair in pairs], return_inverse=True)[1]
    if len(np.unique(groups)) < 2:
        raise DataError(f"contexts cannot be swapped between groups: the {len(pairs)} pairs are all of one group")
    contexts = np.unique(_context_keys(pairs), return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    if 2 * np.bincount(groups).max() <= len(pairs):
        donors = _permutation(groups, contexts, rng)
    else:
        donors = _draw(groups, contexts, rng)
    return tuple(
        dataclasses.replace(
            pair,
            context=pairs[donor].context,
            situation=pairs[donor].situation,
            context_text=pairs[donor].context_text,
            context_speaker=pairs[donor].context_speaker,
        )
        for pair, donor in zip(pairs, donors, strict=True)
    )


def silent(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Every clip replaced by silence of its duration and rate; transcripts go, the situation stays.

    What is left to a judge is how long the clips last, and the situation text. The clips share one buffer of
    zeros.

    Raises:
        AudioError: If a file cannot be opened.
    """
    lengths: dict[AudioSource, tuple[int, int]] = {}
    for source in (clip for pair in pairs for clip in (*(turn.audio for turn in pair.context), pair.response)):
        if source not in lengths:
            info = probe(source)
            lengths[source] = (round(info.seconds * info.rate), info.rate)
    zeros = np.zeros(max((samples for samples, _ in lengths.values()), default=0), dtype=np.float32)
    silence = {source: Clip(zeros[:samples], rate) for source, (samples, rate) in lengths.items()}
    return tuple(
        dataclasses.replace(
            pair,
            context=tuple(Turn(turn.role, silence[turn.audio]) for turn in pair.context),
            response=silence[pair.response],
            context_text=None,
            response_text=None,
        )
        for pair in pairs
    )


def group_of(pair: Pair) -> str:
    """The group of a pair; a pair without one is a group of its own."""
    return pair.group_id or pair.pair_id


def _context_keys(pairs: Sequence[Pair]) -> list[str]:
    """Equal for two pairs whose judge would be given the same context."""
    hashes: dict[AudioSource, str] = {}
    keys = []
    for pair in pairs:
        for turn in pair.context:
            if turn.audio not in hashes:
                hashes[turn.audio] = audio_hash(turn.audio)
        turns = [(turn.role, hashes[turn.audio]) for turn in pair.context]
        keys.append(repr((turns, pair.situation)))
    return keys


def _permutation(groups: np.ndarray, contexts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random permutation (n,) without a donor of the own group.

    Shifting pairs sorted by group by the size of the largest group gives one; random exchanges that keep it
    valid and do not add donors of the own context mix it.
    """
    n = len(groups)
    shuffled = rng.permutation(n)
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    donors = np.empty(n, dtype=np.intp)
    donors[order] = np.roll(order, -int(np.bincount(groups).max()))
    for first, second in rng.integers(n, size=(_MIXING_ROUNDS * n, 2)):
        one, other = donors[first], donors[second]
        if groups[other] == groups[first] or groups[one] == groups[second]:
            continue
        now = (contexts[one] == contexts[first]) + int(contexts[other] == contexts[second])
        then = (contexts[other] == contexts[first]) + int(contexts[one] == contexts[second])
        if then <= now:
            donors[first], donors[second] = other, one
    return donors


def _draw(groups: np.ndarray, contexts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each pair a random donor (n,) of another group, of another context where there is one."""
    donors = np.empty(len(groups), dtype=np.intp)
    for index in range(len(groups)):
        others = groups != groups[index]
        better = others & (contexts != contexts[index])
        donors[index] = rng.choice(np.flatnonzero(better if better.any() else others))
    return donors
