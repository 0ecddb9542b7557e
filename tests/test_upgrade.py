"""What earlier versions wrote is converted: recipes, sweeps, runs, judges and ensembles."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.written import is_of, write_files
from empathy_judge.models.artifact import load_any
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.settings import RENAMED
from empathy_judge.train.sweep import check_recipe, read_sweep
from empathy_judge.train.upgrade import upgrade

from .conftest import as_before, failed, output_of

OLD = """# my own
model:
  backbone: nano # the small one
  lora_parts: [language_model]
  lora_rank: 4
  full_parts: []
  # tried 1 as well
  losses:
    mse: 1.0
    ccc: 0.5 # of the batch
  learning_rate: 2e-3
  cache: audio
  gradient_checkpointing: false
data:
  path: d
"""
NEW = """# my own
judge:
  backbone: nano # the small one
  lora:
    parts: [language_model]
    rank: 4
    full_parts: []
    # tried 1 as well
objective:
  losses:
    mse: 1.0
    ccc: 0.5 # of the batch
optimizer:
  learning_rate: 2e-3
cache:
  what: audio
gradient_checkpointing: false
data:
  path: d
"""


def test_an_old_recipe_is_converted_with_its_comments(tmp_path, capsys, parser):
    path = tmp_path / "mine.yaml"
    path.write_text(OLD)
    said = output_of(capsys, "upgrade", path)
    assert path.read_text() == NEW
    assert f"{path}: model.lora_rank -> judge.lora.rank\n" in said
    assert said.count(" -> ") == 8
    assert parser.parse(["--config", str(path)]).optimizer.learning_rate == 0.002
    assert output_of(capsys, "upgrade", path) == f"{path}: nothing to convert\n"
    path.write_text("model: {lora_rank: 3}\n")
    assert main(["upgrade", str(path), "--json"]) == 0
    changed = [f"{path}: model.lora_rank -> judge.lora.rank"]
    assert json.loads(capsys.readouterr().out) == {"path": str(path), "changed": changed}
    path.write_text("model: {lora_rank: 3, losses: {mse: 1}}\nseed: 1\n")
    assert main(["upgrade", str(path)]) == 0
    assert yaml.safe_load(path.read_text()) == {
        "judge": {"lora": {"rank": 3}}, "objective": {"losses": {"mse": 1}}, "seed": 1
    }  # fmt: skip
    path.write_text("model:\n  \"lora_rank\" : 3\n  'backbone': 'nano'\nseed: 1\n")
    assert main(["upgrade", str(path)]) == 0
    assert path.read_text() == "judge:\n  lora:\n    rank : 3\n  backbone: 'nano'\nseed: 1\n"


@pytest.mark.parametrize("members", [["../other", "members/1"], [".", "members/1"], ["members/0", "members/1"]])
def test_an_ensemble_that_names_folders_outside_is_not_followed(members, judge_folder, tmp_path, capsys):
    judge, other = tmp_path / "judge", tmp_path / "other"
    old = as_before(json.loads((judge_folder / "judge.json").read_text()))
    for folder in (judge, other):
        folder.mkdir()
        (folder / "judge.json").write_text(json.dumps(old if folder == other else {**old, "members": members}))
    (judge / "members").mkdir()
    (judge / "members" / "0").symlink_to(other)
    assert "members" in failed(capsys, "upgrade", str(judge))
    assert json.loads((other / "judge.json").read_text()) == old


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  lora_rnak: 3\n", "never a setting model.lora_rnak"),
        ("model:\n  lora_rank: 3\njudge:\n  head: corn\n", "judge stands beside model"),
        ("[1]\n", "expected a recipe, a sweep file"),
        ("{model: {lora_rank: 3}, seed: 1}\n", "model cannot be converted as it is written; expected a setting a line"),
        ("model:\n  lora_rank: 3\n...\n", "model cannot be converted as it is written"),
        ("model:\n  ? lora_rank\n  : 3\nseed: 1\n", "model cannot be converted as it is written"),
        ("model:\n  backbone: 'a\u2028b'\nseed: 1\n", "model cannot be converted as it is written"),
        ("model:\n  lora_rank: 3\nmodel:\n  lora_rank: 4\n", "key 'model' stands twice"),
        ("[a]: 1\nmodel:\n  lora_rank: 3\n", "not readable as YAML"),
        ("search:\n  [a]: 1\n", "not readable as YAML"),
        ("model: {lora_rank: !mine 3}\n", "not readable as YAML"),
    ],
)
def test_what_cannot_be_converted_stays_as_it_is(text, message, tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert message in failed(capsys, "upgrade", str(path))
    assert path.read_text() == text
    line = failed(capsys, "upgrade", str(tmp_path))
    assert "expected a recipe or sweep file (YAML), a run folder or a judge folder" in line


def test_every_setting_of_earlier_versions_has_a_place(parser):
    names = set(parser.parse(["--config", "nano"]).keys(branches=True))
    assert set(RENAMED.values()) <= names


def test_an_old_sweep_is_converted(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    text = "train: [nano]\noverrides: {data.path: d}\nsearch:  # one\n  KEY: {low: 1e-4, high: 1e-2}\ntrials: 2\n"
    path.write_text(text.replace("KEY", "model.learning_rate"))
    with pytest.raises(UserError, match=r"model\.learning_rate is called optimizer\.learning_rate now"):
        check_recipe(read_sweep(path), path)
    assert output_of(capsys, "upgrade", path) == f"{path}: model.learning_rate -> optimizer.learning_rate\n"
    assert path.read_text() == text.replace("KEY", "optimizer.learning_rate")
    check_recipe(read_sweep(path), path)


def test_an_old_run_can_be_used_and_is_converted(trained_run, tmp_path, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    before = {path.name: read_checkpoint(path) for path in run.glob("checkpoints/*.ckpt")}
    for path in run.glob("checkpoints/*.ckpt"):
        old = read_checkpoint(path)
        torch.save({**old, "description": as_before(old["description"])}, path)
    (run / "config.yaml").write_text(OLD)
    loaded = load_any(run)
    assert f"`empathy-judge upgrade {run}` converts it" in capsys.readouterr().err
    assert output_of(capsys, "upgrade", run).count("description of the judge in today's names") == len(before) == 2
    assert (run / "config.yaml").read_text() == NEW
    for path in run.glob("checkpoints/*.ckpt"):
        after = read_checkpoint(path)
        assert after["description"] == before[path.name]["description"]
        assert all(
            torch.equal(value, after["state_dict"][key]) for key, value in before[path.name]["state_dict"].items()
        )
    assert load_any(run).description == loaded.description
    assert capsys.readouterr().err == ""


def test_an_old_judge_and_an_ensemble_of_old_judges_are_converted(judge_folder, make_old_ensemble, tmp_path, capsys):
    make_old_ensemble(judge := tmp_path / "judge")
    assert output_of(capsys, "upgrade", judge).count("schema_version 1 -> 3") == 3
    made = judge / "members" / "1" / "judge.json"
    assert json.loads(made.read_text()) == json.loads((judge_folder / "judge.json").read_text())
    loaded = load_any(judge)
    assert len(loaded.judge.members) == 2
    assert capsys.readouterr().err == ""


def test_a_member_that_is_not_the_one_of_the_ensemble_is_not_converted(make_old_ensemble, tmp_path, capsys):
    make_old_ensemble(judge := tmp_path / "judge")
    member = judge / "members" / "1" / "judge.json"
    member.write_text(old := member.read_text() + " ")
    before = (judge / "judge.json").read_text()
    assert f"{member}: " in failed(capsys, "upgrade", str(judge))
    assert (member.read_text(), (judge / "judge.json").read_text()) == (old, before)


def test_a_conversion_that_was_killed_goes_on_and_says_what_it_takes_over(make_old_ensemble, tmp_path, capsys):
    make_old_ensemble(judge := tmp_path / "judge")
    output_of(capsys, "upgrade", judge / "members" / "1")
    assert "judge.json: hash of members/1/judge.json as it is now" in output_of(capsys, "upgrade", judge)
    assert len(load_any(judge).judge.members) == 2


def test_the_settings_of_a_run_stay_those_that_training_may_replace(tmp_path):
    run = tmp_path / "run"
    write_files("train", run, {"config.yaml": b"model:\n  lora_rank: 2\n"})
    assert upgrade(run) != []
    assert is_of("train", run / "config.yaml")
