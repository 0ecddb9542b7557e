"""Weights in the folder of a judge: those of this judge, or none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from empathy_judge.models.settings import LoraSettings
from empathy_judge.models.weight_files import fingerprint
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .conftest import ADAPTER, HEAD, JUDGE, refused, saved

FROZEN = "network.language_model.norm.weight"


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a safetensors file and keep its metadata."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=metadata)


def first(tensors: dict[str, torch.Tensor], part: str) -> str:
    return next(key for key in sorted(tensors) if part in key)


@pytest.mark.parametrize(
    ("lora", "texts"),
    [
        (LoraSettings(rank=2), ("has shape (2, ", "expected (4, ")),
        (LoraSettings(parts=["projector"], rank=4), ("missing 'base_model.model.language_model.layers.0", "more")),
    ],
    ids=["rank", "part"],
)
def test_an_adapter_of_another_judge_is_refused(lora, texts, folder, make_judge, tmp_path):
    shutil.copy(saved(make_judge(lora), tmp_path / "other") / ADAPTER, folder / ADAPTER)
    refused(folder, ADAPTER, *texts)


def rename_layers(tensors: dict[str, torch.Tensor]) -> None:
    """As transformers 4 called the modules: PEFT alone would warn, and every lora_B stay zero (colpali#424)."""
    for key in list(tensors):
        tensors[key.replace("language_model.layers", "language_model.model.layers")] = tensors.pop(key)


def stored_as(dtype: torch.dtype, tensors: dict) -> None:
    key = sorted(tensors)[0]
    tensors[key] = tensors[key].to(dtype)


@pytest.mark.parametrize(
    ("file", "change", "texts"),
    [
        (ADAPTER, lambda it: it.update({"x": it.pop(first(it, "lora_B"))}), ["missing 'base_model", "unexpected 'x'"]),
        (ADAPTER, rename_layers, ["missing 'base_model.model.language_model.layers.0", "more"]),
        (ADAPTER, lambda it: [w.zero_() for key, w in it.items() if "lora_B" in key], ["every lora_B is zero"]),
        (ADAPTER, lambda it: it[first(it, "lora_A")].view(-1)[3:4].fill_(float("nan")), ["lora_A", "not finite"]),
        (HEAD, lambda it: it.pop("head.linear.bias"), ["missing 'head.linear.bias'"]),
        (HEAD, lambda it: it.update({"head.gate.weight": torch.zeros(2)}), ["unexpected 'head.gate.weight'"]),
        (HEAD, lambda it: it.update({"head.linear.bias": torch.zeros(3)}), ["has shape (3,), expected (2,)"]),
        (HEAD, lambda it: it["head.linear.bias"].fill_(float("nan")), ["'head.linear.bias'", "not finite"]),
        (HEAD, lambda it: it.update({FROZEN: torch.zeros(192)}), [f"unexpected '{FROZEN}'"]),
        (HEAD, lambda it: stored_as(torch.complex64, it), ["'head.linear.bias' is stored as torch.complex64"]),
        (ADAPTER, lambda it: stored_as(torch.float8_e4m3fn, it), ["is stored as torch.float8_e4m3fn; expected floats"]),
        (ADAPTER, lambda it: stored_as(torch.int8, it), ["is stored as torch.int8; expected floats"]),
    ],
    ids=[
        "renamed", "other layout", "changes nothing", "nan", "head lacks", "head has", "shape", "head nan", "frozen",
        "complex", "8 bits", "integers",
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(file, change, texts, folder):
    rewrite(folder / file, change)
    refused(folder, file, *texts)


@pytest.mark.parametrize("file", [JUDGE, "adapter/adapter_config.json"])
def test_an_adapter_of_another_strength_is_refused(folder, file):
    text = (folder / file).read_text()
    edited = re.sub(r'("(?:lora_)?alpha": )8\.0', r"\g<1>16.0", text)
    assert edited != text
    (folder / file).write_text(edited)
    refused(folder, "adapter_config.json", "lora_alpha is", "expected what judge.json says")


def test_the_fingerprint_tells_weights_apart_and_not_how_they_are_loaded(make_judge, make_backbone, tmp_path):
    plain = fingerprint(make_judge(LoraSettings(parts=[])))
    assert fingerprint(make_judge(LoraSettings(parts=["language_model", "audio_tower"], rank=2), seed=9)) == plain
    assert fingerprint(make_judge(dtype="bfloat16")) == plain
    assert fingerprint(make_judge(backbone=str(make_backbone(tmp_path / "other", 5)))) != plain
