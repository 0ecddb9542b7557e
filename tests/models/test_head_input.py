"""What the head reads: the pooled state of the language model, and of the clips beside it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.audio.functionals import DELIVERY, FUNCTIONALS, delivery
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.head_input import HeadInput, build_pooling
from empathy_judge.models.settings import BuiltHeadInput, HeadInputSettings, LoraSettings, PoolingName
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor
from torch.utils._python_dispatch import TorchDispatchMode

from .conftest import clip, saved

SPANS = torch.tensor([4.0, 10.0])
BOTH = HeadInputSettings("all_layers", functionals=True)


def pair(number: int, turns: int = 1) -> Pair:
    context = tuple(Turn("user", clip(0.4 + 0.3 * number, 10 * number + turn)) for turn in range(turns))
    return Pair(pair_id=f"p{number}", group_id="g", context=context, response=clip(0.5 + 0.2 * number, 100 + number))


@pytest.fixture
def judge(make_judge):
    judge = make_judge(LoraSettings(parts=["language_model"], rank=2), head_input=BOTH)
    with torch.no_grad():
        judge.head_input.standardise(*judge.clip_features(judge.build_inputs([pair(n) for n in range(6)])))
    return judge


@torch.no_grad()
def test_features_are_statistics_of_response_context_and_their_difference(judge):
    pairs = [pair(n) for n in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(judge.backbone), "hidden_states", None)  # the language model does not run
        layers, functionals = judge.clip_features(judge.build_inputs(pairs))
    (count, width), hidden = judge.backbone.layer_sizes, judge.backbone.hidden_size
    assert layers.shape == (6, 3, count, 2, width)
    assert functionals.shape == (6, 3, len(DELIVERY))
    states = judge.encode_clips([judge.decode(pairs[2].response)])[0][0].states
    # the last layer is followed by a pooling of two and a layer norm in this family, so that its own states are others
    assert states.shape[1] == width
    expected = delivery(pairs[2].response.samples), delivery(pairs[2].context[0].audio.samples)
    np.testing.assert_allclose(functionals[2, 0], expected[0], rtol=1e-5, equal_nan=True)
    np.testing.assert_allclose(functionals[2, 1], expected[1], rtol=1e-5, equal_nan=True)
    torch.testing.assert_close(layers[:, 2], layers[:, 0] - layers[:, 1])
    features = judge.pooled(judge.build_inputs(pairs))
    assert features.shape == (6, judge.head_input.size) == (6, hidden + 6 * width + 3 * len(DELIVERY))
    of_clips = features[:, hidden:]
    assert of_clips.mean(0).abs().max() < 1e-3  # of the pairs that the scale was taken from
    assert of_clips.abs().max() <= 5
    # of the signal a probe weighs pitch, level, timing and voice apart from the spectrum
    assert np.bincount(judge.head_input.blocks).tolist() == [hidden, 6 * width, 3 * 28, 3 * (len(DELIVERY) - 28)]
    of_response = judge.head_input.blocks[hidden + 6 * width :][: len(DELIVERY)]
    assert [name for name, block in zip(DELIVERY, of_response, strict=True) if block == 2] == list(FUNCTIONALS)
    # together they weigh as much as the pooled state behind its layer norm
    assert 0.5 < of_clips.square().sum(1).mean() / hidden < 1.01


@torch.no_grad()
def test_without_a_context_its_features_are_the_mean_and_nothing_else_changes(judge):
    with_context, without = pair(1), Pair(pair_id="q", group_id="g", context=(), response=pair(1).response)
    assert (pair(1, turns=2).context[0].audio.samples != pair(1, turns=2).context[1].audio.samples[:1]).any()
    hidden, audio = np.bincount(judge.head_input.blocks)[:2]
    both = judge.pooled(judge.build_inputs([with_context, without]))[:, hidden : hidden + audio].unflatten(1, (3, -1))
    assert torch.equal(both[0, 0], both[1, 0])
    assert not both[1, 1:].any()
    assert both[0, 1:].any()


@torch.no_grad()
def test_scores_are_the_same_in_any_batch_and_from_stored_states(judge, tmp_path):
    pairs = [pair(0), pair(3, 2), Pair(pair_id="q", group_id="g", context=(), response=clip(0.7, 5)), pair(5)]
    together = judge(judge.build_inputs(pairs))
    for number, own in enumerate(pairs):
        apart = (judge(judge.build_inputs([own]))[0] - together[number]) / SPANS
        assert apart.abs().max() <= 1e-5
    store = DiskStore(tmp_path)
    for _ in range(2):  # the second reads what the first has stored
        found = [made.score for _, made in Predictor(judge, 3, store=store).predict(pairs)]
        assert ((torch.stack(found) - together) / SPANS).abs().max() <= 1e-5
    assert list(tmp_path.rglob("*.safetensors"))


@torch.no_grad()
def test_what_never_varied_in_training_counts_for_nothing():
    head_input = HeadInput(BuiltHeadInput("all_layers"), 4, (2, 3))
    pooled, layers = torch.randn(8, 4), torch.randn(8, 3, 2, 2, 3)
    layers[:, 0, :, 0, 1] = 0.7
    head_input.standardise(layers, None)
    layers[:, 0, :, 0, 1] = 9.0
    assert head_input.standardised(pooled, layers, None)[:, 4 + 1].abs().max() < 1e-20


def test_layers_are_mixed_by_learned_weights(judge):
    score = judge(judge.build_inputs([pair(0), pair(4)])).sum()
    score.backward()
    assert judge.head_input.layer_weights.grad.abs().min() > 0
    assert not any(buffer.requires_grad for buffer in judge.head_input.buffers())


@torch.no_grad()
@pytest.mark.parametrize("beside", [False, True])
def test_a_judge_with_landmarks_is_written_and_loaded(beside, judge, tmp_path):
    pairs = [pair(n) for n in range(6)]
    features = judge.pooled(judge.build_inputs(pairs))
    block_scale = torch.full((features.shape[1],), 0.03)
    judge.compare_with(features[:4] * block_scale, block_scale, beside)
    judge.head.linear.weight.copy_(torch.randn(judge.head.linear.weight.shape))
    compared = judge.pooled(judge.build_inputs(pairs))
    hidden = judge.backbone.hidden_size
    assert compared.shape == (6, 4 + beside * hidden)
    assert torch.equal(compared[:, 4:], features[:, : beside * hidden])
    torch.testing.assert_close(compared[:4].diagonal(), torch.ones(4))
    expected = torch.exp(-((features[5] - features[1]) * block_scale).square().sum())
    torch.testing.assert_close(compared[5, 1], expected, rtol=1e-4, atol=1e-6)
    loaded = load_any(saved(judge, tmp_path / "judge")).judge
    assert loaded.settings.head_input.landmarks == 4
    assert torch.equal(loaded(loaded.build_inputs(pairs)), judge(judge.build_inputs(pairs)))


class NoLargeBuffer(TorchDispatchMode):
    """Refuses what takes rows x landmarks x features numbers on a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket is not torch.ops.aten._cdist_backward
        return func(*args, **(kwargs or {}))


