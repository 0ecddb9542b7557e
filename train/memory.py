"""Memory of a training step, from the shapes of the model alone: no weights are read and nothing is computed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ..audio.decode import Clip
from ..core.errors import UserError
from ..data_modules.schema import Dimension, Pair, Turn
from ..models.backbones.inputs import Clips, Inputs
from ..models.backbones.layers import recompute_activations
from ..models.judge import EmpathyJudge
from ..models.lora import Count, count_parameters
from ..models.settings import JudgeSettings
from ..models.work import CUDA_CONTEXT, of_a_clip, of_a_token, weight_bytes

ROOM = 0.95
"""Share of a GPU's memory that a step may take: the rest is lost between its parts."""


@dataclass(frozen=True)
class StepMemory:
    """Memory of one training step on one device, in bytes."""

    parts: Mapping[str, Count]  # parameters of each part of the judge, as they are trained
    pairs: int  # in a batch
    tokens: int  # tokens of a pair: text, and audio of both clips
    weights: int  # frozen and trained weights
    gradients: int  # of the trained weights
    optimizer: int  # AdamW's two moments of every trained weight
    activations: int  # the most that forward and backward pass hold at once on top of these
    operations: float  # floating-point operations of the batch, see `models.work`
    gathered: int  # weights that FSDP2 has whole at once: those outside of layers, and two layers
    quantized: int  # weights with the language model in 4 bits

    def sharded(self, devices: int) -> StepMemory:
        """The same where each of so many devices keeps its share of all weights, as `strategies.shard` does."""
        if devices == 1:
            return self
        shares = {name: getattr(self, name) // devices for name in ("weights", "gradients", "optimizer")}
        return replace(self, **shares | {"weights": shares["weights"] + self.gathered})

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind, the CUDA runtime included, and the total."""
        kinds = {name: getattr(self, name) for name in ("weights", "gradients", "optimizer", "activations")}
        kinds["cuda_runtime_assumed"] = CUDA_CONTEXT
        return {**kinds, "all": sum(kinds.values())}

    @property
    def total(self) -> int:
        """Total number of bytes."""
        return self.by_kind["all"]

    def fits(self, gpu_bytes: float) -> bool:
        """Whether a GPU of this size has room for it."""
        return self.total <= ROOM * gpu_bytes


def step_memory(
    settings: JudgeSettings,
    *,
    batch: int,
    seconds: float,
    mixed_precision: bool,
    gradient_checkpointing: bool,
    batch_tokens: int | None = None,
    audio_cached: bool = False,
) -> StepMemory:
    """Compute the memory of one optimisation step under DDP, where every device holds everything.

    The model is built without weights, and forward and backward pass are run on tensors without content, of which every
    allocation is followed. Attention counts as the fused kernels (SDPA, FlashAttention) do it, unless it is "eager".

    Args:
        settings: The judge.
        batch: Pairs in a batch.
        seconds: Length of the context and of the response (seconds).
        mixed_precision: True under `precision: bf16-mixed`: trained weights are float32, products bfloat16.
        gradient_checkpointing: True if layers are computed again in the backward pass.
        batch_tokens: Most tokens of a batch, instead of `batch`.
        audio_cached: True if the audio tower does not run in a step, since its output was computed before.

    Raises:
        UserError: If the backbone cannot be loaded, takes no clips of `seconds`, or a pair has more than
            `batch_tokens`.
    """
    as_trained = _without_weights(settings)
    counts = count_parameters(as_trained.backbone, as_trained.own_modules())
    trained = sum(count.trainable_bytes for count in counts.values())
    weights = round(weight_bytes(as_trained.backbone, as_trained.own_modules(), settings.quantization))
    # autocast computes with adapters in the dtype of the frozen weights
    autocast = replace(settings, lora=replace(settings.lora, trained_dtype="backbone"))
    judge = _without_weights(autocast) if mixed_precision else as_trained
    if gradient_checkpointing:
        recompute_activations(judge.network)
    inputs = judge.build_inputs([_pair(judge, seconds)])
    tokens = inputs.input_ids.shape[1]
    if batch_tokens is not None:
        batch = batch_tokens // tokens
        if not batch:
            raise UserError(f"data.batch_tokens {batch_tokens}: one pair has {tokens}; expected {tokens} or more")
    work = batch * tokens * sum(of_a_token(judge.backbone))
    if not audio_cached:
        work += 2 * batch * sum(of_a_clip(judge.backbone, min(seconds, judge.backbone.max_seconds)))
    return StepMemory(
        parts=counts,
        pairs=batch,
        tokens=tokens,
        weights=weights,
        gradients=trained,
        optimizer=2 * trained,
        activations=_activations(judge, inputs, batch, audio_cached),
        operations=work,
        gathered=_gathered(as_trained),
        quantized=round(weight_bytes(as_trained.backbone, as_trained.own_modules(), "nf4")),
    )


def _gathered(judge: EmpathyJudge) -> int:
    """Bytes of the weights that are in no layer, and of the two largest layers: one computes, the next is fetched."""
    layers = [sum(weight.nbytes for weight in layer.parameters()) for layer in judge.backbone.layers_of_parts]
    whole = sum(weight.nbytes for weight in judge.parameters())
    return whole - sum(layers) + sum(sorted(layers)[-2:])


def _without_weights(settings: JudgeSettings) -> EmpathyJudge:
    shapes = replace(settings, quantization="none")  # the size in 4 bits is counted afterwards
    return EmpathyJudge(shapes, [Dimension("any", 1, 5, 1)], weights=False)


def _pair(judge: EmpathyJudge, seconds: float) -> Pair:
    if seconds > judge.backbone.max_seconds and judge.settings.long_clips == "refuse":
        raise UserError(
            f"--clip-seconds {seconds:g}: backbone {judge.backbone.name} takes at most {judge.backbone.max_seconds:g} s"
        )
    rate = judge.backbone.sampling_rate
    # Of other content each: clips that are equal would be encoded once
    context, response = (Clip(np.full(round(seconds * rate), level, np.float32), rate) for level in (0.0, 0.1))
    return Pair("any", response, (Turn("user", context),))


def _activations(judge: EmpathyJudge, one: Inputs, batch: int, audio_cached: bool) -> int:
    """Peak memory of forward and backward pass, without weights and their gradients (bytes)."""
    with _without_content(judge), LiveMemory(judge.parameters()) as live:
        _step(judge, one, batch, audio_cached)
        gradients = sum(weight.grad.nbytes for weight in judge.network.parameters() if weight.grad is not None)
    return live.peak - gradients


@contextmanager
def _without_content(judge: EmpathyJudge) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        if judge.settings.attention != "eager":
            stack.enter_context(_fused_attention())
        yield


def _step(judge: EmpathyJudge, one: Inputs, batch: int, audio_cached: bool) -> None:
    """Forward and backward pass of a batch of pairs like one."""
    assert one.clips is not None
    if audio_cached:
        count = len(one.audio_index) * batch
        floats = next(weight for weight in judge.network.parameters() if weight.is_floating_point())
        states = torch.empty((count, judge.backbone.audio_size), dtype=floats.dtype, device="meta")
    else:
        rows = batch * len(one.clips.features)
        states = judge.backbone.encode_audio(Clips(_empty(one.clips.features, rows), [*one.clips.lengths] * batch))
    inputs = Inputs(
        input_ids=_empty(one.input_ids, batch),
        attention_mask=_empty(one.attention_mask, batch),
        response_mask=_empty(one.response_mask, batch),
        audio_index=_empty(one.audio_index.repeat(batch)),
        audio_positions=_empty(one.audio_positions.repeat(batch)),
        audio_states=states,
        padding_last=one.padding_last,
    )
    del states
    hidden = judge.backbone.hidden_states(inputs)
    # Where the head alone is trained, nothing goes back through the backbone
    if hidden.requires_grad:
        hidden.float().sum().backward()


def _empty(tensor: Tensor, rows: int | None = None) -> Tensor:
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


class LiveMemory(TorchDispatchMode):
    """Tracks every allocation: bytes allocated now, and their peak."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        """Start to follow; tensors that were `there` before are not counted."""
        super().__init__()
        self.now = self.peak = 0
        # By its address: a storage may have several Python objects, one after the other
        self._known = {tensor.untyped_storage()._cdata for tensor in there}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_iter(outputs):
            if isinstance(tensor, Tensor) and not func.is_view:  # a view allocates nothing
                self._follow(tensor.untyped_storage())
        return outputs

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Lets SDPA allocate what its fused kernels do; without a device it would fall back to whole attention matrices.

    A patch and not a `TorchFunctionMode`, which is not in force while layers are computed again in the backward pass.
    """
    plain = nn.functional.scaled_dot_product_attention

    def fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return _FusedKernel.apply(query, key, value, attn_mask)

    nn.functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = plain


class _FusedKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        # Fused kernels keep the output and one number for each row of scores, from which the backward pass computes
        # the scores again
        # One query may be broadcast over many keys
        rows = (max(len(query), len(key)), *query.shape[1:-1])
        output = query.new_empty(*rows, value.shape[-1])
        sums = query.new_empty(rows, dtype=torch.float32)
        # Kernels take a mask as numbers that are added to the scores
        bias = None if mask is None else query.new_empty(mask.shape)
        ctx.save_for_backward(query, key, value, output, sums, *([] if bias is None else [bias]))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value = ctx.saved_tensors[:3]
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None
