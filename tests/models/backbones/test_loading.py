"""What a checkpoint of any family may look like, and what is refused of it in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.models.backbones import TRANSFORMERS
from empathy_judge.scoring.export.write import write_backbone
from safetensors.torch import load_file, save_file

from .conftest import equal, in_shards, loaded, refused, weights_of


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'Qwen2AudioModel' from 'transformers'", name="transformers"),
        ModuleNotFoundError("Could not import module 'Qwen2AudioModel'.\nAre its requirements there?"),
    ],
)
def test_a_family_that_the_installed_transformers_lacks_is_named_in_one_line(error, backbone_folder, monkeypatch):
    monkeypatch.setattr("empathy_judge.models.backbones.transformers.__version__", "5.0.0")
    with (
        mock.patch("importlib.import_module", side_effect=error),
        pytest.raises(UserError, match=r"family 'qwen2_audio' .* transformers 5\.0\.0; expected ") as found,
    ):
        loaded(backbone_folder)
    line = str(found.value)
    assert TRANSFORMERS in line
    assert "Qwen2AudioModel" in line


def test_a_broken_import_of_our_own_is_no_error_of_the_user(backbone_folder):
    error = ImportError("cannot import name 'x'", name="empathy_judge.models.backbones.base")
    with mock.patch("importlib.import_module", side_effect=error), pytest.raises(ImportError, match="name 'x'"):
        loaded(backbone_folder)


def test_the_transformers_that_is_asked_for_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert TRANSFORMERS in project["dependencies"]


def _replace(config, key, value) -> bool:
    """Replace the first entry of that name, however deep; False if there is none."""
    if key in config:
        config[key] = value
        return True
    return any(_replace(part, key, value) for part in config.values() if isinstance(part, dict))


@pytest.mark.parametrize("weights", [True, False])
def test_layers_that_are_no_number_are_refused_in_one_line(family, weights, with_config):
    def change(config):
        assert _replace(config, "num_hidden_layers", "many") or _replace(config, "encoder_layers", "many")

    folder = with_config(family.folder, change)
    refused(folder, weights=weights, match=r"^backbone '.*changed': config\.json: .*layers'.* got str")


@pytest.mark.parametrize(
    ("file", "part", "key", "value"),
    [
        ("config.json", "text_config", "rope_parameters", {"rope_theta": 10_000.0, "rope_type": "1"}),
        ("config.json", None, "dtype", "x"),
        ("processor_config.json", "feature_extractor", "n_fft", float("nan")),
        ("processor_config.json", "feature_extractor", "sampling_rate", 10**400),
        ("processor_config.json", "feature_extractor", "chunk_length", "1"),
        ("processor_config.json", None, "feature_extractor", "x"),
    ],
)
def test_values_that_no_library_can_use_are_refused_in_one_line(file, part, key, value, backbone_folder, tmp_path):
    folder = Path(shutil.copytree(backbone_folder, tmp_path / "backbone"))
    values = json.loads((folder / file).read_text())
    (values if part is None else values[part])[key] = value
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"a value of config.json or of the processor's files cannot be used \(\w+: "):
        loaded(folder)


def test_more_types_of_layers_than_layers_are_refused_in_one_line(backbone_folder, with_config):
    kinds = {"layer_types": ["full_attention"] * 5}
    folder = with_config(backbone_folder, lambda config: config["text_config"].update(kinds))
    refused(folder, r"^backbone '.*changed': config\.json: .*\(4\).*layer_types`? \(5\)")


def renamed(rename):
    def change(tensors):
        found = {rename(key): value for key, value in tensors.items()}
        assert len(found) == len(tensors)
        return found

    return change


def test_both_layouts_of_the_hub_load_the_same_weights(family, with_weights):
    if family.other_layout is None:
        pytest.skip("no file of this family was ever written in another layout")
    assert equal(weights_of(with_weights(family.folder, renamed(family.other_layout))), weights_of(family.folder))


def test_a_foreign_layout_is_refused(family, with_weights):
    folder = with_weights(family.folder, renamed(lambda key: re.sub(r"layers\.", "blocks.", key)))
    refused(folder, r"missing \['.*layers.*unexpected \['.*blocks")


def test_a_weight_too_few_or_too_many_is_refused_by_name(family, tmp_path):
    folder = Path(shutil.copytree(family.folder, tmp_path / "changed"))
    tensors = load_file(folder / "model.safetensors")
    of_tower = re.compile(r"^(?!talker|code2wav|token2wav).*(?:audio|encoder).*(?:layers?|conformer)\.0\.")
    keys = sorted(key for key in tensors if ".0." in key)
    key = next(filter(of_tower.search, keys), keys[0])  # a family without a tower: of the language model
    weight = tensors.pop(key)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    end = re.escape(key.rpartition(".0.")[2])
    refused(folder, rf"missing \['.*{end}")
    surplus = {**tensors, key: weight, key.replace(".0.", ".97.", 1): weight.clone()}
    save_file(surplus, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, rf"unexpected \['.*97.*{end}")


def test_without_weights_nothing_is_read_or_allocated(family, bytes_read):
    weights = loaded(family.folder).network.state_dict()
    assert bytes_read
    bytes_read.clear()
    counted = loaded(family.folder, weights=False).network.state_dict()
    assert {key: weight.shape for key, weight in counted.items()} == {key: w.shape for key, w in weights.items()}
    assert all(weight.is_meta for weight in counted.values())
    assert not bytes_read


def test_shards_are_read(family, tmp_path):
    folder = Path(shutil.copytree(family.folder, tmp_path / "shards"))
    tensors = list(load_file(folder / "model.safetensors").items())
    half = len(tensors) // 2
    in_shards(folder, dict(tensors[:half]), dict(tensors[half:]))
    assert equal(weights_of(folder), weights_of(family.folder))


def test_an_adapter_of_somebody_else_beside_the_weights_is_refused(family, tmp_path):
    folder = Path(shutil.copytree(family.folder, tmp_path / "adapted"))
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}')
    refused(folder, "adapter")


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_quantized_weights_are_read_as_they_were_written(quantization, dtype, language_model, tmp_path):
    made = loaded(language_model.folder, dtype=dtype, quantization=quantization)
    write_backbone(made, None, str(dtype).removeprefix("torch."), tmp_path / "backbone", quantized=True)
    again = loaded(tmp_path / "backbone", dtype=dtype).network.state_dict()
    weights = made.network.state_dict()
    assert set(again) == set(weights)
    small = 0
    for name, weight in weights.items():
        found = again[name]
        if type(weight) is not torch.Tensor:  # of torchao
            weight, found, small = weight.dequantize(), found.dequantize(), small + 1
        small += weight.dtype == torch.uint8
        assert torch.equal(weight, found), name
    assert small >= 8
    assert {path.suffix for path in (tmp_path / "backbone").iterdir()} <= {".json", ".jinja", ".safetensors", ".txt"}


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_an_encoder_has_no_language_model_to_quantize(quantization, encoder):
    refused(encoder.folder, quantization=quantization, match=f"quantization {quantization} is for language models")


@pytest.mark.parametrize(
    ("family", "unused"), [("gemma3n", "vision"), ("gemma4", "vision"), ("whisper", ".decoder.")], indirect=["family"]
)
def test_what_a_judge_does_not_use_is_neither_made_nor_needed(family, unused, with_weights):
    def without(tensors):
        kept = {key: value for key, value in tensors.items() if unused not in key}
        assert len(kept) < len(tensors)
        return kept

    some, every = with_weights(family.folder, without), family.folder
    one, other = (loaded(folder).network for folder in (some, every))
    assert one.state_dict().keys() == other.state_dict().keys()
    assert not any(unused in name for name, _ in one.named_modules())
    assert "timm" not in sys.modules


def test_unknown_backbones_are_refused(backbone_folder, with_config):
    refused(Path("no/such-model"), r"backbone 'no/such-model': expected 'nano', a hub id or a folder")
    foreign = with_config(backbone_folder, {"model_type": "qwen2"})
    refused(foreign, r"no class for family 'qwen2'; expected .*qwen2_audio")
    (foreign / "config.json").unlink()
    refused(foreign, "no config.json, or one without model_type; expected a folder in the hub's layout")


def test_code_of_a_repository_is_never_run(backbone_folder, with_config, tmp_path):
    """Neither of a family that has a class here, nor of one that has none."""
    code = {"AutoConfig": "configuration_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}
    folder, ran = with_config(backbone_folder, {"auto_map": code}), tmp_path / "ran"
    for name in ("configuration_own", "modeling_own"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')")
    loaded(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    refused(folder, "no class for family 'own'")
    assert not ran.exists()


def test_the_backbone_is_frozen_and_in_evaluation_mode(backbone_folder):
    backbone = loaded(backbone_folder)
    assert not any(weight.requires_grad for weight in backbone.network.parameters())
    assert not any(module.training for module in backbone.network.modules())
    assert (backbone.sampling_rate, backbone.max_seconds) == (16_000, 10.0)
    assert (backbone.audio_size, backbone.hidden_size) == (160, 192)
