"""What is done to the layers of a network from outside, and the padding that they must leave out.

Statistics over time of what layers make, for a head that reads them; layers that are skipped; gradient checkpointing
and `torch.compile`, layer by layer; masks of clips and texts that share a batch, and attention that leaves padding out.

How long each clip is, the host knows before anything is computed. Whatever follows from it is worked out there: a GPU
that is asked for a length or for the positions of a mask must first finish all that it was given to do.

PyTorch's attention (SDPA) gets masks that are made without a look at what they hold. Before it makes a mask,
`transformers` asks whether there is padding at all. On a GPU the host then waits, and where there is padding, an
explicit mask rules out the flash kernel. Both are avoided with what the host knows: a caller gives no mask where
nothing is padded, and says where all padding follows the real tokens, which a causal model cannot see from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:  # it imports this module
    from .base import Packed

KERNEL = "sdpa_of_known_lengths"
"""Name of such attention in configurations of `transformers`."""
SHARED, PADDING = -1, -2
"""Tokens of packed rows that are of no pair alone: see `Packed.branch`."""
_rows: ContextVar[tuple[bool, Packed | None]] = ContextVar("rows", default=(False, None))
"""See `attending`."""
_LEAST_VARIANCE = 1e-8


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers that the host knows, on a device; the host does not wait for the copy."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


@contextmanager
def whole_float32() -> Iterator[None]:
    """Within, a GPU computes float32 convolutions in float32, as a CPU does: left to itself, cuDNN rounds what it
    multiplies to 10 bits (TF32), and with torch before 2.9 it still does."""
    convolutions: Any = getattr(torch.backends.cudnn, "conv", None)
    if convolutions is None:
        yield
        return
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


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
def attending(padding_last: bool, packed: Packed | None) -> Iterator[None]:
    """Within, a causal mask leaves padding out of account if it is known to follow all real tokens; a token of packed
    rows attends to what it follows in its own pair, as others share its row.

    States of real tokens are the same. Those of padding are others, and mean nothing either way.
    """
    token = _rows.set((padding_last, packed))
    try:
        yield
    finally:
        _rows.reset(token)


def _mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    **options: Any,
) -> Tensor | None:
    """`sdpa_mask`, but the values of the padding mask are not read; None = the kernel needs no mask."""
    padding_last, packed = _rows.get()
    if packed is not None:
        return _packed_mask(packed, local_size)
    # tokens in a KV cache (q_length < kv_length) may have padding in between
    if allow_is_causal_skip and q_length == kv_length and padding_last:
        attention_mask = None
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and attention_mask is None and q_length == kv_length,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and attention_mask is None,
        local_size=local_size,
        **options,
    )


def _packed_mask(packed: Packed, local_size: int | None) -> Tensor:
    """`(rows, 1, width, width)`, True where a token attends to another: to what comes before it in its pair, by no more
    than the sliding window. Nothing attends to padding but padding."""
    positions, tree, branch = packed.positions, packed.tree, packed.branch
    before = positions[:, :, None] - positions[:, None, :]
    own = (branch[:, None, :] == branch[:, :, None]) | (branch[:, None, :] == SHARED)
    seen = (tree[:, :, None] == tree[:, None, :]) & own & (before >= 0)
    return (seen if local_size is None else seen & (before < local_size))[:, None]


class OneRow(NamedTuple):
    """Clips of several lengths one after the other in one row, so that linear layers compute no padding. Layers get it
    in place of their mask, and each clip attends to itself.

    Attributes:
        lengths: Of the clips `(clips,)`, on the CPU.
        mask: True where a clip has no padding, if each has a row of its own `(clips, 1, 1, longest)`.
        places: Where in the one row what these rows hold is `(clips, longest)`; the first place for padding.
        back: Where in these rows, flattened, what the one row holds is `(sum of lengths,)`.
    """

    lengths: Tensor
    mask: Tensor
    places: Tensor
    back: Tensor

    def attend(self, attend: Callable[..., Tensor], *states: Tensor) -> Tensor:
        """Queries, keys and values `(1, heads, positions, size)` through a function that takes rows of these and a
        mask, and returns `(rows, positions, heads, size)`."""
        # on a CPU a call costs next to nothing, and each converts the mask that it gets; dynamo cannot read the lengths
        if states[0].device.type == "cpu" and not torch.compiler.is_compiling():
            clips = zip(*(own.split(self.lengths.tolist(), 2) for own in states), strict=True)
            return torch.cat([attend(*clip, None) for clip in clips], 1)
        mixed = attend(*(own[0].transpose(0, 1)[self.places].transpose(1, 2) for own in states), self.mask)
        return mixed.flatten(0, 1)[self.back][None]


def in_one_row(states: Tensor, lengths: Sequence[int]) -> tuple[Tensor, OneRow | None]:
    """Clips of so many states, one after the other `(sum of lengths, size)`, as layers read them: a row for each and no
    mask if all are of one length. The host does not wait for the device."""
    if len(set(lengths)) == 1:
        return states.unflatten(0, (len(lengths), lengths[0])), None
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    places = np.where(real, real.cumsum().reshape(real.shape) - 1, 0)
    made = map(torch.from_numpy, (real[:, None, None], places, np.flatnonzero(real)))
    there = (tensor.to(states.device, non_blocking=True) for tensor in made)
    return states[None], OneRow(torch.tensor(lengths), *there)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | OneRow | None, **options: Any
) -> tuple[Tensor, None]:
    """`sdpa_attention_forward`, also of clips in one row."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, **options)[0]

    if isinstance(attention_mask, OneRow):
        return attention_mask.attend(attend, query, key, value), None
    return attend(query, key, value, attention_mask), None


