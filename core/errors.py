"""Errors that a user can mend: one line, no traceback. The command line prints them and exits with code 2."""

from __future__ import annotations

import difflib
import errno
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal, Self

if TYPE_CHECKING:
    from pydantic import ValidationError

Locate = Callable[[int, str], str]
"""Position of a row (from 0) and our name of a column -> where the cell stands, for the head of a message."""

_ADVICE = {
    errno.ENOENT: "expected a file or folder that exists",
    errno.ENOSPC: "free some room and start the same command again",
    errno.EDQUOT: "free some room and start the same command again",
    errno.EROFS: "expected a place that can be written",
    errno.EACCES: "expected the right to read or write there",
    errno.EPERM: "expected the right to read or write there",
    errno.ENAMETOOLONG: "expected a shorter name",
    errno.EISDIR: "expected a file",
    errno.ENOTDIR: "expected a folder",
    errno.EEXIST: "expected a name that is not taken",
    errno.EMFILE: "expected a higher limit: ulimit -n",
    errno.ENOMEM: "expected more memory, or a smaller --batch-size",
}
"""What to do about what the machine refuses."""
_IN_WORDS = {
    "No space left on device": errno.ENOSPC,
    "os error 28": errno.ENOSPC,
    "disk is full": errno.ENOSPC,
    "file write failed": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "readonly database": errno.EROFS,
    "Permission denied": errno.EACCES,
    "unable to open database file": errno.EACCES,
    "out of memory": errno.ENOMEM,
    "allocate memory": errno.ENOMEM,
    "failed to map segment": errno.ENOMEM,
    "DefaultCPUAllocator": errno.ENOMEM,
}
"""The same errors in the words of C++ and Rust libraries, which give no number."""
_OF_A_GPU = re.compile(r"(CUDA|HIP)( error:)? out of memory")
"""How torch begins to say that a GPU has no memory left."""
_NATIVE = ("safetensors", "sqlite3")

_NO_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of a disk that cannot be written now, and perhaps can later."""

DEBUG = "EMPATHY_JUDGE_DEBUG"
"""In the environment: errors show their tracebacks."""
ASKED_TO_STOP = 75
"""Exit code after SIGTERM, EX_TEMPFAIL of sysexits.h: what was done is saved, start the same command again."""

AudioErrorKind = Literal[
    "no such file", "cannot be read", "the file is empty", "not a sound file", "the file is cut off",
    "the file is damaged", "not what was imported", "not supported", "too short", "too long",
    "not finite or not scaled", "too large for the memory", "leaves the folder", "empty cell", "not a clip",
    "a path", "not a turn", "not text", "special token", "no finite score", "process died", "cannot be used",
]  # fmt: skip
"""What is wrong with a clip or a text, or with a row of a table of them; the last where none of the others says it."""

MAX_SHOWN_CHARACTERS = 80
MAX_SHOWN_NAMES = 30
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

    def at(self, where: str) -> Self:
        """The same error, whose text begins with where it occurred, such as ``pair 3``."""
        return type(self)(f"{where}: {self}")


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

    def at(self, where: str) -> Self:
        """See `UserError`; the kind stays."""
        return type(self)(f"{where}: {self}", self.kind)


class TextError(AudioError):
    """The text of a pair cannot be used. Where a bad clip is skipped, so is such a pair."""


def system_error(error: BaseException) -> OSError | None:
    """What the machine refused: room on a disk, a right, a name, memory; None = something else.

    Libraries wrap errors of the system in their own, or repeat them in words alone.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause
        if (
            not isinstance(cause, OSError | RuntimeError | ImportError)
            and type(cause).__module__.partition(".")[0] not in _NATIVE
        ):
            return None  # a bug, whatever went before it
        for words, number in _IN_WORDS.items():
            if words in str(cause):
                return OSError(number, os.strerror(number))
        cause = cause.__cause__ or cause.__context__
    return error if isinstance(error, OSError) else None


def disk_error(error: BaseException) -> OSError | None:
    """As `system_error`, of a disk that is full or may not be written."""
    os_error = system_error(error)
    return os_error if os_error is not None and os_error.errno in _NO_WRITING else None


