"""Phi-4-multimodal comes with an adapter of its own, which is in the weights of a judge."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload
from empathy_judge.models.backbones import phi4_multimodal
from safetensors.torch import load_file, save_file

from .conftest import refused, weights_of

ADAPTERS = {
    "phi4_multimodal": "speech-lora/adapter_model.safetensors",
}


@pytest.fixture(params=ADAPTERS)
def family(request, make_family):
    return make_family(request.param)


@pytest.fixture
def copy(family, tmp_path) -> Path:
    return Path(shutil.copytree(family.folder, tmp_path / "copy"))


@pytest.fixture
def adapter(family, copy) -> Path:
    """Its weights, to be spoilt."""
    return copy / ADAPTERS[family.name]


def without_adapter(folder: Path, adapter: Path) -> Path:
    for name in (adapter.name, "adapter_config.json"):
        adapter.with_name(name).unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"has_lora_adapter": False}))
    return folder


def in_network(key: str) -> str:
    """The weight that a tensor of an adapter changes."""
    name = key.removeprefix("base_model.model.model.").replace(".lora_A", "")
    return name if name.startswith("language_model.") else f"language_model.{name}"


@torch.no_grad()
def test_it_is_merged_into_the_language_model_alone(family, copy, adapter):
    tensors = load_file(adapter)
    merged, plain = weights_of(family.folder), weights_of(without_adapter(copy, adapter))
    assert merged.keys() == plain.keys()
    changed = {key for key in merged if not torch.equal(merged[key], plain[key])}
    assert changed == {in_network(key) for key in tensors if "lora_A" in key}
    assert len(changed) == len(tensors) // 2 >= 4
    for key, down in tensors.items():
        if "lora_A" in key:
            own = in_network(key)
            expected = plain[own] + 8 / 4 * tensors[key.replace("lora_A", "lora_B")] @ down  # alpha / rank
            assert (merged[own] - expected).abs().max() <= 1e-6
            assert (merged[own] - plain[own]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: dict(list(tensors.items())[1:]), r"adapter: .*missing \['.*lora_A"),
        (
            lambda tensors: (
                tensors | {key.replace("layers.1", "layers.7"): own.clone() for key, own in tensors.items()}
            ),
            r"adapter: .*unexpected \['.*layers\.7",
        ),
        (lambda tensors: {key: own[:-1].contiguous() for key, own in tensors.items()}, "adapter"),
    ],
    ids=["lacks one", "foreign", "shape"],
)
def test_one_that_does_not_fit_is_refused(copy, adapter, change, text):
    save_file(change(load_file(adapter)), adapter, metadata={"format": "pt"})
    refused(copy, text)


def test_into_layers_in_main_memory_it_is_not_merged(family, monkeypatch):
    """Where GPUs are full: accelerate leaves them without weights, and the adapter would be lost."""
    merge = phi4_multimodal.merge_own_adapter

    def crowded(model, *given, **named):
        layers = next(
            own for name, own in model.named_modules() if re.search(r"(language_model|^model)\.layers$", name)
        )
        cpu_offload(layers[-1], execution_device=torch.device("cpu"))
        merge(model, *given, **named)

    monkeypatch.setattr(phi4_multimodal, "merge_own_adapter", crowded)
    refused(
        family.folder, r"layers\.\d+\..*, which has an adapter of its own, does not fit the GPUs; expected larger ones"
    )