AttentionInterface.register(KERNEL, _attention)
AttentionMaskInterface.register(KERNEL, _mask)


def attend_in_rows(attention: Any) -> None:
    """Let the attention of an Omni tower work on rows `(rows, positions, size)`, or on clips in one row.

    The official one works on all blocks in one row, asks the GPU where they end, in every layer, and goes through them
    one by one. It passes on what its layer is given as `cu_seqlens`; here that is the `OneRow`, None = each row is of
    one clip. LoRA may replace any of its linear layers later.
    """
    attention.forward = partial(_attend, attention)


def _attend(attention: Any, hidden_states: Tensor, cu_seqlens: OneRow | None, **_: Any) -> Tensor:
    def heads(linear: nn.Module) -> Tensor:
        return linear(hidden_states).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=attention.scaling)
        return mixed.transpose(1, 2)

    states = heads(attention.q_proj), heads(attention.k_proj), heads(attention.v_proj)
    mixed = attend(*states, None) if cu_seqlens is None else cu_seqlens.attend(attend, *states)
    return attention.out_proj(mixed.flatten(2))


class LayerStatistics:
    """Mean and standard deviation over time of what each layer of an audio encoder makes of clips, its input included.

    Each clip is summed up alone and in float32: padding and the other clips of a batch never enter.
    """

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}

    @property
    def clips(self) -> Tensor:
        """Of all clips `(clips, layers, 2, layer size)`, float32."""
        return torch.stack([self._found[clip] for clip in sorted(self._found)])

    def add(self, rows: Tensor, lengths: Sequence[Sequence[int]], clips: Sequence[int] | None = None) -> None:
        """Further clips, from the statistics of their rows `(rows, layers, 2, size)`; the others as in `watching`."""
        numbers = clips or range(len(self._found), len(self._found) + len(lengths))
        of_clips = rows.split([len(clip) for clip in lengths])
        for number, own, counts in zip(numbers, of_clips, lengths, strict=True):
            self._found[number] = own[0] if len(counts) == 1 else _together(own, counts)


def over_time(rows: Iterable[Tensor], lengths: Sequence[int]) -> Tensor:
    """Mean and standard deviation of the first `lengths` positions of rows, each `(positions, ..., size)`:
    `(rows, ..., 2, size)`, float32."""
    found = []
    for row, length in zip(rows, lengths, strict=True):
        # a copy: Granite's encoder adds to what a layer has made, in place
        variance, mean = torch.var_mean(row[:length].to(torch.float32, copy=True), 0, correction=0)
        # a root has no gradient at 0, where a clip is one position long
        found.append(torch.stack([mean, (variance + _LEAST_VARIANCE).sqrt()], -2))
    return torch.stack(found)


