"""A language model that remembers what it has read, and reads on from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache


class Memory:
    """Keys and values of all that a language model has read so far, in every layer.

    Attributes:
        mask: `(batch, tokens)` of what was read, 1 for real tokens and 0 for padding.
    """

    def __init__(self, language_model: nn.Module) -> None:
        """Nothing yet."""
        self._cache = DynamicCache(config=language_model.config)  # pyright: ignore[reportArgumentType]
        self.mask: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Go on with these rows `(new batch,)` of the batch; one may be named several times."""
        assert self.mask is not None, "nothing was read yet"
        self._cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def read_on(
        self, module: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Hook before the forward pass of the language model."""
        new: Tensor = options["attention_mask"]
        positions: Tensor = options["position_ids"]
        if self.mask is not None:
            positions = positions + self.mask.sum(-1, keepdim=True)
            new = torch.cat([self.mask, new], -1)
        self.mask = new
        return args, {
            **options,
            "attention_mask": new,
            "position_ids": positions,
            "past_key_values": self._cache,
            "use_cache": True,
        }


@contextmanager
def remembered(language_model: nn.Module) -> Iterator[Memory]:
    """Inside, each call of the language model reads on after what it has read before, row by row."""
    memory = Memory(language_model)
    handle = language_model.register_forward_pre_hook(memory.read_on, with_kwargs=True)
    try:
        yield memory
    finally:
        handle.remove()
