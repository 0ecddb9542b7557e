"""Adapters sit exactly where they were asked for."""

from __future__ import annotations

import re
from unittest import mock

import pytest
import torch
from empathy_judge.data_modules.errors import UserError
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint, Part
from empathy_judge.models.lora import adapt, count_parameters, parameter_table
from empathy_judge.models.settings import LoraSettings
from peft import get_peft_model
from peft.tuners.lora import LoraLayer

# The nano architecture: 4 language-model layers of 7 linears (192 wide, 416 in the MLP), 4 tower layers of 6 (160, 480)
LAYERS = {"language_model": 4 * 7, "projector": 1, "audio_tower": 4 * 6}
WIDTHS = {
    "language_model": 4 * (4 * (192 + 192) + 3 * (192 + 416)),
    "projector": 160 + 192,
    "audio_tower": 4 * (4 * (160 + 160) + 2 * (160 + 480)),
}
ROOTS = {"language_model": "language_model.", "projector": "multi_modal_projector.", "audio_tower": "audio_tower."}
CHOICES = [
    ["language_model"], ["projector"], ["audio_tower"], ["language_model", "projector"],
    ["language_model", "projector", "audio_tower"],
]  # fmt: skip


@pytest.mark.parametrize("parts", CHOICES, ids="+".join)
def test_the_table_counts_what_is_trained(parts, backbone_folder, make_judge):
    judge = make_judge(LoraSettings(parts=parts, rank=3))
    table = parameter_table(count_parameters(judge.backbone, judge.own_modules()))
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    numbers = {row[0]: [int(re.sub(",", "", cell)) for cell in row[1:]] for row in rows}
    network = load_backbone(Checkpoint(str(backbone_folder))).network
    plain = {
        name: sum(w.numel() for w in network.get_submodule(root[:-1]).parameters()) for name, root in ROOTS.items()
    }
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
        "pooling.score.weight", "pooling.score.bias",
    }  # fmt: skip


def test_the_update_is_scaled_by_alpha_over_rank(backbone_folder):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    plain = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj").weight.clone()
    adapt(backbone, LoraSettings(rank=2, alpha=6.0))
    layer = backbone.network.get_submodule("language_model.layers.0.mlp.up_proj")
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (up == 0).all()  # a fresh adapter changes nothing
    torch.nn.init.normal_(up)
    given = torch.randn(5, 192)
    expected = given @ plain.T + 6.0 / 2 * (given @ down.T @ up.T)
    torch.testing.assert_close(layer(given), expected)


def test_a_part_without_such_layers_is_refused(backbone_folder):
    backbone = load_backbone(Checkpoint(str(backbone_folder)))
    backbone.parts = {**backbone.parts, "projector": Part("multi_modal_projector", ("absent",))}
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


@pytest.mark.parametrize("method", ["lora", "rslora"])
def test_under_autocast_an_adapter_reads_the_states_that_are_there(method, make_judge):
    """PEFT's cast to float32 and back changes no bit of states and gradients; without it there are no such copies."""
    judge = make_judge(LoraSettings(rank=4, method=method), dtype="bfloat16")
    layers = [module for module in judge.network.modules() if isinstance(module, LoraLayer)]
    layer = judge.network.language_model.layers[0].mlp.gate_proj
    states = torch.randn(3, 5, 192, dtype=torch.bfloat16)
    assert len(layers) == 28
    found = []
    for own in (True, False):
        if not own:
            for module in layers:
                del module._cast_input_dtype
        read = []
        hook = layer.lora_A["default"].register_forward_pre_hook(lambda _, args, read=read: read.append(args[0].dtype))
        x = states.clone().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16):
            made = layer(x)
        made.float().square().sum().backward()
        weights = [weight for weight in layer.parameters() if weight.requires_grad]
        found.append([made.detach(), x.grad, *(weight.grad for weight in weights)])
        assert read == [torch.bfloat16 if own else torch.float32]
        assert layer(states).dtype == torch.bfloat16
        assert read[1] == torch.float32  # without autocast, as in scoring
        for weight in weights:
            weight.grad = None
        hook.remove()
    for own, peft in zip(*found, strict=True):
        assert torch.equal(own, peft)
    assert all(bool(own.any()) for own in found[0][:2])
