"""Changes every clip of the pairs, each distinct one once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ...data_modules.audio import AudioSource, Clip, audio_hash, load_clip
from ...data_modules.errors import AudioError
from ...data_modules.parallel import map_threads
from ...data_modules.schema import Pair, Turn

ClipChange = Callable[[Clip, np.random.Generator], AudioSource]
"""A changed clip from a clip and the generator of its draws."""


def on_clips(change: ClipChange, *, keeps_words: bool = True) -> Callable[[Sequence[Pair], int], tuple[Pair, ...]]:
    """`change_clips` with this change, as `Probe.apply` takes it."""
    return lambda pairs, seed: change_clips(pairs, change, seed, keeps_words=keeps_words)


def change_clips(pairs: Sequence[Pair], change: ClipChange, seed: int, *, keeps_words: bool = True) -> tuple[Pair, ...]:
    """The pairs with every clip of context and response changed.

    Draws depend on the samples of a clip, its rate and `seed`: pairs that share a clip still share it, and neither
    order, portion nor the format of the file matters. A clip that cannot be read stays, so that the judge says so.

    Args:
        pairs: With audio of any kind.
        change: Called once per distinct clip, in several threads.
        seed: Of the draws.
        keeps_words: Whether a transcript still says what is heard; if not, transcripts are removed.
    """
    sources = dict.fromkeys(
        source for pair in pairs for source in (*(turn.audio for turn in pair.context), pair.response)
    )

    def changed(source: AudioSource) -> AudioSource:
        try:
            clip = load_clip(source)
        except AudioError:
            return source
        return change(clip, np.random.default_rng([seed, int(audio_hash(clip)[:16], 16)]))

    found = dict(zip(sources, map_threads(changed, sources, "changing clips", len(sources)), strict=True))
    without = {} if keeps_words else {"context_text": None, "response_text": None}
    return tuple(
        dataclasses.replace(
            pair,
            context=tuple(Turn(turn.role, found[turn.audio]) for turn in pair.context),
            response=found[pair.response],
            **without,
        )
        for pair in pairs
    )
