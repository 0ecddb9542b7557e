"""Every recipe can be run and every value of it changed; what is no setting is refused in one line; old files are
converted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import empathy_judge
import pytest
import yaml
from empathy_judge.core.errors import UserError
from empathy_judge.models.backbones import FAMILIES
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.settings import find_recipe
from lightning_utilities.core.imports import RequirementCache

from .conftest import failed, output_of
from .pages import ROOT

FILES = sorted((ROOT / "configs").glob("*.yaml"))
TENS = [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
BOMB = "\n".join(["expected_trainable:", "  a0: &a0 [1]", *TENS])  # 10^11 ones for whoever copies it


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_begins_with_its_command(path, parser):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    words = first.removeprefix("# empathy-judge train ").split()
    assert first.startswith("# empathy-judge train ")
    assert path.stem in words
    config = parser.parse(words)
    assert config.judge.backbone
    assert config.data.batch_size >= 1
    assert config.method == "probe" or config.trainer.max_epochs >= 1
    assert config.run


def test_the_table_of_backbones_names_every_family_with_the_checkpoint_of_its_recipe():
    page = (ROOT / "docs" / "reference" / "backbones.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`.*? \| (\S+/\S+(?:, revision \S+)?) \|", page, flags=re.MULTILINE))
    assert set(rows) == set(FAMILIES)
    for name, checkpoint in rows.items():
        judge = yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))["judge"]
        revision = f", revision {judge['revision']}" if "revision" in judge else ""
        assert checkpoint == judge["backbone"] + revision


def test_recipes_are_listed_with_what_they_need(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert len(output_of(capsys, "recipes").splitlines()) == len(FILES) + 3  # two heads and a hint: they fit a screen
    monkeypatch.setenv("COLUMNS", "80")  # no name is broken, and what a recipe is ends with its first sentence
    listed = output_of(capsys, "recipes")
    assert all(re.search(rf"\b{path.stem}\b", listed) for path in FILES)
    found = {own["name"]: own for own in json.loads(output_of(capsys, "recipes", "--json"))}
    assert list(found) == [path.stem for path in FILES]
    for name, own in found.items():
        assert sum(line.startswith("# needs: ") for line in find_recipe(name).read_text().splitlines()) == 1, name
        assert re.match(r"no GPU; |one GPU of \d+ GB; |one or more GPUs of \d+ GB|several GPUs|what the ", own["needs"])
        assert own["command"].startswith("empathy-judge ")
        assert own["about"].endswith(".")
        assert "`--dry-run`" in own["needs"] or "GiB" not in own["needs"]  # a figure says where it is from
    assert found["qwen2_audio"]["backbone"] == "Qwen/Qwen2-Audio-7B-Instruct"
    assert found["mixed"]["backbone"] is None
    assert max(map(len, listed.splitlines())) <= 80
    first = " ".join(own["about"].partition(". ")[0].removesuffix(".") for own in found.values())
    assert set(first.split()) <= set(listed.split())
    small = output_of(capsys, "recipes", "--gpu-gib", "24")
    assert "qwen3_asr" in small
    assert "qwen2_audio" not in small
    assert "nano_wandb" not in small  # is added to a judge
    assert failed(capsys, "train", "--list") == "error: train --list: recipes are listed by `empathy-judge recipes`"


def test_a_recipe_is_printed_with_the_help_of_its_settings_and_trains_the_same(capsys, parser):
    text = output_of(capsys, "recipes", "show", "nano")
    assert "(attention).\n  pooling: response_mean\n" in text
    assert "    # Rank of the update.\n    rank: 16\n" in text
    for path in FILES:
        shown = parser.with_help(path.read_text())
        assert yaml.safe_load(shown) == yaml.safe_load(path.read_text())
        assert shown.splitlines()[:2] == path.read_text().splitlines()[:2]
    for words, message in (
        (["show"], "expected recipes show NAME"),
        (["show", "nano", "--json"], "expected recipes show NAME, without --json"),
        (["show", "nano", "--gpu-gib", "24"], "without --json and --gpu-gib"),
        (
            ["show", "nanoo"],
            "recipes show nanoo: no such file or recipe (did you mean nano?); see empathy-judge recipes",
        ),
        (["nano"], "invalid choice: 'nano'"),
    ):
        assert message in failed(capsys, "recipes", *words)


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("--trainer.max_epochs=7", "trainer.max_epochs", 7),
        ("--trainer.precision=bf16-mixed", "trainer.precision", "bf16-mixed"),
        ("--judge.lora.rank=3", "judge.lora.rank", 3),
        ('--judge.lora.parts=["projector","audio_tower"]', "judge.lora.parts", ["projector", "audio_tower"]),
        ("--judge.pooling=attention", "judge.pooling", "attention"),
        ("--objective.losses.ccc=0.5", "objective.losses.ccc", 0.5),
        ("--cache.what=none", "cache.what", "none"),
        ("--data.target=bias_corrected", "data.target", "bias_corrected"),
        ("--checkpoint-steps=7", "checkpoint_steps", 7),
        ("--dry-run", "dry_run", True),
    ],
)
def test_a_value_is_overridden_on_the_command_line(word, name, value, parser):
    before = parser.parse(["--config", "nano", "--run", "r"])
    after = parser.parse([word, "--config", "nano", "--run", "r"])  # wherever it stands
    assert before[name] != value
    assert after[name] == value
    after[name] = before[name]
    assert after == before  # and nothing else changed


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "audio"),
        (["--judge.lora.parts=[audio_tower]"], "none"),
        (["--judge.lora.full_parts=[audio_tower]"], "none"),
        (["--data.augmentation.gain_probability=0.5"], "none"),
        (["--trainer.strategy.class_path=empathy_judge.train.strategies.ShardedStrategy"], "none"),
        (["--cache.what=layers"], "layers"),
    ],
)
def test_audio_is_cached_where_nothing_changes_it(words, what, parser):
    assert parser.recipe(parser.parse(["--data.path=d", *words])).cache.what == what


def test_a_later_file_overrides_an_earlier_one_and_python_has_the_same_tree(tmp_path, parser):
    (tmp_path / "more.yaml").write_text("judge:\n  lora:\n    rank: 2\ntrainer:\n  max_epochs: 9\n")
    config = parser.parse(["--config", "nano", "--config", str(tmp_path / "more.yaml"), "--run", "r"])
    assert (config.judge.lora.rank, config.trainer.max_epochs, config.judge.lora.alpha) == (2, 9, 32.0)
    tree = yaml.safe_load(find_recipe("nano").read_text()) | {"run": "r"}
    from_words = parser.parse(["--config", "nano", "--run", "r"])
    assert parser.recipe(parser.parse(tree)) == parser.recipe(from_words)


def test_a_tree_is_laid_over_the_recipes_that_it_names_as_words_are(tmp_path, parser):
    more = tmp_path / "more.yaml"
    more.write_text("judge:\n  lora:\n    rank: 2\nobjective:\n  losses: {ccc: 0.5}\nexpected_trainable: {head: 1}\n")
    words = ["--config", "nano", "--config", str(more), "--trainer.max_epochs", "9", "--run", "r", "--data.path", "d"]
    tree = {"config": ["nano", more], "trainer": {"max_epochs": 9}, "run": "other"}
    values = {"run": "r", "data.path": "d"}
    expected = parser.recipe(parser.parse(words))
    assert parser.recipe(parser.parse(tree, values)) == expected
    assert parser.recipe(parser.parse({**tree, "config": "nano", "judge": {"lora": {"rank": 3}}}, values)) != expected
    assert parser.parse("nano", values) == parser.parse(["--config", "nano", "--run", "r", "--data.path", "d"])
    for wrong, message in [
        ({"config": "nano", "lora": 1}, "recipe: there is no setting lora"),
        ({"config": "nnao"}, "--config nnao: no such file or recipe"),
        ("nnao", "--config nnao: no such file or recipe"),
        ({"config": "nano", "judge": {"lora": {"rank": None}}}, "recipe: judge.lora.rank without a value; expected"),
        ({"config": "nano", "method": None}, "recipe: method without a value; expected one, or no such line"),
    ]:
        with pytest.raises(UserError, match=message):
            parser.parse(wrong, values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--judge.lora.rnak=3"],
            "there is no setting judge.lora.rnak (did you mean judge.lora.rank?); see empathy-judge train --help",
        ),
        (["--max_epochs", "3"], "there is no setting max_epochs (did you mean trainer.max_epochs?)"),
        (["--lora_rank", "3"], "there is no setting lora_rank (did you mean judge.lora.rank?)"),
        (["--trainer.callbacks=[]"], "there is no setting trainer.callbacks that you can set; see"),
        (["--data.seed=1"], "there is no setting data.seed"),  # --seed rules both
        (["--judge.pooling=median"], "judge.pooling median; expected last_token, response_mean, attention"),
        (['--judge.lora.parts=["decoder"]'], "judge.lora.parts decoder; expected language_model, projector"),
        (["--trainer.max_epochs=many"], "trainer.max_epochs many; expected int or null"),
        (["--default_root_dir=x"], "there is no setting default_root_dir (did you mean run?); see"),
        (["--trainer.default_root_dir=x"], "there is no setting trainer.default_root_dir (did you mean run?); see"),
        (["--out", "x"], "there is no setting out (did you mean run?); see"),
        (["--trainer.bogus=1"], "there is no setting trainer.bogus; see empathy-judge train --help"),
        (["--trainer.max_epoch=1"], "there is no setting trainer.max_epoch (did you mean trainer.max_epochs?)"),
        (["--optimiser.learning_rate=1"], "(did you mean optimizer.learning_rate?)"),
        (["--config", "absent.yaml"], "--config absent.yaml: no such file or recipe"),
        (["--config"], "--config without a value"),
        (["--data.batch_size"], "expected one argument"),
        (["--judge", "hello"], "judge: expected settings and their values"),
    ],
)
def test_what_is_no_setting_or_value_is_refused_in_one_line(words, message, capsys):
    assert message in failed(capsys, "train", "--config", "nano", "--run", "r", *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judge:\n  lora:\n    rnak: 2\n", "there is no setting judge.lora.rnak (did you mean judge.lora.rank?)"),
        ("model:\n  lora_rank: 2\n", "there is no setting model"),
        ("seed: 1\nseed: 2\n", "key 'seed' stands twice"),
        ("judge:\n  head: corn\n  head: histogram\n", "key 'head' stands twice"),
        ("[1, 2]\n", "bad.yaml: expected settings and their values"),
        ("", "bad.yaml: expected settings and their values"),
        ("judge:\n", "bad.yaml: judge without a value; expected one, or no such line"),
        ("judge:\n  lora: null\n", "bad.yaml: judge.lora without a value"),
        ("data:\n  target: null\n", "bad.yaml: data.target without a value"),
        ("seed: null\n", "bad.yaml: seed without a value"),
        ("judge: 3\n", "bad.yaml: judge 3; expected settings and their values"),
        ("data: [1, 2]\n", "bad.yaml: data [1, 2]; expected settings and their values"),
        ("seed: [1\n", "not readable as YAML"),
        ("judge: a: b\n", "bad.yaml: not readable as YAML (mapping values are not allowed here, line 1, column 9)"),
        ("judge:\n  pooling: median\n", "judge.pooling median; expected last_token"),
        (BOMB, "those that aliases stand for included"),
        ("seed: 1 # \xe4\n".encode("latin-1"), "not readable as YAML ('utf-8' codec"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, message, tmp_path, parser):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as found:
        parser.parse(["--config", "nano", "--config", str(path), "--run", "r"])
    assert message in str(found.value)


@pytest.mark.parametrize(
    "words",
    [
        ["--trainer", "own.yaml"],
        ['--trainer={"devices": 2}'],
        ["--trainer.max_time", '{"hours": 3}'],
        ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "x"],
        ["--config", "nano_wandb", "--config", "strategy_fsdp2"],
    ],
)
def test_arguments_of_the_trainer_pass_the_first_look(words, parser, tmp_path, monkeypatch):
    """`train` parses twice: the first time without knowing them, so that mistakes are told without torch."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("{devices: 1, precision: 16-mixed}")
    first, whole = (
        one.parse(["--config", "nano", "--data.path", "d", *words]) for one in (RecipeParser(False), parser)
    )
    assert first.judge == whole.judge
    assert first.data == whole.data


