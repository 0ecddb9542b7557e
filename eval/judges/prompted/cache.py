"""Answers that were paid for, in an SQLite file: a killed run goes on, and nothing is asked twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ....data_modules.errors import UserError
from .provider import Provider, Reply
from .questions import Question

_VERSION = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    asked TEXT NOT NULL,      -- who: provider, model and server
    sample INTEGER NOT NULL,
    reply TEXT NOT NULL,      -- JSON: what the model wrote, its version, tokens
    cost REAL,                -- dollars; NULL = no price is known
    seconds REAL NOT NULL,
    attempts INTEGER NOT NULL,
    created REAL NOT NULL     -- seconds since 1970
)
"""
_REPLIES = TypeAdapter(Reply)


def cache_key(provider: Provider, question: Question, sample: int) -> str:
    """What an answer is kept under: who is asked, what, with which clips and parameters, and which sample it is."""
    content = [provider.name, provider.place, provider.model, question.fingerprint(), str(sample)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


@dataclass(frozen=True)
class CachedAnswer:
    """A reply and what it took."""

    reply: Reply  # what came back, refusals included
    cost: float | None  # dollars; None = no price is known
    seconds: float  # from the first attempt to the reply, waiting included
    attempts: int  # requests that were sent


class AnswerCache:
    """Key -> `CachedAnswer`. Every answer is on disk before it counts; several processes may use one file.

    Holds what models wrote: no audio, no question, no header, no key of an account.

    Args:
        path: The file; its folder is made.

    Raises:
        UserError: If it cannot be opened, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise UserError(f"{path}: answers of another version of this program; name another file")
            for statement in ("PRAGMA journal_mode=WAL", _TABLE, f"PRAGMA user_version={_VERSION}"):
                self._base.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{path}: not a file of answers ({error})") from None

    def get(self, key: str) -> CachedAnswer | None:
        """The answer, if there is one.

        Raises:
            UserError: If the file is damaged: what was paid for is not asked again in silence.
        """
        wanted = "SELECT reply, cost, seconds, attempts FROM answers WHERE key = ?"
        try:
            row = self._base.execute(wanted, (key,)).fetchone()
            return row and CachedAnswer(_REPLIES.validate_json(row[0]), *row[1:])
        except (sqlite3.Error, ValidationError) as error:
            reason = "a row is no answer" if isinstance(error, ValidationError) else error
            raise UserError(f"{self.path}: is damaged ({reason}); name another file with --answers") from None

    def put(self, key: str, asked: str, sample: int, answer: CachedAnswer) -> None:
        """Keeps an answer; raises `UserError` if the disk is full or the file cannot be written."""
        row = (key, asked, sample, json.dumps(asdict(answer.reply)), answer.cost, answer.seconds, answer.attempts)
        try:
            self._base.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, time.time()))
        except sqlite3.Error as error:
            raise UserError(f"{self.path}: an answer cannot be kept ({error})") from None
