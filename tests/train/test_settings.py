"""Recipes that come with the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from empathy_judge.models.work import CUDA_CONTEXT, GIB
from empathy_judge.train.memory import step_memory
from empathy_judge.train.settings import find_recipe, shipped_recipes

from ..conftest import failed
from ..pages import ROOT


@pytest.mark.parametrize("name", ["nano", "mushra"])
def test_the_memory_that_a_recipe_is_said_to_need_is_that_of_its_dry_run(name, parser):
    recipe = parser.recipe(parser.parse(["--config", name, "--run", "r"]))
    found = step_memory(
        recipe.judge, batch=recipe.data.batch_size, seconds=8.0, mixed_precision=False,
        gradient_checkpointing=False, audio_cached=True,
    )  # fmt: skip
    (own,) = (own for own in shipped_recipes() if own.name == name)
    assert f"takes {(found.total - CUDA_CONTEXT) / GIB:.1f} GiB" in own.needs


def test_recipes_are_found_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("nano").samefile(ROOT / "configs" / "nano.yaml")
    Path("nano").write_text("")  # a file of the user goes before
    assert find_recipe("nano") == Path("nano")
    line = failed(capsys, "train", "--config", "qwen_audio", "--run", "r")
    assert line.startswith("error: --config qwen_audio: no such file or recipe (did you mean qwen2_audio?); see ")
