"""KV cache and prefix caching: what several questions begin with, such as those about several responses to one context,
is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from .backbones.audio_language_model import AudioLanguageModel
from .backbones.base import Backbone, Inputs
from .backbones.layers import on_device

_WORTHWHILE = 0.2
"""Fraction of the tokens that must be saved: below it two short passes take longer than a long one."""


class KVCache:
    """Keys and values of the tokens that a language model has read so far, in every layer, and their mask `(batch,
    tokens)`: 1 for real tokens and 0 for padding."""

    def __init__(self, language_model: nn.Module) -> None:
        """Empty."""
        self._cache = DynamicCache(config=language_model.config)  # pyright: ignore[reportArgumentType]
        self.mask: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Go on with these rows `(new batch,)` of the batch; one may be named several times."""
        assert self.mask is not None, "nothing was read yet"
        self._cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def extend(
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
def kv_cache(language_model: nn.Module) -> Iterator[KVCache]:
    """Within, each call of the language model continues the tokens of the calls before, row by row."""
    cache = KVCache(language_model)
    handle = language_model.register_forward_pre_hook(cache.extend, with_kwargs=True)
    try:
        yield cache
    finally:
        handle.remove()


class Plan(NamedTuple):
    """How the rows of a batch are read in two passes; made on the CPU, without audio states. Distinct prefixes are
    padded on the left, so that each ends where the suffix begins; what follows in each row is padded on the right.
    `prefix_of` is the prefix of each row, the lengths are its tokens in both."""

    prefixes: Inputs
    prefix_of: list[int]
    suffixes: Inputs
    prefix_lengths: list[int]
    suffix_lengths: list[int]


def read_in_two(backbone: Backbone, plan: Plan, moved: Inputs) -> Tensor:
    """As `Backbone.hidden_states`, but prefixes that several rows share are computed once.

    A causal model's states of a prefix do not depend on what follows, so that the result is the same. `plan` is that of
    `plan_of`, `moved` the same inputs where they are computed.

    Returns:
        `(batch, tokens, hidden)`; zeros at padding.
    """
    assert isinstance(backbone, AudioLanguageModel)
    device, audio = moved.input_ids.device, moved.audio_states
    with kv_cache(backbone.language_model) as cache:
        prefix = backbone.hidden_states(replace(plan.prefixes.to(device), audio_states=audio))
        cache.select(on_device(plan.prefix_of, device))
        suffix = backbone.hidden_states(replace(plan.suffixes.to(device), audio_states=audio))
    rows = [
        torch.cat([prefix[first, prefix.shape[1] - before :], own[:after]])
        for first, own, before, after in zip(
            plan.prefix_of, suffix, plan.prefix_lengths, plan.suffix_lengths, strict=True
        )
    ]
    return pad_sequence(rows, batch_first=True, padding_side="right" if moved.padding_last else "left")


def plan_of(backbone: Backbone, inputs: Inputs) -> Plan | None:
    """How a batch, with audio states and on the CPU, is read in two passes; None where little would be saved, or there
    is no causal language model. Prefixes end where the response begins.
    """
    if not isinstance(backbone, AudioLanguageModel):
        return None
    ids, real = inputs.input_ids, inputs.attention_mask.bool()
    states = ids.new_full(ids.shape, -1)  # the audio state of each audio token
    states[ids == backbone.audio_token_id] = inputs.audio_index
    in_response = inputs.response_mask.cummax(-1).values  # from its first token to the end of the row
    if not in_response.any(-1).all():
        return None
    is_prefix, is_suffix = real & ~in_response, real & in_response
    rows = [(ids[row, own], states[row, own]) for row, own in enumerate(is_prefix)]
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    group = [
        numbers.setdefault((tuple(own_ids.tolist()), tuple(own_states.tolist())), len(numbers))
        for own_ids, own_states in rows
    ]
    first = [rows[group.index(number)] for number in range(len(numbers))]
    saved = int(is_prefix.sum()) - sum(len(own_ids) for own_ids, _ in first)
    if saved < _WORTHWHILE * int(real.sum()):
        return None
    padding = backbone.tokenizer.pad_token_id
    suffixes = [(ids[row, own], states[row, own]) for row, own in enumerate(is_suffix)]
    return Plan(
        prefixes=_inputs(first, "left", padding),
        prefix_of=group,
        suffixes=_inputs(suffixes, "right", padding),
        prefix_lengths=is_prefix.sum(-1).tolist(),
        suffix_lengths=is_suffix.sum(-1).tolist(),
    )


def _inputs(rows: list[tuple[Tensor, Tensor]], side: str, padding: int) -> Inputs:
    """Rows of token ids and audio states, padded on a side."""
    ids = pad_sequence([own for own, _ in rows], batch_first=True, padding_value=padding, padding_side=side)
    mask = pad_sequence([torch.ones_like(own) for own, _ in rows], batch_first=True, padding_side=side)
    states = pad_sequence([own for _, own in rows], batch_first=True, padding_value=-1, padding_side=side)
    return Inputs(
        input_ids=ids,
        attention_mask=mask,
        response_mask=torch.zeros_like(mask, dtype=torch.bool),
        audio_index=states[states >= 0],
        audio_positions=(states.flatten() >= 0).nonzero()[:, 0],
        padding_last=bool(mask.all()) or side == "right",
    )
