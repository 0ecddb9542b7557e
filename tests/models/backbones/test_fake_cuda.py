"""What a GPU runs, without one: every family on tensors that claim to be on CUDA and hold no values.

Under `FakeTensorMode` two operands on different devices raise, and so does whatever needs a value on the host:
`.item()`, `.tolist()`, `nonzero`, an index by booleans. On a GPU the latter wait until all that was launched is done.
Backward passes and what `transformers` asks only of true tensors are run on the CPU, in `test_no_waiting.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, get_args

import pytest
import torch
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.backbones import attention, packing
from empathy_judge.models.backbones.attention import OneRow
from empathy_judge.models.backbones.inputs import Inputs, Packed
from empathy_judge.models.head_input import HeadInput, build_pooling
from empathy_judge.models.heads import Prediction, build_head
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import HeadInputSettings, HeadName, JudgeSettings, LoraSettings, PoolingName
from empathy_judge.models.windows import EncodedClip, EncodedWindow
from empathy_judge.scoring import clip_encoder
from empathy_judge.scoring import predictor as scoring
from empathy_judge.scoring.batches import Workers, tokens_in
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.objective import OWN_LOSS, Labels, Objective
from empathy_judge.train.settings import LossSettings, LossWeights
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ...models.conftest import clip
from ...train.test_objective import OWN_LOSSES, SCORE_LOSSES
from .conftest import FAMILIES, WITHOUT_TOWER

SCALES = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10, 1))
CUDA = torch.device("cuda:0")
UNLIKE = ("qwen2_audio", "qwen3_omni_moe", "gemma3n", "nemotron_h_omni", "whisper")
"""Families of which no two share most of their code: dense, of experts, with windows, with carried states, encoder."""


def for_real(function: Callable[..., Any], *arguments: Any) -> Any:
    with unset_fake_temporarily():
        return function(*arguments)


@contextmanager
def bf16_mixed() -> Iterator[None]:
    """Autocast as `precision: bf16-mixed` has it; `torch.autocast` itself refuses CUDA where there is none."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


PAIRS = [
    Pair("context", clip(0.75, 0), (Turn("user", clip(1.25, 1)),)),
    Pair("situation", clip(0.4, 2), (Turn("user", clip(0.6, 3)),), situation="Late."),
    Pair("alone", clip(2.0, 4)),
    Pair("turns", clip(0.5, 5), tuple(Turn(role, clip(0.4, 6)) for role in ("user", "assistant"))),
]


def judge_of(family, device_map: Literal["auto"] | None = None, **settings) -> EmpathyJudge:
    torch.manual_seed(0)
    lora = LoraSettings(parts=[*family.lora_layers], rank=2)
    read = HeadInputSettings("none" if family.name in WITHOUT_TOWER else "all_layers", functionals=True)
    own = JudgeSettings(backbone=str(family.folder), lora=lora, head_input=read, **settings)
    return EmpathyJudge(own, SCALES, device_map=device_map)


class OnCuda:
    """A judge on a GPU that is not there, with LoRA on every part; its head is on the GPU too."""

    def __init__(self, family, dtype: str, depth: float | None = None) -> None:
        self.judge = judge_of(family, dtype=dtype, depth=depth)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)  # what its tensors belong to
        with self.mode:
            self.judge.to(CUDA)

    def inputs(self, **settings) -> Inputs:
        """Those of `PAIRS`, moved to the GPU. What the host does before is done for real."""
        judge = self.judge
        judge.settings = replace(judge.settings, **settings)
        return self.fake(for_real(judge.build_inputs, PAIRS)).to(CUDA)

    def fake(self, inputs: Inputs) -> Inputs:
        """The same inputs without values, on the CPU."""
        return inputs._each(self.mode.from_tensor)


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, float | None], OnCuda]:
    return {}


