"""Qwen2.5-Omni (Xu et al., 2025), its thinker alone: Whisper-like tower, linear projector, Qwen2.5.

Exact: hidden states equal those of the official classes with the official processor on each pair. The tower attends
within blocks of 2 s, of which each is a row here, so that clips share a batch without hearing each other; the official
processor pads every clip to 300 s, ours to the longest. Without images the three rows of its positions are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2_5OmniThinkerConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniPreTrainedModel,
    Qwen2_5OmniThinkerTextModel,
)

from .common.attention import attend_in_rows
from .common.audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, decoder
from .common.base import Checkpoint, Clips, Layout, Part, PartName
from .common.chat import Chat
from .common.padding import on_device, real_places, without_padding
from .common.speech_processor import SpeechProcessor
from .common.thinker import load_thinker
from .common.whisper_tower import WHISPER_TOWER, MaskedWhisperEars, after_convolutions

PARTS: Mapping[PartName, Part] = {
    "language_model": LANGUAGE_MODEL,
    "projector": Part("projector", ()),
    "audio_tower": WHISPER_TOWER,
}


class Listener(Qwen2_5OmniPreTrainedModel):
    """What of a thinker is needed to listen."""

    def __init__(self, config: Qwen2_5OmniThinkerConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportArgumentType] the annotation names the whole model's
        self.audio_tower = Qwen2_5OmniAudioEncoder._from_config(config.audio_config)
        self.language_model = Qwen2_5OmniThinkerTextModel._from_config(config.text_config)
        self.post_init()


def load(checkpoint: Checkpoint) -> AudioLanguageModel:
    """Load the thinker out of a whole Omni checkpoint, or one that was saved alone, from the hub or a folder.

    Raises:
        UserError: If the checkpoint lacks weights of the model or has weights that belong to none.
    """
    network: Any = load_thinker(Listener, checkpoint)
    processor = SpeechProcessor(checkpoint)
    tower = network.audio_tower
    network.projector, tower.proj = tower.proj, nn.Identity()
    del tower.audio_bos_eos_token  # no forward pass reads it
    for layer in tower.layers:
        attend_in_rows(layer.self_attn)
    return AudioLanguageModel(
        network,
        checkpoint,
        processor=processor,
        parts=PARTS,
        ears=BlockEars(tower, processor.feature_extractor),
        chat=Chat(processor, processor.tokenizer.audio_token),
        embed=network.language_model.embed_tokens,
        project=lambda states: network.projector(states),  # LoRA replaces it
        read=decoder(network.language_model),
        hidden_size=network.language_model.config.hidden_size,
        layout=Layout({"": "", "projector.": "audio_tower.proj."}),
    )


class BlockEars:
    """Implements `Ears`: spectrograms as Qwen2-Audio makes them, through a tower that hears them in blocks."""

    tokens_per_state = 1

    def __init__(self, tower: Any, extractor: Any) -> None:
        """Wrap a `Qwen2_5OmniAudioEncoder`, whose `forward` is not called, and a `WhisperFeatureExtractor`."""
        self._tower, self._spectrograms = tower, MaskedWhisperEars(tower, extractor)
        self.sampling_rate, self.max_seconds = self._spectrograms.sampling_rate, self._spectrograms.max_seconds
        self.audio_size = self._spectrograms.audio_size

    def audio_tokens(self, samples: int) -> int:
        """Audio tokens of a clip of so many samples."""
        return self._spectrograms.audio_tokens(samples)

    def prepare(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, bins, frames)`, padded to the longest."""
        return self._spectrograms.prepare(clips)

    def encode(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other `(states, audio size)`."""
        tower, device = self._tower, clips.features.device
        rows = zip(clips.features.transpose(1, 2), clips.lengths, strict=True)
        blocks = [block for row, length in rows for block in row[:length].split(2 * tower.n_window)]
        widths = [len(block) for block in blocks]
        states = pad_sequence(blocks, batch_first=True).transpose(1, 2).to(tower.conv1.weight.dtype)
        states = gelu(tower.conv1(states))
        if (real := real_places(widths, states.shape[2], device)) is not None:
            states = states * real[:, None]  # the second convolution must see zeros there
        states = gelu(tower.conv2(states)).transpose(1, 2)
        states = states + tower.positional_embedding.positional_embedding[: states.shape[1]].to(states)
        counts = [after_convolutions(width) for width in widths]
        real = real_places(counts, states.shape[1], device)
        for layer in tower.layers:
            states = layer(states, None if real is None else real[:, None, None])[0]
        states = without_padding(states, counts)
        # two states side by side make one, across the blocks of a clip; an odd one at its end is left out
        bounds = list(itertools.accumulate(map(after_convolutions, clips.lengths), initial=0))
        firsts = [first for start, end in itertools.pairwise(bounds) for first in range(start, end - 1, 2)]
        first = on_device(firsts, device)
        return tower.ln_post((states[first] + states[first + 1]) / 2)
