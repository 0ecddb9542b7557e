"""The file of answers; what it keeps is tested in test_runner.py."""

from __future__ import annotations

import sqlite3

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judges.prompted.cache import AnswerCache

from .servers import GOOD, Response, answer, serve


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


def test_a_store_of_something_else_is_refused(tmp_path):
    (tmp_path / "text.sqlite").write_text("hello " * 100)
    with pytest.raises(UserError, match="not a file of answers"):
        AnswerCache(tmp_path / "text.sqlite")
    base = sqlite3.connect(tmp_path / "other.sqlite")
    base.execute("PRAGMA user_version=7")
    base.close()
    with pytest.raises(UserError, match="another version"):
        AnswerCache(tmp_path / "other.sqlite")


@pytest.mark.parametrize("reply", ["", "[]", '{"kind": 7}', '{"kind": "answered", "usage": []}', "[" * 100_000])
def test_a_damaged_answer_is_not_paid_again(reply, make_judge, make_pairs, store):
    refuses(f"UPDATE answers SET reply = '{reply}'", make_judge, make_pairs, store)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET reply = replace(reply, '4', '2')",
        "UPDATE answers SET cost = 'much'",
        "UPDATE answers SET attempts = attempts + 1",
        "UPDATE answers SET sha256 = ''",
    ],
)
def test_an_answer_that_is_not_what_was_stored_is_not_believed(change, make_judge, make_pairs, store):
    refuses(change, make_judge, make_pairs, store)


def refuses(change: str, make_judge, make_pairs, store) -> None:
    """Whether a judge stops at an answer that was changed in its file, and asks nobody."""
    with serve(lambda request: Response(answer("openai", GOOD))) as server:
        judge = make_judge("openai", server.url)
        judge.score(make_pairs(1))
        store._base.execute(change)
        with pytest.raises(UserError, match=r"answers.sqlite: is damaged \(a row is not what was stored\)"):
            judge.score(make_pairs(1))
        assert len(server.requests) == 1