@pytest.fixture(autouse=True)
def capable(monkeypatch) -> None:
    """The GPU has grouped matrix products, which experts ask for, and the flash kernel."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)


@pytest.fixture
def on_cuda(family, depth, made, monkeypatch) -> OnCuda:
    """As GPU recipes have it: a backbone in bfloat16, its adapters and head in float32."""
    # numbers that the host has just written down would be computed with for real, on a GPU that is not there
    monkeypatch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)
    if (family.name, depth) not in made:
        made[family.name, depth] = OnCuda(family, "bfloat16", depth)
    return made[family.name, depth]


def said_of(rows: int, counts: bool, device: torch.device = CUDA) -> Labels:
    """Ratings of the first rows; the last two are compared."""
    targets = torch.full((rows, len(SCALES)), 3.0, device=device)
    steps = max(scale.steps for scale in SCALES)
    return Labels(
        targets=targets,
        weights=torch.ones_like(targets),
        counts=torch.ones(rows, len(SCALES), steps, dtype=torch.int32, device=device) if counts else None,
        raters=torch.full((rows,), -1, device=device),
        chosen=torch.arange(rows - 2, rows - 1, device=device),
        rejected=torch.arange(rows - 1, rows, device=device),
        strengths=torch.ones(1, len(SCALES), device=device),
    )


def on_gpu(*tensors: torch.Tensor | None) -> bool:
    return all(tensor is None or tensor.device == CUDA for tensor in tensors)


# ---------------------------------------------------------------- what is run


def states_and_poolings(gpu: OnCuda) -> None:
    size, before = gpu.judge.backbone.hidden_size, gpu.judge.pooling
    for side in ("left", "right"):
        inputs = gpu.inputs(padding_side=side)
        # but for whole windows
        assert len(set(inputs.clips.lengths)) > 1 or gpu.judge.network.config.model_type == "voxtral"
        inputs = gpu.judge.with_encoded_audio(inputs)
        hidden = gpu.judge.backbone.hidden_states(inputs)
        assert on_gpu(hidden)
        assert hidden.shape == (*inputs.input_ids.shape, size)
        for name in get_args(PoolingName):
            gpu.judge.pooling = for_real(build_pooling, name, size).to(CUDA)
            pooled = gpu.judge.pool_states(hidden, inputs)
            features = gpu.judge.head_input(pooled, inputs)
            assert on_gpu(pooled, features)
            assert (pooled.shape, pooled.dtype) == ((len(PAIRS), size), torch.float32)
            assert (features.shape, features.dtype) == ((len(PAIRS), gpu.judge.head_input.size), torch.float32)
        gpu.judge.pooling = before


def heads_and_losses(gpu: OnCuda) -> None:
    """Every head on what this backbone makes, every loss on every head that it can train."""
    pooled, computed = gpu.judge.pooled(gpu.inputs()), set()
    for name in get_args(HeadName):
        predicted: Prediction = for_real(build_head, name, gpu.judge.head_input.size, SCALES).to(CUDA)(pooled)
        values = (predicted.score, predicted.deviation, predicted.log_probabilities, predicted.thresholds)
        assert on_gpu(*values)
        assert all(value is None or value.dtype == torch.float32 for value in values)
        weights = LossWeights(**dict.fromkeys((*SCORE_LOSSES, *OWN_LOSSES[name]), 1.0))
        objective = for_real(Objective, weights, LossSettings(), name, SCALES).to(CUDA)
        terms = objective.terms(predicted, said_of(len(PAIRS), objective.needs_counts))
        assert on_gpu(*terms.values())
        assert OWN_LOSS[name] in terms
        computed |= set(terms)
    assert computed == {*(field.name for field in fields(LossWeights)), "centring"}
    compared_with_landmarks(gpu)


def compared_with_landmarks(gpu: OnCuda) -> None:
    """The kernel that adapters may begin with, and the states of the language model beside it."""
    judge, before = gpu.judge, gpu.judge.head_input
    own = replace(before.settings, landmarks=5, beside_landmarks=True)
    judge.head_input = for_real(HeadInput, own, judge.backbone.hidden_size, judge.backbone.layer_sizes).to(CUDA)
    with bf16_mixed():
        features = judge.pooled(gpu.inputs())
    assert (features.shape, features.dtype) == ((len(PAIRS), 5 + judge.backbone.hidden_size), torch.float32)
    assert on_gpu(features)
    judge.head_input = before


def training_step(gpu: OnCuda) -> None:
    """Forward pass under autocast, loss, and a step of the fused optimizer; there is no backward pass without CUDA."""
    judge = gpu.judge
    objective = for_real(Objective, LossWeights(), LossSettings(), "regression", SCALES).to(CUDA)
    for worthwhile in (0, math.inf):  # never packed, always
        with pytest.MonkeyPatch.context() as patch, bf16_mixed():
            patch.setattr(packing, "MAX_PACKED_FRACTION", worthwhile)
            inputs = gpu.inputs()
            assert (inputs.packed is None) == (worthwhile == 0 or not judge.backbone.packs)
            predicted = judge.predict(inputs)
        assert predicted.score.dtype == torch.float32
        assert on_gpu(torch.stack(list(objective.terms(predicted, said_of(len(PAIRS), counts=False)).values())).sum())
    trained = [weight for weight in judge.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    for weight in trained:
        assert weight.dtype == torch.float32
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert all(on_gpu(*optimizer.state[weight].values()) for weight in trained)


def empty(made: Mapping[Any, EncodedClip]) -> dict[Any, EncodedClip]:
    """Zeros on the CPU in place of the states of clips."""
    return {source: [zeros(window) for window in windows] for source, windows in made.items()}


def windowed(judge: EmpathyJudge) -> bool:
    """Whether some layers of the language model attend within a window, and need a mask."""
    kinds = getattr(judge.backbone.network.language_model.config, "layer_types", None)  # pyright: ignore
    return "sliding_attention" in (kinds or ())


def zeros(window: EncodedWindow) -> EncodedWindow:
    """A window of as many states, on the CPU."""
    tensors = {name: getattr(window, name) for name in ("states", "layers", "functionals")}
    return window._replace(**{name: torch.zeros(tuple(own.shape)) for name, own in tensors.items() if own is not None})


def masked_without_pieces(mask: Callable[..., torch.Tensor], own: Packed, size: int | None) -> torch.Tensor:
    """The mask of packed rows, which nothing asks for where the kernel reads pieces."""
    assert own.pieces is None
    return mask(own, size)


class NoCopies(TorchDispatchMode):
    """Refuses to copy what is on a GPU to the CPU, for which the host would wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = [value.device.type for value in tree_iter(args) if isinstance(value, torch.Tensor)]
        if "cuda" in before and any(isinstance(one, torch.Tensor) and one.is_cpu for one in tree_iter(result)):
            raise AssertionError(f"{func} copies to the CPU")
        return result


