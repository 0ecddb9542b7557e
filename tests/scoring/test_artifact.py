"""A judge on disk comes back as it was, or not at all."""

from __future__ import annotations

import errno
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from accelerate import cpu_offload
from empathy_judge.core.errors import UserError
from empathy_judge.models import judge as judge_module
from empathy_judge.models.backbones.base import Backbone, Checkpoint
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import LoraSettings
from empathy_judge.models.weight_files import fingerprint
from empathy_judge.scoring.artifact import Placement, load_any, save_judge
from empathy_judge.scoring.assessment import Domain
from empathy_judge.scoring.calibration import Calibration, no_calibration
from empathy_judge.scoring.ensemble import write_ensemble
from empathy_judge.scoring.export.check import synthetic_set
from empathy_judge.scoring.export.write import write_whole
from empathy_judge.scoring.judge_calibration import store_calibration
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..models.conftest import ADAPTER, HEAD, JUDGE, described, edit, refused, saved
from ..models.test_lora import SETTINGS

EVERY_PART = LoraSettings(parts=["language_model", "projector", "audio_tower"], rank=3, alpha=7.5)
NOTHING = LoraSettings(parts=[])


WRITTEN = (
    "backbone_fingerprint", "unquantized_fingerprint", "backbone_configuration", "reads_text", "trained_in_full",
    "head", "versions", "sampling_rate", "max_seconds", "provenance",
)  # fmt: skip
"""What stands in every description."""


@torch.no_grad()
def scores_of(judge: EmpathyJudge, pairs) -> torch.Tensor:
    return judge(judge.build_inputs(pairs))


@pytest.mark.parametrize(
    ("lora", "pooling"),
    [
        *((EVERY_PART, pooling) for pooling in ("last_token", "response_mean", "attention")),
        *((lora, "response_mean") for lora in (NOTHING, *SETTINGS.values())),
    ],
)
def test_the_score_before_saving_is_the_score_after_loading(lora, pooling, make_judge, pairs, tmp_path):
    judge = make_judge(lora, pooling=pooling, padding_side="left")
    assert (fingerprint(judge) == fingerprint(make_judge(NOTHING, seed=3))) == (not judge.trained_in_full())
    before = scores_of(judge, pairs)
    folder = saved(judge, tmp_path / "judge")
    assert torch.equal(before, scores_of(judge, pairs))  # saving changes nothing
    loaded = load_any(folder)
    assert torch.equal(before, scores_of(loaded.judge, pairs))
    assert before.std(0).min() > 1e-3
    assert loaded.judge.settings == judge.settings
    assert loaded.judge.dimensions == judge.dimensions
    assert not loaded.judge.training
    assert not loaded.judge.trainable()
    assert (folder / "adapter").exists() == bool(lora.parts)
    assert (folder / "backbone.safetensors").is_file() == bool(judge.trained_in_full())


def test_a_loaded_judge_can_be_saved_again(folder, pairs, tmp_path):
    loaded = load_any(folder)
    save_judge(loaded, tmp_path / "again")
    assert torch.equal(scores_of(loaded.judge, pairs), scores_of(load_any(tmp_path / "again").judge, pairs))
    for name in (ADAPTER, HEAD):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_what_the_folder_holds(judge_folder):
    files = {str(path.relative_to(judge_folder)) for path in judge_folder.rglob("*") if path.is_file()}
    assert files == {
        "judge.json", "head.safetensors", "README.md", "adapter/adapter_config.json", ADAPTER,
        "processor/chat_template.jinja", "processor/processor_config.json",
        "processor/tokenizer.json", "processor/tokenizer_config.json",
    }  # fmt: skip
    for path in judge_folder.rglob("*.*"):
        assert path.suffix in (".json", ".safetensors", ".md", ".txt", ".jinja")
        if path.suffix == ".safetensors":
            load_file(path)  # fails for anything else
        else:
            path.read_text(encoding="utf-8")
    assert (judge_folder / ADAPTER).stat().st_size < 500_000  # the frozen 3 M weights (6 MB) are not in it
    assert (judge_folder.stat().st_mode & 0o777) == 0o755
    description = json.loads((judge_folder / JUDGE).read_text())
    assert description["schema_version"] == 3
    assert description["provenance"]["validation"] == {"empathy": 0.5, "warmth": None}
    assert [d["name"] for d in description["dimensions"]] == ["empathy", "warmth"]
    assert (description["sampling_rate"], description["max_seconds"]) == (16_000, 10.0)
    assert set(load_file(judge_folder / HEAD)) == {
        "head.norm.weight", "head.norm.bias", "head.linear.weight", "head.linear.bias",
    }  # fmt: skip


@pytest.mark.parametrize("file", [ADAPTER, HEAD, "adapter/adapter_config.json", JUDGE])
def test_a_missing_file_is_refused(file, folder):
    (folder / file).unlink()
    no_judge = "expected a judge folder (with judge.json), a run folder or a checkpoint"
    refused(folder, *([no_judge] if file == JUDGE else [file, "missing"]))