def as_user_error(error: BaseException) -> UserError | None:
    """An error that nobody has put into words for the user, in one line; None = a bug."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, RecursionError):
        return UserError("what was read is nested too deeply; expected a file as this program writes it")
    if isinstance(error, UnicodeError):
        return UserError(f"text cannot be read or written ({error}); expected UTF-8")
    if isinstance(error, RuntimeError) and _OF_A_GPU.match(text := " ".join(str(error).split())):
        # The first three sentences say what was tried to allocate, and on which GPU of which size.
        said = ". ".join(text.rstrip(".").split(". ")[:3])
        return UserError(
            f"{said}; expected fewer pairs at once: --batch-size; in training --data.batch_tokens, --data.batch_size "
            "or --gradient_checkpointing true"
        )
    if (unlike := _of_torchaudio(error)) is not None:
        return UserError(
            f"torchaudio {_version('torchaudio')} cannot be imported beside torch {_version('torch')} ({unlike}); "
            "expected the newest of both, built for the same CUDA: pip install --upgrade torch torchaudio"
        )
    os_error = system_error(error)
    if os_error is None:
        return None
    reason = os_error.strerror or str(os_error) or type(os_error).__name__
    where = "" if os_error.filename is None else f"{os_error.filename}: "
    return UserError(f"{where}{reason}; {_ADVICE.get(os_error.errno or 0, 'check paths, disk and network')}")


def _of_torchaudio(error: BaseException) -> BaseException | None:
    """The error that torchaudio raised while it was imported, also where a library wrapped it in its own."""
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if frame.f_globals.get("__name__") == "torchaudio" and frame.f_code.co_name == "<module>":
                return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


def raised_in(error: BaseException, package: str) -> bool:
    """Whether code of a package raised this error itself, rather than its callers or the code that it calls."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return innermost.f_globals["__name__"].partition(".")[0] == package


def lost_process(error: BaseException) -> bool:
    """Whether another process of the same run ended or cannot be reached; torch is not loaded to find out."""
    distributed = sys.modules.get("torch.distributed")
    return isinstance(error, ConnectionError if distributed is None else (ConnectionError, distributed.DistError))


def bug(error: BaseException) -> str:
    """A line about an error that is no `UserError`."""
    message = UserError(f"{type(error).__name__}: {error}")
    hint = "" if DEBUG in os.environ else f"; {DEBUG}=1 shows where"
    # gloo reports a lost peer with a plain RuntimeError
    multi_process = os.environ.get("WORLD_SIZE", "1") != "1"
    caveat = ", unless another process of the run ended before (its own lines say why)" if multi_process else ""
    return f"{message}: internal error{caveat}{hint}; please report it with the command"


def os_reason(error: BaseException) -> str:
    """What the system says, in its own words: ``No space left on device``; libraries put more around them."""
    os_error = system_error(error)
    return str(error) if os_error is None or os_error.errno is None else os.strerror(os_error.errno)


@contextmanager
def system_errors(path: object, done: str) -> Iterator[None]:
    """Turns what the system says (a full disk, no permission, too long a name) into a `DataError` of one line that
    names the path and what cannot be done to it: ``read``, ``written``."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(getattr(system_error(error), "errno", 0))
        raise DataError(f"{path}: cannot be {done} ({os_reason(error)}){f'; {advice}' if advice else ''}") from None


def place(file: object, row: int | None = None, column: str | None = None, line: int | None = None) -> str:
    """Where something is wrong, for the head of a message: ``ratings.csv, row 3 (line 4), column 'score'``.

    Rows of data and the lines where they start are counted from 1, the header being no row.
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
    """A `Locate` for a file that has our own column names."""
    return lambda position, column: place(file, position + 1, column)


def shown(value: object) -> str:
    """The value as a short ``repr``, at most `MAX_SHOWN_CHARACTERS` long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."


def counted(count: int, one: str, several: str = "") -> str:
    """``1 pair``, ``1,216 ratings``; `several` where it is not `one` with an s: ``2 pairs have``."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def names_shown(names: Iterable[object]) -> str:
    """Names in quotes, the first `MAX_SHOWN_NAMES` of them: a table of 100,000 columns must not fill the terminal."""
    listed = list(names)
    text = ", ".join(map(shown, listed[:MAX_SHOWN_NAMES])) or "none"
    return f"{text} and {len(listed) - MAX_SHOWN_NAMES:,} more" if len(listed) > MAX_SHOWN_NAMES else text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt word most likely stands for; None if none is near."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


def bad_value(where: str, value: object, expected: str) -> DataError:
    """The error for one value; `where` is the head of the message."""
    return DataError(f"{where}: value {shown(value)}; expected {expected}")


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, with its place: ``dimensions.0.minimum 'x': Input should be ...``."""
    where, kind, message, value = problem_of(error)
    message = message.removeprefix("Value error, ")
    # All of it is wrong: the value would be too much to be shown.
    if not where:
        return message
    return f"{where}: {message}" if kind == "missing" else f"{where} {shown(value)}: {message}"


def problem_of(error: ValidationError) -> tuple[str, str, str, object]:
    """Of the first thing that pydantic found wrong its place, kind, message and value."""
    problem = error.errors(include_url=False)[0]
    place, message = problem["loc"], problem["msg"]
    # Pydantic refuses a value of a field that takes both for each of the two types.
    if place[-1:] in (("int",), ("float",)):
        place, message = place[:-1], "Input should be a number"
    return ".".join(map(str, place)), problem["type"], message, problem["input"]
