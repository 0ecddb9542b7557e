"""Backbones of equal weights that compute something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.artifact import Placement, load_any

from ..conftest import edit


@pytest.mark.parametrize(
    ("file", "part", "values", "problem"),
    [
        ("processor_config.json", "feature_extractor", {"hop_length": 80}, "feature_extractor.hop_length 80, "),
        (
            "config.json", "audio_config", {"activation_function": "relu"},
            "config.audio_config.activation_function 'relu', expected 'gelu'",
        ),
        ("config.json", "text_config", {"rms_norm_eps": 0.5}, "config.text_config.rms_norm_eps 0.5, expected 1e-06"),
        ("config.json", "text_config", {"dtype": "float16", "attention_dropout": 0.5, "a_new_setting": 3}, None),
    ],
)  # fmt: skip
def test_a_backbone_of_equal_weights_that_is_configured_in_another_way_is_refused(
    file, part, values, problem, folder, backbone_folder, tmp_path
):
    backbone = Path(shutil.copytree(backbone_folder, tmp_path / "backbone"))
    edit(backbone / file, lambda config: config[part].update(values))
    if problem is None:
        load_any(folder, Placement(str(backbone)))
        return
    with pytest.raises(UserError, match=r"has the weights .* configured in another way: ") as found:
        load_any(folder, Placement(str(backbone)))
    assert problem in str(found.value)
