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
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings
from safetensors.torch import load_file, save_file
from transformers import GraniteSpeechForConditionalGeneration

RATE = 16_000
ADAPTER = "adapter_model.safetensors"
QUERY = "language_model.layers.{}.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def family(make_family):
    return make_family("granite_speech")


@pytest.fixture
def copy(family, tmp_path) -> Path:
    return Path(shutil.copytree(family.folder, tmp_path / "copy"))


def weights_of(folder, **options) -> dict[str, torch.Tensor]:
    return dict(load_backbone(Checkpoint(str(folder), **options)).network.state_dict())


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
def test_a_checkpoint_without_adapter_is_the_official_one(copy, noise, same):
    without_adapter(copy)
    model = GraniteSpeechForConditionalGeneration.from_pretrained(copy).eval()
    judge = EmpathyJudge(JudgeSettings(backbone=str(copy)), ()).eval()
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
    plain, other = weights_of(family.folder), weights_of(copy)
    assert all(torch.equal(plain[key], other[key]) for key in plain)


@pytest.mark.parametrize("name", [ADAPTER, "adapter_config.json"])
def test_a_missing_file_of_the_adapter_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"no {name}"):
        load_backbone(Checkpoint(str(copy)))


def test_an_adapter_that_is_announced_must_be_there(copy):
    for name in (ADAPTER, "adapter_config.json"):
        (copy / name).unlink()
    with pytest.raises(UserError, match="adapter is incomplete"):
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
    with pytest.raises(UserError, match=text) as found:
        load_backbone(Checkpoint(str(copy)))
    assert "\n" not in str(found.value)


def test_the_prompt_is_the_same_every_day(family, noise):
    judge = EmpathyJudge(JudgeSettings(backbone=str(family.folder)), ())
    ids = judge.build_inputs([Pair("p", Clip(noise(9_000), RATE))]).input_ids[0]
    text = judge.backbone.tokenizer.decode(ids)
    assert text.startswith(
        "<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\nToday's Date: April 9"
    )
