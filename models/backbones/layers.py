"""What is done to the layers of a network from outside, and the padding that they must leave out.

Statistics over time of layer outputs, for a head that reads them; layers that are skipped; gradient checkpointing
and `torch.compile`, layer by layer; masks of clips and texts that share a batch, and attention that leaves padding out.

The host knows the length of each clip before anything is computed. Whatever follows from the lengths is computed on the
host: a GPU that is asked for a length or for the positions of a mask must first finish all its queued work.

The masks for PyTorch's attention (SDPA) are made without reading their values. Before it makes a mask, `transformers`
asks whether there is padding at all. On a GPU the host then waits, and where there is padding, an explicit mask rules
out the flash kernel. Both are avoided with what the host knows: a caller passes no mask where nothing is padded, and
says whether all padding follows the real tokens, which in a causal model cannot attend to it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from .inputs import Clips, Packed, to_device

KERNEL = "sdpa_of_known_lengths"
"""Name of such attention in configurations of `transformers`."""
SHARED, PADDING = -1, -2
"""Tokens of packed rows that belong to no single pair: see `Packed.branch`."""
_rows: ContextVar[tuple[bool, Packed | None]] = ContextVar("rows", default=(False, None))
"""See `attention_layout`."""
_LEAST_VARIANCE = 1e-8
_precisions: list[str] = []
"""What threads within `no_tf32` found; the process has one setting, and the last to leave restores the first."""
_PRECISION_TURN = threading.Lock()


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers that the host knows, on a device; the host does not wait for the copy."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)


@contextmanager
def no_tf32() -> Iterator[None]:
    """Within this context, a GPU computes float32 convolutions in float32, as a CPU does: by default cuDNN rounds the
    factors to 10 bits (TF32), and with torch before 2.9 it still does."""
    convolutions: Any = getattr(torch.backends.cudnn, "conv", None)
    if convolutions is None:
        yield
        return
    with _PRECISION_TURN:
        _precisions.append(convolutions.fp32_precision)
        convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _PRECISION_TURN:
            convolutions.fp32_precision = _precisions.pop()


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
) -> Tensor | None:
    """`sdpa_mask`, but the values of the padding mask are not read; None = the kernel needs no mask."""
    padding_last, packed = _rows.get()
    if packed is not None:
        return _packed_mask(packed, local_size)
    # Causal attention never reaches padding that comes last: without a mask the flash kernel may run
    if allow_is_causal_skip and padding_last:
        attention_mask = None
    return sdpa_mask(
        attention_mask=attention_mask,
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


class OneRow(NamedTuple):
    """Clips of several lengths one after the other in one row, so that linear layers compute no padding. Layers get it
    in place of their mask, and each clip attends to itself."""

    lengths: Tensor  # of the clips `(clips,)`, on the CPU
    mask: Tensor  # True where a clip has no padding, if each has a row of its own `(clips, 1, 1, longest)`
    places: Tensor  # index into the one row of each position of these rows `(clips, longest)`; 0 for padding
    back: Tensor  # index into these rows, flattened, of each position of the one row `(sum of lengths,)`

    def attend(self, attend: Callable[..., Tensor], *states: Tensor) -> Tensor:
        """Apply a function that takes rows of queries, keys and values and a mask, and returns `(rows, positions,
        heads, size)`, to those of the one row `(1, heads, positions, size)`."""
        # on a CPU a call is cheap, but converts the mask that it gets: a call for each clip. Dynamo cannot read lengths
        if states[0].device.type == "cpu" and not torch.compiler.is_compiling():
            clips = zip(*(tensor.split(self.lengths.tolist(), 2) for tensor in states), strict=True)
            return torch.cat([attend(*clip, None) for clip in clips], 1)
        mixed = attend(*(tensor[0].transpose(0, 1)[self.places].transpose(1, 2) for tensor in states), self.mask)
        return mixed.flatten(0, 1)[self.back][None]


def in_one_row(states: Tensor, lengths: Sequence[int]) -> tuple[Tensor, OneRow | None]:
    """Clips of these lengths, one after the other `(sum of lengths, size)`, in the form that layers read: a row for
    each clip and no mask if all have the same length. The host does not wait for the device."""
    if len(set(lengths)) == 1:
        return states.unflatten(0, (len(lengths), lengths[0])), None
    # The host knows the lengths and computes this: the GPU need not be asked
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    places = np.where(real, real.cumsum().reshape(real.shape) - 1, 0)
    tensors = map(torch.from_numpy, (real[:, None, None], places, np.flatnonzero(real)))
    return states[None], OneRow(torch.tensor(lengths), *(to_device(tensor, states.device) for tensor in tensors))


_REPEATED = nn.Module()
"""A module whose keys need not be repeated."""


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | OneRow | None, **options: Any
) -> tuple[Tensor, None]:
    """`sdpa_attention_forward`, also for clips in one row, and with copies of a key head that all queries share.

    It would repeat that head without copying it. Of such keys and a mask, PyTorch's memory-efficient kernel makes wrong
    values on a GPU where their number is a multiple of 32 and one (pytorch#191937).
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1 and key.shape[1] == 1 and attention_mask is not None:
        key, value = (shared.expand(-1, groups, -1, -1).contiguous() for shared in (key, value))
        module = _REPEATED

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, **options)[0]

    if isinstance(attention_mask, OneRow):
        return attention_mask.attend(attend, query, key, value), None
    return attend(query, key, value, attention_mask), None


