"""The LM head of a checkpoint, which the judge leaves behind and a model that answers in words needs."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from ....data_modules.errors import UserError
from .audio_language_model import AudioLanguageModel
from .base import Checkpoint
from .loading import one_line

_KEY = re.compile(r"(?:^|\.)lm_head\.weight$")
"""In every layout of every family; a talker's are called otherwise."""
_ROWS = 16_384  # of the vocabulary at a time in float32


class LMHead(nn.Module):
    """From hidden states to the scores of the next token, in float32 whatever the precision of its weights is.

    In bfloat16 the scores of a large vocabulary would be multiples of 1/8, and answers would tie.

    Args:
        weight: `(vocabulary, hidden)`; that of the embeddings where the family ties both.
        text_config: Of the language model: some families divide the scores (Granite) or bound them (Gemma).
    """

    weight: Tensor

    def __init__(self, weight: Tensor, text_config: Any) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        # transformers 5.23 leaves Granite's divisor out in Granite Speech, whose language model was trained with it
        self._divisor = float(getattr(text_config, "logits_scaling", 1.0))
        self._bound: float | None = getattr(text_config, "final_logit_softcapping", None)

    def forward(self, hidden: Tensor) -> Tensor:
        """Scores `(..., vocabulary)`, float32, of hidden states `(..., hidden)`."""
        states = hidden.to(self.weight.device, torch.float32)
        scores = torch.cat([states @ rows.float().T for rows in self.weight.split(_ROWS)], -1) / self._divisor
        return scores if self._bound is None else self._bound * torch.tanh(scores / self._bound)


def load_lm_head(checkpoint: Checkpoint, backbone: AudioLanguageModel) -> LMHead:
    """The head out of the files of a backbone, or its embeddings where these are the head.

    Args:
        checkpoint: What the backbone was loaded from.
        backbone: With its weights.

    Raises:
        UserError: If the checkpoint has no such weights, or they do not fit the language model.
    """
    language_model: Any = backbone.network.get_submodule(backbone.parts["language_model"].path)
    weight = _stored(checkpoint)
    if weight is None:
        if not _tied(checkpoint, language_model.config):
            raise UserError(f"backbone {checkpoint.name!r}: no LM head among its weights: it cannot answer in words")
        weight = language_model.get_input_embeddings().weight.detach()
    if weight.ndim != 2 or weight.shape[1] != backbone.hidden_size:
        raise UserError(
            f"backbone {checkpoint.name!r}: LM head of shape {tuple(weight.shape)}; accepted: (vocabulary, "
            f"{backbone.hidden_size})"
        )
    return LMHead(weight.to(checkpoint.dtype), language_model.config)


def _tied(checkpoint: Checkpoint, text_config: Any) -> bool:
    """A configuration says it for the whole model or for its language model."""
    from transformers import AutoConfig

    whole: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    return bool(whole.tie_word_embeddings or text_config.tie_word_embeddings)


def _stored(checkpoint: Checkpoint) -> Tensor | None:
    """The weights as the checkpoint has them; None where it has none of their own."""
    index = _file(checkpoint, "model.safetensors.index.json")
    try:
        if index is None:
            path, keys = _file(checkpoint, "model.safetensors"), None
        else:
            with open(index, encoding="utf-8") as file:
                places = json.load(file)["weight_map"]
            keys = [key for key in places if _KEY.search(key)]
            path = _file(checkpoint, places[keys[0]]) if keys else None
        if path is None:
            return None
        with safe_open(path, framework="pt") as tensors:
            found = keys or [key for key in tensors.keys() if _KEY.search(key)]  # noqa: SIM118
            return tensors.get_tensor(found[0]) if found else None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"backbone {checkpoint.name!r}: no LM head can be read: {one_line(error)}") from None


def _file(checkpoint: Checkpoint, name: str) -> str | None:
    return cached_file(checkpoint.name, name, revision=checkpoint.revision, _raise_exceptions_for_missing_entries=False)
