"""Questions that begin alike, such as those about several responses to one context: the beginning is read once."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .backbones.common.audio_language_model import AudioLanguageModel
from .backbones.common.base import Backbone, Inputs
from .backbones.common.padding import on_device
from .backbones.common.reading_on import remembered

_WORTH = 0.2
"""Share of the tokens that must be saved: below it two short passes take longer than a long one."""


class _Plan(NamedTuple):
    """How the rows of a batch are read in two passes; made on the CPU.

    Attributes:
        beginnings: Distinct beginnings, padded on the left, so that each ends where the rest begins; without audio
            states.
        group: For each row, its beginning.
        rests: What follows in each row, padded on the right, without audio states.
        begun: Tokens of each row's beginning.
        left: Tokens of each row's rest.
    """

    beginnings: Inputs
    group: list[int]
    rests: Inputs
    begun: list[int]
    left: list[int]


def hidden_states(backbone: Backbone, inputs: Inputs, moved: Inputs) -> Tensor:
    """As `Backbone.hidden_states`, but what several rows begin with is computed once where that saves much.

    A causal model's states of the beginning do not depend on what follows, so that the result is the same. What the
    rows share ends where the response begins.

    Args:
        backbone: Any; one without a causal language model computes everything in one pass.
        inputs: With audio states, on the CPU.
        moved: The same on the device where they are computed.

    Returns:
        `(batch, tokens, hidden)`; zeros at padding where beginnings were shared.
    """
    plan = _plan(backbone, inputs) if isinstance(backbone, AudioLanguageModel) else None
    if plan is None:
        return backbone.hidden_states(moved)
    device, audio = moved.input_ids.device, moved.audio_states
    language_model = backbone.network.get_submodule(backbone.parts["language_model"].path)
    with remembered(language_model) as memory:
        begun = backbone.hidden_states(replace(plan.beginnings.to(device), audio_states=audio))
        memory.select(on_device(plan.group, device))
        rest = backbone.hidden_states(replace(plan.rests.to(device), audio_states=audio))
    rows = [
        torch.cat([begun[first, begun.shape[1] - before :], own[:after]])
        for first, own, before, after in zip(plan.group, rest, plan.begun, plan.left, strict=True)
    ]
    return pad_sequence(rows, batch_first=True, padding_side="right" if inputs.padding_last else "left")


def _plan(backbone: AudioLanguageModel, inputs: Inputs) -> _Plan | None:
    """None where little would be saved."""
    ids, real = inputs.input_ids, inputs.attention_mask.bool()
    states = ids.new_full(ids.shape, -1)  # which audio state stands at each audio token
    states[ids == backbone.chat.audio_token_id] = inputs.audio_index
    in_response = inputs.response_mask.cummax(-1).values  # from its first token to the end of the row
    if not in_response.any(-1).all():
        return None
    is_beginning, is_rest = real & ~in_response, real & in_response
    rows = [(ids[row, own], states[row, own]) for row, own in enumerate(is_beginning)]
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    group = [
        numbers.setdefault((tuple(own_ids.tolist()), tuple(own_states.tolist())), len(numbers))
        for own_ids, own_states in rows
    ]
    first = [rows[group.index(number)] for number in range(len(numbers))]
    saved = int(is_beginning.sum()) - sum(len(own_ids) for own_ids, _ in first)
    if saved < _WORTH * int(real.sum()):
        return None
    padding = backbone.chat.tokenizer.pad_token_id
    rests = [(ids[row, own], states[row, own]) for row, own in enumerate(is_rest)]
    return _Plan(
        beginnings=_inputs(first, "left", padding),
        group=group,
        rests=_inputs(rests, "right", padding),
        begun=is_beginning.sum(-1).tolist(),
        left=is_rest.sum(-1).tolist(),
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
        audio_places=(states.flatten() >= 0).nonzero()[:, 0],
        padding_last=bool(mask.all()) or side == "right",
    )
