"""Operations by formula against those that torch counts while a judge computes."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.models.work import of_a_clip, of_a_token, weight_bytes
from torch.utils.flop_counter import FlopCounterMode

from ..conftest import clip


@pytest.mark.parametrize("name", ["qwen2_audio", "gemma3n", "qwen3_omni_moe"])
def test_operations_by_formula_are_those_that_torch_counts(name, make_family):

    settings = JudgeSettings(str(make_family(name).folder), lora=LoraSettings(rank=4))
    judge = EmpathyJudge(settings, [Dimension("any", 1, 5, 1)])
    config = judge.backbone.language_model.config
    config._experts_implementation = "eager"  # an expert after the other, in products that torch counts
    inputs = judge.build_inputs([Pair("any", clip(4.0, 1), (Turn("user", clip(4.0, 2)),))])
    with torch.no_grad(), FlopCounterMode(display=False) as tower:
        states = judge.with_encoded_audio(inputs)
    with FlopCounterMode(display=False) as language_model:
        judge.backbone.hidden_states(states).sum().backward()
    tokens, shapes = inputs.input_ids.shape[1], EmpathyJudge(settings, judge.dimensions, weights=False)
    # the input of the first layer needs no gradient
    assert tokens * sum(of_a_token(judge.backbone)) == pytest.approx(language_model.get_total_flops(), rel=0.05)
    assert 2 * of_a_clip(shapes.backbone, 4.0).forward == pytest.approx(tower.get_total_flops(), rel=0.12)
    assert of_a_clip(shapes.backbone, 4.0).backward == 0
    own = judge.own_modules()
    assert weight_bytes(shapes.backbone, own) == sum(weight.nbytes for weight in judge.parameters())
