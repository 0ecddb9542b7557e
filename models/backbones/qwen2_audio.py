"""Qwen2-Audio (Chu et al., 2024), Audio Flamingo 3 (Goel et al., 2025) and Audio Flamingo Next (NVIDIA, 2026).

Whisper's encoder with masked padding and a pooling of two, a projector of one or two layers, a Qwen language model.

The official processor of the Audio Flamingos takes one clip for each text, and the chat template on the hub puts one
`<sound>` in front of the text of a message, however many clips it has. The message is therefore given as a text with
`<sound>` in the place of each clip, which the template passes on. A clip's tokens are those that the official processor
gives it alone.

Audio Flamingo Next has the classes of Music Flamingo: between tower and projector, states are turned by their time in
the clip, in 40 % of their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AudioFlamingo3ForConditionalGeneration,
    MusicFlamingoForConditionalGeneration,
    Qwen2AudioForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.musicflamingo.modeling_musicflamingo import apply_rotary_time_emb

from .attention import KERNEL, OneRow, in_one_row
from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, Message, as_text
from .base import BackbonePart, Checkpoint
from .inputs import Clips
from .layers import LayerStatistics, padding_mask, record_layers, without_padding
from .loading import check_extractor

WHISPER_TOWER = BackbonePart(
    "audio_tower", ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), layers="audio_tower.layers"
)
"""The part of such a tower that can be adapted."""


class WhisperTowerModel(AudioLanguageModel):
    """Spectrograms of the real length through a tower that was written for its full window.

    The tower's own `forward` requires windows of 30 s. Here padding is masked, so that only the convolutions and the
    spectrogram's window reach beyond the end of a clip: with a few zeros behind the longest clip of a batch, the states
    are those of the full window.

    The tower has `conv1`, `conv2`, `embed_positions`, `layers`, `avg_pooler` and `layer_norm`; the extractor is a
    `WhisperFeatureExtractor`, whose window is the longest piece that the tower sees at once.
    """

    tower_width = "d_model"

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        bins = {"feature_size": self.tower.conv1.in_channels}
        check_extractor(self.name, self.extractor, "WhisperFeatureExtractor", bins)
        window = self.extractor.chunk_length
        # the official processor of Audio Flamingo 3 cuts away what is behind its last window; others have one
        self.max_seconds = float(window * int(getattr(processor, "max_audio_len", window) // window))

    @property
    def makes_spectrograms(self) -> bool:
        """Whether the device of the tower makes them: they are most of what the host does for a clip."""
        return self.tower.conv1.weight.device.type == "cuda"

    def audio_tokens(self, samples: int) -> int:
        window, hop = self.extractor.n_samples, self.extractor.hop_length
        whole, rest = divmod(samples, window)
        return whole * _states(-(-window // hop)) + _states(-(-rest // hop))

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(windows, bins, frames)` as the extractor makes them, cut behind the longest window instead of
        padded to 30 s; for a tower on a GPU the samples, of which it makes them."""
        size, hop = self.extractor.n_samples, self.extractor.hop_length
        windows = [clip[start : start + size] for clip in clips for start in range(0, len(clip), size)]
        longest = max(map(len, windows))
        # A few zeros behind the longest clip, as far as the window of a spectrogram and the convolutions reach
        padded_length = min(longest + self.extractor.n_fft + 4 * hop, size) // hop * hop
        rows = [-(-len(clip) // size) for clip in clips]
        # Dither is random noise, which the official extractor adds
        if not self.extractor.dither and longest <= padded_length:
            samples = torch.zeros(len(windows), padded_length)
            for row, window in zip(samples.numpy(), windows, strict=True):
                row[: len(window)] = window
            lengths = [-(-len(window) // hop) for window in windows]
            if self.makes_spectrograms:
                return Clips(samples, lengths, rows, as_samples=True)
            # The extractor says the same, and takes half as long again
            return Clips(log_mel(samples, self.extractor), lengths, rows)
        extracted = self.extractor(
            windows,
            sampling_rate=self.sampling_rate,
            padding="max_length",
            max_length=max(padded_length, longest),
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return Clips(extracted["input_features"], extracted["attention_mask"].sum(-1).tolist(), rows)

    def spectrograms(self, clips: Clips) -> Tensor:
        """What the tower reads `(windows, bins, frames)`, float32."""
        return log_mel(clips.features, self.extractor) if clips.as_samples else clips.features

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        tower = self.tower
        features = self.spectrograms(clips).to(dtype=tower.conv1.weight.dtype)
        states = nn.functional.gelu(tower.conv1(features))
        lengths = [after_convolutions(length) for length in clips.lengths]
        counts = [_states(length) for length in clips.lengths]
        # the convolutions have read the zeros behind the longest clip: from here on padding is masked, or left out
        states = nn.functional.gelu(tower.conv2(states)).transpose(1, 2)[:, : max(lengths)]
        # Called and not sliced: of a judge that is spread over full GPUs, weights wait elsewhere until then
        states = states + tower.embed_positions(torch.arange(states.shape[1], device=states.device))
        # All clips in one row, each attending to itself: nothing is computed for padding
        if tower.config._attn_implementation == KERNEL:
            states, mask = in_one_row(without_padding(states, lengths), lengths)
        else:
            real = padding_mask(lengths, states.shape[1], states.device)
            mask = create_bidirectional_mask(config=tower.config, inputs_embeds=states, attention_mask=real)
        with record_layers(layer_statistics, tower.layers, clips, lengths):
            for layer in tower.layers:
                states = layer(states, mask)
        if isinstance(mask, OneRow):
            states = pad_sequence([*states[0].split(lengths)], batch_first=True)
        states = tower.layer_norm(tower.avg_pooler(states.transpose(1, 2)).transpose(1, 2))
        return without_padding(states, counts)


def after_convolutions(frames: int) -> int:
    """Number of encoder positions for this number of spectrogram frames (the second convolution has stride 2)."""
    return (frames - 1) // 2 + 1


def _states(frames: int) -> int:
    """Number of audio states for this number of spectrogram frames."""
    return after_convolutions(frames) // 2


def log_mel(samples: Tensor, extractor: WhisperFeatureExtractor) -> Tensor:
    """What Whisper's extractor makes of clips `(clips, samples)` that are padded with zeros to whole frames, on their
    device, several at once.

    The official extractor (`_torch_extract_fbank_features` of transformers 5.17 to 5.23) also computes on a GPU, but it
    returns NumPy arrays: the host would wait for each batch, and copy it back.

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


class Qwen2Audio(WhisperTowerModel):
    """Exact: hidden states equal those of the official classes."""

    model_class = Qwen2AudioForConditionalGeneration
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("multi_modal_projector", ("linear",)),
        "audio_tower": WHISPER_TOWER,
    }


class AudioFlamingo3(WhisperTowerModel):
    """Exact for each clip alone."""

    model_class = AudioFlamingo3ForConditionalGeneration
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("multi_modal_projector", ("linear_1", "linear_2")),
        "audio_tower": WHISPER_TOWER,
    }

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`: one audio token for each clip, where the clip is."""
        turns = [{"role": message["role"], "content": as_text(message, self.audio_token)} for message in chat]
        return self.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


class MusicFlamingo(AudioFlamingo3):
    """The states that the cache keeps are turned: their time is that in the clip, and depends on nothing else."""

    model_class = MusicFlamingoForConditionalGeneration

    @property
    def audio_span(self) -> str:
        return self.processor.audio_bos_token + self.audio_token + self.processor.audio_eos_token

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        states = super().encode_audio(clips, layer_statistics)
        # the official model counts the seconds of whole windows, whatever the length of the last one
        step, size = 4 * self.network.config.audio_frame_step, _states(self.extractor.nb_max_frames)  # pyright: ignore
        counts = [_states(length) for length in clips.lengths]
        places = [place for of_clip in clips.by_clip(counts) for place in enumerate(of_clip)]
        starts = torch.arange(1 + max(window for window, _ in places), device=states.device)[:, None] * size * step
        seconds = starts + torch.arange(size, device=states.device) * step
        cos, sin = (
            torch.cat([table[window, :count] for window, count in places])
            for table in self.network.pos_emb(seconds, seq_len=size)  # pyright: ignore[reportCallIssue]
        )
        return apply_rotary_time_emb(states, cos, sin)
