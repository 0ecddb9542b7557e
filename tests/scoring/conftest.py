"""Four voices, and a judge as a reward of them."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.scoring.reward import EmpathyReward

from ..models.conftest import RATE, folder, pairs

__all__ = ["RATE", "folder", "pairs"]  # the last two are fixtures


@pytest.fixture
def voices(make_tone) -> list[Clip]:
    return [Clip(make_tone(0.6 + 0.1 * n, 150 + 60 * n, 0.1 + 0.1 * n, 0.1), RATE) for n in range(4)]


def silence() -> Clip:
    return Clip(np.zeros(RATE, np.float32), RATE)


def reward_of(scorer, clips, **options) -> EmpathyReward:
    """Completions are numbers of clips."""
    return EmpathyReward(scorer, lambda completions, **_: [clips[int(text)] for text in completions], **options)
