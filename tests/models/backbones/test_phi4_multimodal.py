"""Phi-4-multimodal: the layout that needs code of its own, positions of long pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Pair

from .conftest import RATE, judge_of, refused


@pytest.fixture(scope="module")
def folder(make_family) -> Path:
    return make_family("phi4_multimodal").folder


def test_the_layout_that_needs_code_of_its_own_is_refused_and_its_code_not_run(folder, with_config, tmp_path):
    code = {"AutoConfig": "configuration_phi4mm.Phi4MMConfig", "AutoModelForCausalLM": "modeling_phi4mm.Phi4MM"}
    other = with_config(folder, {"model_type": "phi4mm", "auto_map": code})
    ran = tmp_path / "ran"
    (other / "configuration_phi4mm.py").write_text(f"open({str(ran)!r}, 'w')")
    refused(other, r"need code of their own, which is never run; .* revision refs/pr/70")
    assert not ran.exists()


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_how_positions_are_scaled_depends_on_the_length_of_the_pair_alone(make_family, noise, same, side):
    family = make_family("phi4_multimodal")
    judge = judge_of(family, pooling="attention", padding_side=side)
    pairs = [Pair(str(seconds), Clip(noise(seconds * RATE, seconds), RATE)) for seconds in (1, 14, 2, 20)]
    inputs = judge.build_inputs(pairs)
    lengths = inputs.attention_mask.sum(-1)
    assert (lengths > 150).tolist() == [False, True, False, True]
    hidden = judge.backbone.hidden_states(inputs)
    for row, pair in enumerate(pairs):
        _, expected = family.official(pair)
        assert same(hidden[row][inputs.attention_mask[row].bool()], expected[0]), pair.pair_id
