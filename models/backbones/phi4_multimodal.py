"""Phi-4-multimodal (Abouelenin et al., 2025): conformer tower, projector of two layers, Phi-4-mini with a speech LoRA.

Read in the layout of transformers (on the hub: revision refs/pr/70). Its speech adapter, which the authors switch on
where there is audio, is merged into the weights.

The official tower does not mask padding (its mask adds 1 where it should exclude), so that in an official batch a clip
attends to the silence that pads it. Here every clip has the states that the official tower gives it alone. As in the
official tower, clips longer than 40 s are cut into windows, and the zeros that pad the last window are attended to.

Rotary positions are scaled differently in texts of more than 4,096 tokens: here for each pair by its own length.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, Phi4MultimodalForCausalLM, PreTrainedConfig

from ...data_modules.errors import UserError
from .audio_language_model import AudioLanguageModel, Message, as_text
from .base import BackbonePart, Checkpoint, Layout
from .inputs import Clips
from .layers import LayerStatistics, padding_mask, watching, without_padding
from .loading import SpeechProcessor, merge_own_adapter

_AUDIO = "model.embed_tokens_extend.audio_embed."
SPEECH_ADAPTER = r"model\.layers\.\d+\.(self_attn\.(qkv|o)_proj|mlp\.(gate_up|down)_proj)"
"""Modules with the adapter; the names in its own configuration would also match layers of the tower."""
WINDOW = 500
"""Audio states that the tower sees at once (40 s); a constant of the official `forward`."""


class Phi4Multimodal(AudioLanguageModel):
    """The official tower on each clip's real length, its layers in batches."""

    model_class = Phi4MultimodalForCausalLM
    ignored_keys = r"^(lm_head|model\.embed_tokens_extend\.(image_embed|audio_embed\.\w+_for_vision_speech))\."
    processor_of = SpeechProcessor
    max_seconds = 1_800.0  # the authors' longest: speech of 30 minutes to summarize
    parts = {
        "language_model": BackbonePart(
            "language_model", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), layers="language_model.layers"
        ),
        "projector": BackbonePart("projector", ("up", "down")),
        "audio_tower": BackbonePart(
            "audio_tower",
            ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
            layers="audio_tower.encoders",
        ),
    }
    layout = Layout(
        {
            "language_model.": "model.",
            "projector.up.": f"{_AUDIO}up_proj_for_speech.",
            "projector.down.": f"{_AUDIO}down_proj_for_speech.",
            "audio_tower.": f"{_AUDIO}encoder.",
        }
    )

    @classmethod
    def unquantized(cls) -> list[str]:
        """Audio and vision, where the official class has them."""
        return ["embed_tokens_extend"]

    @classmethod
    def config_of(cls, checkpoint: Checkpoint) -> Any:
        """Configuration without vision.

        Raises:
            UserError: If the files are in the layout of the hub's main branch, which needs code of its own.
        """
        settings, _ = PreTrainedConfig.get_config_dict(checkpoint.name, revision=checkpoint.revision)
        if settings["model_type"] != "phi4_multimodal":
            raise UserError(
                f"backbone {checkpoint.name!r}: these files need code of their own, which is never run; expected the "
                "layout of transformers, which is revision refs/pr/70 of microsoft/Phi-4-multimodal-instruct"
            )
        config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
        config.vision_config.num_hidden_layers = 0
        return config

    @classmethod
    def kernels(cls, attention: str) -> dict[str, str]:
        """The tower's attention has a bias, which flash attention does not support."""
        return {"": attention, "audio_config": "sdpa" if attention == "flash_attention_2" else attention}

    @classmethod
    def network_of(cls, model: Any, checkpoint: Checkpoint) -> nn.ModuleDict:
        """The three parts side by side, with the speech adapter in the weights; in the official class two of the parts
        lie in the embeddings of the third. Positions are scaled row by row."""
        if checkpoint.weights:
            merge_own_adapter(model, checkpoint, required=False, subfolder="speech-lora", targets=SPEECH_ADAPTER)
        text = model.model
        audio = text.embed_tokens_extend.audio_embed
        del text.embed_tokens_extend
        if (longest_short := text.config.rope_parameters.get("original_max_position_embeddings")) is not None:
            text.rotary_emb = _RotaryByRow(text.rotary_emb, longest_short)
        layers = OrderedDict(up=audio.up_proj_for_speech, activation=nn.GELU(), down=audio.down_proj_for_speech)
        return nn.ModuleDict({"language_model": text, "projector": nn.Sequential(layers), "audio_tower": audio.encoder})

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        super().__init__(network, processor, checkpoint)
        if isinstance(rotary := self.language_model.rotary_emb, _RotaryByRow):
            self.whole_tokens = rotary.longest_short

    def render(self, chat: Sequence[Message]) -> str:
        """See `AudioLanguageModel`: in the format of the model card; the tokenizer's template takes a message as one
        text."""
        turns = [f"<|{message['role']}|>{as_text(message, self.audio_token)}<|end|>" for message in chat]
        return "".join([*turns, "<|assistant|>"])

    def audio_tokens(self, samples: int) -> int:
        frames = (samples - self.extractor.win_length) // self.extractor.hop_length + 1
        return -(-frames // self.extractor.audio_compression_rate)

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        return self.extractor(clip, sampling_rate=self.sampling_rate)["audio_input_features"][0]

    def encode_audio(self, clips: Clips, heard: LayerStatistics | None = None) -> Tensor:
        tower = self.tower
        frames = tower.encoder_embedding(clips.features.to(tower.embed.out.weight.dtype))
        # one by one: a convolution's output at padding is not zero, and the next one would read it
        rows = [tower.embed(row[None, :length], None)[0][0] for row, length in zip(frames, clips.lengths, strict=True)]
        windows = [window for row in rows for window in _windows(row)]
        states = pad_sequence(windows, batch_first=True)
        real = padding_mask([len(window) for window in windows], states.shape[1], states.device)
        mask = tower.relative_attention_bias_layer(states)
        if real is not None:
            mask = mask.masked_fill(~real[:, None, None], torch.finfo(mask.dtype).min)
        lengths = [len(piece) for row in rows for piece in row.split(WINDOW)]
        cut = replace(clips, rows=[-(-len(row) // WINDOW) for row in rows])
        with watching(heard, tower.encoders, cut.by_clip(lengths)):
            for layer in tower.encoders:
                states = layer(states, mask)
        return without_padding(states, lengths)


def _windows(row: Tensor) -> Sequence[Tensor]:
    """A clip's states `(states, size)` as the tower sees them; where they are cut, zeros fill the last window."""
    if len(row) <= WINDOW:
        return [row]
    return nn.functional.pad(row, (0, 0, 0, -len(row) % WINDOW)).split(WINDOW)


class _RotaryByRow(nn.Module):
    """The official rotary embedding, which scales a whole batch by its longest row, for each row by its own length."""

    def __init__(self, official: nn.Module, longest_short: int) -> None:
        super().__init__()
        self.official, self.longest_short = official, longest_short

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, ...]:
        """Cosine and sine `(batch, tokens, size)` of positions `(batch, tokens)`."""
        beyond = torch.full_like(position_ids[:, :1], self.longest_short)
        short = self.official(hidden, position_ids.clamp(max=self.longest_short - 1))
        long = self.official(hidden, torch.cat([position_ids, beyond], -1))
        is_long = (position_ids.amax(-1) >= self.longest_short)[:, None, None]
        return tuple(
            torch.where(is_long, for_long[:, :-1], for_short) for for_long, for_short in zip(long, short, strict=True)
        )
