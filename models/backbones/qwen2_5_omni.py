"""Qwen2.5-Omni (Xu et al., 2025), its thinker alone: Whisper-like tower, linear projector, Qwen2.5.

Exact: hidden states equal those of the official classes with the official processor on each pair. The tower attends
within blocks of 2 s, of which each is a row here, so that clips share a batch without attending to each other; the
official processor pads every clip to 300 s, ours to the longest. Without images the three rows of its positions are
equal.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, Qwen2_5OmniThinkerConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniPreTrainedModel,
    Qwen2_5OmniThinkerTextModel,
)

from .audio_language_model import LANGUAGE_MODEL
from .base import Checkpoint, Clips, Layout, Part
from .layers import LayerStatistics, attend_in_rows, on_device, padding_mask, watching, without_padding
from .loading import SpeechProcessor, load_model
from .qwen2_audio import WHISPER_TOWER, WhisperTowerModel, after_convolutions

Model = TypeVar("Model", bound=PreTrainedModel)

# Of keys as the hub has them and as the modules are called since transformers 5 (`model.audio_tower`)
_MAPPING = {
    r"^(?:thinker\.)?(?:model\.)?audio_tower\.": "audio_tower.",
    r"^(?:thinker\.)?(?:model\.)?visual\.": "visual.",
    r"^(?:thinker\.)?model\.(?:language_model\.)?": "language_model.",
}
_UNUSED = r"^(?:thinker\.lm_head|lm_head|visual|talker|token2wav|code2wav|audio_tower\.audio_bos_eos_token)\."


def load_thinker(model_class: type[Model], checkpoint: Checkpoint) -> Model:
    """Load a thinker out of a whole Omni checkpoint, or one that was saved alone.

    Args:
        model_class: With `audio_tower` and `language_model`, and nothing else.
        checkpoint: What to load and how.

    Raises:
        UserError: If weights are missing or misshapen, or belong to no part of such a model.
    """
    return load_model(
        model_class,
        checkpoint,
        config=thinker_config(checkpoint),
        key_mapping=_MAPPING,
        ignored_keys=_UNUSED,
        unquantized=["audio_tower"],
    )


def thinker_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Configuration of the thinker: as it is, or out of that of the whole model."""
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    if config.model_type.endswith("_thinker"):
        return config
    thinker = config.thinker_config
    if (stored := getattr(config, "quantization_config", None)) is not None:  # a judge was exported in this form
        thinker.quantization_config = stored
    return thinker


class Thinker(Qwen2_5OmniPreTrainedModel):
    """The parts of a thinker that audio and text need."""

    def __init__(self, config: Qwen2_5OmniThinkerConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportArgumentType] the annotation names the whole model's
        self.audio_tower = Qwen2_5OmniAudioEncoder._from_config(config.audio_config)
        self.language_model = Qwen2_5OmniThinkerTextModel._from_config(config.text_config)
        self.post_init()


class Qwen2_5Omni(WhisperTowerModel):
    """Spectrograms as Qwen2-Audio makes them, through a tower that attends in blocks; its `forward` is not called."""

    layout = Layout({"": "", "projector.": "audio_tower.proj."})
    parts = {
        "language_model": LANGUAGE_MODEL,
        "projector": Part("projector", ()),
        "audio_tower": WHISPER_TOWER,
    }

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Qwen2_5Omni:
        """See `Backbone`; the thinker of a whole Omni checkpoint, or one that was saved alone."""
        network: Any = load_thinker(Thinker, checkpoint)
        tower = network.audio_tower
        network.projector, tower.proj = tower.proj, nn.Identity()
        del tower.audio_bos_eos_token  # no forward pass reads it
        for layer in tower.layers:
            attend_in_rows(layer.self_attn)
        return cls(network, SpeechProcessor(checkpoint), checkpoint)

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        tower, device = self.tower, clips.features.device
        rows = zip(clips.features.transpose(1, 2), clips.lengths, strict=True)
        blocks = [block for row, length in rows for block in row[:length].split(2 * tower.n_window)]
        widths = [len(block) for block in blocks]
        states = pad_sequence(blocks, batch_first=True).transpose(1, 2).to(tower.conv1.weight.dtype)
        states = gelu(tower.conv1(states))
        if (real := padding_mask(widths, states.shape[2], device)) is not None:
            states = states * real[:, None]  # the second convolution must see zeros there
        states = gelu(tower.conv2(states)).transpose(1, 2)
        states = states + tower.positional_embedding.positional_embedding[: states.shape[1]].to(states)
        counts = [after_convolutions(width) for width in widths]
        real = padding_mask(counts, states.shape[1], device)
        blocks_of = [-(-length // (2 * tower.n_window)) for length in clips.lengths]
        with watching(heard, tower.layers, replace(clips, rows=blocks_of).by_clip(counts)):
            for layer in tower.layers:
                states = layer(states, None if real is None else real[:, None, None])[0]
        states = without_padding(states, counts)
        # two states side by side make one, across the blocks of a clip; an odd one at its end is left out
        bounds = list(itertools.accumulate(map(after_convolutions, clips.lengths), initial=0))
        firsts = [first for start, end in itertools.pairwise(bounds) for first in range(start, end - 1, 2)]
        first = on_device(firsts, device)
        return tower.ln_post((states[first] + states[first + 1]) / 2)