@pytest.mark.parametrize(("recipe", "extra"), [("nano_wandb", "wandb"), ("strategy_zero2", "deepspeed")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(recipe, extra, parser, monkeypatch):
    available = RequirementCache(f"{extra}>=999")
    where = {"wandb": "loggers.wandb._WANDB_AVAILABLE", "deepspeed": "strategies.deepspeed._DEEPSPEED_AVAILABLE"}
    monkeypatch.setattr(f"lightning.pytorch.{where[extra]}", available)
    parsed = parser.parse(["--config", "nano", "--config", recipe, "--data.path", "data", "--run", "run"])
    message = f"trainer: {extra} is not installed, or too old; pip install 'empathy-judge[{extra}]'"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        parser.recipe(parsed)


def test_help_spells_what_is_no_key_of_a_recipe_as_other_commands_do(parser):
    shown = parser.parser.format_help()
    assert all(f" --{name} " in shown for name in ("dry-run", "clip-seconds", "gpu-gib", "checkpoint_steps"))
    assert not re.search("--(dry_run|clip_seconds|gpu_gib)", shown)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"])
@pytest.mark.parametrize("value", ["abc", "", "-1"])
def test_ranks_that_are_no_numbers_are_one_line(name, value, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    assert failed(capsys, "train", "--config", "nano", "--run", "r") == (
        f"error: {name}={value}: not a number; expected it as torchrun or srun sets it, or not at all (unset {name})"
    )
    with pytest.raises(UserError, match=f"{name}={value}: not a number"):
        empathy_judge.train("nano", run="r")


def test_run_and_data_are_required(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = failed(capsys, "train", "--config", "nano", "--data.path", "d")
    assert "no --run; expected the folder of this run" in line
    assert failed(capsys, "train", "--config", "nano", "--data.path", "d", "--run", "") == line
    assert "data.path" in failed(capsys, "train", "--run", "r")
