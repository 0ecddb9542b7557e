"""Attention that leaves padding out: masks of clips and texts that share a batch, and kernels that read them.

The masks for PyTorch's attention (SDPA) are made without reading their values. Before it makes a mask, `transformers`
asks whether there is padding at all. On a GPU the host then waits, and where there is padding, an explicit mask rules
out the flash kernel. Both are avoided with what the host knows: a caller passes no mask where nothing is padded, and
says whether all padding follows the real tokens, which in a causal model cannot attend to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import AuxRequest, varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .inputs import Packed, Pieces, to_device

KERNEL = "sdpa_of_known_lengths"
"""Name of such attention in configurations of `transformers`."""
SHARED, PADDING = -1, -2
"""Tokens of packed rows that belong to no single pair: see `Packed.branch`."""
HALF = torch.float16, torch.bfloat16
"""Dtypes of the flash kernel."""
# torch 2.11 takes fewer heads of keys than of queries unasked, 2.12 if it is told so
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
# What `attention_layout` says to `_mask`, to which `transformers` passes nothing else: of this thread alone
_rows: ContextVar[tuple[bool, Packed | None]] = ContextVar("rows", default=(False, None))


@contextmanager
def attention_layout(padding_last: bool, packed: Packed | None) -> Iterator[None]:
    """Within this context, a causal mask ignores padding if it is known to follow all real tokens; a token of packed
    rows attends to what it follows in its own pair, as other pairs share its row.

    The states of real tokens do not change. Those of padding do, and have no meaning either way.
    """
    token = _rows.set((padding_last, packed))
    try:
        yield
    finally:
        _rows.reset(token)


def _mask(
    *,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    **options: Any,
) -> Tensor | Pieces | None:
    """`sdpa_mask`, but the values of the padding mask are not read; None = the kernel needs no mask."""
    padding_last, packed = _rows.get()
    if packed is not None:
        # the backward pass of torch 2.11 leaves out the gradient of the log-sum-exp by which two passes are joined
        if packed.pieces is not None and not torch.is_grad_enabled():
            return packed.pieces
        mask = _packed_mask(packed, local_size)
        if mask.device.type != "cpu":
            return mask
        # There each layer would make these numbers of True and False, which takes a quarter of its attention
        return torch.zeros(mask.shape, dtype=options["dtype"]).masked_fill_(~mask, -torch.inf)
    # Causal attention never reaches padding that comes last: without a mask the flash kernel may run
    if allow_is_causal_skip and padding_last:
        attention_mask = None
    return sdpa_mask(
        attention_mask=attention_mask,
        # To skip the mask where its values allow it, `transformers` would read them, for which the host waits
        allow_is_causal_skip=allow_is_causal_skip and attention_mask is None,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and attention_mask is None,
        local_size=local_size,
        **options,
    )


def _packed_mask(packed: Packed, local_size: int | None) -> Tensor:
    """`(rows, 1, width, width)`, True where a token attends to another: to what comes before it in its pair, by no more
    than the sliding window. Nothing attends to padding but padding."""
    positions, tree, branch = packed.positions, packed.tree, packed.branch
    # Positions count within each pair, so that their difference says what comes before, in whichever order rows hold it
    before = positions[:, :, None] - positions[:, None, :]
    visible = (branch[:, None, :] == branch[:, :, None]) | (branch[:, None, :] == SHARED)
    seen = (tree[:, :, None] == tree[:, None, :]) & visible & (before >= 0)
    return (seen if local_size is None else seen & (before < local_size))[:, None]


def without_mask(device: torch.device) -> bool:
    """Whether a device has the flash kernel for pieces of many lengths in one row."""
    built = torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return device.type == "cuda" and built and torch.cuda.get_device_capability(device) >= (8, 0)


def fits_kernel(size: int) -> bool:
    """Whether it takes heads of this size."""
    return size <= 256 and size % 8 == 0


def _attend_to_beginnings(pieces: Pieces, states: Sequence[Tensor], scale: float | None) -> Tensor:
    """Attention of packed pairs without a mask: queries, keys and values of one row `(1, heads, positions, size)` to
    `(1, positions, heads, size)`. Each piece attends to itself, and what follows a beginning to that, too. The sums of
    the two are joined by their log-sum-exp, as in cascade attention (Ye et al., 2024)."""
    query, key, value = (tensor[0].transpose(0, 1) for tensor in states)
    options = {"return_aux": AuxRequest(lse=True), "scale": scale, **_GROUPED}
    longest, beginning, following = pieces.longest
    ends, start = pieces.ends, pieces.start
    made, within = varlen_attn(query, key, value, ends, ends, longest, longest, window_size=(-1, 0), **options)
    # The beginnings have attended to all that they may: only what follows one has more to read
    query, key, value = query[start:], key[:start], value[:start]
    before, outside = varlen_attn(query, key, value, pieces.rests, pieces.beginnings, following, beginning, **options)
    # Two softmaxes over parts of the keys are one over all if each counts by the sum of its exponentials
    share = torch.sigmoid(outside - within[:, start:])  # `(heads, positions)`
    made[start:].lerp_(before, share.T[..., None].to(made.dtype))
    return made[None]


class OneRow(NamedTuple):
    """Clips of several lengths one after the other in one row, so that linear layers compute no padding. Layers get it
    in place of their mask, and each clip attends to itself."""

    lengths: Tensor  # of the clips `(clips,)`, on the CPU
    mask: Tensor  # True where a clip has no padding, if each has a row of its own `(clips, 1, 1, longest)`
    places: Tensor  # index into the one row of each position of these rows `(clips, longest)`; 0 for padding
    back: Tensor  # index into these rows, flattened, of each position of the one row `(sum of lengths,)`
    ends: Tensor  # of the clips, from 0 `(clips + 1,)`, int32
    longest: int
    flash: bool  # whether a kernel reads the one row as it is

    def attend(
        self, attend: Callable[..., Tensor], *states: Tensor, scale: float | None = None, dropout: float = 0.0
    ) -> Tensor:
        """Apply a function that takes rows of queries, keys and values and a mask, and returns `(rows, positions,
        heads, size)`, to those of the one row `(1, heads, positions, size)`. In half precision on a GPU, `scale` and
        `dropout` are all that is needed of it."""
        first = states[0]
        if self.flash and not dropout and first.dtype in HALF and fits_kernel(first.shape[-1]):
            query, key, value = (tensor[0].transpose(0, 1) for tensor in states)
            made = varlen_attn(query, key, value, self.ends, self.ends, self.longest, self.longest, scale=scale)
            return cast("Tensor", made)[None]
        # on a CPU a call is cheap, but converts the mask that it gets: a call for each clip. Dynamo cannot read lengths
        if first.device.type == "cpu" and not torch.compiler.is_compiling():
            clips = zip(*(tensor.split(self.lengths.tolist(), 2) for tensor in states), strict=True)
            return torch.cat([attend(*clip, None) for clip in clips], 1)
        mixed = attend(*(tensor[0].transpose(0, 1)[self.places].transpose(1, 2) for tensor in states), self.mask)
        return mixed.flatten(0, 1)[self.back][None]


def in_one_row(states: Tensor, lengths: Sequence[int]) -> tuple[Tensor, OneRow | None]:
    """Clips of these lengths, one after the other `(sum of lengths, size)`, in the form that layers read: a row for
    each clip and no mask if all have the same length. The host does not wait for the device."""
    # Nothing is padded then, and plain rows suit every kernel
    if len(set(lengths)) == 1:
        return states.unflatten(0, (len(lengths), lengths[0])), None
    # The host knows the lengths and computes this: the GPU need not be asked
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    places = np.where(real, real.cumsum().reshape(real.shape) - 1, 0)
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    tensors = map(torch.from_numpy, (real[:, None, None], places, np.flatnonzero(real), ends))
    on_device = (to_device(tensor, states.device) for tensor in tensors)
    row = OneRow(torch.tensor(lengths), *on_device, longest=max(lengths), flash=without_mask(states.device))
    return states[None], row


_REPEATED = nn.Module()
"""A module whose keys need not be repeated."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | OneRow | Pieces | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """`sdpa_attention_forward`, also for clips or pieces in one row, and with copies of a key head that all queries
    share.

    It would repeat that head without copying it. Of such keys and a mask, PyTorch's memory-efficient kernel makes wrong
    values on a GPU where their number is a multiple of 32 and one (pytorch#191937).
    """
    if isinstance(attention_mask, Pieces):
        return _attend_to_beginnings(attention_mask, (query, key, value), options.get("scaling")), None
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1 and key.shape[1] == 1 and attention_mask is not None:
        key, value = (shared.expand(-1, groups, -1, -1).contiguous() for shared in (key, value))
        # They are copies now: a module that names no groups keeps the official function from repeating them again
        module = _REPEATED

    if isinstance(attention_mask, OneRow):
        known = {"scale": options.get("scaling"), "dropout": options.get("dropout", 0.0)}
        return attention_mask.attend(
            lambda *clips: sdpa_attention_forward(module, *clips, **options)[0], query, key, value, **known
        ), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


# Under a name of their own, which a configuration then names: `transformers` has an open register for that
AttentionInterface.register(KERNEL, _attention)
AttentionMaskInterface.register(KERNEL, _mask)


class RowAttention(nn.Module):
    """The attention of an Omni tower on rows `(rows, positions, size)`, or on clips in one row, with the linear layers
    of the official one.

    The official attention works on all blocks in one row: in every layer it asks the GPU where they end, and goes
    through them one by one.
    """

    def __init__(self, official: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = official.q_proj, official.k_proj, official.v_proj
        self.out_proj = official.out_proj
        self.num_heads, self.scaling = official.num_heads, official.scaling

    def forward(self, hidden_states: Tensor, cu_seqlens: OneRow | None, **_: Any) -> Tensor:
        """Attend; the layer passes on what it is given as `cu_seqlens`, where None = each row is one clip."""

        def heads(linear: nn.Module) -> Tensor:
            return linear(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling)
            return mixed.transpose(1, 2)

        states = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        mixed = attend(*states, None) if cu_seqlens is None else cu_seqlens.attend(attend, *states, scale=self.scaling)
        return self.out_proj(mixed.flatten(2))
