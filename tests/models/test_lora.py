"""What of a backbone is trained: adapters exactly where they were asked for, by each method, whole parts, on 4 bits."""

from __future__ import annotations

import re
from unittest import mock

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones import load_backbone, loading
from empathy_judge.models.backbones.base import BackbonePart, Checkpoint
from empathy_judge.models.backbones.layers import recompute_activations
from empathy_judge.models.lora import adapt, check_trainable, count_parameters, parameter_table
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring.artifact import Placement, load_any
from peft import get_peft_model
from peft.tuners.lora import Linear, LoraLayer
from torch import nn

from .conftest import saved

# The nano architecture: 4 language-model layers of 7 linears (192 wide, 416 in the MLP), 4 tower layers of 6 (160, 480)
LAYERS = {"language_model": 4 * 7, "projector": 1, "audio_tower": 4 * 6}
WIDTHS = {
    "language_model": 4 * (4 * (192 + 192) + 3 * (192 + 416)),
    "projector": 160 + 192,
    "audio_tower": 4 * (4 * (160 + 160) + 2 * (160 + 480)),
}
ROOTS = {"language_model": "language_model", "projector": "multi_modal_projector", "audio_tower": "audio_tower"}
CHOICES = [
    ["language_model"], ["projector"], ["audio_tower"], ["language_model", "projector"],
    ["language_model", "projector", "audio_tower"],
]  # fmt: skip
SETTINGS = {
    "rslora": LoraSettings(rank=4, alpha=8.0, method="rslora"),
    "dora": LoraSettings(rank=4, alpha=8.0, method="dora"),
    "upper layers": LoraSettings(rank=4, layers=(2, 4)),
    "last layer": LoraSettings(parts=["language_model", "projector"], rank=4, layers=(-1, 99)),
    "projector in full": LoraSettings(rank=4, full_parts=["projector"]),
    "nothing but the projector": LoraSettings(parts=[], full_parts=["projector"]),
    "tower in full": LoraSettings(rank=4, full_parts=["audio_tower"]),
}


@pytest.fixture(scope="module")
def pairs(dataset_folder):
    return list(PairDataset.load(dataset_folder).pairs[:4])


def loss_of(judge, pairs) -> torch.Tensor:
    return (judge(judge.build_inputs(pairs)) * torch.tensor([1.0, -0.7])).sum()


@pytest.mark.parametrize("parts", CHOICES, ids="+".join)
def test_the_table_counts_what_is_trained(parts, backbone_folder, make_judge):
    judge = make_judge(LoraSettings(parts=parts, rank=3))
    table = parameter_table(count_parameters(judge.backbone, judge.own_modules()))
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    numbers = {row[0]: [int(re.sub(",", "", cell)) for cell in row[1:]] for row in rows}
    network = load_backbone(Checkpoint(str(backbone_folder))).network
    plain = {name: sum(w.numel() for w in network.get_submodule(root).parameters()) for name, root in ROOTS.items()}
    head = 192 + 192 + 2 * 192 + 2
    for part in ROOTS:
        lora, adapted = (3 * WIDTHS[part], LAYERS[part]) if part in parts else (0, 0)
        assert numbers[part] == [plain[part] + lora, lora, adapted]
    assert numbers["pooling"] == [0, 0, 0]
    assert numbers["head_input"] == [0, 0, 0]
    assert numbers["head"] == [head, head, 0]
    assert numbers["all"] == [sum(numbers[name][i] for name in numbers if name != "all") for i in range(3)]
    assert numbers["all"][0] == sum(weight.numel() for weight in judge.parameters())
    assert numbers["all"][1] == sum(weight.numel() for weight in judge.trainable().values())


def test_without_parts_only_the_head_is_trained(make_judge):
    judge = make_judge(LoraSettings(parts=[]), pooling="attention")
    assert set(judge.trainable()) == {
        "head.norm.weight", "head.norm.bias", "head.linear.weight", "head.linear.bias",
        "pooling.score.weight",
    }  # fmt: skip


