"""What is trained beside plain LoRA on whole parts: methods, ranges of layers, whole parts, 4 bits, and the dtype."""

from __future__ import annotations

import math

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.artifact import LoadedJudge, Placement, Provenance, describe, load_any, save_judge
from empathy_judge.models.backbones import load_backbone, loading
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.backbones.layers import recompute_activations
from empathy_judge.models.lora import adapt, check_trainable, count_parameters
from empathy_judge.models.settings import LoraSettings
from empathy_judge.models.weight_files import fingerprint
from torch import nn

SETTINGS = {
    "rslora": LoraSettings(rank=4, alpha=8.0, method="rslora"),
    "dora": LoraSettings(rank=4, alpha=8.0, method="dora"),
    "upper layers": LoraSettings(rank=4, layers=(2, 4)),
    "last layer": LoraSettings(parts=["language_model", "projector"], rank=4, layers=(-1, 99)),
    "projector in full": LoraSettings(rank=4, full_parts=["projector"]),
    "nothing but the projector": LoraSettings(parts=[], full_parts=["projector"]),
    "tower in full": LoraSettings(rank=4, full_parts=["audio_tower"]),
}
ORIGIN = Provenance("tones", True, "c" * 64, "s" * 64, {"empathy": 0.5, "warmth": None}, ["train"], ["v"], "mean")


@pytest.fixture(scope="module")
def pairs(dataset_folder):
    return list(PairDataset.load(dataset_folder).pairs[:4])


def loss_of(judge, pairs) -> torch.Tensor:
    return (judge(judge.build_inputs(pairs)) * torch.tensor([1.0, -0.7])).sum()


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


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_after_loading_equal_scores_before_saving(name, make_judge, pairs, tmp_path):
    judge = make_judge(SETTINGS[name])
    plain = fingerprint(make_judge(LoraSettings(parts=[]), seed=3))
    assert (fingerprint(judge) == plain) == (not judge.trained_in_full())
    inputs = judge.build_inputs(pairs)
    with torch.no_grad():
        before = judge(inputs)
        save_judge(LoadedJudge(judge, describe(judge, ORIGIN)), tmp_path / "judge", "card")
        assert (tmp_path / "judge" / "backbone.safetensors").is_file() == bool(judge.trained_in_full())
        assert torch.equal(load_any(tmp_path / "judge").judge(inputs), before)


def test_rslora_scales_by_the_root_of_the_rank(backbone_folder):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    plain = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj").weight.clone()
    adapt(backbone, LoraSettings(rank=4, alpha=6.0, method="rslora"))
    layer = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj")
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    nn.init.normal_(up)
    given = torch.randn(5, 192)
    torch.testing.assert_close(layer(given), given @ plain.T + 6.0 / math.sqrt(4) * (given @ down.T @ up.T))


def test_dora_learns_magnitude_and_direction_apart(backbone_folder):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    plain = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj").weight.clone()
    adapt(backbone, LoraSettings(rank=4, alpha=8.0, method="dora"))
    layer = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj")
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    magnitude = layer.lora_magnitude_vector["default"].weight
    torch.testing.assert_close(magnitude, plain.norm(dim=1))
    nn.init.normal_(up)
    moved = plain + 8.0 / 4 * up @ down
    given = torch.randn(5, 192)
    expected = given @ (magnitude[:, None] * moved / moved.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(layer(given), expected, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("backbone", torch.bfloat16)])
def test_what_is_trained_has_the_dtype_that_the_strategy_needs(dtype, expected, make_judge, pairs):
    settings = LoraSettings(rank=4, full_parts=["projector"], trained_dtype=dtype)
    judge = make_judge(settings, dtype="bfloat16")
    found = {weight.dtype for name, weight in judge.trainable().items() if name.startswith("network.")}
    assert found == {expected}
    assert {weight.dtype for weight in judge.head.parameters()} == {torch.float32}
    loss_of(judge, pairs).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in judge.trainable().values())


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


def test_a_configuration_can_assert_what_is_trained(make_judge):
    judge = make_judge(LoraSettings(rank=4))
    counts = count_parameters(judge.backbone, {"head": judge.head})
    check_trainable(counts, {"language_model": counts["language_model"].trainable, "audio_tower": 0})
    with pytest.raises(UserError, match="audio_tower has 0 trainable parameters, expected 7"):
        check_trainable(counts, {"audio_tower": 7})
    with pytest.raises(UserError, match="no part 'decoder'; expected language_model, projector, audio_tower, head"):
        check_trainable(counts, {"decoder": 7})


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
    save_judge(LoadedJudge(judge, describe(judge, ORIGIN)), tmp_path / "judge", "card")
    small = load_any(tmp_path / "judge", Placement(quantization="nf4")).judge
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
        save_judge(LoadedJudge(judge, describe(judge, ORIGIN)), tmp_path / "judge", "card")
        assert torch.equal(load_any(tmp_path / "judge").judge(inputs), expected)


@torch.no_grad()
def test_a_judge_that_is_spread_over_devices_scores_the_same(judge_folder, pairs):
    plain = load_any(judge_folder).judge
    inputs = plain.build_inputs(pairs)
    spread = load_any(judge_folder, Placement(spread=True)).judge
    assert (spread(inputs) - plain(inputs)).abs().max() <= 1e-6
