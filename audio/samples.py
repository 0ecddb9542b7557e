"""Samples as other libraries hold them, as a `Clip`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import AudioError, shown
from .decode import Clip


def clip_of(samples: Any, rate: Any) -> Clip:
    """Samples of NumPy, torch (of any device and float type) or a list, at a rate in Hz.

    Raises:
        AudioError: If they are not one-dimensional floats, are masked, or the rate is none that a recording has.
    """
    try:
        if hasattr(samples, "detach"):
            samples = samples.detach().cpu()
            samples = (samples.float() if samples.is_floating_point() else samples).numpy()
        if rate != int(rate):
            raise ValueError("expected a whole number of Hz")
        if np.ma.is_masked(samples):
            raise ValueError("some are masked; expected samples without a mask, as of .filled(0)")
        return Clip(np.array(samples), int(rate))  # a copy: pairs wait for a batch, and callers reuse their buffers
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # ragged lists; a rate that is NaN
        raise AudioError(f"samples at {shown(rate)} Hz cannot be read ({error})", "not a clip") from None


def decoded(cell: Any) -> Clip | None:
    """The samples of torchcodec's `AudioDecoder`, or of what answers to `["array"]` and `["sampling_rate"]`, such as a
    cell of audio in datasets. None = it is neither.

    Channels of a decoder are averaged. Arrays have to be mono.

    Raises:
        AudioError: If the file cannot be decoded, which is tried only now, or as `clip_of`.
    """
    if isinstance(cell, np.ndarray) or hasattr(cell, "detach"):  # samples without a rate
        return None
    try:
        if callable(decode := getattr(cell, "get_all_samples", None)):
            found: Any = decode()
            samples, rate = found.data, found.sample_rate
            if "float" not in str(samples.dtype):
                kind = str(samples.dtype).removeprefix("torch.")
                raise AudioError(f"samples have dtype {kind}; expected float samples in -1 to 1", "not supported")
            samples = samples.mean(0) if samples.ndim > 1 else samples
        else:
            samples, rate = cell["array"], cell["sampling_rate"]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None
    except (RuntimeError, ValueError) as error:  # of FFmpeg
        reason = str(error).partition("\n")[0]
        raise AudioError(f"the clip cannot be decoded ({reason})", "the file is damaged") from None
    return clip_of(samples, rate)
