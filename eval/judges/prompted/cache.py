"""Cache of answers in an SQLite file: a killed run can be continued, and nothing is asked or paid twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ....core.errors import UserError
from .provider import Provider
from .questions import Question
from .replies import Reply

_VERSION = 2
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    asked TEXT NOT NULL,      -- who: provider, model and server
    sample INTEGER NOT NULL,
    reply TEXT NOT NULL,      -- JSON: what the model wrote, its version, tokens
    cost REAL,                -- dollars; NULL = no price is known
    seconds REAL NOT NULL,
    attempts INTEGER NOT NULL,
    created REAL NOT NULL,    -- seconds since 1970
    sha256 TEXT NOT NULL      -- of key, reply, cost, seconds and attempts
)
"""
_REPLIES = TypeAdapter(Reply)


def cache_key(provider: Provider, question: Question, sample: int) -> str:
    """Key of an answer: a hash of provider, model, question with its clips and parameters, and number of the sample."""
    content = [provider.name, provider.host, provider.model, question.fingerprint(), str(sample)]
    # The same clips sent in another way are another question, since a server may not hear them
    content += [provider.clips] if provider.clips else []
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _row_hash(key: str, values: Sequence[object]) -> str:
    """Hash of a row of the file, which SQLite itself does not check."""
    return hashlib.sha256(json.dumps([key, *values]).encode()).hexdigest()


@dataclass(frozen=True)
class CachedAnswer:
    """A reply with its cost, time and number of attempts."""

    reply: Reply  # what came back, refusals included
    cost: float | None  # dollars; None = no price is known
    seconds: float  # from the first attempt to the reply, waiting included
    attempts: int  # requests that were sent


class AnswerCache:
    """Maps keys to `CachedAnswer`. Every answer is on disk before it is used; several processes may use one file.

    The file contains what models wrote: no audio, no question, no header, no API key.

    Args:
        path: The file; its folder is created.

    Raises:
        UserError: If it cannot be opened, or is no file of answers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise UserError(f"{path}: answers of another version of this program; name another file")
            others = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name != 'answers'"
            if self._base.execute(others).fetchone() != (0,):
                raise UserError(f"{path}: is a database of another program; name another file with --answers")
            # With a write-ahead log readers do not block writers, and a kill at any moment leaves whole answers
            for statement in ("PRAGMA journal_mode=WAL", _TABLE, f"PRAGMA user_version={_VERSION}"):
                self._base.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{path}: not a file of answers ({error})") from None

    def get(self, key: str) -> CachedAnswer | None:
        """The answer, if there is one.

        Raises:
            UserError: If the file is damaged: answers that were paid for are never asked again silently.
        """
        query = "SELECT reply, cost, seconds, attempts, sha256 FROM answers WHERE key = ?"
        try:
            row = self._base.execute(query, (key,)).fetchone()
            if row is None:
                return None
            *values, sha256 = row
            # A flipped bit in a score would be a score
            if sha256 != _row_hash(key, values):
                raise ValueError("a row is not what was stored")
            return CachedAnswer(_REPLIES.validate_json(values[0]), *values[1:])
        except (sqlite3.Error, ValueError) as error:  # pydantic's ValidationError is a ValueError
            reason = "a row is no answer" if isinstance(error, ValidationError) else error
            raise UserError(f"{self.path}: is damaged ({reason}); name another file with --answers") from None

    def put(self, key: str, asked: str, sample: int, answer: CachedAnswer) -> None:
        """Stores an answer; raises `UserError` if the disk is full or the file cannot be written."""
        values = json.dumps(asdict(answer.reply)), answer.cost, answer.seconds, answer.attempts
        row = (key, asked, sample, *values, time.time(), _row_hash(key, values))
        try:
            self._base.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise UserError(f"{self.path}: an answer cannot be kept ({error})") from None