# ---------------------------------------------------------------- judge.json


def in_scale(**changes):
    return lambda values: values["dimensions"][0].update({**changes, "step": None})


def in_settings(**changes):
    return lambda values: values["settings"].update(changes)


def in_lora(**changes):
    return lambda values: values["settings"]["lora"].update(changes)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (in_scale(maximum=7), [HEAD, "scales must be the same", "7"]),
        (in_scale(name="calm"), [HEAD, "scales must be the same", "calm"]),
        (in_scale(higher_is_better=False), [HEAD, "scales must be the same", "false"]),
        (lambda it: it["dimensions"].reverse(), [HEAD, "scales must be the same"]),
        (lambda it: it.update(schema_version=4), ["schema_version 4; expected 3"]),
        (lambda it: it.update(schema_version=2), ["schema_version 2; expected 3"]),
        *((lambda it, key=key: it.pop(key), [key]) for key in ("settings", "dimensions", *WRITTEN)),
        *(
            (lambda it, key=key: it["provenance"].pop(key), [f"provenance.{key} is missing"])
            for key in ("start", "shares")
        ),
        (in_settings(pooling="median"), ["pooling"]),
        (in_settings(surplus=1), ["surplus"]),
        (lambda it: it.update(sampling_rate="16000"), ["sampling_rate '16000'; expected "]),
        (lambda it: it.update(sampling_rate=-5), ["sampling_rate -5; expected greater than 0"]),
        (lambda it: it.update(max_seconds=0), ["max_seconds 0; expected greater than 0"]),
        (in_lora(rank=10**9), ["lora.rank 1000000000; expected 1 to 4,096"]),
        (in_lora(dropout=1.0), ["lora.dropout 1; expected at least 0 and less than 1"]),
        (
            lambda it: it["settings"]["head_input"].update(landmarks=10**9),
            ["head_input.landmarks 1000000000; expected 0 to 5,000"],
        ),
        (
            lambda it: it["settings"]["head_input"].update(beside_landmarks=True),
            ["head_input.beside_landmarks true with no landmarks"],
        ),
        *(
            (lambda it, share=share: it["provenance"]["shares"].update(ratings=share), [f"shares.ratings {share}"])
            for share in (-1, 2)  # one of -1 took the words from all scores
        ),
        (lambda it: it["provenance"].update(dataset=None), ["provenance.dataset None; expected a valid string"]),
        (lambda it: it.update(dimensions=[]), ["dimensions []; expected "]),
        (
            in_lora(parts=["decoder"]),
            ["settings.lora.parts.0 'decoder'", "'language_model', 'projector', 'audio_tower'"],
        ),
    ],
)
def test_a_judge_file_that_was_changed_is_refused(change, texts, folder):
    edit(folder / JUDGE, change)
    refused(folder, JUDGE, *texts)


def test_a_changed_backbone_is_refused(folder, make_backbone, tmp_path):
    other = str(make_backbone(tmp_path / "other", 5))
    with pytest.raises(UserError, match=rf"backbone '{other}' has other weights than the judge was trained on"):
        load_any(folder, Placement(other))


def test_a_backbone_that_moved_is_found_where_it_lies_now(folder, backbone_folder, pairs, tmp_path):
    moved = shutil.copytree(backbone_folder, tmp_path / "moved")
    expected = scores_of(load_any(folder).judge, pairs)
    edit(folder / JUDGE, lambda values: values["settings"].update(backbone=str(tmp_path / "gone")))
    refused(folder, f"backbone '{tmp_path / 'gone'}'")
    assert torch.equal(expected, scores_of(load_any(folder, Placement(str(moved))).judge, pairs))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", [ADAPTER, HEAD, JUDGE])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.7])
def test_a_truncated_file_is_refused(name, share, folder):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: int(len(whole) * share)])
    refused(folder, name, "not JSON" if name == JUDGE else "not a readable safetensors file")


