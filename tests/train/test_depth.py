"""A run whose judge reads half of its backbone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.artifact import load_any, load_run
from empathy_judge.train.run import train
from safetensors.torch import load_file

from .conftest import scores_of


@pytest.fixture(scope="module")
def run(train_arguments, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    train(train_arguments(folder, judge__depth=0.5, judge__pooling="layer_mix", trainer__max_epochs=1))
    return folder


@pytest.mark.parametrize(
    ("form", "apart"),
    [
        ("small", 1e-5),
        ("merged", 1e-5),
        ("merged --accept-loss --quantization int8", 0.05),
        ("merged --accept-loss --quantization int4", 0.5),
    ],
)
def test_a_run_at_half_depth_is_exported_and_scores_the_same_in_any_batch(
    form, apart, run, backbone_folder, dataset_folder, tmp_path
):
    if "int" in form:
        pytest.importorskip("torchao" if "int8" in form else "bitsandbytes")
    trained = load_run(run).judge
    assert trained.settings.depth == len(trained.backbone.layers) == 2
    pairs = PairDataset.load(dataset_folder).subset(["validation"]).pairs
    expected = scores_of(trained, pairs)
    out = tmp_path / "judge"
    assert main(["export", str(run), "--out", str(out), "--form", *form.split()]) == 0
    assert json.loads((out / "judge.json").read_text())["settings"]["depth"] == 2
    assert "depth: the first 2 layers of the language model" in (out / "README.md").read_text()
    judge = load_any(out).judge
    assert len(judge.backbone.layers) == 2
    found = scores_of(judge, pairs)
    assert abs(found - expected).max() < apart
    assert abs(scores_of(judge, pairs, 1) - found).max() < 1e-5
    if form != "small":
        stored = load_file(out / "backbone" / "model.safetensors")
        assert {name.split(".")[3] for name in stored if ".language_model.layers." in name} == {"0", "1"}
        whole = load_file(backbone_folder / "model.safetensors")
        above = sum(whole[name].nbytes for name in whole if "language_model" in name and ".layers.2." in name)
        size = sum(own.nbytes for own in stored.values())
        assert sum(own.nbytes for own in whole.values()) - size >= 2 * above > 0
