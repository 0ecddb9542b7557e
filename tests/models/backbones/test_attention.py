"""Attention without masks, as a GPU computes it in half precision: packed pairs by two passes that are joined, the
clips of a tower as they stand. Here a loop over pieces stands for the kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import attention, packing
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel
from empathy_judge.models.backbones.inputs import Pieces
from empathy_judge.models.settings import HeadInputSettings
from torch import Tensor

from . import conftest
from .conftest import RATE, loaded

WITHOUT_MASK = ["audioflamingo3", "qwen2_5_omni", "qwen2_audio", "qwen3_omni_moe", "voxtral"]
"""Families whose language model attends to all that comes before."""


def by_piece(
    query: Tensor, key: Tensor, value: Tensor, of_queries: Tensor, of_keys: Tensor, most: int, most_keys: int,
    *, return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> Any:  # fmt: skip
    """`varlen_attn`: states `(positions, heads, size)`, log-sum-exp `(heads, positions)` as it is in torch 2.11 (its
    documentation says the opposite)."""
    assert of_queries.dtype == of_keys.dtype == torch.int32
    sizes, sizes_of_keys = of_queries.diff().tolist(), of_keys.diff().tolist()
    assert (max(sizes), max(sizes_of_keys)) == (most, most_keys)
    assert (sum(sizes), sum(sizes_of_keys)) == (len(query), len(key))
    made, sums = [], []
    key, value = (states.repeat_interleave(query.shape[1] // states.shape[1], 1) for states in (key, value))
    for own, keys, values in zip(query.split(sizes), key.split(sizes_of_keys), value.split(sizes_of_keys), strict=True):
        products = torch.einsum("qhd,khd->hqk", own, keys) * (scale or own.shape[-1] ** -0.5)
        if window_size == (-1, 0):
            after = torch.ones(len(own), len(keys), dtype=torch.bool).triu(1 + len(keys) - len(own))
            products = products.masked_fill(after, -math.inf)
        made.append(torch.einsum("hqk,khd->qhd", products.softmax(-1), values))
        sums.append(products.logsumexp(-1))
    return (torch.cat(made), torch.cat(sums, 1)) if return_aux is not None and return_aux.lse else torch.cat(made)


@pytest.fixture
def kernel(monkeypatch) -> list[int]:
    """The kernel on a CPU, in float32; the queries of its calls."""
    calls = list[int]()

    def attend(query: Tensor, *rest: Any, **options: Any) -> Any:
        calls.append(len(query))
        return by_piece(query, *rest, **options)

    monkeypatch.setattr(attention, "varlen_attn", attend)
    monkeypatch.setattr(attention, "without_mask", lambda device: True)
    monkeypatch.setattr(attention, "HALF", (torch.float32,))
    return calls


@pytest.fixture
def pairs(noise) -> list[Pair]:
    """Three responses to one context, two to another with a situation, one alone; 0.4 to 1.2 s."""
    first, second = Clip(noise(18_000), RATE), Clip(noise(9_000, 1), RATE)
    found = [Pair(f"a{n}", Clip(noise(7_000 + 2_000 * n, 2 + n), RATE), (Turn("user", first),)) for n in range(3)]
    found += [
        Pair(f"b{n}", Clip(noise(9_000 + 900 * n, 6 + n), RATE), (Turn("user", second),), "Late.") for n in (0, 1)
    ]
    return [*found, Pair("alone", Clip(noise(8_000, 9), RATE))]


@pytest.fixture
def judge_of(monkeypatch):
    """A judge that packs for attention without a mask, whether or not that saves anything."""
    monkeypatch.setattr(packing, "MAX_PACKED_FRACTION", math.inf)
    monkeypatch.setattr(AudioLanguageModel, "_reads_pieces", True)
    return partial(conftest.judge_of, parts=["language_model"], head_input=HeadInputSettings())


@pytest.mark.parametrize("name", WITHOUT_MASK)
@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_in_one_row_have_the_states_of_each_alone(name, side, make_family, judge_of, pairs, kernel, monkeypatch):
    judge = judge_of(make_family(name), padding_side=side, pooling="attention")
    with torch.no_grad():
        inputs = judge.with_encoded_audio(judge.build_inputs(pairs))
    packed, real = inputs.packed, inputs.attention_mask.bool()
    assert packed is not None
    assert packed.pieces is not None
    assert packed.input_ids.shape == (1, packed.attention_mask.sum()), "padding"
    assert torch.equal(packed.input_ids.flatten()[packed.where][real], inputs.input_ids[real])
    with torch.no_grad():
        expected = judge.backbone.hidden_states(replace(inputs, packed=None))[real]
        under_a_mask = judge.backbone.hidden_states(replace(inputs, packed=replace(packed, pieces=None)))[real]
        kernel.clear()
        monkeypatch.setattr(attention, "_packed_mask", None)
        found = judge.backbone.hidden_states(inputs)[real]
    layers = len(judge.backbone.layers)
    assert kernel == [packed.input_ids.shape[1], packed.input_ids.shape[1] - packed.pieces.start] * layers
    assert (under_a_mask - expected).abs().max() <= 1e-5
    assert (found - expected).abs().max() <= 1e-5


def test_training_keeps_the_mask(make_family, judge_of, pairs, kernel):
    """The backward pass of the kernel leaves out the gradient of the log-sum-exp."""
    judge = judge_of(make_family("qwen2_audio"))
    inputs = judge.with_encoded_audio(judge.build_inputs(pairs))
    assert inputs.packed.pieces is not None
    kernel.clear()
    found = []
    for given in (inputs, replace(inputs, packed=None)):
        judge.zero_grad()
        judge(given).square().sum().backward()
        found.append(torch.cat([weight.grad.flatten() for weight in judge.trainable().values()]))
    assert not kernel
    assert (found[0] - found[1]).abs().max() <= 1e-4 * found[1].abs().max()


@pytest.mark.parametrize(
    ("family", "dtype", "grad", "expected"),
    [
        ("qwen2_audio", "bfloat16", False, True),
        ("qwen2_audio", "float32", False, False),
        ("qwen2_audio", "bfloat16", True, False),
        ("gemma4", "bfloat16", False, False),  # within a window
    ],
)
def test_pieces_are_for_scoring_in_half_precision(family, dtype, grad, expected, make_family, pairs, monkeypatch):
    from empathy_judge.models.backbones import audio_language_model

    monkeypatch.setattr(packing, "MAX_PACKED_FRACTION", math.inf)
    judge = conftest.judge_of(make_family(family), dtype=dtype)
    with torch.set_grad_enabled(grad):
        assert judge.build_inputs(pairs).packed.pieces is None  # on a CPU
        monkeypatch.setattr(audio_language_model, "without_mask", lambda device: True)
        assert (judge.build_inputs(pairs).packed.pieces is not None) == expected


@pytest.mark.parametrize("name", ["audioflamingo3", "qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"])
def test_clips_in_one_row_have_states_and_gradients_of_each_alone(name, make_family, noise, kernel, monkeypatch):
    monkeypatch.setattr(attention, "fits_kernel", lambda size: True)  # these have heads of 12
    backbone = loaded(make_family(name).folder)
    tower = backbone.network.get_submodule(backbone.parts["audio_tower"].path)
    clips = [noise(length, seed) for seed, length in enumerate((16_000, 6_400, 11_931, 9_321))]
    weights = [layer.fc1.weight.requires_grad_() for layer in tower.layers]

    def made(clips: list[Any]) -> tuple[Tensor, list[Tensor]]:
        states = backbone.encode_audio(backbone.prepare_clips(clips))
        return states.detach(), list(torch.autograd.grad(states[:, ::2].square().sum(), weights))

    alone = [made([clip]) for clip in clips]
    kernel.clear()
    states, gradients = made(clips)
    assert len(kernel) == len(tower.layers)
    torch.testing.assert_close(states, torch.cat([own for own, _ in alone]), rtol=0, atol=1e-5)
    for own, each in zip(gradients, zip(*(of_clip for _, of_clip in alone), strict=True), strict=True):
        torch.testing.assert_close(own, sum(each), rtol=0, atol=2e-5 * own.abs().max().item())


def test_a_kernel_takes_heads_that_it_knows():
    assert [attention.fits_kernel(size) for size in (8, 64, 128, 256, 12, 512)] == [True] * 4 + [False] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 4])
def test_on_a_gpu_the_kernel_does_what_the_loop_does(groups, monkeypatch):
    """Also where queries share keys, and with the log-sum-exp in the order in which it is read."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(0)
    beginnings, following = [40, 17, 131], [[9, 30], [64, 1, 5], [12]]
    sizes = [*beginnings, *(size for of_tree in following for size in of_tree)]
    ends = [torch.tensor([0, *own], dtype=torch.int32).cumsum(0).int() for own in (sizes, beginnings)]
    rests = torch.tensor([0, *map(sum, following)], dtype=torch.int32).cumsum(0).int()
    pieces = Pieces(*ends, rests, (max(sizes), max(beginnings), max(map(sum, following))), sum(beginnings))
    states = [torch.randn(1, heads, sum(sizes), 64).bfloat16() for heads in (8, 8 // groups, 8 // groups)]
    found = attention._attend_to_beginnings(pieces.to(torch.device("cuda")), [own.cuda() for own in states], 0.2)
    clips = attention.in_one_row(torch.zeros(sum(sizes), 1, device="cuda"), sizes)[1]
    given = [own.cuda().requires_grad_() for own in states[:1] * 3]
    of_clips = clips.attend(pytest.fail, *given, scale=0.2)
    gradients = torch.autograd.grad(of_clips.float().square().sum(), given)
    monkeypatch.setattr(attention, "varlen_attn", by_piece)
    expected = attention._attend_to_beginnings(pieces, [own.float() for own in states], 0.2)
    assert (found.cpu() - expected).abs().max() < 0.03
    exact = [own.float().requires_grad_() for own in states[:1] * 3]
    query, key, value = (own[0].transpose(0, 1) for own in exact)
    loop = by_piece(query, key, value, ends[0], ends[0], max(sizes), max(sizes), scale=0.2)
    assert (of_clips[0].cpu() - loop).abs().max() < 0.03
    for own, true in zip(gradients, torch.autograd.grad(loop.square().sum(), exact), strict=True):
        assert (own.cpu() - true).norm() < 0.02 * true.norm()