def test_a_configuration_can_assert_what_is_trained(make_judge):
    judge = make_judge(LoraSettings(rank=4))
    counts = count_parameters(judge.backbone, {"head": judge.head})
    check_trainable(counts, {"language_model": counts["language_model"].trainable, "audio_tower": 0})
    with pytest.raises(UserError, match="audio_tower has 0 trainable parameters, expected 7"):
        check_trainable(counts, {"audio_tower": 7})
    with pytest.raises(UserError, match="no part 'decoder'; expected language_model, projector, audio_tower, head"):
        check_trainable(counts, {"decoder": 7})


@pytest.mark.parametrize(("method", "scale"), [("lora", 6.0 / 4), ("rslora", 6.0 / 2), ("dora", 6.0 / 4)])
def test_the_update_is_scaled_by_alpha_over_rank_or_its_root_and_dora_has_the_magnitude_apart(
    method, scale, backbone_folder
):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    plain = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj").weight.clone()
    adapt(backbone, LoraSettings(rank=4, alpha=6.0, method=method))
    layer = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj")
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (up == 0).all()  # a fresh adapter changes nothing
    nn.init.normal_(up)
    moved = plain + scale * up @ down
    if method == "dora":
        magnitude = layer.lora_magnitude_vector["default"].weight
        torch.testing.assert_close(magnitude, plain.norm(dim=1))
        moved = magnitude[:, None] * moved / moved.norm(dim=1, keepdim=True)
    given = torch.randn(5, 192)
    torch.testing.assert_close(layer(given), given @ moved.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "there"), [((2, 4), {2, 3}), ((-1, 99), {3}), ((0, -3), {0}), (None, {0, 1, 2, 3})], ids=str
)
def test_lora_sits_in_the_layers_that_were_named(layers, there, make_judge):
    judge = make_judge(LoraSettings(parts=["language_model", "audio_tower"], rank=2, layers=layers))
    names = [name for name in judge.trainable() if "lora_A" in name]
    found = {int(name.split("layers.")[1].split(".")[0]) for name in names if "language_model" in name}
    assert found == there
    tower = {int(name.split("layers.")[1].split(".")[0]) for name in names if "audio_tower" in name}
    assert tower == {0, 1, 2, 3}  # the range is about the language model


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_asked_for_is_trained_and_nothing_else(name, make_judge, pairs):
    judge = make_judge(SETTINGS[name])
    before = {key: weight.clone() for key, weight in judge.named_parameters()}
    trainable = judge.trainable()
    optimizer = torch.optim.SGD(trainable.values(), lr=0.1)
    loss_of(judge, pairs).backward()
    optimizer.step()
    for key, weight in judge.named_parameters():
        assert torch.equal(weight, before[key]) != (key in trainable), key
    assert {weight.dtype for weight in trainable.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (LoraSettings(layers=(4, 9)), r"lora.layers \[4, 9\]: the language model of .* has 4 layers"),
        (LoraSettings(parts=["projector"], full_parts=["projector"]), "LoRA on projector: its weights are trained"),
        (LoraSettings(parts=["fusion"]), "train 'fusion': .* expected language_model, projector, audio_tower"),
        (LoraSettings(full_parts=["fusion"]), "train 'fusion': .* expected language_model, projector, audio_tower"),
    ],
)
def test_what_cannot_be_trained_is_refused(settings, text, backbone_folder):
    with pytest.raises(UserError, match=text):
        adapt(load_backbone(Checkpoint(str(backbone_folder))), settings)


