"""The file of answers; what it keeps is tested in test_runner.py."""

from __future__ import annotations

import sqlite3

import pytest
from empathy_judge.data_modules.errors import UserError
from empathy_judge.eval.judges.prompted.cache import AnswerCache


def test_a_database_of_another_program_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.sqlite"
    notes = sqlite3.connect(path)
    notes.execute("CREATE TABLE notes (text TEXT)")
    notes.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="is a database of another program; name another file with --answers"):
        AnswerCache(path)
    assert path.read_bytes() == before


def test_several_open_one_file(tmp_path):
    for _ in range(3):
        assert AnswerCache(tmp_path / "answers.sqlite").get("key") is None
