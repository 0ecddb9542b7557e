"""Errors that a user can mend: one line, no traceback. The command line prints them and exits with code 2."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError

Locate = Callable[[int, str], str]
"""Position of a row (from 0) and our name of a column -> where the cell stands, for the head of a message."""

ASKED_TO_STOP = 75
"""Exit code after SIGTERM, EX_TEMPFAIL of sysexits.h: what was done is kept, start the same command again."""

AudioErrorKind = Literal[
    "no such file",
    "cannot be read",
    "the file is empty",
    "not a sound file",
    "the file is cut off",
    "the file is damaged",
    "not what was imported",
    "not supported",
    "too short",
    "too long",
    "not finite or not scaled",
    "too large for the memory",
    "leaves the folder",
    "empty cell",
    "not a clip",
    "a path",
    "not a turn",
    "not text",
    "no finite score",
    "process died",
    "cannot be used",
]
"""What is wrong with a clip, or with a row of a table of clips; the last where none of the others says it."""

MAX_SHOWN_CHARACTERS = 80
MAX_MESSAGE_CHARACTERS = 2_000


class UserError(Exception):
    """Something the user can mend. The text is one line, at most `MAX_MESSAGE_CHARACTERS` long, and says what was found
    and what is expected.

    Attributes:
        code: For programs, the same in every version: ``audio`` (this clip cannot be used; go on with the others),
            ``data`` (a table, a card or a folder has to be mended) or ``usage`` (all else: a setting, a name, a folder
            that is taken; the call has to be changed).
    """

    code: ClassVar[str] = "usage"

    def __init__(self, message: str) -> None:
        # Half of a surrogate pair, out of JSON or a file name, could be neither printed nor written
        text = " ".join(message.splitlines()).encode("utf-8", "backslashreplace").decode("utf-8")
        if len(text) > MAX_MESSAGE_CHARACTERS:
            text = f"{text[: MAX_MESSAGE_CHARACTERS - 505]} ... {text[-500:]}"
        super().__init__(text)


class DataError(UserError):
    """A table, a card or a folder breaks the data contract."""

    code: ClassVar[str] = "data"


class OutsideError(DataError):
    """A path leaves the folder that it has to stay in."""


class AccessError(DataError):
    """A file that may be there cannot be read: no permission, or a name that is too long."""


class AudioError(UserError):
    """A clip cannot be used: missing, unreadable, empty, not finite, too short or too long.

    Attributes:
        kind: The same for all clips with the same fault, for counting and for programs; the text is for people.
    """

    code: ClassVar[str] = "audio"

    def __init__(self, message: str, kind: AudioErrorKind = "cannot be used") -> None:
        super().__init__(message)
        self.kind: AudioErrorKind = kind


def os_reason(error: OSError | ValueError) -> str:
    """What the system says: ``No space left on device``; libraries put more around it, or leave it out."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\[Errno (\d+)\]", str(error), re.IGNORECASE)):
        number = int(found[1])
    return str(error) if number is None else os.strerror(number)


@contextmanager
def system_errors(path: object, done: str) -> Iterator[None]:
    """Turns what the system says (a full disk, no permission, too long a name) into a `DataError` of one line.

    Args:
        path: What messages name.
        done: What cannot be done to it: ``read``, ``written``.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be {done} ({os_reason(error)})") from None


def place(file: object, row: int | None = None, column: str | None = None, line: int | None = None) -> str:
    """Where something is wrong, for the head of a message: ``ratings.csv, row 3 (line 4), column 'score'``.

    Args:
        file: The file; anything that prints as its path.
        row: Row of data, counted from 1, the header not counted.
        column: Column name as the file has it.
        line: Line of a text file, counted from 1, where the row starts.
    """
    text = str(file)
    if row is not None:
        text += f", row {row}"
    if line is not None:
        text += f" (line {line})" if row is not None else f", line {line}"
    if column is not None:
        text += f", column {column!r}"
    return text


def locate_in(file: object) -> Locate:
    """Cells of a file that has our own column names."""
    return lambda position, column: place(file, position + 1, column)


def shown(value: object) -> str:
    """The value as a short ``repr``, at most `MAX_SHOWN_CHARACTERS` long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of some names that a wrong one was most likely meant to be; None if none is near."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


def bad_value(where: str, value: object, expected: str) -> DataError:
    """The error for one value; `where` is the head of the message."""
    return DataError(f"{where}: value {shown(value)}; expected {expected}")


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, with its place: ``dimensions.0.minimum 'x': Input should be ...``."""
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    value = "" if found["type"] == "missing" else f" {shown(found['input'])}"
    return f"{where}{value}: {found['msg']}"
