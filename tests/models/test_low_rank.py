"""An adapter beside its layer as one operation: the values of PEFT, its gradients, its dropout; and what a layer costs
on a GPU, counted on a CPU."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.backbones.attention import KERNEL, attention_layout
from empathy_judge.models.backbones.audio_language_model import LANGUAGE_MODEL
from empathy_judge.models.backbones.layers import FusedNorm, fuse
from empathy_judge.models.lora import AdaptedLinear, LoraLayer, adapt, cast_adapters
from empathy_judge.models.low_rank import adapted_linear
from empathy_judge.models.settings import LoraSettings
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2Model

OWN, PEFT = AdaptedLinear.forward, Linear.forward
COUNTS = {"scoring": (38, 750e3), "training": (120, 1_900e3), "training with dropout": (135, 2_300e3)}
"""Most operations of a layer, and most bytes that they read and write for each token."""
BEFORE = {"scoring": (80, 2_362e3), "training with dropout": (224, 4_337e3)}
"""The same of PEFT's layers and the official norms."""


@pytest.fixture(scope="module")
def pairs(dataset_folder) -> list[Pair]:
    return list(PairDataset.load(dataset_folder).pairs[:4])


def adapted(dtype: torch.dtype = torch.float32, method: str = "lora", bias: bool = True, **settings: Any) -> Any:
    """A layer with an adapter that changes it."""
    torch.manual_seed(0)
    network = nn.ModuleDict({"language_model": nn.ModuleDict({"q_proj": nn.Linear(48, 40, bias)})})
    network.to(dtype).requires_grad_(False)
    backbone: Any = SimpleNamespace(network=network, parts={"language_model": LANGUAGE_MODEL}, name="one layer")
    adapt(backbone, LoraSettings(**{"rank": 4, "alpha": 8.0, **settings}, method=method))  # pyright: ignore[reportArgumentType]
    layer: Any = network["language_model"].q_proj  # pyright: ignore[reportAttributeAccessIssue]
    nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    return layer


def computed(forward: Any, layer: Any, states: Tensor) -> list[Tensor]:
    """Output, gradient of the states, gradients of the adapter; the same draws each time."""
    states = states.clone().requires_grad_()
    layer.zero_grad()
    torch.manual_seed(5)
    made = forward(layer, states)
    (made.double() * torch.linspace(-1, 2, made.shape[-1])).square().sum().backward()
    return [made.detach(), *(own.grad for own in (states, layer.lora_A.default.weight, layer.lora_B.default.weight))]


@pytest.mark.parametrize("alpha", [8.0, 1.7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(2, 7, 48), (5, 48), (0, 48)])
def test_values_in_float32_are_those_of_peft_bit_for_bit(alpha, bias, dropout, shape):
    layer = adapted(bias=bias, alpha=alpha, dropout=dropout).train()
    states = torch.randn(shape)
    own, theirs = computed(OWN, layer, states), computed(PEFT, layer, states)
    assert torch.equal(own[0], theirs[0])
    for mine, peft in zip(own[1:], theirs[1:], strict=True):
        assert mine.dtype == peft.dtype == torch.float32
        assert peft.any() == (shape[0] > 0)
        assert ((mine - peft).abs() <= 1e-6 * peft.abs().amax() if shape[0] else mine == peft).all()


def test_the_gradients_are_those_of_the_formula():
    torch.manual_seed(0)
    states, down, up = (
        torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((3, 5), (2, 5), (4, 2))
    )
    weight, bias = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda states, down, up: adapted_linear(states, weight, bias, down, up, 1.7, 0.0), (states, down, up)
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_in_bfloat16_nothing_is_further_from_the_exact_values_than_with_peft(autocast):
    layer = adapted(torch.bfloat16)
    states = torch.randn(4, 30, 48).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        own = computed(OWN, layer, states)
        with torch.autocast("cpu", torch.bfloat16):  # as PEFT trains
            theirs = computed(lambda layer, states: layer._by_peft(states), layer, states)
    exact = computed(PEFT, layer.double(), states.double())
    assert [one.dtype for one in own] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    for mine, peft, true in zip(own, theirs, exact, strict=True):
        assert (mine - true).norm() <= 1.02 * (peft - true).norm()
        assert (mine - true).norm() < 0.02 * true.norm()


