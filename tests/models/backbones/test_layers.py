"""A judge that reads its backbone up to a layer: exact, and nothing above is made, read or written.

Queries and keys are turned as the official functions turn them, in fewer passes over memory."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones import DEPTH
from empathy_judge.models.backbones.layers import FusedNorm, _both_turned, passing_on, turned
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import HeadInputSettings
from empathy_judge.scoring.export.write import write_backbone
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.gemma3n.modeling_gemma3n import apply_rotary_pos_emb as of_one
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb as of_two

from .conftest import OF_EACH_KIND, judge_of, loaded, refused

CASES = [("first", True), ("half", False), ("full", False)]
"""Depth, and whether the final norm follows. A whole language model with its norm is that of `test_base.py`."""


@pytest.fixture(scope="module")
def pairs(pairs) -> list[Pair]:
    """With a context and without, of unlike lengths."""
    return pairs[::2]


def judge_at(family, depth, parts=(), **settings) -> EmpathyJudge:
    return judge_of(family, parts, depth=depth, head_input=HeadInputSettings(), **settings)


def layers_of(family) -> int:
    return len(loaded(family.folder, weights=False).layers)


def number(depth: str, layers: int) -> int:
    return {"first": 1, "half": max(1, layers // 2), "full": layers}[depth]


def official_layers(family, kind: type) -> list[nn.Module]:
    """The layers of the language model of the official class."""
    (found,) = [own for own in family.model.modules() if isinstance(own, nn.ModuleList) and type(own[0]) is kind]
    return list(found)


@torch.no_grad()
@pytest.mark.parametrize(("depth", "norm"), CASES)
def test_hidden_states_are_those_of_the_official_class_behind_that_layer(
    language_model, depth, norm, pairs, same, rounding
):
    k = number(depth, layers_of(language_model))
    judge = judge_at(language_model, k, depth_norm=norm, pooling="attention")  # which reads all states
    assert len(judge.backbone.layers) == judge.backbone.depth == judge.settings.depth == k
    inputs = judge.build_inputs(pairs)
    hidden = judge.backbone.hidden_states(inputs)
    theirs = official_layers(language_model, type(judge.backbone.layers[0]))
    own_norm = judge.backbone.network.get_submodule(judge.backbone.final_norm or "")
    for row, pair in enumerate(pairs):
        made = []
        hook = theirs[k - 1].register_forward_hook(lambda *call, made=made: made.append(call[2]))
        with passing_on(theirs[k:]):
            _, last = language_model.official(pair)
        hook.remove()
        states = made[0] if isinstance(made[0], torch.Tensor) else made[0][0]
        found = hidden[row][inputs.attention_mask[row].bool()]
        if norm:
            assert same(found, last[0], rounding)
        elif states.ndim == 3:  # `hidden_states[k]`; of Gemma 3n these are four states of each token
            assert same(found, states[0], rounding)
        if not norm:  # and the official norm behind it
            assert same(type(own_norm).forward(own_norm, found), last[0], 10 * rounding)


@torch.no_grad()
@pytest.mark.parametrize(("depth", "norm"), [*CASES, ("full", True)])
def test_states_of_an_encoder_are_those_of_its_first_layers(encoder, depth, norm, noise, same, rounding):
    layers = layers_of(encoder)
    k = number(depth, layers)
    backbone = judge_at(encoder, k, depth_norm=norm).backbone
    clips = [noise(samples, seed) for seed, samples in enumerate([20_000, 9_999, 31_360, 7_001])]
    found = backbone.encode_audio(backbone.prepare_clips(clips))
    expected = torch.cat([encoder.official(clip) for clip in clips])
    size = expected.shape[-1] // (layers + 1)
    assert found.shape[-1] == (k + 1) * size
    assert same(found[:, : k * size], expected[:, : k * size], rounding)
    last, theirs = found[:, k * size :], expected[:, k * size : (k + 1) * size]
    if backbone.final_norm is not None and norm and k < layers:  # of Whisper only the last layer has it
        theirs = backbone.network.get_submodule(backbone.final_norm)(theirs)
    if backbone.final_norm is not None and not norm and k == layers:
        own = backbone.network.get_submodule(backbone.final_norm)
        last = type(own).forward(own, last)
    assert same(last, theirs, rounding)


def test_layers_above_are_not_read(family, bytes_read):
    backbone = loaded(family.folder)
    whole, weights = sum(bytes_read), backbone.network.state_dict()
    bytes_read.clear()
    kept = loaded(family.folder, depth=1).network.state_dict()
    paths = tuple(f"{backbone.layers_path}.{own}." for own in range(1, len(backbone.layers)))
    above = {name for name in weights if name.startswith(paths)}
    assert kept.keys() == weights.keys() - above
    assert whole - sum(bytes_read) == sum(weights[name].numel() * 4 for name in above)


def test_a_surplus_weight_above_is_an_error_still(make_family, tmp_path):
    family = make_family("qwen2_audio")
    copy = shutil.copytree(family.folder, tmp_path / "changed")
    weights = load_file(copy / "model.safetensors")
    (name,) = [key for key in weights if key.endswith("layers.1.mlp.up_proj.weight") and "audio" not in key]
    for surplus in (name.replace("up_proj", "side_proj"), name.replace("layers.1", "layers.7")):
        save_file(weights | {surplus: torch.zeros(2)}, copy / "model.safetensors", metadata={"format": "pt"})
        refused(copy, depth=1, match=r"not a complete checkpoint of its family: missing \[\], unexpected \['")
    below = name.replace("layers.1", "layers.0")
    without = {key: weight for key, weight in weights.items() if key != below}
    save_file(without, copy / "model.safetensors", metadata={"format": "pt"})
    refused(copy, depth=1, match=r"missing .'model\.language_model\.layers\.0\.mlp\.up_proj\.weight'")


@torch.no_grad()
@pytest.mark.parametrize("family", OF_EACH_KIND, indirect=True)
def test_an_exported_backbone_has_its_layers_alone_and_is_loaded_again(family, tmp_path):
    judge = judge_at(family, 1)
    write_backbone(judge.backbone, None, "float32", tmp_path / "cut")
    write_backbone(loaded(family.folder), None, "float32", tmp_path / "whole")
    sizes = [
        sum(own.nbytes for own in load_file(tmp_path / name / "model.safetensors").values())
        for name in ("cut", "whole")
    ]
    path = judge.backbone.layers_path
    network = loaded(family.folder).network.state_dict()
    above = sum(
        own.nbytes
        for name, own in network.items()
        if name.startswith(path) and name.split(".")[path.count(".") + 1] != "0"
    )
    assert sizes[1] - sizes[0] == above > 0
    for depth in (None, 1, 0.5, 1.0):  # a share is that of the layers that are there
        again = judge_at(family, depth, backbone=str(tmp_path / "cut"))
        assert again.backbone.depth == 1
        ours, theirs = judge.backbone.network.state_dict(), again.backbone.network.state_dict()
        assert ours.keys() == theirs.keys()
        own = [name for name in ours if not name.startswith("fusion.")]  # in no checkpoint
        assert all(torch.equal(ours[name], theirs[name]) for name in own)
    refused(tmp_path / "cut", depth=2, match="^depth 2: backbone '.*cut' has 1 layers")
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    for damaged in ("2", 0, [1], 0.5):
        (tmp_path / "cut" / "config.json").write_text(json.dumps({**config, DEPTH: damaged}))
        refused(tmp_path / "cut", depth=1, match="config.json has empathy_judge_depth .*; expected a number of layers")


@pytest.mark.parametrize(
    ("depth", "message"),
    [
        (0, "judge.depth 0; expected a number of layers, or a share above 0 and up to 1"),
        (1.5, "judge.depth 1.5; expected a number of layers, or a share above 0 and up to 1"),
        (-0.5, "judge.depth -0.5; expected"),
        (9, "depth 9: backbone '.*' has 4 layers"),
    ],
)
def test_a_depth_that_is_none_is_refused(make_family, depth, message):
    with pytest.raises(UserError, match=message):
        judge_at(make_family("qwen2_audio"), depth)


def test_lora_is_on_the_layers_that_there_are(language_model):
    judge = judge_at(language_model, 0.5, parts=["language_model"])
    assert judge.settings.depth == max(1, round(0.5 * layers_of(language_model)))
    path = judge.backbone.layers_path
    adapted = {name.split(".")[path.count(".") + 2] for name in judge.trainable() if "lora_" in name}
    assert adapted == {str(own) for own in range(judge.backbone.depth or 0)}


# ---------------------------------------------------------------- norms


def norms_of(language_model) -> list[tuple[FusedNorm, nn.Module]]:
    """Each of our norms of the language model, with a copy of the official one."""
    network = loaded(language_model.folder).network.language_model
    modules = language_model.model.named_modules()
    official = {name: own for name, own in modules if type(own).__name__.endswith("RMSNorm")}
    norms = {name: own for name, own in network.named_modules() if isinstance(own, FusedNorm)}
    assert {"norm", "norm_f"} & norms.keys()
    assert not [name for name, own in network.named_modules() if type(own).__name__.endswith("RMSNorm")]
    both = []
    for name, own in norms.items():
        paths = f"language_model.{name}", f"language_model.model.{name}"
        (theirs,) = [module for path, module in official.items() if path.endswith(paths)]
        both.append((own, deepcopy(theirs)))
    return both


def states_for(norm: FusedNorm) -> torch.Tensor:
    return 3 * torch.randn(5, 7, 16 if norm.weight is None else len(norm.weight))


@torch.no_grad()
def test_norms_are_one_operation_with_the_values_of_the_official_ones(language_model):
    for own, theirs in norms_of(language_model):
        states = states_for(own)
        torch.testing.assert_close(own(states), theirs(states), rtol=2e-7, atol=0)
        half = states.bfloat16()
        exact = theirs(half.float())
        distances = [(norm.bfloat16()(half).float() - exact).abs().mean() for norm in (own, theirs)]
        assert distances[0] <= distances[1]
        assert own.float()(half).dtype == theirs.float()(half).dtype  # a norm that is trained in float32


@pytest.mark.parametrize("trained", [False, True])
def test_norms_have_the_gradients_of_the_official_ones(language_model, trained):
    for own, theirs in norms_of(language_model):
        states = states_for(own).requires_grad_()
        gradient, made = torch.randn_like(states), []
        for norm in (own.requires_grad_(trained), theirs.requires_grad_(trained)):
            values = norm(states)
            made.append([values, *torch.autograd.grad(values, [states, *norm.parameters()][: 1 + trained], gradient)])
        for ours, official in zip(*made, strict=True):
            torch.testing.assert_close(ours, official, rtol=1e-5, atol=1e-6)


def drawn(dtype: torch.dtype, of_angles: torch.dtype, axis: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys of fewer heads, cosines and sines; of each half its own, so that to mix them up would show."""
    torch.manual_seed(0)
    query, key = (torch.randn(2, 9, heads, 8, dtype=torch.float64).to(dtype) for heads in (4, 2))
    query, key = (query, key) if axis == 2 else (query.transpose(1, 2), key.transpose(1, 2))
    return query, key, *torch.randn(2, 2, 9, 8, dtype=torch.float64).to(of_angles)


