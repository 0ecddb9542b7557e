"""Queries and keys are turned as the official functions turn them, in fewer passes over memory."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.models.backbones.layers import _both_turned, turned
from transformers.models.gemma3n.modeling_gemma3n import apply_rotary_pos_emb as of_one
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb as of_two

from .conftest import loaded


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
