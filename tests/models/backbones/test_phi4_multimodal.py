"""Phi-4-multimodal: speech adapter, the layout that needs code of its own, windows of 40 s, positions of long pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.settings import LoraSettings
from safetensors.torch import load_file, save_file

RATE = 16_000
ADAPTER = "speech-lora/adapter_model.safetensors"


@pytest.fixture(scope="module")
def folder(make_family) -> Path:
    return make_family("phi4_multimodal").folder


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_the_speech_adapter_is_merged_into_the_decoder_alone(folder, tmp_path):
    bare = copied(folder, tmp_path)
    shutil.rmtree(bare / "speech-lora")
    without = load_backbone(Checkpoint(str(bare))).network.state_dict()
    merged = load_backbone(Checkpoint(str(folder))).network.state_dict()
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
    broken = copied(folder, tmp_path)
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


def test_the_layout_that_needs_code_of_its_own_is_refused_and_its_code_not_run(folder, tmp_path):
    other = copied(folder, tmp_path)
    config = json.loads((other / "config.json").read_text())
    code = {"AutoConfig": "configuration_phi4mm.Phi4MMConfig", "AutoModelForCausalLM": "modeling_phi4mm.Phi4MM"}
    (other / "config.json").write_text(json.dumps({**config, "model_type": "phi4mm", "auto_map": code}))
    ran = tmp_path / "ran"
    (other / "configuration_phi4mm.py").write_text(f"open({str(ran)!r}, 'w')")
    with pytest.raises(UserError, match=r"need code of their own, which is never run; .* revision refs/pr/70") as found:
        load_backbone(Checkpoint(str(other)))
    assert "\n" not in str(found.value)
    assert not ran.exists()


@torch.no_grad()
@pytest.mark.parametrize("samples", [640_000, 640_400, 700_001, 1_281_000])
def test_clips_around_and_over_windows_of_40_s_equal_the_official_ones(make_family, make_judge, noise, same, samples):
    family = make_family("phi4_multimodal")
    judge = make_judge(LoraSettings(parts=[]), pooling="attention", backbone=str(family.folder))
    pair = Pair("x", Clip(noise(samples), RATE), (Turn("user", Clip(noise(20_000, 1), RATE)),))
    inputs = judge.build_inputs([pair])
    ids, expected = family.official(pair)
    assert torch.equal(inputs.input_ids, ids)
    assert same(judge.backbone.hidden_states(inputs), expected)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_how_positions_are_scaled_depends_on_the_length_of_the_pair_alone(make_family, make_judge, noise, same, side):
    family = make_family("phi4_multimodal")
    judge = make_judge(LoraSettings(parts=[]), pooling="attention", backbone=str(family.folder), padding_side=side)
    pairs = [Pair(str(seconds), Clip(noise(seconds * RATE, seconds), RATE)) for seconds in (1, 14, 2, 20)]
    inputs = judge.build_inputs(pairs)
    lengths = inputs.attention_mask.sum(-1)
    assert (lengths > 150).tolist() == [False, True, False, True]
    hidden = judge.backbone.hidden_states(inputs)
    for row, pair in enumerate(pairs):
        _, expected = family.official(pair)
        assert same(hidden[row][inputs.attention_mask[row].bool()], expected[0]), pair.pair_id