def gradients(function, values, *rest) -> list[torch.Tensor]:
    """What a function makes of values, and its gradients."""
    values = [value.clone().requires_grad_() for value in values]
    made = function(*values, *rest)
    made = made if isinstance(made, tuple) else (made,)
    losses = [(own.double() * torch.linspace(-1, 2, own.shape[-1])).square().sum() for own in made]
    torch.stack(losses).sum().backward()
    return [*(own.detach() for own in made), *(value.grad for value in values)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_the_official_ones(dtype):
    query, key, cos, sin = drawn(dtype, dtype, axis=1)
    own, theirs = (gradients(function, (query, key), cos, sin) for function in (_both_turned, of_two))
    query, key, cos, sin = drawn(dtype, dtype, axis=2)
    own += gradients(turned, (query,), cos, sin, 2)
    theirs += gradients(of_one, (query,), cos, sin, 2)
    for mine, official in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, official, rtol=1e-6, atol=1e-6)
    with torch.inference_mode():
        assert torch.equal(turned(query, cos, sin, 2), own[-2])


@pytest.mark.parametrize("of_angles", [torch.bfloat16, torch.float32], ids=["half", "autocast"])
def test_in_bfloat16_nothing_is_further_from_the_exact_values(of_angles):
    """Under autocast, angles of a float32 backbone meet states in bfloat16."""
    query, key, cos, sin = drawn(torch.bfloat16, of_angles, axis=1)
    own, theirs = (gradients(function, (query, key), cos, sin) for function in (_both_turned, of_two))
    exact = gradients(of_two, (query.double(), key.double()), cos.double(), sin.double())
    for mine, official, true in zip(own, theirs, exact, strict=True):
        assert mine.dtype == official.dtype
        assert (mine - true).norm() <= 1.01 * (official - true).norm()


def test_the_gradients_are_those_of_the_formula():
    query, _, cos, sin = drawn(torch.float64, torch.float64, axis=1)
    assert torch.autograd.gradcheck(lambda x: turned(x, cos, sin), query.requires_grad_())


def test_each_attention_of_a_language_model_turns_so_and_the_official_class_does_not(language_model):
    """That values stay those of the official class, tests of hidden states say."""
    backbone, found = loaded(language_model.folder), []
    for layer in backbone.layers:
        found += [vars(module)["forward"] for module in layer.modules() if "forward" in vars(module)]
    # attention of Nemotron 3, which has Mamba-2 between, knows no positions
    assert len(found) == (0 if language_model.name == "nemotron_h_omni" else len(backbone.layers))
    for forward in found:
        assert forward.__globals__["apply_rotary_pos_emb"] in (_both_turned, turned)
        assert type(forward.__self__).forward.__globals__["apply_rotary_pos_emb"].__module__.startswith("transformers")
