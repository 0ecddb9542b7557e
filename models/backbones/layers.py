"""What is done to the layers of a network from outside, and padding.

Statistics over time of layer outputs, for a head that reads them; layers that are skipped; gradient checkpointing
and `torch.compile`, layer by layer; norms and rotary positions in fewer passes over memory.

The host knows the length of each clip before anything is computed. Whatever follows from the lengths is computed on the
host: a GPU that is asked for a length or for the positions of a mask must first finish all its queued work.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from .inputs import Clips, to_device

_LEAST_VARIANCE = 1e-8
# The process has one precision of convolutions: each thread that enters `no_tf32` puts here what it was, so that the
# last to leave restores what it was before the first
_precisions: list[str] = []
_PRECISION_TURN = threading.Lock()


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Integers that the host knows, on a device; the host does not wait for the copy."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)


@contextmanager
def no_tf32() -> Iterator[None]:
    """Within this context, a GPU computes float32 convolutions in float32, as a CPU does: by default cuDNN rounds the
    factors to 10 bits (TF32)."""
    convolutions: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue] not in the stubs
    with _PRECISION_TURN:
        _precisions.append(convolutions.fp32_precision)
        # The first layers of an audio tower are convolutions: rounded, they move every state, and with them the score
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


class LayerStatistics:
    """Mean and standard deviation over time of the input and of each layer's output of an audio encoder.

    Each clip is summarised by itself and in float32: padding and the other clips of a batch never enter.
    """

    clips: Tensor  # `(clips, layers, 2, layer size)`, float32; `encode_audio` sets it

    def take(self, layers: Iterable[Tensor]) -> None:
        """Take what `over_time` says of each layer."""
        self.clips = torch.stack(list(layers), 1)


def over_time(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """Mean and standard deviation `(clips, 2, size)`, float32, of the states of clips of these lengths, one after the
    other `(sum of lengths, size)`."""
    statistics = []
    # Clip by clip, so that the sum of one is taken in the same order whatever shares its batch
    for clip in states.split(list(lengths)):
        variance, mean = torch.var_mean(clip.float(), 0, correction=0)
        # a root has no gradient at 0, where a clip is one position long
        statistics.append(torch.stack([mean, (variance + _LEAST_VARIANCE).sqrt()]))
    return torch.stack(statistics)


@contextmanager
def record_layers(
    layer_statistics: LayerStatistics | None, layers: Sequence[nn.Module], clips: Clips, rows: Sequence[int]
) -> Iterator[None]:
    """Within this context, `layer_statistics` take one pass through these layers; None = nothing is done.

    Args:
        layer_statistics: Take the statistics.
        layers: Each returns states `(rows, positions, size)`, or a tuple that begins with them.
        clips: Say which rows are those of a clip.
        rows: Real positions of each row; all may stand in one (`OneRow`).
    """
    if layer_statistics is None:
        yield
        return
    lengths = [sum(of_clip) for of_clip in clips.by_clip(rows)]

    def summed_up(states: Tensor) -> Tensor:
        return over_time(without_padding(states, rows) if len(states) == len(rows) else states[0], lengths)

    with capture_outputs(layers, summed_up, and_given=True) as statistics:
        yield
    layer_statistics.take(statistics)


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

    # Hooks and not `output_hidden_states`, which would keep the whole states of all layers until the end
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
    with replaced(dict.fromkeys(layers, forward)):
        yield


@contextmanager
def replaced(forwards: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Within this context, these modules have another `forward`."""
    # Adapters, gradient checkpointing and compilation have set some
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                del module.forward
            else:
                module.forward = forward


