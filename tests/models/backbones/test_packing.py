"""Rows of several pairs, clips of a tower in one row, and questions that end with the response: the same states, with
less to compute."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import packing
from empathy_judge.models.backbones.attention import KERNEL
from empathy_judge.models.backbones.layers import recompute_activations
from empathy_judge.models.backbones.packing import pack
from empathy_judge.models.feature_cache import states_entering
from empathy_judge.models.settings import HeadInputSettings
from empathy_judge.scoring.predictor import Predictor
from torch import Tensor
from transformers import AttentionInterface

from . import conftest
from .conftest import ENCODERS, FAMILIES, RATE, WITHOUT_PACKING, loaded


@pytest.fixture(scope="module")
def pairs(noise) -> list[Pair]:
    """Three responses to one context, two to another with a situation, one alone; 0.4 to 1.2 s."""
    first, second = Clip(noise(18_000), RATE), Clip(noise(9_000, 1), RATE)
    found = [Pair(f"a{n}", Clip(noise(7_000 + 2_000 * n, 2 + n), RATE), (Turn("user", first),)) for n in range(3)]
    found += [
        Pair(f"b{n}", Clip(noise(9_000 + 900 * n, 6 + n), RATE), (Turn("user", second),), situation="Late.")
        for n in range(2)
    ]
    return [*found, Pair("alone", Clip(noise(8_000, 9), RATE))]


@pytest.fixture(params=[name for name in FAMILIES if name not in (*ENCODERS, *WITHOUT_PACKING)])
def packing_model(request, make_family):
    """Each family with a language model of which pairs may share a row."""
    return make_family(request.param)


@pytest.fixture
def judge_of(monkeypatch):
    """A judge with random adapters that packs every batch, whether or not it saves anything."""
    monkeypatch.setattr(packing, "MAX_PACKED_FRACTION", math.inf)
    monkeypatch.setattr(packing, "_WIDTHS", (3.0,))
    return partial(conftest.judge_of, parts=["language_model"], head_input=HeadInputSettings())


@torch.no_grad()
def test_packed_states_are_those_of_each_pair(packing_model, pairs, judge_of, same, device, rounding):
    judge = judge_of(packing_model, padding_side="left", pooling="attention").to(device)
    inputs = judge.build_inputs(pairs)
    assert inputs.packed is not None
    real = inputs.attention_mask.bool()
    assert inputs.packed.attention_mask.sum() < 0.9 * real.sum()  # the contexts are there once
    assert torch.equal(inputs.packed.input_ids.flatten()[inputs.packed.where][real], inputs.input_ids[real])
    found = judge.backbone.hidden_states(inputs.to(device)).cpu()
    expected = judge.backbone.hidden_states(replace(inputs, packed=None).to(device)).cpu()
    assert same(found[real], expected[real], rounding)


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_under_a_mask_is_that_of_the_formula_for_every_number_of_keys(heads, device, rounding):
    """A kernel works on blocks of 32 or 64 keys; of queries there are four heads."""
    module = torch.nn.Module()
    module.num_key_value_groups = 4 // heads  # pyright: ignore[reportAttributeAccessIssue]
    generator = torch.Generator().manual_seed(0)
    for count in range(2, 132):
        query, key, value = (torch.randn(2, n, count, 16, generator=generator) for n in (4, heads, heads))
        places = torch.arange(count)
        before = places[:, None] - places
        mask = ((before >= 0) & (before < 30))[None, None]
        given = [states.to(device) for states in (query, key, value, mask)]
        found, _ = AttentionInterface()[KERNEL](module, *given, scaling=0.25)
        products = 0.25 * query.double() @ key.double().repeat_interleave(4 // heads, 1).mT
        shares = products.masked_fill(~mask, -math.inf).softmax(-1)
        expected = (shares @ value.double().repeat_interleave(4 // heads, 1)).transpose(1, 2)
        assert (found.cpu() - expected).abs().max() <= rounding, count


@torch.no_grad()
@pytest.mark.parametrize(
    ("attention", "context", "passes"),
    [("sdpa", 18_000, [5]), ("sdpa", 2_000, [1, 1, 1, 2]), ("eager", 18_000, [1, 2, 2])],
)
def test_responses_to_one_context_are_read_in_one_pass_whatever_their_lengths(
    make_family, noise, attention, context, passes
):
    """Where they are padded to the longest, for want of the kernel or as the context is too short to be worth it, short
    ones have a pass of their own."""
    judge = conftest.judge_of(make_family("qwen2_audio"), attention=attention)
    turn = Turn("user", Clip(noise(context), RATE))
    lengths = (64_000, 24_000, 8_000, 2_500, 2_000)
    asked = [Pair(str(length), Clip(noise(length, length), RATE), (turn,)) for length in lengths]
    with mock.patch.object(judge.backbone, "hidden_states", wraps=judge.backbone.hidden_states) as read:
        together = [found.score for _, found in Predictor(judge, len(asked)).predict(asked)]
    assert [len(call.args[0].input_ids) for call in read.call_args_list] == passes
    alone = [found.score for pair in asked for _, found in Predictor(judge, 1).predict([pair])]
    assert (torch.stack(together) - torch.stack(alone)).abs().max() <= 1e-5


@torch.no_grad()
def test_a_model_can_be_split_at_a_layer_whatever_is_packed(language_model, pairs, judge_of):
    """In bfloat16 packed rows round otherwise than those that are cached."""
    judge = judge_of(language_model, dtype="bfloat16")
    inputs = judge.with_encoded_audio(judge.build_inputs(pairs))
    assert (inputs.packed is None) == (language_model.name in WITHOUT_PACKING)
    assert judge.backbone.entered_at_layers == (language_model.name not in ("gemma3n", "gemma4"))
    if judge.backbone.entered_at_layers:
        inputs, real = replace(inputs, packed=None), inputs.attention_mask.bool()
        whole = judge.backbone.hidden_states(inputs)[real]
        hidden = states_entering(judge.backbone, inputs, 1)
        split = judge.backbone.hidden_states(replace(inputs, audio_states=None, hidden=hidden, first=1))[real]
        assert torch.equal(split, whole)


def test_adapters_get_the_gradients_of_whole_rows(packing_model, pairs, judge_of):
    judge = judge_of(packing_model)
    inputs = judge.build_inputs(pairs)
    assert inputs.packed is not None
    gradients = []
    for given, again in ((inputs, False), (replace(inputs, packed=None), False), (inputs, True)):
        judge.zero_grad()
        if again:
            assert recompute_activations(judge.network) > 0
        judge(given).square().sum().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in judge.trainable().values()]))
    assert (gradients[1] != 0).float().mean() > 0.5
    for packed in (gradients[0], gradients[2]):
        assert (packed - gradients[1]).abs().max() <= 1e-4 * gradients[1].abs().max()


@torch.no_grad()
def test_nothing_behind_the_response_is_read(language_model, pairs, judge_of, monkeypatch):
    """Where the pooling takes the states of the response; scores are those of the whole question."""
    judge = judge_of(language_model)
    inputs = judge.build_inputs(pairs)
    scores = judge(inputs)
    seconds = {source: len(source.samples) / RATE for pair in pairs for source in pair.clips}
    assert judge.count_tokens(pairs, seconds).tolist() == inputs.attention_mask.sum(-1).tolist()
    judge._known_questions.clear()
    monkeypatch.setattr(judge.pooling, "reads_response_only", False)
    whole = judge.build_inputs(pairs)
    behind = (whole.attention_mask.sum(-1) - inputs.attention_mask.sum(-1)).unique()
    assert len(behind) == 1
    assert behind >= 4
    assert (judge(whole) - scores).abs().max() <= 1e-5
    assert scores.std() > 1e-3


@torch.no_grad()
def test_what_follows_the_last_attention_is_computed_where_it_is_read(language_model, pairs, judge_of):
    """With equal states there, also when it is run again, and for two equal pairs."""
    judge = judge_of(language_model)
    inputs = judge.build_inputs([*pairs, pairs[0]])
    last, read = judge.backbone.layers[-1], inputs.response_mask
    sizes: list[int] = []
    outputs = [module for name, module in last.named_modules() if name.endswith(("self_attn.o_proj", "mlp.down_proj"))]
    for output in outputs:
        output.register_forward_hook(lambda *call: sizes.append(int(call[2].any(-1).sum())))
    for given in {id(given): given for given in (inputs, replace(inputs, packed=None))}.values():
        whole = judge.backbone.hidden_states(given)[read]
        sizes.clear()
        for _ in range(2):
            assert (judge.backbone.hidden_states(given, read)[read] - whole).abs().max() <= 1e-5
        kinds = set(sizes)
        if len(outputs) == 2:
            # packed, two equal pairs are read once
            fewest = int(read.sum()) if given.packed is None else given.packed.where[read].unique().numel()
            assert kinds == {fewest}
    assert len(outputs) == 2 or language_model.name in ("nemotron_h_omni", "qwen3_omni_moe")


@torch.no_grad()
def test_sliding_windows_count_the_tokens_of_the_pair(make_family, pairs, judge_of, same, rounding):
    """And not the others between them in the row."""
    judge = judge_of(make_family("gemma4"), pooling="attention")
    window = judge.backbone.language_model.config.sliding_window
    inputs = judge.build_inputs(pairs)
    assert window < inputs.attention_mask.sum(-1).min(), "every pair fits into the window"
    assert same(
        judge.backbone.hidden_states(inputs)[inputs.attention_mask.bool()],
        judge.backbone.hidden_states(replace(inputs, packed=None))[inputs.attention_mask.bool()],
        rounding,
    )


def test_other_kernels_are_not_packed(make_family, pairs, judge_of):
    assert judge_of(make_family("qwen2_audio"), attention="eager").build_inputs(pairs).packed is None


def lengths(*rows: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Ids, mask, audio states and response mask of rows: number of the beginning, its tokens, those behind."""
    width = max(before + behind for _, before, behind in rows)
    ids, mask, states = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(3))
    response = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (beginning, before, behind) in enumerate(rows):
        ids[row, :before] = 1_000 * beginning + torch.arange(before)
        ids[row, before : before + behind] = 100_000 * (row + 1) + torch.arange(behind)
        mask[row, : before + behind] = 1
        response[row, before : before + behind] = True
    return ids, mask, states - 1, response


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        ([(0, 50, 50)] * 4, (1, 250)),  # one context, four responses
        ([(0, 50, 50)] * 2 + [(1, 60, 40)] * 2, (1, 290)),
        ([(0, 10, 90), (1, 10, 40), (2, 10, 40), (3, 10, 30)], None),  # padding, but nothing shared
        ([(0, 5, 95)] * 2, None),  # too little shared
    ],
)
def test_rows_are_as_few_as_pays(rows, shape):
    packed = pack(*lengths(*rows), hidden_size=4_096)
    assert (packed and tuple(packed.input_ids.shape)) == shape


