"""Qwen2-Audio (Chu et al., 2024): Whisper-like tower, linear projector, Qwen language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration, Qwen2AudioModel
from transformers.masking_utils import create_bidirectional_mask

from ...data_modules.errors import UserError
from ...data_modules.schema import Pair
from .base import Clips, Inputs, Part, quiet_transformers
from .prompt import messages

PARTS: Mapping[str, Part] = {
    "language_model": Part(
        "language_model", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ),
    "projector": Part("multi_modal_projector", ("linear",)),
    "audio_tower": Part("audio_tower", ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")),
}


def load(name: str, revision: str | None, dtype: torch.dtype, attention: str) -> Qwen2AudioBackbone:
    """Load weights and processor from the hub or a folder; the LM head is left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the model or has weights that belong to none.
    """
    # Through the generation model: transformers 5.17 does not rename the keys of hub files for `Qwen2AudioModel` alone
    with quiet_transformers():  # what it reports is an error below
        # the stubs know neither the pair that output_loading_info returns nor None for the default revision
        model, report = Qwen2AudioForConditionalGeneration.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
            name,
            revision=revision,  # pyright: ignore[reportArgumentType]
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
        )
    missing = [key for key in report["missing_keys"] if "lm_head" not in key]
    if missing or report["unexpected_keys"] or report["mismatched_keys"]:
        raise UserError(
            f"{name}: not a complete Qwen2-Audio checkpoint: missing {sorted(missing)[:3]}, "
            f"unexpected {sorted(report['unexpected_keys'])[:3]}, "
            f"of another shape {sorted(report['mismatched_keys'])[:3]}"
        )
    processor = AutoProcessor.from_pretrained(name, revision=revision)
    return Qwen2AudioBackbone(model.model, processor, name, revision)


class Qwen2AudioBackbone:
    """Implements `Backbone`; see there for its attributes."""

    def __init__(self, network: Qwen2AudioModel, processor, name: str, revision: str | None) -> None:
        self.network: nn.Module = network
        self.parts = PARTS
        self.name = name
        self.revision = revision
        self._model = network
        self._processor = processor
        self._extractor = processor.feature_extractor
        self._audio_token = processor.audio_token
        self._audio_token_id: int = network.config.audio_token_id
        self.sampling_rate: int = self._extractor.sampling_rate
        self.max_seconds = float(self._extractor.chunk_length)
        self.audio_size: int = network.multi_modal_projector.linear.in_features
        self.hidden_size: int = network.multi_modal_projector.linear.out_features

    def audio_tokens(self, samples: int) -> int:
        """Audio states of a clip of so many samples."""
        frames = -(-samples // self._extractor.hop_length)
        return (_after_convolutions(frames) - 2) // 2 + 1

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms of mono clips `(samples,)`, cut behind the longest clip instead of padded to the full window.

        The audio tower masks padding, but its convolutions and the spectrogram's window reach over the end of a clip:
        enough zeros follow the longest one that its last frames are those of the fully padded clip.
        """
        hop = self._extractor.hop_length
        reach = self._extractor.n_fft + 4 * hop
        longest = max(len(clip) for clip in clips)
        whole = min(longest + reach, self._extractor.n_samples) // hop * hop
        made = self._extractor(
            list(clips),
            sampling_rate=self.sampling_rate,
            padding="max_length",
            max_length=max(whole, longest),
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return Clips(made["input_features"], made["attention_mask"].sum(-1))

    def prepare_text(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(batch, tokens)`; see `Backbone`."""
        texts = [self._text(pair, counts) for pair, counts in zip(pairs, audio_tokens, strict=True)]
        made = self._processor.tokenizer(texts, padding=True, padding_side=padding_side, return_tensors="pt")
        is_audio = made["input_ids"] == self._audio_token_id
        expected = torch.tensor([sum(counts) for counts in audio_tokens])
        if not torch.equal(is_audio.sum(-1), expected):
            raise RuntimeError(
                f"audio tokens in the text {is_audio.sum(-1).tolist()}, audio states {expected.tolist()}"
            )
        return made["input_ids"], made["attention_mask"], is_audio

    def _text(self, pair: Pair, counts: Sequence[int]) -> str:
        chat = self._processor.apply_chat_template(messages(pair), tokenize=False, add_generation_prompt=True)
        pieces = chat.split(self._audio_token)
        if len(pieces) != len(counts) + 1:
            raise UserError(f"pair {pair.pair_id!r}: situation text may not contain {self._audio_token}")
        spans = [self._audio_token * count for count in counts] + [""]
        return "".join(piece + span for piece, span in zip(pieces, spans, strict=True))

    def encode_audio(self, clips: Clips) -> Tensor:
        """Audio states of all clips one after the other `(states, audio size)`.

        The tower's own `forward` insists on its full window (30 s); these are its layers run on the real length.
        """
        tower = self._model.audio_tower
        features = clips.features.to(dtype=tower.conv1.weight.dtype)
        states = nn.functional.gelu(tower.conv1(features))
        states = nn.functional.gelu(tower.conv2(states)).transpose(1, 2)
        states = states + tower.embed_positions.weight[: states.shape[1]]
        lengths = _after_convolutions(clips.lengths)
        real = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        mask = create_bidirectional_mask(config=tower.config, inputs_embeds=states, attention_mask=real)
        for layer in tower.layers:
            states = layer(states, mask)
        states = tower.layer_norm(tower.avg_pooler(states.transpose(1, 2)).transpose(1, 2))
        pooled = (lengths - 2) // 2 + 1
        return states[torch.arange(states.shape[1], device=states.device) < pooled[:, None]]

    def hidden_states(self, inputs: Inputs) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)`; see `Backbone`."""
        model = self._model
        states = inputs.audio_states
        if states is None:
            assert inputs.clips is not None
            states = self.encode_audio(inputs.clips)
        embeddings = model.get_input_embeddings()(inputs.input_ids)
        audio = model.multi_modal_projector(states.to(embeddings.dtype))[inputs.audio_index]
        is_audio = (inputs.input_ids == self._audio_token_id)[..., None]
        embeddings = embeddings.masked_scatter(is_audio, audio.to(embeddings.dtype))
        positions = (inputs.attention_mask.cumsum(-1) - 1).clamp(min=0)
        return model.language_model(
            inputs_embeds=embeddings,
            attention_mask=inputs.attention_mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state

    def save_processor(self, folder: str) -> None:
        """Write tokenizer and feature extractor."""
        self._processor.save_pretrained(folder)


def _after_convolutions(frames):
    """Encoder positions of so many spectrogram frames (the second convolution has stride 2)."""
    return (frames - 1) // 2 + 1