def test_a_gradient_is_made_where_it_is_needed_and_twice_alike():
    layer = adapted()
    states = torch.randn(3, 48)
    layer(states).square().sum().backward()
    assert layer.lora_A.default.weight.grad is not None
    assert all(weight.grad is None for weight in layer.base_layer.parameters())
    first, again = computed(OWN, layer, states), computed(OWN, layer, states)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    layer.requires_grad_(False)
    assert not layer(states).requires_grad
    assert layer(states.requires_grad_()).requires_grad
    with torch.inference_mode():
        assert torch.equal(layer(states), first[0])


def watched(layer: Any) -> list[Any]:
    """The calls of PEFT's own `forward` that this layer makes from now on."""
    calls, plain = [], layer._by_peft
    layer._by_peft = lambda *args, **options: calls.append(args) or plain(*args, **options)
    return calls


def test_what_is_not_one_plain_adapter_is_left_to_peft():
    layer = adapted()
    states, calls = torch.randn(3, 48), watched(layer)
    updated = layer(states)
    assert not calls
    plain = layer.base_layer(states)
    layer.enable_adapters(False)
    assert torch.equal(layer(states), plain)
    layer.enable_adapters(True)
    layer.set_adapter([])
    assert torch.equal(layer(states), plain)
    layer.set_adapter("default")
    layer.merge()
    assert (layer(states) - updated).abs().max() < 1e-5
    layer.unmerge()
    updated = layer(states)
    for module in (layer.base_layer, layer.lora_A.default, layer.lora_B.default):
        seen = []
        hook = module.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))  # as offloading and ZeRO-3 have
        assert torch.equal(layer(states), updated)
        assert seen == [1]
        hook.remove()
    layer.base_layer.weight.requires_grad_(True)
    layer(states).sum().backward()
    assert layer.base_layer.weight.grad.any()
    assert len(calls) == 6
    assert not isinstance(adapted(method="dora"), AdaptedLinear)


def test_a_layer_can_be_compiled():
    layer = adapted(dropout=0.0)
    compiled = torch.compile(layer.forward, backend="aot_eager", dynamic=True, fullgraph=True)
    for tokens in (3, 8):
        states = torch.randn(tokens, 48)
        own, theirs = computed(OWN, layer, states), computed(lambda _, states: compiled(states), layer, states)
        for mine, other in zip(own, theirs, strict=True):
            torch.testing.assert_close(mine, other)


# ---------------------------------------------------------------- what a layer costs


@torch.library.custom_op("counted::norm", mutates_args=())
def norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One operation, as on a GPU; a CPU composes it of several."""
    return nn.functional.rms_norm(states, states.shape[-1:], weight, eps)


@torch.library.custom_op("counted::norm_backward", mutates_args=())
def norm_backward(gradient: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    return gradient * weight


norm.register_autograd(
    lambda ctx, gradient: (norm_backward(gradient, *ctx.saved_tensors), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]),
)
ON_NO_DEVICE = {
    "view", "_unsafe_view", "t", "transpose", "unsqueeze", "slice", "select", "expand", "split", "detach", "alias",
    "permute", "squeeze", "unbind", "as_strided", "empty", "empty_like", "new_empty", "lift_fresh",
}  # fmt: skip
"""Operations that start no kernel."""


class Counted(TorchDispatchMode):
    """Operations that are kernels on a GPU, and the bytes of all that they are given and make."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name not in ON_NO_DEVICE:
            self.operations[name] += 1
            for tensor in tree_leaves((args, kwargs, made)):  # what is changed in place is read and written
                if isinstance(tensor, Tensor):
                    read = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
                    self.bytes[name] += torch.Size(read).numel() * tensor.element_size()
        return made


