"""Phi-4-multimodal: speech adapter, the layout that needs code of its own, positions of long pairs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from safetensors.torch import load_file, save_file

from .conftest import RATE, judge_of, weights_of

ADAPTER = "speech-lora/adapter_model.safetensors"


@pytest.fixture(scope="module")
def folder(make_family) -> Path:
    return make_family("phi4_multimodal").folder


def test_the_speech_adapter_is_merged_into_the_decoder_alone(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(bare / "speech-lora")
    without, merged = weights_of(bare), weights_of(folder)
    assert merged.keys() == without.keys()
    adapter = load_file(folder / ADAPTER)
    changed = {key for key in merged if not torch.equal(merged[key], without[key])}
    assert changed == {
        key.replace("base_model.model.model.", "language_model.").replace("lora_A.", "")
        for key in adapter
        if "lora_A" in key
    }
    name = "language_model.layers.1.mlp.down_proj.weight"
    low = {half: adapter[f"base_model.model.model.layers.1.mlp.down_proj.lora_{half}.weight"] for half in "AB"}
    expected = without[name] + 8 / 4 * low["B"] @ low["A"]  # alpha / rank
    assert (merged[name] - expected).abs().max() <= 1e-6
    assert (merged[name] - without[name]).abs().max() > 1e-3


def test_an_adapter_that_lacks_a_tensor_or_has_a_foreign_one_is_refused(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(broken / ADAPTER)
    gone = tensors.pop("base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight")
    save_file(tensors, broken / ADAPTER, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"adapter: .*missing \['model\.layers\.1\.self_attn\.o_proj\.lora_B"):
        load_backbone(Checkpoint(str(broken)))
    tensors["base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight"] = gone
    tensors["base_model.model.model.layers.7.self_attn.o_proj.lora_B.weight"] = gone.clone()
    save_file(tensors, broken / ADAPTER, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"adapter: .*unexpected \['.*layers\.7"):
        load_backbone(Checkpoint(str(broken)))


def test_the_layout_that_needs_code_of_its_own_is_refused_and_its_code_not_run(folder, with_config, tmp_path):
    code = {"AutoConfig": "configuration_phi4mm.Phi4MMConfig", "AutoModelForCausalLM": "modeling_phi4mm.Phi4MM"}
    other = with_config(folder, {"model_type": "phi4mm", "auto_map": code})
    ran = tmp_path / "ran"
    (other / "configuration_phi4mm.py").write_text(f"open({str(ran)!r}, 'w')")
    with pytest.raises(UserError, match=r"need code of their own, which is never run; .* revision refs/pr/70"):
        load_backbone(Checkpoint(str(other)))
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
