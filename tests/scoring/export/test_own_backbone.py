"""A folder that was changed after it was written is refused, and says where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from empathy_judge.core.files import file_hash
from empathy_judge.scoring.artifact import Placement, load_any
from safetensors.torch import load_file, save_file

from ...models.conftest import edit, refused

WEIGHTS = "backbone/model.safetensors"


@pytest.fixture
def folder(merged, tmp_path) -> Path:
    """A copy of a merged judge, to be spoilt."""
    return Path(shutil.copytree(merged, tmp_path / "judge"))


def rehash(folder: Path, *names: str) -> None:
    """As somebody would who knows how the folder is checked."""
    edit(folder / "judge.json", lambda it: it["sha256"].update({name: file_hash(folder / name) for name in names}))


@pytest.mark.parametrize("name", [WEIGHTS, "backbone/config.json", "backbone/tokenizer.json", "head.safetensors"])
def test_a_file_that_was_changed(name, folder):
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    refused(folder, f"{folder / name}: not the file that was exported")


@pytest.mark.parametrize("name", [WEIGHTS, "backbone/tokenizer.json"])
def test_a_file_that_is_missing(name, folder):
    (folder / name).unlink()
    refused(folder, f"{folder / name}: missing")


def test_a_backbone_that_is_missing_or_elsewhere(folder, tmp_path):
    (folder / "backbone").rename(tmp_path / "elsewhere")
    refused(folder, f"{folder / 'backbone'}: no folder")
    (folder / "backbone").symlink_to(tmp_path / "elsewhere")
    refused(folder, f"{folder / 'backbone'}: no folder")


@pytest.mark.parametrize("name", ["adapter_config.json", "model-00002-of-00002.safetensors", "modeling.py"])
def test_a_file_that_was_added(name, folder):
    """Such as an adapter, which transformers would load unasked."""
    (folder / "backbone" / name).write_text("{}")
    refused(folder, f"{folder / 'backbone' / name}: judge.json names no such file")


def test_an_adapter_in_the_backbone_is_refused_even_with_its_hash(folder, judge_folder):
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(judge_folder / "adapter" / name, folder / "backbone" / name)
        rehash(folder, f"backbone/{name}")
    refused(folder, "has an adapter (adapter_config.json) beside its weights")


def test_files_may_be_links_as_in_the_cache_of_the_hub(folder, tmp_path):
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(tmp_path / "blobs" / str(number))
    assert load_any(folder).judge.settings.backbone == str(folder / "backbone")


def test_weights_of_another_checkpoint_with_their_hash(folder, make_backbone, tmp_path):
    other = make_backbone(tmp_path / "other", 3)
    shutil.copy(other / "model.safetensors", folder / WEIGHTS)
    rehash(folder, WEIGHTS)
    refused(folder, "has other weights than the judge was trained on")


def test_a_weight_too_few_or_too_many_with_its_hash(folder):
    whole = load_file(folder / WEIGHTS)
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    save_file({key: value for key, value in whole.items() if key != name}, folder / WEIGHTS, metadata={"format": "pt"})
    rehash(folder, WEIGHTS)
    refused(folder, "not a complete checkpoint of its family: missing", "q_proj.weight")
    save_file({**whole, "model.talker.weight": whole[name].clone()}, folder / WEIGHTS, metadata={"format": "pt"})
    rehash(folder, WEIGHTS)
    refused(folder, "unexpected ['model.talker.weight']")


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/passwd", "..\\outside.safetensors", "nowhere", 3])
def test_an_index_that_leads_out_of_the_folder(place, folder):
    index = {"metadata": {}, "weight_map": {"model.norm.weight": place}}
    (folder / "outside.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / "backbone" / "model.safetensors.index.json").write_text(json.dumps(index))
    rehash(folder, "backbone/model.safetensors.index.json")
    refused(folder, "model.safetensors.index.json: weights in ", "expected files beside it")


BACKBONES = ["../other", "/srv/other", "nano", "Qwen/Qwen2-Audio-7B", "backbone/..", None, 3]
FORMS = [("form", "pickled"), ("form", None), ("quantization", "gptq"), ("quantization", ["int8"])]


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        *((lambda it, name=name: it["settings"].update(backbone=name), ["settings.backbone"]) for name in BACKBONES),
        *(
            (lambda it, own=own: it["export"].update([own]), [f"judge.json: export.{own[0]} {own[1]!r}; expected "])
            for own in FORMS
        ),
        *((lambda it, value=value: it.update(export=value), ["export", "expected"]) for value in (None, "merged", [])),
        (lambda it: it.update(sha256=["backbone/config.json"]), ["sha256", "expected an object"]),
        (lambda it: it["dimensions"][1].update(maximum=7), ["head.safetensors: trained for", "must be the same"]),
    ],
)
def test_a_judge_file_that_was_changed(change, texts, folder):
    edit(folder / "judge.json", change)
    refused(folder, "judge.json", *texts)


def test_another_backbone_is_not_taken_in_its_place(folder, backbone_folder):
    refused(folder, "has its backbone in its own folder", placement=Placement(backbone=str(backbone_folder)))


def test_a_quantization_that_the_weights_do_not_have(folder):
    """The field says how the fingerprint is taken; a wrong one finds another fingerprint or other weights."""
    edit(folder / "judge.json", lambda it: it["export"].update(quantization="int8"))
    edit(folder / "judge.json", lambda it: it.update(unquantized_fingerprint="f" * 64))
    refused(folder, "has other weights than the judge was trained on")