def _together(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Of the rows of one clip `(rows, layers, 2, size)` with so many positions: `(layers, 2, size)`."""
    shares = on_device(counts, rows.device)[:, None, None] / sum(counts)
    means, deviations = rows.unbind(2)
    mean = (shares * means).sum(0)
    return torch.stack([mean, (shares * (deviations.square() + (means - mean).square())).sum(0).sqrt()], 1)


@contextmanager
def watching(
    heard: LayerStatistics | None,
    layers: Sequence[nn.Module],
    lengths: Sequence[Sequence[int]],
    clips: Sequence[int] | None = None,
) -> Iterator[None]:
    """Within, one pass through these layers is summed up, if there is anybody who wants it.

    Args:
        heard: Who wants it.
        layers: Each makes states `(rows, positions, size)`, or a tuple that begins with them.
        lengths: For each clip the real positions of each of its rows, which may all stand in one row (`OneRow`).
        clips: Which clips these are; None = those that follow the ones before.
    """
    if heard is None:
        yield
        return
    rows = [length for clip in lengths for length in clip]

    def summed_up(states: Tensor) -> Tensor:
        return over_time(states if len(states) == len(rows) else states[0].split(rows), rows)

    with made_by(layers, summed_up, and_given=True) as made:  # of each (rows, 2, size)
        yield
    heard.add(torch.stack(made, 1), lengths, clips)


@contextmanager
def made_by(
    layers: Sequence[nn.Module], of: Callable[[Tensor], Tensor] | None = None, and_given: bool = False
) -> Iterator[list[Tensor]]:
    """Within, what these layers make is kept, in their order, or what a function makes `of` it; `and_given` = before
    that what the first is given."""
    made: list[Tensor] = []

    def keep(found: Any) -> None:
        states = found if isinstance(found, Tensor) else found[0]
        made.append(states if of is None else of(states))

    hooks = [layer.register_forward_hook(lambda *call: keep(call[2])) for layer in layers]
    if and_given:
        hooks.append(layers[0].register_forward_pre_hook(lambda _, given: keep(given)))
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def passing_on(layers: Sequence[nn.Module], hidden: Tensor | None = None) -> Iterator[None]:
    """Within, these layers pass on the hidden states that they are given, or others `(batch, tokens, hidden)`,
    whatever they are given. The modules stay where they are, so that hooks on them (FSDP) still run."""
    forward: Any = (lambda given, *_, **__: given) if hidden is None else (lambda *_, **__: hidden)
    own = [layer.__dict__.get("forward") for layer in layers]  # set by gradient checkpointing and compilation
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, before in zip(layers, own, strict=True):
            if before is None:
                del layer.forward
            else:
                layer.forward = before


def transformer_layers(network: nn.Module) -> list[nn.Module]:
    """The layers of language model and audio tower, in their order."""
    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_layers(network: nn.Module, leave: list[nn.Module], backend: str = "inductor") -> int:
    """Compile every transformer layer of a network in place, but those to `leave`; layers of one kind share what is
    compiled.

    Lengths differ between batches, so that shapes are dynamic from the start; otherwise each new length would compile
    anew. What is around the layers (masks, positions, scattering of audio) hardly takes time.

    Returns:
        How many layers were.
    """
    layers = [layer for layer in transformer_layers(network) if all(layer is not other for other in leave)]
    for layer in layers:
        # `transformers` wraps layers of all kinds in one code, and dynamo bounds how much it makes of a code
        own = MethodType(inspect.unwrap(type(layer).forward), layer)
        compiled = torch.compile(own, dynamic=True, backend=backend)
        # of `recompute_activations`: dynamo gives up a checkpoint around a layer
        around = layer.__dict__.get("forward")
        layer.forward = compiled if around is None else partial(around.func, compiled, **around.keywords)
    return len(layers)


def recompute_activations(network: nn.Module) -> int:
    """Let every transformer layer of a network forget what it computed until the backward pass needs it.

    Non-reentrant: the reentrant kind gives LoRA no gradient below a frozen embedding and breaks under DDP (peft#313).
    Not through `gradient_checkpointing_enable`, which works in training mode alone: a frozen backbone is in evaluation
    mode.

    Returns:
        How many layers there are.
    """
    layers = transformer_layers(network)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return len(layers)
