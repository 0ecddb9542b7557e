"""A backbone that was written is the backbone that is read, for every family."""

from __future__ import annotations

import pytest
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.common.base import Checkpoint
from empathy_judge.models.export.backbone_folder import write_backbone
from empathy_judge.models.export.merge import merge_adapter
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from empathy_judge.models.lora import LoraSettings

RATE = 16_000
SCALES = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))


@pytest.fixture(scope="module")
def pairs(noise) -> list[Pair]:
    context = Turn("user", Clip(noise(20_000, 1), RATE))
    return [
        Pair("both", Clip(noise(12_000), RATE), (context,), situation="Late."),
        Pair("one", Clip(noise(9_000), RATE)),
    ]


def test_what_was_merged_and_written_scores_alike_when_it_is_read(family, pairs, tmp_path):
    parts = ["audio_tower"] if family.is_encoder else ["language_model", "projector", "audio_tower"]
    torch.manual_seed(0)
    judge = EmpathyJudge(
        JudgeSettings(backbone=str(family.folder), lora=LoraSettings(parts=parts, rank=2, alpha=4.0)), SCALES
    ).eval()
    with torch.no_grad():
        for name, weight in judge.trainable().items():
            weight.add_((0.02 if "lora_" in name else 0.1) * torch.randn(weight.shape))
        before = judge(judge.build_inputs(pairs))
        plain = {name for name in judge.network.state_dict() if "lora_" not in name}
        merge_adapter(judge)
        assert {name.replace(".base_layer", "") for name in plain} == set(judge.network.state_dict())
        write_backbone(judge.backbone, None, "float32", tmp_path / "backbone")
        assert "adapter_config.json" not in {path.name for path in (tmp_path / "backbone").iterdir()}
        again = load_backbone(Checkpoint(str(tmp_path / "backbone")))
        expected = judge.network.state_dict()
        found = again.network.state_dict()
        assert set(found) == set(expected)
        for name, weight in found.items():
            if not name.startswith("joiner."):
                assert torch.equal(weight, expected[name]), name
        own = judge.backbone
        if family.is_encoder:
            again.network["joiner"].load_state_dict(own.network["joiner"].state_dict())
        judge.backbone, judge.network = again, again.network
        after = judge(judge.build_inputs(pairs))
    assert before.std(0).min() > 5e-4
    assert (after - before).abs().max() < 1e-5
    assert (again.sampling_rate, again.max_seconds) == (own.sampling_rate, own.max_seconds)