def test_the_kernel_has_the_slope_of_the_exact_distance_without_a_large_buffer():
    read = HeadInput(BuiltHeadInput(landmarks=50), 60, (2, 3))
    read.block_scale.fill_(0.1)
    read.landmarks.copy_(torch.randn(50, 60) * 0.1)
    whole: Any = SimpleNamespace(window_weights=None)
    pooled, weights = torch.randn(8, 60), torch.randn(50)
    pooled[0] = read.landmarks[0] / 0.1
    pooled.requires_grad_()
    with NoLargeBuffer():
        kernel = read(pooled, whole)
        (slope,) = torch.autograd.grad(kernel @ weights, pooled, torch.ones(8))
    exact = torch.cdist(pooled * read.block_scale, read.landmarks, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(kernel, torch.exp(-exact.square()))
    apart = (pooled.detach() * read.block_scale)[:, None].double() - read.landmarks.double()
    expected = (torch.exp(-apart.square().sum(-1)) * weights)[..., None] * -2 * apart * 0.1
    torch.testing.assert_close(slope.double(), expected.sum(1), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- poolings, by hand

# two rows of four tokens, width 2; row 0 has padding on the right, row 1 on the left
HIDDEN = torch.tensor([[[1.0, 2], [3, 4], [5, 6], [9, 9]], [[9, 9], [1, 1], [2, 4], [4, 8]]])
REAL = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
RESPONSE = torch.tensor([[False, True, True, False], [False, False, True, False]])
EXPECTED: dict[PoolingName, list[list[float]]] = {
    "last_token": [[5.0, 6.0], [4.0, 8.0]],
    "response_mean": [[4.0, 5.0], [2.0, 4.0]],
    "attention": [[3.0, 4.0], [7 / 3, 13 / 3]],  # starts as the plain mean over real tokens
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("padding", [9.0, float("nan"), float("inf")])
def test_padding_does_not_count(name, padding):
    hidden = HIDDEN.clone()
    hidden[REAL == 0] = padding
    pooled = build_pooling(name, 2)(hidden, REAL, RESPONSE)
    torch.testing.assert_close(pooled, torch.tensor(EXPECTED[name]))


@pytest.mark.parametrize("name", EXPECTED)
def test_padding_gets_no_gradient(name):
    hidden = HIDDEN.clone()
    hidden[REAL == 0] = float("nan")
    hidden.requires_grad_()
    build_pooling(name, 2)(hidden, REAL, RESPONSE).sum().backward()
    assert (hidden.grad[REAL == 0] == 0).all()
    assert hidden.grad.isfinite().all()
    assert hidden.grad.sum() == 4  # each of two rows and two columns passes on its whole gradient


def test_attention_weighs_tokens_by_a_softmax():
    pooling = build_pooling("attention", 2)
    with torch.no_grad():
        pooling.score.weight.copy_(torch.tensor([[math.log(2), 0.0]]))
    pooled = pooling(HIDDEN, REAL, RESPONSE)
    # row 0: weights 2^1, 2^3, 2^5 over 42; row 1: 2^1, 2^2, 2^4 over 22
    expected = [[(2 * 1 + 8 * 3 + 32 * 5) / 42, (2 * 2 + 8 * 4 + 32 * 6) / 42],
                [(2 * 1 + 4 * 2 + 16 * 4) / 22, (2 * 1 + 4 * 4 + 16 * 8) / 22]]  # fmt: skip
    torch.testing.assert_close(pooled, torch.tensor(expected))
