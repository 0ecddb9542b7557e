"""Voxtral (Liu et al., 2025): Whisper's tower over whole windows of 30 s, four states side by side, Llama.

As in the official encoder, the padding of a clip's last window is attended to and has audio tokens of its own: a clip
costs 375 tokens for each 30 s begun. Token ids are those of the official template where the text between two clips is
one piece (the template puts empty lines between several pieces).

The tokenizer on the hub is a `tekken.json`. transformers reads it without `mistral-common`, so that package is not
needed; its chat template is written out below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import is_offline_mode
from torch import Tensor, nn
from transformers import VoxtralForConditionalGeneration

from .audio_language_model import LANGUAGE_MODEL, AudioLanguageModel, Message, as_text
from .base import BackbonePart, Checkpoint
from .deferred import own_file
from .inputs import Clips
from .layers import LayerStatistics, record_layers
from .loading import load_processor
from .qwen2_audio import WHISPER_TOWER, after_convolutions


class Voxtral(AudioLanguageModel):
    """Spectrograms of clips padded to whole windows; each window goes through the tower alone."""

    model_class = VoxtralForConditionalGeneration
    own_audio_token = "[AUDIO]"
    max_seconds = 2_400.0  # no file of the checkpoint sets a limit; 40 minutes are what its authors state
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": BackbonePart("multi_modal_projector", ("linear_1", "linear_2")),
        "audio_tower": WHISPER_TOWER,
    }

    @staticmethod
    def processor_of(checkpoint: Checkpoint) -> Any:
        """The processor, whose tokenizer reads control tokens."""
        # mistral-common's own tokenizer never reads special tokens in a text, so it could not read a prompt
        processor = load_processor(_with_tokenizer(checkpoint), mistral_format=False)
        special = [str(token) for token in processor.tokenizer.added_tokens_decoder.values()]
        processor.tokenizer.add_special_tokens({"pad_token": "<pad>", "extra_special_tokens": special})
        return processor

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        config: Any = self.tower.config
        # a state is as wide as the feed-forward layers: four positions of the tower side by side
        self.audio_size: int = config.intermediate_size
        self._per_window = config.max_source_positions * config.hidden_size // self.audio_size

    @property
    def audio_span(self) -> str:
        return "[BEGIN_AUDIO]" + self.audio_token

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`."""
        (message,) = chat
        return f"<s>[INST]{as_text(message, self.audio_token)}[/INST]"

    def audio_tokens(self, samples: int) -> int:
        """See `Backbone`: those of whole windows."""
        return -(-samples // self.extractor.n_samples) * self._per_window

    def real_audio_tokens(self, samples: int) -> int:
        """See `Backbone`: without the silence that pads the last window."""
        return -(-samples * self._per_window // self.extractor.n_samples)

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(windows, bins, frames)`; loudness is set for a clip as a whole."""
        extractor, longest = self.extractor, self.extractor.nb_max_frames
        windows, lengths, rows = list[Tensor](), list[int](), list[int]()
        for clip in clips:
            spectrogram = extractor(
                clip,
                sampling_rate=self.sampling_rate,
                padding=True,
                pad_to_multiple_of=extractor.n_samples,
                truncation=False,
                return_tensors="pt",
            )["input_features"]
            pieces, frames = spectrogram[0].split(longest, dim=-1), -(-len(clip) // extractor.hop_length)
            windows += pieces
            lengths += [min(frames - n * longest, longest) for n in range(len(pieces))]
            rows.append(len(pieces))
        return Clips(torch.stack(windows), lengths, rows)

    def encode_audio(self, clips: Clips, layer_statistics: LayerStatistics | None = None) -> Tensor:
        # the tower sees whole windows; the silence behind a clip does not count in its statistics
        lengths = [after_convolutions(length) for length in clips.lengths]
        with record_layers(layer_statistics, self.tower.layers, clips, lengths):
            return self.tower(clips.features).last_hidden_state.reshape(-1, self.audio_size)


def _with_tokenizer(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as its folder in the hub's cache, where the hub must not be asked.

    transformers 5.23 looks for a `tekken.json` in the list of a repository's files, which it gets from the hub or from
    a folder, but not from the cache: with HF_HUB_OFFLINE, as on many compute nodes, it finds no tokenizer.
    """
    if not is_offline_mode():
        return checkpoint
    path = own_file(checkpoint, "tekken.json", _raise_exceptions_for_connection_errors=False)
    return checkpoint if path is None else replace(checkpoint, name=str(Path(path).parent), revision=None)