def test_a_part_without_such_layers_is_refused(backbone_folder):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    backbone.parts = {**backbone.parts, "projector": BackbonePart("multi_modal_projector", ("absent",))}
    with pytest.raises(UserError, match=r"LoRA on projector: backbone .* has no such linear layers"):
        adapt(backbone, LoraSettings(parts=["projector"]))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj"], r"audio_tower\.layers\.0\.self_attn\.q_proj got LoRA unasked"),  # bare names
        (r"language_model\.layers\.0\..*q_proj", r"language_model\.layers\.0\.mlp\.down_proj got no LoRA"),
        ("language_model.embed_tokens", r"language_model\.embed_tokens got LoRA unasked"),
    ],
)
def test_layers_that_peft_adapts_against_the_pattern_are_refused(targets, message, backbone_folder):
    def changed(network, config, **options):
        config.target_modules = targets
        return get_peft_model(network, config, **options)

    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    with (
        mock.patch("empathy_judge.models.lora.get_peft_model", changed),
        pytest.raises(RuntimeError, match=f"^{message}: PEFT"),
    ):
        adapt(backbone, LoraSettings())


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("backbone", torch.bfloat16)])
def test_what_is_trained_has_the_dtype_that_the_strategy_needs(dtype, expected, make_judge, pairs):
    settings = LoraSettings(rank=4, full_parts=["projector"], trained_dtype=dtype)
    judge = make_judge(settings, dtype="bfloat16")
    found = {weight.dtype for name, weight in judge.trainable().items() if name.startswith("network.")}
    assert found == {expected}
    assert {weight.dtype for weight in judge.head.parameters()} == {torch.float32}
    loss_of(judge, pairs).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in judge.trainable().values())


@pytest.mark.parametrize("method", ["lora", "rslora"])
def test_under_autocast_an_adapter_that_peft_computes_reads_the_states_that_are_there(method, make_judge):
    """PEFT's cast to float32 and back changes no bit of states and gradients; without it there are no such copies."""
    judge = make_judge(LoraSettings(rank=4, method=method), dtype="bfloat16")
    layer = judge.network.language_model.layers[0].mlp.gate_proj
    states = torch.randn(3, 5, 192, dtype=torch.bfloat16)
    found, read = [], []
    # a hook leaves the layer to PEFT
    layer.lora_A["default"].register_forward_pre_hook(lambda _, args: read.append(args[0].dtype))
    for forward in (type(layer).forward, Linear.forward):
        layer.cast_input_dtype_enabled = True
        x = states.clone().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16):
            made = forward(layer, x)
        made.float().square().sum().backward()
        weights = [weight for weight in layer.parameters() if weight.requires_grad]
        found.append([made.detach(), x.grad, *(weight.grad for weight in weights)])
        for weight in weights:
            weight.grad = None
    assert read == [torch.bfloat16, torch.float32]
    assert layer(states).dtype == torch.bfloat16
    assert read[2] == torch.float32  # without autocast
    for own, peft in zip(*found, strict=True):
        assert torch.equal(own, peft)
    assert all(bool(own.any()) for own in found[0][:2])