def scorer(gpu: OnCuda) -> None:
    """All that `Predictor` does before it reads scores, with packed rows; its threads are outside of these modes."""
    judge = gpu.judge
    asked = [replace(pair, pair_id=f"{pair.pair_id}{n}", response=PAIRS[n].response) for pair in PAIRS for n in (0, 1)]
    inputs, build = list[Inputs](), judge.build_inputs

    def built(pairs: Sequence[Pair], made: Mapping[Any, EncodedClip]) -> Inputs:
        inputs.append(build(pairs, empty(made)))  # a fake mode serves one thread at a time
        return inputs[-1]

    with pytest.MonkeyPatch.context() as patch, NoCopies(), Workers() as workers:
        patch.setattr(packing, "MAX_PACKED_FRACTION", math.inf)
        patch.setattr(clip_encoder, "free_bytes", lambda device: 2**34)
        patch.setattr(scoring, "mark", lambda device: None)
        patch.setattr(Prediction, "to_host", lambda prediction: prediction)
        patch.setattr(attention, "fits_kernel", lambda size: True)  # these towers have heads of 12
        patch.setattr(OneRow, "mask", property(lambda row: pytest.fail("a mask beside the kernel")))
        if flash := judge.backbone.packs and not windowed(judge):
            patch.setattr(attention, "_packed_mask", partial(masked_without_pieces, attention._packed_mask))
        patch.setattr(judge, "build_inputs", built)
        patch.setattr(judge, "on_device", lambda made: gpu.fake(made).to(CUDA))
        for name in ("check_text", "question_tokens"):  # on the host
            patch.setattr(judge, name, partial(for_real, getattr(judge, name)))
        assert 1 < tokens_in(judge, 2**24) < 16_384  # what a `Predictor` asks on a GPU that is there
        predictor = Predictor(judge, measures=True, tokens=150)
        (window,) = predictor._read(iter(asked), workers)
        computed = predictor._predict(window, 0, workers)
    assert not computed.failed
    assert len(computed.predictions) == len(inputs) > 1
    assert sum(len(rows) for rows, _ in computed.predictions) == len(asked)
    assert on_gpu(*(prediction.score for _, prediction in computed.predictions))
    assert any(made.packed is not None for made in inputs) == judge.backbone.packs
    assert any(made.packed is not None and made.packed.pieces is not None for made in inputs) == flash


