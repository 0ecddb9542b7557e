"""YAML files are read as they are written."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from empathy_judge.core.errors import DataError
from empathy_judge.core.yaml_files import check_yaml, read_yaml
from empathy_judge.data_modules.schema import PairDataset


@pytest.mark.parametrize("text", ["012", "-012", "1:30", "1:30.5", "1_0", "1_0.5", "0x1F", "0b11", "00"])
def test_numbers_that_programs_read_differently(tmp_path, text):
    """The first four are 10, -10, 90 and 90.5 in YAML 1.1."""
    path = tmp_path / "a.yaml"
    for content, column in ((f"a: {text}", 4), (f"a: {{b: [x, {text}]}}", 12), (f"{text}: a", 1)):
        path.write_text(content)
        expected = rf"\({text} is not the same .* quotes around a text, line 1, column {column}\)"
        with pytest.raises(DataError, match=rf"a\.yaml: not readable as YAML {expected}"):
            read_yaml(path)
    path.write_text(f"a: '{text}'")
    assert read_yaml(path) == {"a": text}


def test_numbers_that_are_plain(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("[0, 12, -3, +4, 0.5, 1.0e-3, .5, 05.5, .inf, -.inf]")
    assert read_yaml(path) == [0, 12, -3, 4, 0.5, 1e-3, 0.5, 5.5, float("inf"), float("-inf")]


@pytest.mark.parametrize("text", ["012", "08", "1:30", "1_0", "1_0e3", "1e3", "09_1", "2024-10-01"])
def test_what_the_program_writes_it_reads(tmp_path, text):
    """Names of speakers and systems stand in ``split.yaml``; PyYAML writes some of them without quotes."""
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({"names": [text], text: 1}))
    assert read_yaml(path) == {"names": [text], text: 1}


@pytest.mark.parametrize("text", ["08", "1_0e3", "0_9", "٣", "-１.5"])
def test_what_a_person_typed(text):
    with pytest.raises(yaml.YAMLError, match=f"{text} is not the same number everywhere"):
        check_yaml(f"a: {text}", as_typed=True)


def test_a_zero_byte_is_in_no_text(tmp_path):
    """As a name of a folder it was a bug's line: the system takes it in none."""
    path = tmp_path / "a.yaml"
    path.write_text('run: x\ncache: {folder: "a\\0b"}')
    with pytest.raises(
        DataError, match=r"a\.yaml: not readable as YAML \(a text holds a zero byte, line 2, column 17\)"
    ):
        read_yaml(path)


YAML = {
    "bomb": ("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)), "more than 1000000 values"),
    "itself": ("a: &a [*a]\n", "more than 1000000 values"),
    "deep": ("a: " + "[" * 3_000 + "]" * 3_000, "nested too deep"),
    "deep block": ("".join(f"{' ' * n}a:\n" for n in range(3_000)), "nested too deep"),
    "twice": ("a: 1\nb: {c: 1, c: 2}\n", "key 'c' stands twice in a mapping, line 2, column 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_is_more_than_it_looks(tmp_path, name):
    text, message = YAML[name]
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=rf"dataset\.yaml: not readable as YAML \({message}"):
        PairDataset.load(tmp_path)


def test_many_keys_take_no_time(tmp_path):
    """Counting each key among all took minutes."""
    values = {f"k{number}": number for number in range(8_000)}
    (tmp_path / "a.yaml").write_text(json.dumps(values))
    start = time.process_time()
    assert read_yaml(tmp_path / "a.yaml") == values
    assert time.process_time() - start < 12
