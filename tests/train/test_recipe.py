"""A number in a recipe is the same one in a file, on the command line and in Python, or it is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.settings import nested

ODD = r"is not the same number everywhere; expected decimal digits without zeros before them"
NUMBERS = [
    ("judge.lora.rank", "012"), ("seed", "010"), ("seed", "09"), ("seed", "0x10"), ("seed", "1_0"), ("seed", "0b11"),
    ("trainer.max_epochs", "1:30"), ("trainer.max_epochs", "1_0"), ("optimizer.learning_rate", "1_0e-4"),
    ("trainer.limit_train_batches", "1_0.5"), ("trainer.devices", "[1_0]"),
]  # fmt: skip


@pytest.fixture(scope="module")
def parser() -> RecipeParser:
    return RecipeParser()


def words(tmp_path: Path, name: str, text: str, way: str) -> Any:
    """A recipe with one value, in each way in which one can be written."""
    groups, _, last = name.rpartition(".")
    base = ["--config", "nano", "--data.path", "d"]
    file = tmp_path / "mine.yaml"
    match way:
        case "option":
            return [*base, f"--{name}", text]
        case "option with =":
            return [*base, f"--{name}={text}"]
        case "mapping in an option":
            return [*base, f"--{groups}", f"{{{last}: {text}}}"]
        case "Python":
            return {"config": "nano", "data": {"path": "d"}, **nested({name: text})}
        case "file":
            lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(name.split("."))]
            file.write_text("\n".join(lines) + f" {text}\n")
        case "mapping in a file":
            file.write_text(": {".join(name.split(".")) + f": {text}" + "}" * name.count(".") + "\n")
        case "quoted in a file":
            file.write_text(": {".join(name.split(".")) + f": '{text}'" + "}" * name.count(".") + "\n")
    return [*base, "--config", str(file)]


@pytest.mark.parametrize(("name", "text"), NUMBERS)
@pytest.mark.parametrize(
    "way",
    ["option", "option with =", "Python", "mapping in an option", "file", "mapping in a file", "quoted in a file"],
)
def test_an_odd_number_is_refused_however_it_is_given(parser, tmp_path, name, text, way):
    if way == "mapping in an option" and "." not in name:
        return
    with pytest.raises(UserError) as found:
        parser.parse(words(tmp_path, name, text, way))
    message = str(found.value)
    assert "is not the same number everywhere; expected decimal digits without zeros before them, '_' or ':'" in message
    assert text.strip("[]") in message
    assert "\n" not in message
    assert ("mine.yaml" if "file" in way else name.rpartition(".")[0] or name) in message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("judge.lora.rank", "12", 12), ("seed", "0", 0), ("optimizer.learning_rate", "1e-4", 1e-4),
        ("optimizer.learning_rate", "0.010", 0.01), ("trainer.max_epochs", "-1", -1), ("trainer.devices", "1", "1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["option", "option with =", "Python", "file", "mapping in a file"])
def test_a_plain_number_is_the_same_in_every_way(parser, tmp_path, name, text, value, way):
    found = parser.parse(words(tmp_path, name, text, way)).get(name)
    assert found == value or (name == "trainer.devices" and str(found) == value)


@pytest.mark.parametrize("text", ["012", "2024_10_01", "1:30", "09"])
def test_a_text_of_digits_stays_a_text(parser, tmp_path, text):
    for way in ("option", "Python", "quoted in a file"):
        assert parser.parse(words(tmp_path, "run", text, way)).run == text
    if text != "09":  # which is a text in YAML 1.1 and 1.2's number 9; here a text is wanted
        with pytest.raises(
            UserError, match=rf"mine\.yaml: .*{text} {ODD}.*, or quotes around a text, line 1, column 6"
        ):
            parser.parse(words(tmp_path, "run", text, "file"))


def test_a_file_that_a_setting_names(parser, tmp_path):
    file = tmp_path / "lora.yaml"
    base = ["--config", "nano", "--data.path", "d", "--judge.lora", str(file)]
    file.write_text("rank: 012\n")
    with pytest.raises(UserError, match=rf"lora\.yaml: not readable as YAML \(012 {ODD}"):
        parser.parse(base)
    file.write_text("rank: 12\n")
    assert parser.parse(base).judge.lora.rank == 12


def test_a_number_over_a_word_of_a_file(parser, tmp_path):
    """As on a machine with fewer GPUs than the recipe is for."""
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {devices: auto}\ndata: {batch_tokens: auto}\n")
    words = ["--config", "nano", "--config", str(file), "--data.path", "d"]
    laid_over = parser.parse([*words, "--trainer.devices", "2", "--data.batch_tokens", "4096"])
    assert (str(laid_over.trainer.devices), laid_over.data.batch_tokens) == ("2", 4096)
    assert parser.parse(words).trainer.devices == "auto"
