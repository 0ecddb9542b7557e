"""Granite Speech: the adapter that comes with its weights, and clips that may not hear each other's padding."""

from __future__ import annotations

import json
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
from transformers import GraniteSpeechForConditionalGeneration

from .conftest import RATE, equal, judge_of, weights_of

ADAPTER = "adapter_model.safetensors"
QUERY = "language_model.layers.{}.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def family(make_family):
    return make_family("granite_speech")


@pytest.fixture
def copy(family, tmp_path) -> Path:
    return Path(shutil.copytree(family.folder, tmp_path / "copy"))


def rewrite(folder, change) -> None:
    tensors = load_file(folder / ADAPTER)
    save_file(change(tensors), folder / ADAPTER, metadata={"format": "pt"})


def without_adapter(folder) -> Path:
    for name in (ADAPTER, "adapter_config.json"):
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"has_lora_adapter": False}))
    return folder


@torch.no_grad()
def test_its_own_adapter_is_in_the_weights(family, copy):
    merged, plain = weights_of(family.folder), weights_of(without_adapter(copy))
    assert merged.keys() == plain.keys()
    adapter = load_file(family.folder / ADAPTER)
    changed = {key for key in merged if not torch.equal(merged[key], plain[key])}
    assert len(changed) == len(adapter) // 2 == 4
    for layer in range(2):
        key = QUERY.format(layer)
        name = f"base_model.model.model.{key.removesuffix('.weight')}"
        update = adapter[f"{name}.lora_B.weight"] @ adapter[f"{name}.lora_A.weight"]
        assert key in changed
        assert torch.allclose(merged[key], plain[key] + 8 / 4 * update, atol=1e-6)


@torch.no_grad()
def test_a_checkpoint_without_adapter_is_the_official_one(family, copy, noise, same):
    without_adapter(copy)
    model = GraniteSpeechForConditionalGeneration.from_pretrained(copy).eval()
    judge = judge_of(family, backbone=str(copy))
    inputs = judge.build_inputs([Pair("p", Clip(noise(20_000), RATE))])
    features, mask = inputs.clips.features, inputs.attention_mask
    expected = model.model(input_ids=inputs.input_ids, input_features=features, attention_mask=mask).last_hidden_state
    assert same(judge.backbone.hidden_states(inputs), expected)


def test_an_adapter_in_the_layout_of_transformers_4_is_read(family, copy):
    rewrite(
        copy,
        lambda tensors: {
            key.replace("model.language_model", "language_model.model"): value for key, value in tensors.items()
        },
    )
    assert any(".model.language_model.model.layers." in key for key in load_file(copy / ADAPTER))
    assert equal(weights_of(copy), weights_of(family.folder))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([ADAPTER], f"no {ADAPTER}"),
        (["adapter_config.json"], "no adapter_config.json"),
        ([ADAPTER, "adapter_config.json"], "adapter is incomplete"),
    ],
)
def test_an_adapter_that_is_announced_must_be_there(copy, names, text):
    for name in names:
        (copy / name).unlink()
    with pytest.raises(UserError, match=text):
        load_backbone(Checkpoint(str(copy)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: dict(list(tensors.items())[1:]), r"adapter.*missing \['.*lora_A"),
        (lambda tensors: {key.replace("layers.0", "layers.7"): value for key, value in tensors.items()}, "unexpected"),
        (lambda tensors: {key: value[:-1].contiguous() for key, value in tensors.items()}, "adapter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(copy, change, text):
    rewrite(copy, change)
    with pytest.raises(UserError, match=text):
        load_backbone(Checkpoint(str(copy)))


def test_the_prompt_is_the_same_every_day(family, noise):
    judge = judge_of(family)
    ids = judge.build_inputs([Pair("p", Clip(noise(9_000), RATE))]).input_ids[0]
    text = judge.backbone.tokenizer.decode(ids)
    assert text.startswith(
        "<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\nToday's Date: April 9"
    )