def test_wide_rows_are_for_wide_models():
    """Attention over a row costs a narrow model more than its linear layers."""
    given = lengths(*[(0, 100, 100)] * 16)
    wide, narrow = pack(*given, hidden_size=4_096), pack(*given, hidden_size=256)
    assert wide is not None
    assert narrow is not None
    assert wide.input_ids.shape[1] > narrow.input_ids.shape[1]


def test_every_token_is_where_it_is_said_to_be():
    ids, mask, states, response = lengths((0, 30, 20), (1, 5, 60), (0, 30, 44), (0, 30, 7), (2, 1, 12))
    packed = pack(ids, mask, states, response, hidden_size=1_024)
    assert packed is not None
    real = mask.bool()
    assert torch.equal(packed.input_ids.flatten()[packed.where][real], ids[real])
    positions = (mask.cumsum(-1) - 1)[real]
    assert torch.equal(packed.positions.flatten()[packed.where][real], positions)
    assert packed.where[real].unique().numel() == packed.attention_mask.sum() == 30 + 20 + 44 + 7 + 65 + 13


# ---------------------------------------------------------------- clips in one row of a tower


@pytest.mark.parametrize(
    ("name", "gpu", "recompute"),
    [
        *(
            (name, gpu, gpu)
            for name in ("audioflamingo3", "qwen2_5_omni", "qwen3_asr", "qwen3_omni_moe")
            for gpu in (False, True)
        ),
        *itertools.product(["qwen2_audio"], [False, True], [False, True]),
    ],
)
def test_gradients_of_clips_in_one_row_are_those_of_each_clip_alone(
    make_family, noise, monkeypatch, name, gpu, recompute
):
    if gpu:  # there, as where a tower is compiled, attention takes all clips in one call
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    backbone = loaded(make_family(name).folder)
    tower = backbone.network.get_submodule(backbone.parts["audio_tower"].path)
    clips = [noise(length, seed) for seed, length in enumerate((16_000, 6_400, 11_931, 9_321))]
    weights = [layer.fc1.weight.requires_grad_() for layer in tower.layers]
    rows = []
    tower.layers[0].fc1.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[:-1].numel()))

    def gradients(states: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(states[:, ::2].square().sum(), weights))

    alone = [gradients(backbone.encode_audio(backbone.prepare_clips([clip]))) for clip in clips]
    positions = sum(rows)
    if recompute:
        recompute_activations(tower)
    together = gradients(backbone.encode_audio(backbone.prepare_clips(clips)))
    assert rows[len(clips)] == positions  # no padding
    for own, each in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(own, sum(each), rtol=0, atol=2e-5 * own.abs().max().item())