AttentionInterface.register(KERNEL, _attention)
AttentionMaskInterface.register(KERNEL, _mask)


def attend_in_rows(attention: Any) -> None:
    """Let the attention of an Omni tower work on rows `(rows, positions, size)`, or on clips in one row.

    The official attention works on all blocks in one row: in every layer it asks the GPU where they end, and goes
    through them one by one. What its layer is given as `cu_seqlens` is passed on to it; here that is the `OneRow`, None
    = each row is one clip. LoRA may replace any of its linear layers later.
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
    """Mean and standard deviation over time of the input and of each layer's output of an audio encoder.

    Each clip is summarised by itself and in float32: padding and the other clips of a batch never enter.
    """

    def __init__(self) -> None:
        self._found: list[Tensor] = []

    @property
    def clips(self) -> Tensor:
        """Of all clips `(clips, layers, 2, layer size)`, float32."""
        return torch.stack(self._found)

    def add(self, rows: Tensor, lengths: Sequence[Sequence[int]]) -> None:
        """Add clips, given the statistics of their rows `(rows, layers, 2, size)`; `lengths` = for each clip the real
        positions of each of its rows."""
        of_clips = rows.split([len(clip) for clip in lengths])
        for statistics, counts in zip(of_clips, lengths, strict=True):
            self._found.append(statistics[0] if len(counts) == 1 else _together(statistics, counts))


def over_time(rows: Iterable[Tensor], lengths: Sequence[int]) -> Tensor:
    """Mean and standard deviation of the first `lengths` positions of rows, each `(positions, ..., size)`:
    `(rows, ..., 2, size)`, float32."""
    statistics = []
    for row, length in zip(rows, lengths, strict=True):
        variance, mean = torch.var_mean(row[:length].float(), 0, correction=0)
        # a root has no gradient at 0, where a clip is one position long
        statistics.append(torch.stack([mean, (variance + _LEAST_VARIANCE).sqrt()], -2))
    return torch.stack(statistics)


def _together(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Statistics `(layers, 2, size)` of a clip, from those of its rows `(rows, layers, 2, size)` and their lengths."""
    shares = on_device(counts, rows.device)[:, None, None] / sum(counts)
    means, deviations = rows.unbind(2)
    mean = (shares * means).sum(0)
    return torch.stack([mean, (shares * (deviations.square() + (means - mean).square())).sum(0).sqrt()], 1)


@contextmanager
def record_layers(
    layer_statistics: LayerStatistics | None, layers: Sequence[nn.Module], clips: Clips, rows: Sequence[int]
) -> Iterator[None]:
    """Within this context, add the statistics of one pass through these layers to `layer_statistics`.

    Args:
        layer_statistics: Collects the statistics; None = nothing is done.
        layers: Each returns states `(rows, positions, size)`, or a tuple that begins with them.
        clips: Say which rows are those of a clip.
        rows: Real positions of each row; all may stand in one (`OneRow`).
    """
    if layer_statistics is None:
        yield
        return

    def summed_up(states: Tensor) -> Tensor:
        return over_time(states if len(states) == len(rows) else states[0].split(rows), rows)

    with capture_outputs(layers, summed_up, and_given=True) as statistics:  # of each (rows, 2, size)
        yield
    layer_statistics.add(torch.stack(statistics, 1), clips.by_clip(rows))


@contextmanager
def capture_outputs(
    layers: Sequence[nn.Module], of: Callable[[Tensor], Tensor] | None = None, and_given: bool = False
) -> Iterator[list[Tensor]]:
    """Within this context, collect the outputs of these layers, in their order, or a function `of` each of them;
    `and_given` = before these the input of the first layer."""
    outputs: list[Tensor] = []

    def keep(found: Any) -> None:
        states = found if isinstance(found, Tensor) else found[0]
        outputs.append(states if of is None else of(states))

    hooks = [layer.register_forward_hook(lambda *call: keep(call[2])) for layer in layers]
    if and_given:
        hooks.append(layers[0].register_forward_pre_hook(lambda _, inputs: keep(inputs)))
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def passing_on(layers: Sequence[nn.Module], hidden: Tensor | None = None) -> Iterator[None]:
    """Within this context, these layers return their input unchanged, or `hidden` `(batch, tokens, hidden)` whatever
    their input is. The modules stay where they are, so that hooks on them (FSDP) still run."""
    forward: Any = (lambda hidden_states, *_, **__: hidden_states) if hidden is None else (lambda *_, **__: hidden)
    # Gradient checkpointing and compilation have set some
    forwards = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, before in zip(layers, forwards, strict=True):
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
        The number of compiled layers.
    """
    layers = [layer for layer in transformer_layers(network) if all(layer is not excluded for excluded in leave)]
    for layer in layers:
        # `transformers` wraps layers of all kinds in one code object, and dynamo limits how often it compiles one
        method = MethodType(inspect.unwrap(type(layer).forward), layer)
        compiled = torch.compile(method, dynamic=True, backend=backend)
        # set by `recompute_activations`: dynamo gives up a checkpoint around a layer
        previous = layer.__dict__.get("forward")
        layer.forward = compiled if previous is None else partial(previous.func, compiled, **previous.keywords)
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
