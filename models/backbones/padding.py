"""Clips and texts that share a batch, the padding between them, and attention that leaves it out.

How long each clip is, the host knows before anything is computed. Whatever follows from it is worked out there: a GPU
that is asked for a length or for the positions of a mask must first finish all that it was given to do.

PyTorch's attention (SDPA) gets masks that are made without a look at what they hold. Before it makes a mask,
`transformers` asks whether there is padding at all. On a GPU the host then waits, and where there is padding, an
explicit mask rules out the flash kernel. Both are avoided with what the host knows: a caller gives no mask where
nothing is padded, and says where all padding follows the real tokens, which a causal model cannot see from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

KERNEL = "sdpa_of_known_lengths"
"""Name of such attention in configurations of `transformers`."""
_padding_is_last: ContextVar[bool] = ContextVar("padding_is_last", default=False)


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers that the host knows, on a device; the host does not wait for the copy."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def padding_mask(lengths: Sequence[int], width: int, device: torch.device) -> Tensor | None:
    """True where a row has no padding `(rows, width)`; None if no row has any."""
    if all(length == width for length in lengths):
        return None
    return torch.arange(width, device=device) < on_device(lengths, device)[:, None]


def without_padding(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """The real states of rows `(rows, width, size)`, one after the other `(sum of lengths, size)`."""
    if all(length == rows.shape[1] for length in lengths):
        return rows.flatten(0, 1)
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])


@contextmanager
def padding_last(known: bool) -> Iterator[None]:
    """Within, a causal mask leaves padding out of account if it is known to follow all real tokens.

    States of real tokens are the same. Those of padding are others, and mean nothing either way.
    """
    token = _padding_is_last.set(known)
    try:
        yield
    finally:
        _padding_is_last.reset(token)


def _mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **options: Any,
) -> Tensor | None:
    """`sdpa_mask`, but the values of the padding mask are not read; None = the kernel needs no mask."""
    # tokens in a KV cache (q_length < kv_length) may have padding in between
    if allow_is_causal_skip and q_length == kv_length and _padding_is_last.get():
        attention_mask = None
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and attention_mask is None and q_length == kv_length,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and attention_mask is None,
        **options,
    )


AttentionInterface.register(KERNEL, sdpa_attention_forward)
AttentionMaskInterface.register(KERNEL, _mask)


def attend_in_rows(attention: Any) -> None:
    """Let the attention of an Omni tower work on rows with a mask `(rows, 1, 1, positions)`, in one call.

    The official one works on all blocks in one row, asks the GPU where they end, in every layer, and goes through them
    one by one. It passes on what its layer is given as `cu_seqlens`; here that is the mask, None = nothing is padded.

    Args:
        attention: With `q_proj`, `k_proj`, `v_proj`, `out_proj` and `num_heads`. Of these, LoRA may replace any later.
    """
    attention.forward = partial(_attend, attention)


def _attend(attention: Any, hidden_states: Tensor, cu_seqlens: Tensor | None, **_: Any) -> Tensor:
    def heads(linear: nn.Module) -> Tensor:
        return linear(hidden_states).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)

    query, key, value = heads(attention.q_proj), heads(attention.k_proj), heads(attention.v_proj)
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, cu_seqlens, scale=attention.scaling)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2))
