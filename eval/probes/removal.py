"""A side of the pair is taken away, or all sound. A transcript says what the audio says, so it goes with its audio."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...data_modules.audio import AudioSource, Clip, probe
from ...data_modules.errors import AudioError
from ...data_modules.schema import Pair, Turn
from .probe import Probe, needs_context


def response_only(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The response alone: context turns, situation, context transcript and context speaker are removed.

    A score near the full one means that the judge rates the sound of the answer, not its fit to what was
    said.
    """
    return tuple(
        dataclasses.replace(pair, context=(), situation=None, context_text=None, context_speaker=None) for pair in pairs
    )


def context_only(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The context alone: the response is silence of its duration and rate; its transcript and speaker are removed."""
    silence = _silence(pair.response for pair in pairs)
    return tuple(
        dataclasses.replace(pair, response=silence[pair.response], response_text=None, response_speaker=None)
        for pair in pairs
    )


def silent(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Every clip replaced by silence of its duration and rate; transcripts go, the situation stays.

    What is left to a judge is how long the clips last, and the situation text. The clips share one buffer of
    zeros. A clip that cannot be opened stays, so that the judge says so.
    """
    silence = _silence(clip for pair in pairs for clip in (*(turn.audio for turn in pair.context), pair.response))
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


def _silence(sources: Iterable[AudioSource]) -> Mapping[AudioSource, AudioSource]:
    """Source -> as much silence; a clip that cannot be opened stands for itself."""
    lengths: dict[AudioSource, tuple[int, int] | None] = {}
    for source in sources:
        if source not in lengths:
            try:
                info = probe(source)
                lengths[source] = round(info.seconds * info.rate), info.rate
            except AudioError:
                lengths[source] = None
    zeros = np.zeros(max((length[0] for length in lengths.values() if length), default=0), dtype=np.float32)
    return {source: Clip(zeros[: length[0]], length[1]) if length else source for source, length in lengths.items()}


REMOVALS = (
    Probe(
        name="response_only",
        title="Response only",
        expects="drop",
        change="Without context and situation",
        removes="what was said before the response",
        keeps="the response",
        if_moves="the judge weighs the response against what was said before it.",
        if_stays="a shortcut. The judge rates the response by itself, whatever it answers.",
        apply=lambda pairs, seed: response_only(pairs),
        refuses=needs_context,
    ),
    Probe(
        name="context_only",
        title="Context only",
        expects="drop",
        change="With silence in place of the response",
        removes="the response",
        keeps="context, situation, and how long the response lasts",
        if_moves="the judge rates the response, not only what it answers.",
        if_stays="a shortcut. The judge guesses the rating from the context or the length of the response.",
        apply=lambda pairs, seed: context_only(pairs),
        refuses=needs_context,
    ),
    Probe(
        name="silent",
        title="Both silent",
        expects="drop",
        change="With silence of the same length in place of all sound",
        removes="all sound and its transcripts",
        keeps="the situation text, and how long the clips last",
        if_moves="the scores come from the sound.",
        if_stays="part of the score comes from the length of the clips or the situation text, not the sound.",
        apply=lambda pairs, seed: silent(pairs),
    ),
)
"""Probes that take a side of the pair, or both, away."""