@contextmanager
def ends_at(layer: nn.Module, read: Tensor | None) -> Iterator[None]:
    """Within this context, what follows the attention of the last layer is computed at the tokens that are `read`
    alone, on a CPU: no other token sees it. The others have no meaning.

    Args:
        layer: The last layer of the language model; one of other parts, or whose `forward` was replaced (to compute
            activations again, or by `compile_layers`), stays as it is.
        read: Numbers of these tokens, of all rows one after the other; None = all are read.
    """
    attention, network = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    parts: list[Any] = [getattr(attention, "o_proj", None), network if hasattr(network, "down_proj") else None]
    if read is None or None in parts or "forward" in vars(layer) or next(layer.parameters()).device != read.device:
        yield
        return

    def at_read(whole: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        tokens = states.flatten(0, 1)
        found = whole(tokens.index_select(0, read))
        return found.new_zeros(len(tokens), found.shape[1]).index_copy(0, read, found).view(*states.shape[:2], -1)

    with replaced({part: partial(at_read, part.forward) for part in parts}):
        yield


def transformer_layers(network: nn.Module) -> list[nn.Module]:
    """The layers of language model and audio tower, in their order."""
    # All families of `transformers` derive their layers from this class, so that no list of names is needed
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


_NORMS = re.compile(
    r"(Qwen2|Qwen2_5Omni|Qwen3|Qwen3OmniMoe(Thinker)?(Text)?|Llama|Gemma3n|Gemma4(Unified)?|NemotronH(_Omni_)?)RMSNorm"
)
"""Names of the official classes that `FusedNorm` may stand for."""


class FusedNorm(nn.Module):
    """A root mean square norm by `rms_norm`: one kernel on a GPU, where the official classes start eight that read and
    write float32. In float32 values are equal; in half precision they are rounded once instead of twice."""

    weight: Tensor | None
    eps: float

    def __init__(self, official: Any) -> None:
        super().__init__()
        # with its weight, and whatever else was noted there (`deferred`)
        vars(self).update(vars(official))
        self.register_parameter("weight", getattr(official, "weight", None))
        of_gemma = not hasattr(official, "variance_epsilon")
        self.eps = official.eps if of_gemma else official.variance_epsilon
        self.keeps_dtype = of_gemma or type(official).__name__.startswith("NemotronH")

    def forward(self, states: Tensor) -> Tensor:
        """Norm over the last axis."""
        weight, size = self.weight, states.shape[-1:]
        # The kernel takes one dtype; a trained weight is float32 beside states in half precision
        if weight is None or weight.dtype == states.dtype:
            if weight is not None and not weight.requires_grad and _differentiated_on_cpu(states):
                return _Normed.apply(states, weight, self.eps)  # pyright: ignore[reportReturnType]
            return nn.functional.rms_norm(states, size, weight, self.eps)
        made = weight * nn.functional.rms_norm(states, size, None, self.eps)  # a weight that is trained, in float32
        return made.to(states.dtype) if self.keeps_dtype else made


def _differentiated_on_cpu(states: Tensor) -> bool:
    # where torch has no kernel: it would go back through each operation of the norm
    on_cpu = states.device.type == "cpu" and states.dtype == torch.float32
    return on_cpu and states.requires_grad and torch.is_grad_enabled()


class _Normed(torch.autograd.Function):
    """`rms_norm` with a frozen weight in float32: equal values, and a backward pass of six operations."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, eps: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale = states.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (states * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        states, weight, scale = ctx.saved_tensors
        of_states = gradient * weight
        # what a state adds to the mean square moves all others of its token
        share = torch.linalg.vecdot(of_states, states)[..., None] * scale**3 / -states.shape[-1]
        return of_states.mul_(scale).addcmul_(states, share), None, None


_OFFICIAL = "apply_rotary_pos_emb"
"""Name of the official functions, which the attention of each family calls."""


def fuse(network: nn.Module) -> None:
    """Put `FusedNorm` in the place of a network's norms, and let its attention layers turn queries and keys by
    `turned`, but for modules that accelerate moves between devices. What is official stays as it is."""
    for name, module in list(network.named_modules()):
        official: Any = type(module).forward
        # accelerate's hook moves the module that it was put on, and would not know this one
        if _NORMS.fullmatch(type(module).__name__) and not hasattr(module, "_hf_hook"):
            network.set_submodule(name, FusedNorm(module))
        # it has replaced the `forward` of a module that has such a hook
        elif inspect.isfunction(official) and _OFFICIAL in official.__code__.co_names and "forward" not in vars(module):
            module.forward = MethodType(_with_turned(official), module)


@lru_cache
def _with_turned(forward: FunctionType) -> FunctionType:
    """The same function, in which the name of the official one means ours."""
    own = {
        ("q", "k", "cos", "sin", "unsqueeze_dim"): _both_turned,
        ("x", "cos", "sin", "unsqueeze_dim"): turned,  # in Gemma
    }
    official = forward.__globals__[_OFFICIAL]
    # Unless its signature is another one: then the family turns in a way of its own
    names = {**forward.__globals__, _OFFICIAL: own.get(tuple(inspect.signature(official).parameters), official)}
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)


def _both_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    return turned(q, cos, sin, unsqueeze_dim), turned(k, cos, sin, unsqueeze_dim)


def turned(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
    """Queries or keys, turned by their positions.

    The official functions take five operations, which read and write whole tensors: a half turn, two products and their
    sum. Here there is one product, to which the other is added in place. In float32 values are equal to rounding; in
    half precision they are rounded once less.

    Args:
        x: Queries or keys `(batch, heads, tokens, size)`.
        cos: Of the angles `(batch, tokens, size)`.
        sin: Of the angles.
        unsqueeze_dim: The axis of heads.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    # Backward in few passes, too: autograd would go through the slices one by one
    if x.requires_grad and torch.is_grad_enabled():
        return _Turned.apply(x, cos, sin)  # pyright: ignore[reportReturnType]
    return _turn(x, cos, sin, -1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    made = x * cos
    first, second = (sin[..., :half], sin[..., half:])[::-sign]  # backward, a half has the sine of the other
    made[..., :half].addcmul_(x[..., half:], first, value=sign)
    made[..., half:].addcmul_(x[..., :half], second, value=-sign)
    return made


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return _turn(x, cos, sin, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        return _turn(gradient, cos, sin, 1).to(ctx.dtype), None, None
