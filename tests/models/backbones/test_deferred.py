"""Weights that are converted while they are sharded are those that are converted on loading."""

import shutil

import pytest
import torch
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.models.backbones.deferred import finish
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import JudgeSettings, LoraSettings
from empathy_judge.models.weight_files import fingerprints
from safetensors.torch import load_file, save_file

FAMILIES = ["qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe", "gemma3n", "wavlm"]


CASES: list[tuple[str, str, dict]] = [(name, "float32", {}) for name in FAMILIES]
CASES += [("nano", "float32", {})]  # its weights are stored in float16, those of the others here in bfloat16
CASES += [("qwen2_audio", "bfloat16", {})]  # where nothing is converted, and so nothing deferred, of any family
CASES += [
    ("qwen2_audio", "float32", settings)
    for settings in ({"full_parts": ["projector"]}, {"method": "dora"}, {"trained_dtype": "backbone"})
]


@pytest.mark.parametrize(("name", "dtype", "settings"), CASES)
def test_what_is_deferred_changes_nothing(name, dtype, settings, make_family, tmp_path):
    if name == "nano":
        backbone, stored = name, torch.float16
    else:
        folder, stored = shutil.copytree(make_family(name).folder, tmp_path / "copy"), torch.bfloat16
        for file in folder.glob("model*.safetensors"):
            short = {key: v.bfloat16() if v.is_floating_point() else v for key, v in load_file(file).items()}
            save_file(short, file, metadata={"format": "pt"})
        backbone = str(folder)
    if name == "wavlm":
        settings = {"parts": ["audio_tower"]}
    wanted = JudgeSettings(backbone, dtype=dtype, lora=LoraSettings(**settings))
    judges = []
    for deferred in (False, True):
        torch.manual_seed(0)
        judges.append(EmpathyJudge(wanted, [Dimension("any", 1, 5, 1)], deferred=deferred))
    eager, late = judges
    if dtype == "float32" and settings.keys() <= {"parts"}:
        weights = [weight.dtype for weight in late.network.parameters()]  # adapters and fusion have no file
        assert weights.count(stored) > 0.5 * len(weights)
    assert fingerprints(late) == fingerprints(eager)
    finish(late)
    assert late.state_dict().keys() == eager.state_dict().keys()
    for key, value in eager.state_dict().items():
        assert torch.equal(late.state_dict()[key], value), key
        assert late.state_dict()[key].dtype == value.dtype, key
    buffers = dict(late.named_buffers())
    assert all(torch.equal(buffers[key], value) for key, value in eager.named_buffers())
