"""A judge opens with transformers: the same scores, through code that only looks for this package."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.audio_inputs import clip, make_pair
from empathy_judge.data_modules.errors import AudioError, UserError
from empathy_judge.hub_model import EmpathyJudgeModel, EmpathyJudgePipeline
from empathy_judge.models.artifact import load_judge
from empathy_judge.models.export.check import CheckSet
from empathy_judge.models.export.write import write_whole
from empathy_judge.scorer import Scorer
from huggingface_hub import metadata_load
from transformers import AutoConfig, AutoModel, pipeline

RATE = 16_000


@pytest.fixture(scope="module")
def clips(make_tone) -> list[tuple[np.ndarray, int]]:
    return [(make_tone(0.4 + 0.2 * n, 150 + 90 * n, 0.1 + 0.2 * n), RATE) for n in range(3)]


@pytest.fixture(scope="module")
def folder(judge_folder: Path, clips, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`judge_folder` for transformers, moved after it was written. Only read."""
    root = tmp_path_factory.mktemp("transformers")
    loaded = load_judge(judge_folder)
    pairs = [make_pair(f"{n}", None, clip(made)) for n, made in enumerate(clips)]
    write_whole(loaded, root / "written", "huggingface", "none", CheckSet("tones", pairs), device="cpu")
    (root / "written").rename(root / "moved judge")
    return root / "moved judge"


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module")
def scorer(judge_folder: Path) -> Scorer:
    return Scorer.from_pretrained(judge_folder, device="cpu")


def test_auto_model_gives_the_scores_of_the_judge(model, scorer, clips):
    assert isinstance(model, EmpathyJudgeModel)
    one, two, three = clips
    for context, response, situation in ((one, two, None), (None, three, "Late."), (three, one, "Late.")):
        expected = scorer.score(context, response, situation=situation)
        assert model.score(context, response, situation=situation) == pytest.approx(expected, abs=1e-5)
    several = scorer.score([one, None, three], [two, three, one], situation=["Late.", None, None])
    found = model.score([one, None, three], [two, three, one], situation=["Late.", None, None])
    for own, other in zip(found, several, strict=True):
        assert own == pytest.approx(other, abs=1e-5)
    made = model(response=[two, three, one], context=[one, None, three], situation=["Late.", None, None]).scores
    assert made.shape == (3, 2)
    assert made.dtype == torch.float32
    assert torch.allclose(made, torch.tensor([list(row.values()) for row in several]), atol=1e-5)
    assert made.std(0).min() > 1e-3
    assert model(response=two).scores.shape == (1, 2)


def test_it_is_a_module_with_the_weights_of_the_judge(model, folder):
    assert model.config.model_type == "empathy_judge"
    assert model.dimensions == ["empathy", "warmth"]
    assert not model.training
    assert model.num_parameters() > 2_000_000
    assert model.device.type == "cpu"
    assert AutoConfig.from_pretrained(folder, trust_remote_code=True).auto_map["AutoModel"]
    assert metadata_load(folder / "README.md")["library_name"] == "transformers"


def test_pipeline_takes_pairs(folder, scorer, clips):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judge = pipeline(model=str(folder), trust_remote_code=True, device="cpu")
    assert isinstance(judge, EmpathyJudgePipeline)
    one, two, _ = clips
    expected = scorer.score(one, two)
    found = judge({"context": one, "response": two})
    assert [row["label"] for row in found] == ["empathy", "warmth"]
    assert {row["label"]: row["score"] for row in found} == pytest.approx(expected, abs=1e-5)
    many = judge([{"response": two}, {"context": one, "response": two, "situation": "Late."}])
    assert many[0][0]["score"] == pytest.approx(scorer.score(None, two)["empathy"], abs=1e-5)
    for wrong in ({"context": one}, {"response": two, "speaker": "x"}):
        with pytest.raises(UserError, match=r"accepted: \{'response': clip"):
            judge(wrong)
    with pytest.raises(UserError, match="parameter 'top_k'; accepted: none"):
        judge({"response": two}, top_k=2)


def test_what_means_nothing_to_a_judge_is_refused(folder, model, clips, tmp_path):
    for options, reason in (
        ({"attn_implementation": "eager"}, "option 'attn_implementation' means nothing to a judge"),
        ({"dtype": torch.float16}, "in which its scores were checked"),
        ({"device_map": {"judge": 0}}, "device_map"),
    ):
        with pytest.raises(UserError, match=reason):
            EmpathyJudgeModel.from_pretrained(folder, **options)
    with pytest.raises(UserError, match="3 responses with 1 contexts"):
        model.score([None], list(clips))
    with pytest.raises(AudioError):
        model.score(None, str(tmp_path / "missing.wav"))
    with pytest.raises(UserError, match="a judge is not written again; accepted: copy"):
        model.save_pretrained(tmp_path / "again")


def test_the_code_beside_it_only_looks_for_the_package(folder):
    """And names it in one line where it is not installed."""
    code = (folder / "modeling_empathy_judge.py").read_text()
    assert [type(part).__name__ for part in ast.parse(code).body] == ["Expr", "Try", "Assign"]
    words = [sys.executable, "-I", "-S", str(folder / "modeling_empathy_judge.py")]  # without site-packages
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ImportError: this judge needs the package empathy-judge: pip install" in ended.stderr.splitlines()[-1]
