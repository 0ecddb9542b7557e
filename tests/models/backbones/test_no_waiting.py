"""What a GPU would wait for, refuse or do otherwise, seen on the CPU: with values, and with backward passes.

`test_fake_cuda.py` has no values; this is the rest of the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, get_args

import pytest
import torch
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import packing
from empathy_judge.models.backbones.layers import no_tf32
from empathy_judge.models.heads import build_head
from empathy_judge.models.settings import HeadName
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.objective import Objective
from empathy_judge.train.run import train
from empathy_judge.train.settings import LossSettings, LossWeights
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ...models.conftest import clip
from ...train.test_objective import OWN_LOSSES, SCORE_LOSSES
from .test_fake_cuda import PAIRS, SCALES, judge_of, said_of

aten = torch.ops.aten
WAITS = {
    aten.nonzero.default, aten.masked_select.default, aten._local_scalar_dense.default, aten.equal.default,
    aten._unique2.default, aten.repeat_interleave.Tensor, aten.bincount.default,
}  # fmt: skip


class NoWaiting(TorchDispatchMode):
    """Refuses what a GPU would make the host wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indexed = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
        by_booleans = indexed and any(index.dtype == torch.bool for index in tree_iter(args[1]) if index is not None)
        if func in WAITS or by_booleans:
            raise AssertionError(f"the host would wait for {func}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wrong", [lambda x: x[x > 0], lambda x: x.sum().item(), lambda x: x.nonzero(), torch.unique])
def test_what_a_gpu_would_wait_for_is_refused(wrong):
    with NoWaiting(), pytest.raises(AssertionError, match="the host would wait for"):
        wrong(torch.ones(3))


def test_forward_and_backward_pass_ask_for_no_value(family):
    judge = judge_of(family, padding_side="left")
    inputs = judge.build_inputs(PAIRS)
    with NoWaiting():
        judge(inputs).sum().backward()
    assert all(weight.grad is not None for weight in judge.trainable().values())


def test_a_step_of_training_asks_for_no_value(train_arguments, tmp_path, monkeypatch):
    """Nor do its losses, its logging and its clipping."""
    called = []

    def watched(function):
        def call(*arguments, **options):
            called.append(function.__name__)
            with NoWaiting():
                return function(*arguments, **options)

        return call

    for name in ("training_step", "transfer_batch_to_device", "configure_gradient_clipping"):
        monkeypatch.setattr(JudgeModule, name, watched(getattr(JudgeModule, name)))
    losses = "{mse: 1, ccc: 0.5, soft_spearman: 0.2}"
    words = {"trainer__max_epochs": 1, "trainer__gradient_clip_val": 1.0, "objective__losses": losses}
    train(train_arguments(tmp_path / "run", cache__what="none", **words))
    assert called.count("training_step") == called.count("configure_gradient_clipping") == 3


class Deterministic(TorchDispatchMode):
    """Refuses what CUDA refuses under `trainer.deterministic`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is aten.cumsum and args[0].is_floating_point():
            raise AssertionError(f"not deterministic: {func}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", get_args(HeadName))
def test_heads_and_losses_are_deterministic(name):
    head = build_head(name, 6, SCALES)
    wanted = (*SCORE_LOSSES, *OWN_LOSSES[name])
    objective = Objective(LossWeights(**dict.fromkeys(wanted, 1.0)), LossSettings(), name, SCALES)
    with Deterministic():
        head.start_at(torch.tensor([3.0, 6.0]))
        said = said_of(4, objective.needs_counts, torch.device("cpu"))
        terms = objective.terms(head(torch.randn(4, 6)), said)
        torch.stack(list(terms.values())).sum().backward()
    assert terms.keys() == {*wanted, "bradley_terry", "centring"}


@pytest.mark.parametrize("family", ["qwen2_audio", "whisper"], indirect=True)
def test_convolutions_of_a_tower_are_in_float32(family, monkeypatch):
    """On a GPU they would be in TF32."""
    judge, seen = judge_of(family), []
    plain = judge.backbone.encode_audio

    def encode(*arguments):
        seen.append(torch.backends.cudnn.conv.fp32_precision)
        return plain(*arguments)

    monkeypatch.setattr(judge.backbone, "encode_audio", encode)
    judge.with_encoded_audio(judge.build_inputs(PAIRS))
    assert seen == ["ieee"]
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cudnn.allow_tf32  # whoever asks in the old way gets an answer


def test_of_two_judges_at_once_the_last_restores_the_precision():
    convolutions = torch.backends.cudnn.conv
    with ExitStack() as second:
        with no_tf32():
            second.enter_context(no_tf32())
        assert convolutions.fp32_precision == "ieee"
    assert convolutions.fp32_precision == "tf32"


# ---------------------------------------------------------------- no mask where none is needed

WITH_BIAS = ("nemotron_h_omni", "wav2vec2_bert")
"""Their towers add relative positions to the attention, which SDPA takes as a mask alone."""
WINDOWED = ("gemma3n", "gemma4", "gemma4_unified")
"""Every second layer of these language models attends within a window, and needs a mask where a pair is longer."""
ALIKE = [Pair(f"{n}", clip(1.0, n), (Turn("user", clip(1.0, n + 2)),)) for n in range(2)]


@torch.no_grad()
def test_the_flash_kernel_may_run_where_no_mask_is_needed(family, monkeypatch):
    """In the tower with clips of one length, in the language model with any that are padded on the right."""
    plain, masked = torch.nn.functional.scaled_dot_product_attention, []

    def attend(query, key, value, attn_mask=None, *rest, **options):
        masked.append(attn_mask is not None)
        return plain(query, key, value, attn_mask, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(packing, "MAX_PACKED_FRACTION", 0)
    judge = judge_of(family)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        judge.with_encoded_audio(judge.build_inputs(ALIKE))
        own_attention = family.name in (*WINDOWED, "wavlm")  # whose towers do not call SDPA
        assert any(masked) == (family.name in WITH_BIAS)
        assert own_attention == (not masked)
        if not family.is_encoder:
            encoded = judge.with_encoded_audio(judge.build_inputs(PAIRS))
            masked.clear()
            judge.backbone.hidden_states(encoded)
            assert any(masked) == (family.name in WINDOWED)
            assert not all(masked)
