"""The same pair gets the same score, whatever is computed beside it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import AudioError
from empathy_judge.data_modules.schema import Pair, PairDataset, Turn
from empathy_judge.models.settings import LoraSettings
from empathy_judge.scoring.predictor import Predictor
from peft.tuners.lora import LoraLayer

POOLINGS = ("last_token", "response_mean", "attention")


@pytest.fixture(scope="module")
def pairs(dataset_folder) -> list[Pair]:
    """Eight pairs with one and no context, with and without a situation, from 0.4 s up to the full window."""
    loaded = list(PairDataset.load(dataset_folder).pairs[:6])
    whole = Clip(np.random.default_rng(0).normal(scale=0.1, size=160_000).astype(np.float32), 16_000)
    return [
        *loaded,
        Pair("alone", loaded[0].response),
        Pair("long", whole, (Turn("user", loaded[0].response), Turn("assistant", loaded[1].response))),
    ]


@torch.no_grad()
def scores_of(judge, pairs, size, audio=None) -> dict[str, torch.Tensor]:
    found = {}
    for start in range(0, len(pairs), size):
        batch = pairs[start : start + size]
        scores = judge(judge.build_inputs(batch, audio))
        assert scores.dtype == torch.float32
        found |= {pair.pair_id: row for pair, row in zip(batch, scores, strict=True)}
    return found


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_do_not_depend_on_what_else_is_in_the_batch(pooling, make_judge, pairs):
    right = make_judge(pooling=pooling)
    left = make_judge(pooling=pooling, padding_side="left")
    expected = scores_of(right, pairs, 1)
    values = torch.stack(list(expected.values()))
    assert (values.std(0) > 1e-3).all()  # pairs differ, so that equal scores mean something
    assert ((values > torch.tensor([1.0, 0.0])) & (values < torch.tensor([5.0, 10.0]))).all()

    shuffled = random.Random(0).sample(pairs, len(pairs))
    clips = [source for pair in pairs for source in pair.clips]
    states = dict(zip(clips, right.encode_clips([right.decode(source) for source in clips]), strict=True))
    for judge in (right, left):
        for size in (3, 8):
            assert difference(expected, scores_of(judge, pairs, size)) <= 1e-5
        assert difference(expected, scores_of(judge, shuffled, 3)) <= 1e-5
        assert difference(expected, scores_of(judge, shuffled, 8, states)) <= 1e-5
    assert difference(expected, scores_of(left, pairs, 1)) <= 1e-5


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_input_matters(pooling, make_judge, pairs):
    """Context, response, situation and the order of the turns each change the score."""
    judge = make_judge(pooling=pooling)
    pair, other = pairs[0], pairs[4]
    changed = [
        pair,
        Pair("response", other.response, pair.context, pair.situation),
        Pair("context", pair.response, other.context, pair.situation),
        Pair("situation", pair.response, pair.context, "It rains."),
        Pair("two", pair.response, (*other.context, *pair.context), pair.situation),
        Pair("turned", pair.response, (*pair.context, *other.context), pair.situation),
    ]
    values = torch.stack(list(scores_of(judge, changed, 6).values()))
    distance = (values[:, None] - values[None]).abs().amax(-1) + torch.eye(len(changed))
    assert distance.min() > 1e-4  # ten times what may differ between batches


def test_a_clip_that_cannot_be_used_does_not_touch_the_others(make_judge, pairs):
    judge = make_judge()
    expected = scores_of(judge, pairs, 1)
    silent = Pair("nan", Clip(np.full(8_000, np.nan, dtype=np.float32), 16_000), pairs[0].context)
    shared = Pair("missing", pairs[0].response, (Turn("user", "no such.wav"),))
    found = list(Predictor(judge, 3).predict([silent, *pairs, shared]))
    assert [pair.pair_id for pair, _ in found] == ["nan", *expected, "missing"]
    assert isinstance(found[0][1], AudioError)
    assert isinstance(found[-1][1], AudioError)
    assert "no such.wav: no such file" in str(found[-1][1])
    assert difference(expected, {pair.pair_id: one.score for pair, one in found[1:-1]}) <= 1e-5


def test_a_file_that_was_changed_is_heard_again(make_judge, pairs, tmp_path):
    path = tmp_path / "clip.wav"
    scorer = Predictor(make_judge(), 1)
    expected = scores_of(scorer.judge, [Pair("a", pairs[0].response), Pair("b", pairs[4].response)], 1)
    for source, name in ((pairs[0].response, "a"), (pairs[4].response, "b")):
        path.write_bytes(source.read_bytes())
        ((_, found),) = scorer.predict([Pair(name, path)])
        assert difference({name: expected[name]}, {name: found.score}) <= 1e-5


def test_bfloat16_weights_keep_adapter_and_head_in_float32(make_judge, pairs):
    exact = scores_of(make_judge(), pairs, 8)
    judge = make_judge(dtype="bfloat16")
    assert {weight.dtype for weight in judge.trainable().values()} == {torch.float32}
    assert judge.network.language_model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    rough = scores_of(judge, pairs, 8)
    # bfloat16 keeps 8 bits: a tenth of the scale at most, and scores that are not rounded to bfloat16 themselves
    assert 1e-6 < difference(exact, rough) < 1.0
    values = torch.stack(list(rough.values()))
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_judge_that_only_scores_has_its_adapters_in_its_weights(method, make_judge, pairs):
    """Exact to rounding; in bfloat16, where rounding counts, they stay beside."""
    judge = make_judge(LoraSettings(parts=["language_model", "projector"], rank=4, method=method))
    before, trained = scores_of(judge, pairs, 4), {name: own.clone() for name, own in judge.trained().items()}
    judge.merge()
    layers = [module for module in judge.network.modules() if isinstance(module, LoraLayer)]
    assert len(layers) == 29
    assert all(layer.merged for layer in layers)
    assert difference(scores_of(judge, pairs, 3), before) < 1e-5
    assert all(torch.equal(own, trained[name]) for name, own in judge.trained().items())
    coarse = make_judge(dtype="bfloat16")
    coarse.merge()
    assert not any(module.merged for module in coarse.network.modules() if isinstance(module, LoraLayer))
