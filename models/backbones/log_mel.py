"""Log-mel spectrograms of Whisper on the device of the samples, several clips at once.

The official extractor (`_torch_extract_fbank_features` of transformers 5.17 to 5.23) also computes on a GPU, but it
returns NumPy arrays: the host would wait for each batch, and copy it back.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from transformers import WhisperFeatureExtractor


def log_mel(samples: Tensor, extractor: WhisperFeatureExtractor) -> Tensor:
    """What the extractor makes of clips `(clips, samples)` that are padded with zeros to whole frames.

    Returns:
        `(clips, bins, frames)`, float32, one frame for each `hop_length` samples. Each clip is at least 8 decades below
        its own maximum.
    """
    # autocast would round the product whose logarithm is taken
    with torch.autocast(samples.device.type, enabled=False):
        filters, window = _filters(extractor, samples.device)
        spectrum = torch.stft(
            samples.float(), extractor.n_fft, extractor.hop_length, window=window, return_complex=True
        )
        # The official extractor leaves out the last frame, too: its middle is where the clip ends
        powers = filters @ (spectrum[..., :-1].abs() ** 2).contiguous()
        decades = powers.clamp(min=1e-10).log10()
        decades = torch.maximum(decades, decades.amax((1, 2), keepdim=True) - 8.0)
        return (decades + 4.0) / 4.0


@lru_cache(maxsize=8)
def _filters(extractor: WhisperFeatureExtractor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mel filters `(bins, frequencies)` and window, copied to the device once."""
    filters = torch.from_numpy(extractor.mel_filters).float().T.to(device)
    return filters, torch.hann_window(extractor.n_fft, device=device)
