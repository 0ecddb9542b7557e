"""Probes of what must not matter: the recording, the file, and how pairs are put together."""

from __future__ import annotations

from collections.abc import Sequence

from ...data_modules.schema import Pair
from . import recording
from .clips import on_clips
from .probe import Probe


def reversed_order(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs, the last one first: other batches, other neighbours, other padding."""
    return tuple(reversed(pairs))


RECORDING_PROBES = (
    Probe(
        name="telephone",
        title="Telephone band",
        expects="keep",
        change="Through the band of a telephone (300 to 3400 Hz)",
        removes="the lowest harmonics and the brightness",
        keeps="words, pitch, timing, loudness",
        if_moves="the judge depends on the width of the band.",
        if_stays="the judge does not mind the band.",
        apply=on_clips(recording.telephone),
        by_clip=True,
    ),
    Probe(
        name="noise",
        title="Noise",
        expects="keep",
        change=f"With noise {recording.SNR:g} dB below the speech",
        removes="what is softer than the noise, such as breath",
        keeps="words, pitch, timing, loudness",
        if_moves="the judge depends on a clean recording.",
        if_stays="the judge does not mind noise.",
        apply=on_clips(recording.noisy),
        by_clip=True,
    ),
    Probe(
        name="codec",
        title="Codec",
        expects="keep",
        change="Through a small MP3 file",
        removes="what the codec takes for inaudible",
        keeps="words, pitch, timing, loudness",
        if_moves="the judge depends on the codec.",
        if_stays="the judge does not mind the codec.",
        apply=on_clips(recording.coded),
        by_clip=True,
    ),
    Probe(
        name="gain",
        title="Gain",
        expects="same",
        change=f"With each clip {recording.GAIN:g} dB louder or softer, as a coin falls",
        removes="the level of the recording",
        keeps="everything else",
        if_moves="part of the score is the level of the recording, which a microphone's distance changes as much.",
        if_stays="the level of the recording does not matter to the judge.",
        apply=on_clips(recording.gained),
        tolerance=0.25,
        by_clip=True,
    ),
    Probe(
        name="leading_silence",
        title="Leading silence",
        expects="same",
        change=f"With {recording.SILENCE:g} s of silence before each clip",
        removes="nothing",
        keeps="everything",
        if_moves="silence before a clip changes its score.",
        if_stays="silence before a clip does not matter to the judge.",
        apply=on_clips(recording.after_silence),
        tolerance=0.25,
        by_clip=True,
    ),
    Probe(
        name="trailing_silence",
        title="Trailing silence",
        expects="same",
        change=f"With {recording.SILENCE:g} s of silence after each clip",
        removes="nothing",
        keeps="everything",
        if_moves="silence after a clip changes its score.",
        if_stays="silence after a clip does not matter to the judge.",
        apply=on_clips(recording.before_silence),
        tolerance=0.25,
        by_clip=True,
    ),
    Probe(
        name="file_format",
        title="File format",
        expects="same",
        change="From FLAC files of 16 bits",
        removes="nothing that can be heard",
        keeps="everything",
        if_moves="the format of the file changes the score.",
        if_stays="the format of the file does not matter to the judge.",
        apply=on_clips(recording.other_file),
        tolerance=0.05,
        by_clip=True,
    ),
    Probe(
        name="batch_order",
        title="Order of the pairs",
        expects="same",
        change="With the last pair first",
        removes="nothing",
        keeps="everything; batches have other members and other padding",
        if_moves="a score depends on the pairs that are scored beside it, or on chance.",
        if_stays="a score does not depend on the pairs beside it.",
        apply=lambda pairs, seed: reversed_order(pairs),
        tolerance=0.01,
    ),
)
"""Probes of invariance."""