def windows(gpu: OnCuda) -> None:
    """A clip that is above the maximum audio length is several rows of a pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu.judge.backbone, "max_seconds", 1.0)
        inputs = gpu.inputs(long_clips="window")
    gpu.judge.settings = replace(gpu.judge.settings, long_clips="refuse")
    assert len(inputs.input_ids) > len(PAIRS)
    score = gpu.judge(inputs)
    assert on_gpu(score)
    assert score.shape == (len(PAIRS), len(SCALES))


@pytest.mark.parametrize(
    ("family", "depth"),
    [
        *((name, None) for name in UNLIKE),
        *(pytest.param(name, None, marks=pytest.mark.long) for name in FAMILIES if name not in UNLIKE),
        *(pytest.param(name, 0.5, marks=pytest.mark.long) for name in FAMILIES),
    ],
    indirect=["family"],
)
def test_everything_runs_on_one_device_and_no_value_is_asked_for(on_cuda):
    with on_cuda.mode:
        training_step(on_cuda)


@pytest.mark.parametrize(
    ("what", "family"),
    [
        *itertools.product([states_and_poolings, scorer, heads_and_losses, windows], ["qwen2_audio", "whisper"]),
        *(
            pytest.param(*both, marks=pytest.mark.long)
            for both in itertools.product([states_and_poolings, scorer], ["gemma4", "nemotron_h_omni"])
        ),
    ],
    indirect=["family"],
)
@pytest.mark.parametrize("depth", [None, pytest.param(0.5, marks=pytest.mark.long)])
def test_what_stands_above_the_backbone_hardly_depends_on_it(on_cuda, what):
    """Masks on either side do: of a window, of a state that is carried on, and of a tower."""
    with on_cuda.mode:
        what(on_cuda)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda states: states + torch.ones(states.shape[-1]), RuntimeError),
        (lambda states: states[states > 0], DynamicOutputShapeException),
        (lambda states: states.sum().item(), DataDependentOutputException),
    ],
    ids=["two devices", "index by booleans", "item"],
)
def test_a_wrong_tower_would_be_found(wrong, error, make_family):
    gpu = OnCuda(make_family("qwen2_audio"), "bfloat16")
    tower = gpu.judge.backbone.network.audio_tower
    tower.layer_norm.register_forward_hook(lambda module, args, out: (wrong(out), out)[1])
    with gpu.mode, pytest.raises(error):
        states_and_poolings(gpu)


def test_a_copy_to_the_cpu_would_be_found(make_family):
    gpu = OnCuda(make_family("qwen2_audio"), "bfloat16")
    gpu.judge.backbone.network.audio_tower.layer_norm.register_forward_hook(
        lambda module, args, out: (out.cpu(), out)[1]
    )
    with gpu.mode, pytest.raises(AssertionError, match="copies to the CPU"):
        scorer(gpu)