def cost_of_a_layer(what: str) -> tuple[int, float]:
    """Operations, and bytes for each token: what two layers and 128 tokens have more than one and 64. Shapes are those
    of a model of 7 billion parameters, an eighth as wide, with LoRA of rank 2 for 16."""
    found = {}
    for layers in (1, 2):
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
        config = Qwen2Config(
            hidden_size=512, intermediate_size=1_376, num_hidden_layers=layers, vocab_size=128, **heads
        )
        model = Qwen2Model._from_config(config, dtype=torch.bfloat16, attn_implementation=KERNEL)
        network = nn.ModuleDict({"language_model": model})
        network.eval().requires_grad_(False)
        fuse(network)
        backbone: Any = SimpleNamespace(network=network, parts={"language_model": LANGUAGE_MODEL}, name="scaled")
        adapt(backbone, LoraSettings(rank=2, alpha=4.0, dropout=0.05 if what.endswith("dropout") else 0.0))
        if what == "scoring":
            cast_adapters(backbone, torch.bfloat16)
        for module in network.modules():
            module.training = isinstance(module, nn.Dropout)
        for tokens in (64, 128):
            states = torch.randn(1, tokens, 512, dtype=torch.bfloat16, requires_grad=True)
            given = {"inputs_embeds": states, "position_ids": torch.arange(tokens)[None], "use_cache": False}
            training = what != "scoring"
            autocast = torch.autocast("cpu", torch.bfloat16, enabled=training)
            on_a_gpu = mock.patch.object(FusedNorm, "forward", lambda own, given: norm(given, own.weight, own.eps))
            layout, grad, counted = attention_layout(True, None), torch.set_grad_enabled(training), Counted()
            with on_a_gpu, autocast, layout, grad, counted:
                hidden = model(**given).last_hidden_state
                if training:
                    hidden.float().sum().backward()
            found[layers, tokens] = counted
    more = Counter(found[2, 128].bytes)
    for sign, key in ((-1, (2, 64)), (-1, (1, 128)), (1, (1, 64))):
        for name, size in found[key].bytes.items():
            more[name] += sign * size
    return found[2, 64].operations.total() - found[1, 64].operations.total(), 8 * more.total() / 64


@pytest.mark.parametrize("what", COUNTS)
def test_a_layer_costs_few_operations_and_bytes(what):
    """A copy in float32, a cast for each batch or a mask would show here, without a GPU."""
    operations, traffic = cost_of_a_layer(what)
    most, most_traffic = COUNTS[what]
    assert 0.75 * most < operations <= most
    assert 0.75 * most_traffic < traffic <= most_traffic


@pytest.mark.parametrize("what", BEFORE)
def test_the_count_sees_what_was_there_before(what, monkeypatch):
    monkeypatch.setattr(f"{__name__}.fuse", lambda network: None)
    monkeypatch.setattr(f"{__name__}.cast_adapters", lambda backbone, dtype: None)
    if what == "scoring":  # outside autocast
        monkeypatch.setattr(AdaptedLinear, "forward", PEFT)
    else:
        monkeypatch.setattr(AdaptedLinear, "forward", AdaptedLinear._by_peft)
    operations, traffic = cost_of_a_layer(what)
    assert operations == BEFORE[what][0]
    assert traffic == pytest.approx(BEFORE[what][1], rel=0.01)


def test_adapters_that_only_score_have_the_dtype_of_the_states(make_judge, pairs):
    """The scores are those of adapters in float32, which are rounded for each batch."""
    judge = make_judge(LoraSettings(parts=["language_model", "projector"], rank=4), dtype="bfloat16")
    inputs = judge.build_inputs(pairs)
    with torch.no_grad():
        before = judge(inputs)
        judge.merge()
        assert torch.equal(judge(inputs), before)
    layers = [module for module in judge.network.modules() if isinstance(module, LoraLayer)]
    assert {weight.dtype for layer in layers for weight in layer.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in judge.own_modules()["head"].parameters()} == {torch.float32}
    assert not any(layer.merged for layer in layers)
    dora = make_judge(LoraSettings(rank=4, method="dora"), dtype="bfloat16")
    dora.merge()
    assert {weight.dtype for weight in dora.trainable().values()} == {torch.float32}