def test_recomputed_layers_give_the_same_gradients(make_judge, pairs):
    parts = LoraSettings(parts=["language_model", "audio_tower"], rank=4)
    plain, frugal = make_judge(parts), make_judge(parts)
    assert recompute_activations(frugal.network) == 8

    kept = {}
    for name, judge in (("plain", plain), ("frugal", frugal)):
        sizes: dict[int, int] = {}

        def pack(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(judge, pairs)
        kept[name] = sum(sizes.values())
        loss.backward()
    for name, weight in plain.trainable().items():
        assert torch.equal(weight.grad, frugal.trainable()[name].grad), name
    assert kept["frugal"] < 0.5 * kept["plain"]


# ---------------------------------------------------------------- 4 bits


@pytest.fixture(params=[True, False], ids=["AVX512-BF16", "other CPUs"])
def cpu(request, monkeypatch) -> None:
    """Both ways in which bitsandbytes would pack 4 bits, whatever this CPU has."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: request.param)


@pytest.mark.usefixtures("cpu")
@torch.no_grad()
def test_four_bits_stay_near_the_full_scores(make_judge, pairs, tmp_path):
    judge = make_judge(LoraSettings(rank=4))
    inputs = judge.build_inputs(pairs)
    expected = judge(inputs)
    small = load_any(saved(judge, tmp_path / "judge"), Placement(quantization="nf4")).judge
    assert small.network.language_model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.uint8
    assert small.network.audio_tower.layers[0].fc1.weight.dtype == torch.float32
    found = small(inputs)
    # weights are rounded to 16 values in blocks of 64: scores move, by less than a fifth of the scale
    moved = (found - expected).abs().max(0).values
    assert (moved > 1e-4).all()
    assert (moved < torch.tensor([0.8, 2.0])).all()


@pytest.mark.usefixtures("cpu")
def test_weights_in_4_bits_are_read_as_they_were_quantized(backbone_folder, monkeypatch):
    """One of 16 levels, times the scale of its block of 64. CPUs with AVX-512 would start a block with each row."""
    functional = pytest.importorskip("bitsandbytes.functional")
    in_4_bits = Checkpoint(str(backbone_folder), quantization="nf4")
    whole = dict(load_backbone(Checkpoint(str(backbone_folder))).network.language_model.named_modules())
    found = {}
    for name, module in load_backbone(in_4_bits).network.language_model.named_modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None:
            scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
            codes = torch.stack([module.weight.flatten() >> 4, module.weight.flatten() & 15], 1)
            by_hand = (state.code[codes.flatten().long()].view(-1, 64) * scales[:, None]).view(state.shape)
            given = torch.eye(module.in_features)
            torch.testing.assert_close(module(given).T - (0 if module.bias is None else module.bias[:, None]), by_hand)
            found[name] = ((by_hand - whole[name].weight).abs().mean() / whole[name].weight.std()).item()
        elif isinstance(module, nn.Linear):
            assert name.endswith("mlp.down_proj")
            assert torch.equal(module.weight, whole[name].weight)
    assert len(found) == 24
    assert max(found.values()) < 0.1, found
    monkeypatch.setattr(loading, "_across_blocks", lambda *_: [])  # as exports were written before
    with pytest.raises(UserError, match=r"layers.0.mlp.down_proj has rows of 416 values in 4 bits.*export the judge"):
        load_backbone(in_4_bits)


def test_four_bits_are_made_on_the_cpu(make_judge, monkeypatch):
    """Left to itself, transformers would take the first GPU in each of several processes."""
    quantizer = pytest.importorskip("transformers.quantizers.quantizer_bnb_4bit").Bnb4BitHfQuantizer
    plain, given = quantizer.update_device_map, []
    monkeypatch.setattr(quantizer, "update_device_map", lambda self, own: given.append(own) or plain(self, own))
    make_judge(LoraSettings(rank=4), quantization="nf4")
    assert given == [{"": "cpu"}]


@pytest.mark.usefixtures("cpu")
def test_qlora_trains_adapters_on_four_bits(make_judge, pairs, tmp_path):
    judge = make_judge(LoraSettings(rank=4), quantization="nf4")
    trainable = judge.trainable()
    frozen = {name: weight.clone() for name, weight in judge.named_parameters() if name not in trainable}
    before = {name: weight.clone() for name, weight in trainable.items()}
    loss_of(judge, pairs).backward()
    torch.optim.SGD(trainable.values(), lr=0.1).step()
    assert all(not torch.equal(weight, before[name]) for name, weight in trainable.items())
    assert all(torch.equal(judge.get_parameter(name), weight) for name, weight in frozen.items())
    counts = count_parameters(judge.backbone, {})
    whole = count_parameters(make_judge(LoraSettings(rank=4)).backbone, {})
    assert counts["language_model"].parameters == whole["language_model"].parameters
    assert counts["language_model"].bytes < 0.45 * whole["language_model"].bytes  # embeddings and adapters stay float32
    inputs = judge.build_inputs(pairs)
    with torch.no_grad():
        expected = judge(inputs)
        assert torch.equal(load_any(saved(judge, tmp_path / "judge")).judge(inputs), expected)


@torch.no_grad()
def test_a_judge_that_is_spread_over_devices_scores_the_same(judge_folder, pairs):
    plain = load_any(judge_folder).judge
    inputs = plain.build_inputs(pairs)
    spread = load_any(judge_folder, Placement(spread=True)).judge
    assert (spread(inputs.to(spread.device)).cpu() - plain(inputs)).abs().max() <= 1e-6
    for judge in (spread, plain):
        judge.merge()
    merged = [any(own.merged for own in judge.modules() if isinstance(own, LoraLayer)) for judge in (spread, plain)]
    assert merged == [False, True]  # weights of the first may lie anywhere
