"""What a clip is like, as far as it tells whether a judge can be trusted with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data_modules.audio import Clip, decode
from ..data_modules.prosody import HOP, RATE, steady_pitch, track


class ClipFacts(NamedTuple):
    """One clip.

    Attributes:
        seconds: Duration.
        level: RMS of the frames that are no pauses, dB relative to full scale.
        voiced: Seconds in which a voice has a pitch; 0 where there are too few to tell.
        pitch: Median fundamental frequency in Hz; NaN without a voice.
    """

    seconds: float
    level: float
    voiced: float
    pitch: float


def clip_facts(windows: Sequence[np.ndarray], rate: int) -> ClipFacts:
    """Measure a decoded clip.

    Args:
        windows: Mono samples, one piece after the other.
        rate: Hz.
    """
    samples = np.concatenate(windows)
    heard = samples if rate == RATE else decode(Clip(samples, rate), RATE)
    frames = track(heard)
    pitch = steady_pitch(frames)
    voiced = np.count_nonzero(~np.isnan(pitch))
    power = np.mean(10 ** (frames.level[frames.active] / 10))
    return ClipFacts(
        seconds=len(samples) / rate,
        level=float(10 * np.log10(power)),
        voiced=voiced * HOP / RATE,
        pitch=float(np.nanmedian(pitch)) if voiced else math.nan,
    )
