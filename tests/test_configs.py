"""Every recipe can be run, and every value of it can be changed on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from empathy_judge.cli import COMMANDS
from empathy_judge.commands.options import build_parser as cli_parser
from empathy_judge.models.backbones import families
from empathy_judge.train.run import build_parser
from empathy_judge.train.sweep_file import check_recipe, read_sweep

FILES = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
SWEEPS = [path for path in FILES if path.stem.startswith("sweep_")]
CONFIGS = [path for path in FILES if path not in SWEEPS]
NANO = str(Path(__file__).parents[1] / "configs" / "nano.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_begins_with_its_command(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    command = "# empathy-judge train "
    assert first.startswith(command)
    words = first.removeprefix(command).split()
    assert f"configs/{path.name}" in words
    root = Path(__file__).parents[1]
    config = build_parser().parse_args([str(root / word) if word.startswith("configs/") else word for word in words])
    assert config.model.backbone
    assert config.data.batch_size >= 1
    assert config.trainer.max_epochs >= 1
    assert config.run


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_is_valid_and_begins_with_its_command(path, monkeypatch):
    monkeypatch.chdir(path.parents[1])
    words = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# empathy-judge ").split()
    options = cli_parser(COMMANDS).parse_args(words)
    assert Path(options.config) == Path("configs") / path.name
    sweep = read_sweep(path)
    base = check_recipe(sweep, path)
    assert base.data.path == "demo/data"
    assert sweep.trials >= 2


def test_the_table_of_backbones_names_every_family_with_the_checkpoint_of_its_recipe():
    page = (Path(__file__).parents[1] / "docs" / "reference" / "backbones.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`.*? \| (\S+/\S+(?:, revision \S+)?) \|", page, flags=re.MULTILINE))
    assert set(rows) == set(families())
    for name, checkpoint in rows.items():
        model = yaml.safe_load((CONFIGS[0].parent / f"{name}.yaml").read_text(encoding="utf-8"))["model"]
        revision = f", revision {model['revision']}" if "revision" in model else ""
        assert checkpoint == model["backbone"] + revision


def test_there_are_recipes():
    assert "nano" in [path.stem for path in CONFIGS]
    assert "sweep_nano" in [path.stem for path in SWEEPS]


@pytest.mark.parametrize(
    ("word", "group", "name", "value"),
    [
        ("--trainer.max_epochs=7", "trainer", "max_epochs", 7),
        ("--trainer.gradient_clip_val=0.5", "trainer", "gradient_clip_val", 0.5),
        ("--trainer.precision=bf16-mixed", "trainer", "precision", "bf16-mixed"),
        ("--model.lora_rank=3", "model", "lora_rank", 3),
        ('--model.lora_parts=["projector","audio_tower"]', "model", "lora_parts", ["projector", "audio_tower"]),
        ("--model.pooling=attention", "model", "pooling", "attention"),
        ("--model.cache=none", "model", "cache", "none"),
        ("--data.batch_size=5", "data", "batch_size", 5),
        ("--data.path=elsewhere", "data", "path", "elsewhere"),
        ("--data.target=bias_corrected", "data", "target", "bias_corrected"),
    ],
)
def test_a_value_is_overridden_on_the_command_line(word, group, name, value):
    parser = build_parser()
    before = parser.parse_args(["--config", NANO, "--run", "r"])
    after = parser.parse_args(["--config", NANO, "--run", "r", word])
    assert before[group][name] != value
    assert after[group][name] == value
    after[group][name] = before[group][name]
    assert after == before  # and nothing else changed


def test_a_later_file_overrides_an_earlier_one(tmp_path):
    (tmp_path / "more.yaml").write_text("model:\n  lora_rank: 2\ntrainer:\n  max_epochs: 9\n")
    config = build_parser().parse_args(["--config", NANO, "--config", str(tmp_path / "more.yaml"), "--run", "r"])
    assert (config.model.lora_rank, config.trainer.max_epochs, config.model.lora_alpha) == (2, 9, 32.0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model.lora_rnak=3"], "lora_rnak"),
        (["--trainer.callbacks=[]"], "callbacks"),  # set by the program
        (["--data.seed=1"], "seed"),  # --seed rules both
        (["--model.pooling=median"], "median"),
        (["--data.target=mode"], "mode"),
        (['--model.lora_parts=["decoder"]'], "decoder"),
        (["--trainer.max_epochs=many"], "many"),
        (["--config", "absent.yaml"], "absent.yaml"),
    ],
)
def test_an_unknown_key_or_value_is_bad_usage(words, text, capsys):
    with pytest.raises(SystemExit) as found:
        build_parser().parse_args(["--config", NANO, "--run", "r", *words])
    assert found.value.code == 2
    message = capsys.readouterr().err
    assert text in message
    assert "Traceback" not in message


def test_an_unknown_key_in_a_file_is_bad_usage(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("model:\n  lora_rnak: 2\n")
    with pytest.raises(SystemExit) as found:
        build_parser().parse_args(["--config", str(tmp_path / "bad.yaml"), "--run", "r"])
    assert found.value.code == 2
    assert "lora_rnak" in capsys.readouterr().err


def test_run_and_data_are_required(capsys):
    for words in (["--config", NANO, "--data.path", "d"], ["--run", "r"]):
        with pytest.raises(SystemExit) as found:
            build_parser().parse_args(words)
        assert found.value.code == 2
    assert "data.path" in capsys.readouterr().err