def test_a_folder_that_is_not_empty_is_left_alone(folder, make_judge):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{folder}: exists; expected a folder that does not exist yet"):
        saved(make_judge(), folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_a_killed_export_left_is_taken_by_the_next_one(make_judge, tmp_path):
    left = tmp_path / ".judge.unfinished" / "members"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    saved(make_judge(), tmp_path / "judge")
    assert [path.name for path in tmp_path.iterdir()] == ["judge"]
    assert not (tmp_path / "judge" / "members").exists()


def test_an_export_that_fails_leaves_nothing(make_judge, tmp_path):
    loaded = replace(described(make_judge()), description={"score": float("nan")})  # in the last file to be written
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_judge(loaded, tmp_path / "deep" / "judge")
    assert list((tmp_path / "deep").iterdir()) == []


UNCALIBRATED = Calibration(
    "w", "tones", True, "c", "s", None, 0, "none", None, {"empathy": no_calibration(False)}, Domain(0, {})
)
FULL = "No space left on device"
REFUSED_BY_THE_DISK = {  # what fails, with what, and what is said of it
    "no folder": ("pathlib.Path.mkdir", PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
    "adapter": ("peft.peft_model.safe_save_file", SafetensorError(f"I/O error: {FULL} (os error 28)"), FULL),
    "head": ("empathy_judge.models.weight_files.save_file", OSError(errno.ENOSPC, FULL), FULL),
    "tokenizer": ("transformers.ProcessorMixin.save_pretrained", Exception(f"{FULL} (os error 28)"), FULL),
    "card": ("pathlib.Path.write_text", OSError(errno.ENOSPC, FULL), FULL),
    "rename": ("os.replace", OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
    "place": ("pathlib.Path.rename", OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
}


@pytest.mark.parametrize("what", REFUSED_BY_THE_DISK)
def test_what_the_disk_refuses_is_said_in_one_line_and_leaves_nothing(what, judge_folder, tmp_path, monkeypatch):
    place, error, reason = REFUSED_BY_THE_DISK[what]
    loaded, earlier = load_any(judge_folder), shutil.copytree(judge_folder, tmp_path / "earlier")
    before = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    out, ways = tmp_path / "new" / "judge", []
    with monkeypatch.context() as patch:
        patch.setattr(place, mock.Mock(side_effect=error))
        ways.append(lambda: save_judge(loaded, out))
        ways.append(lambda: write_ensemble([judge_folder, earlier], out))
        if what in ("head", "place"):
            ways.append(lambda: write_whole(load_any(earlier), out, "none", synthetic_set(loaded), device="cpu"))
        for way in ways:
            with pytest.raises(UserError, match=re.escape(f"{out}: cannot be written ({reason})")):
                way()
        if what in ("card", "rename"):
            with pytest.raises(UserError, match=re.escape(f"{earlier / JUDGE}: cannot be written ({reason})")):
                store_calibration(UNCALIBRATED, earlier)
    assert list(tmp_path.glob("new/*")) == list(tmp_path.glob("new/.*")) == []
    assert {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()} == before
    save_judge(loaded, out)  # the same goes on when there is room


@pytest.mark.parametrize("name", ["x" * 300, "owner/" + "x" * 300, "a\0b", "deep/" * 1_200])
def test_no_name_is_too_strange_to_be_refused(name, judge_folder, tmp_path):
    with pytest.raises(UserError, match=r"no such folder|cannot be read|expected a judge folder|OWNER/NAME"):
        load_any(Path(name))
    if "\0" not in name:
        with pytest.raises(UserError, match="cannot be written"):
            save_judge(load_any(judge_folder), tmp_path / name)
    assert list(tmp_path.rglob("*.unfinished")) == []


def test_saving_and_loading_ask_no_hub(make_judge, tmp_path, monkeypatch, backbone_folder):
    """PEFT looks a base model up on the hub when it is no local folder."""
    asked = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda name, _: asked.append(name))
    judge = make_judge()
    judge.settings = replace(judge.settings, backbone="nano")
    saved(judge, tmp_path / "judge")
    assert asked == []
    load_any(tmp_path / "judge", Placement(str(backbone_folder)))
    assert asked == []
    assert json.loads((tmp_path / "judge/adapter/adapter_config.json").read_text())["base_model_name_or_path"] == "nano"


def crowd(monkeypatch) -> None:
    """From now on, GPUs are full after the first layer. accelerate leaves what is in main memory without weights, but
    for the time in which it computes."""
    load = judge_module.load_backbone

    def spread(checkpoint: Checkpoint) -> Backbone:
        assert checkpoint.device_map == "auto"
        backbone = load(replace(checkpoint, device_map=None))
        for layer in [*backbone.layers[1:], backbone.network.get_submodule(backbone.parts["projector"].path)]:
            cpu_offload(layer, execution_device=torch.device("cpu"))
        assert any(weight.is_meta for weight in backbone.network.parameters())
        return backbone

    monkeypatch.setattr(judge_module, "load_backbone", spread)


def test_a_judge_that_is_too_large_for_its_gpus_has_layers_in_main_memory(tmp_path, make_judge, pairs, monkeypatch):
    judge = make_judge(EVERY_PART)
    folder = saved(judge, tmp_path / "judge")
    crowd(monkeypatch)
    loaded = load_any(folder, Placement(spread=True)).judge
    assert not any(weight.is_meta for weight in loaded.trained().values())
    assert torch.equal(scores_of(loaded, pairs), scores_of(judge, pairs))


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        (LoraSettings(parts=["language_model"], full_parts=["projector"]), "projector: it was trained in full, and a"),
        (LoraSettings(parts=[], full_parts=["language_model"]), "language_model: it was trained in full, and"),
        (LoraSettings(parts=["language_model"], method="dora"), "a judge with DoRA, of which a part does not fit"),
    ],
)
def test_what_must_be_on_a_gpu_and_does_not_fit_is_refused(trained, message, tmp_path, make_judge, monkeypatch):
    """Its weights would stay as they were before training, or without any."""
    folder = saved(make_judge(trained), tmp_path / "judge")
    crowd(monkeypatch)
    with pytest.raises(UserError, match=message):
        load_any(folder, Placement(spread=True))
