"""PyTorch's attention (SDPA) with masks that are made without a look at what they hold.

Before it makes a mask, `transformers` asks whether there is padding at all. On a GPU the host then waits, and where
there is padding, an explicit mask rules out the flash kernel. Both can be had from what the host knows: a caller gives
no mask where nothing is padded, and says where all padding stands behind the real tokens, which a causal model cannot
see from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

KERNEL = "sdpa_of_known_lengths"
"""What such attention is called in configurations of `transformers`."""
_padding_is_last: ContextVar[bool] = ContextVar("padding_is_last", default=False)


@contextmanager
def padding_last(known: bool) -> Iterator[None]:
    """Within, a causal mask leaves padding out of account if it is known to stand behind all real tokens.

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
    """`sdpa_mask`, but of padding it reads nothing; None = the kernel needs no mask."""
    # what was read before (q_length < kv_length) may have padding in between
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
    one by one. It hands on what its layer is given as `cu_seqlens`; here that is the mask, None = nothing is padded.

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
