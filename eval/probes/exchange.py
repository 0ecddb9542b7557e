"""Contexts or responses change places. The ratings stay with the pair, so they no longer fit what is heard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ...data_modules.audio import AudioSource, audio_hash
from ...data_modules.errors import AudioError, DataError
from ...data_modules.schema import Pair
from .probe import Probe, needs_context

_MIXING_ROUNDS = 20  # proposed exchanges per pair; after about 5 the first arrangement is forgotten


def group_of(pair: Pair) -> str:
    """The group of a pair; a pair without one is a group of its own."""
    return pair.group_id or pair.pair_id


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
    """
    groups = np.unique([group_of(pair) for pair in pairs], return_inverse=True)[1]
    if len(np.unique(groups)) < 2:
        raise DataError(f"contexts cannot be swapped between groups: the {len(pairs)} pairs are all of one group")
    contexts = np.unique(context_keys(pairs), return_inverse=True)[1]
    return tuple(
        dataclasses.replace(
            pair,
            context=pairs[donor].context,
            situation=pairs[donor].situation,
            context_text=pairs[donor].context_text,
            context_speaker=pairs[donor].context_speaker,
        )
        for pair, donor in zip(pairs, _donors(groups, contexts, np.random.default_rng(seed)), strict=True)
    )


def response_swapped(pairs: Sequence[Pair], seed: int = 0) -> tuple[Pair, ...]:
    """Each pair with the response (clip, transcript, speaker, system) of a pair of its own group.

    Inside a group each response is given to one pair, always one of other audio; where one response has more than half
    of the group's pairs, responses are drawn from the others with replacement. Pairs of a group with one response only
    are left out.

    Args:
        pairs: The pairs; a group with two different responses.
        seed: The same seed and pairs give the same swap.

    Raises:
        DataError: If no group has two different responses.
    """
    hashed = _hasher()
    codes = np.unique([hashed(pair.response) for pair in pairs], return_inverse=True)[1]
    groups = np.unique([group_of(pair) for pair in pairs], return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    donor_of: dict[int, int] = {}
    for group in range(int(groups.max(initial=-1)) + 1):
        members = np.flatnonzero(groups == group)
        if len(np.unique(codes[members])) >= 2:
            own = np.unique(codes[members], return_inverse=True)[1]
            donor_of.update(zip(members.tolist(), members[_donors(own, own, rng)].tolist(), strict=True))
    if not donor_of:
        raise DataError(f"responses cannot be swapped: no group of the {len(pairs)} pairs has two different responses")
    return tuple(
        dataclasses.replace(
            pairs[own],
            response=pairs[donor].response,
            response_text=pairs[donor].response_text,
            response_speaker=pairs[donor].response_speaker,
            system_id=pairs[donor].system_id,
        )
        for own, donor in sorted(donor_of.items())
    )


def context_keys(pairs: Sequence[Pair]) -> list[str]:
    """Equal for two pairs whose judge would be given the same context: turns and situation."""
    hashed = _hasher()
    return [repr(([(turn.role, hashed(turn.audio)) for turn in pair.context], pair.situation)) for pair in pairs]


def _hasher() -> Callable[[AudioSource], str]:
    """Hashes a clip by its content, each once; one that cannot be read (the judge will say so) by its error."""
    hashes: dict[AudioSource, str] = {}

    def hashed(source: AudioSource) -> str:
        if source not in hashes:
            try:
                hashes[source] = audio_hash(source)
            except AudioError as error:
                hashes[source] = str(error)
        return hashes[source]

    return hashed


def _donors(labels: np.ndarray, avoided: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of n pairs another pair with another label, each used once where the labels allow it; shape (n,).

    Args:
        labels: Shape (n,), codes from 0; at least two different ones.
        avoided: Shape (n,), codes; a donor with the same one is avoided where possible.
        rng: Of the choice.
    """
    if 2 * np.bincount(labels).max() <= len(labels):
        return _permutation(labels, avoided, rng)
    return _draw(labels, avoided, rng)


def _permutation(labels: np.ndarray, avoided: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random permutation (n,) without a donor of the own label.

    Shifting pairs sorted by label by the size of the largest one gives one; random exchanges among two and three pairs
    that keep it valid and do not add donors to be avoided mix it. (With three labels of equal size, no two pairs can
    exchange, but three can.)
    """
    n = len(labels)
    shuffled = rng.permutation(n)
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


def _draw(labels: np.ndarray, avoided: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each pair a random donor (n,) of another label, not one to be avoided where there is another."""
    donors = np.empty(len(labels), dtype=np.intp)
    for index in range(len(labels)):
        others = labels != labels[index]
        better = others & (avoided != avoided[index])
        donors[index] = rng.choice(np.flatnonzero(better if better.any() else others))
    return donors


def _needs_two_groups(pairs: Sequence[Pair]) -> str | None:
    if len({group_of(pair) for pair in pairs}) < 2:
        return needs_context(pairs) or "all pairs are of one group"
    return needs_context(pairs)


def _needs_two_responses(pairs: Sequence[Pair]) -> str | None:
    seen: dict[str, str] = {}
    hashed = _hasher()
    for pair in pairs:
        own = hashed(pair.response)
        if seen.setdefault(group_of(pair), own) != own:
            return None
    return "no group has two different responses"


EXCHANGES = (
    Probe(
        name="context_swapped",
        title="Context swapped",
        expects="drop",
        change="With the context of a pair of another group",
        removes="the fit of the response to what it answers",
        keeps="the response; the contexts as a whole",
        if_moves="the judge hears which context the response belongs to.",
        if_stays="the judge gives much the same verdict whatever the response answers.",
        apply=context_swapped,
        refuses=_needs_two_groups,
    ),
    Probe(
        name="response_swapped",
        title="Response swapped in its group",
        expects="drop",
        change="With another response of the same group",
        removes="the response that was rated",
        keeps="the context; the responses to it as a whole",
        if_moves="the judge hears which of the responses it is given.",
        if_stays="the judge rates the context or the script, whatever is answered.",
        apply=response_swapped,
        refuses=_needs_two_responses,
    ),
)
"""Probes that exchange clips between pairs."""
