"""Settings of the training data."""

from __future__ import annotations

import dataclasses

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.settings import Augmentation


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_probability": 1.5}, "noise_probability 1.5; expected 0 to 1"),
        ({"gain_probability": -0.1}, "gain_probability -0.1; expected 0 to 1"),
        ({"gain_probability": float("nan")}, "gain_probability nan"),
        ({"noise_snr": (30.0, 10.0)}, r"noise_snr \(30.0, 10.0\); expected two values, ascending, -20.0 to 100.0"),
        ({"codec_compression": (0.0, 1.1)}, "codec_compression"),
        ({"gain_db": (-61.0, 1.0)}, "gain_db"),
        ({"codec_probability": 0.5, "codecs": ()}, "codec_probability without codecs"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(Augmentation(), **changes)
