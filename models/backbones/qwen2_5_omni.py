"""Qwen2.5-Omni (Xu et al., 2025), its thinker alone: Whisper-like tower, linear projector, Qwen2.5.

Exact: hidden states equal those of the official classes with the official processor on each pair. The tower attends
within blocks of 2 s and masks what is padding, so that clips share a batch without hearing each other; the official
processor pads every clip to 300 s, ours to the longest. Without images the three rows of its positions are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2_5OmniThinkerConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniPreTrainedModel,
    Qwen2_5OmniThinkerTextModel,
)

from .common.audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, decoder
from .common.base import Checkpoint, Clips, Layout, Part, PartName
from .common.chat import Chat
from .common.speech_processor import SpeechProcessor
from .common.thinker import load_thinker
from .common.whisper_tower import WHISPER_TOWER, MaskedWhisperEars

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
    """Implements `Ears`: spectrograms as Qwen2-Audio makes them, through a tower that cuts them into blocks itself."""

    tokens_per_state = 1

    def __init__(self, tower: Any, extractor: Any) -> None:
        """Wrap a `Qwen2_5OmniAudioEncoder` whose projector was taken off and a `WhisperFeatureExtractor`."""
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
        frames = torch.arange(clips.features.shape[2], device=clips.features.device)
        packed = clips.features.transpose(1, 2)[frames < clips.lengths[:, None]].T
        return self._tower(packed, feature_lens=clips.lengths).last_hidden_state
