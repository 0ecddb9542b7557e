"""The text of an error: one line that can be printed and read."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from empathy_judge.audio.decode import load_clip
from empathy_judge.core.errors import (
    MAX_MESSAGE_CHARACTERS,
    MAX_SHOWN_CHARACTERS,
    UserError,
    as_user_error,
    bug,
    counted,
    shown,
)
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.tables import parse_mapping


@pytest.mark.parametrize("gap", ["\n", "\r\n", "\u2028", "\x85", "\x0b"])
def test_one_line(gap):
    assert str(UserError(f"row 3{gap}value 4")) == "row 3 value 4"


def test_what_is_counted_stands_in_its_number():
    assert [counted(count, "pair") for count in (0, 1, 2, 1216)] == ["0 pairs", "1 pair", "2 pairs", "1,216 pairs"]
    assert [counted(count, "pair has", "pairs have") for count in (1, 2)] == ["1 pair has", "2 pairs have"]


def test_it_can_be_printed():
    """Half of a surrogate pair comes out of JSON, and out of file names that are not UTF-8."""
    assert str(UserError("clips/\udcff\ud800.wav")) == "clips/\\udcff\\ud800.wav"


def test_it_can_be_read():
    text = str(UserError(f"pairs.csv: {'x' * 10_000}; expected text"))
    assert len(text) == MAX_MESSAGE_CHARACTERS
    assert text.startswith("pairs.csv: x")
    assert text.endswith("x; expected text")
    assert len(shown("y" * 10_000)) == MAX_SHOWN_CHARACTERS


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: load_clip("no such.wav"), "audio"),
        (lambda: PairDataset.load(Path("no such folder")), "data"),
        (lambda: parse_mapping(["score"], "--column"), "usage"),
    ],
)
def test_programs_tell_errors_by_their_code(call, code):
    with pytest.raises(UserError) as error:
        call()
    assert error.value.code == code


@pytest.mark.parametrize(("processes", "told"), [("1", False), ("2", True)])
def test_a_bug_in_one_of_several_processes_may_come_from_another(processes, told, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    line = bug(RuntimeError("Connection closed by peer"))
    assert line.startswith("RuntimeError: Connection closed by peer: internal error")
    assert ("unless another process of the run ended before" in line) == told


@pytest.mark.parametrize("behind", [False, True], ids=["by itself", "behind an error of transformers"])
def test_a_torchaudio_that_does_not_go_with_torch_is_named(behind, tmp_path, monkeypatch):
    """As 2.11 beside torch 2.15."""
    versions = {"torch": "2.15.0", "torchaudio": "2.11.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    (tmp_path / "torchaudio").mkdir()
    (tmp_path / "torchaudio" / "__init__.py").write_text("from . import _extension\n")
    (tmp_path / "torchaudio" / "_extension.py").write_text('raise RuntimeError("different CUDA versions")\n')
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError) as raised:
        importlib.import_module("torchaudio")
    error: Exception = raised.value
    if behind:
        error = ModuleNotFoundError("Could not import module 'WhisperFeatureExtractor'")
        error.__cause__ = raised.value
    assert str(as_user_error(error)) == (
        "torchaudio 2.11.0 cannot be imported beside torch 2.15.0 (different CUDA versions); expected the newest of "
        "both, built for the same CUDA: pip install --upgrade torch torchaudio"
    )
