"""Stand-ins for decoders of torchcodec, which needs FFmpeg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

RATE = 16_000


class Decoder:
    """torchcodec's `AudioDecoder` 0.17, as far as its samples go: shape (channels, samples)."""

    def __init__(self, samples: np.ndarray, rate: int = RATE) -> None:
        self._samples, self._rate = samples, rate

    def get_all_samples(self) -> Any:
        return SimpleNamespace(data=torch.from_numpy(np.atleast_2d(self._samples)), sample_rate=self._rate)


class Cell:
    """What a cell of audio of datasets 5.2 answers: `features/_torchcodec.py`."""

    def __init__(self, samples: np.ndarray, rate: int = RATE) -> None:
        self._samples, self._rate = samples, rate

    def __getitem__(self, key: str) -> Any:
        if key == "array":
            return self._samples
        if key == "sampling_rate":
            return self._rate
        raise TypeError("'torchcodec.decoders.AudioDecoder' object is not subscriptable")
