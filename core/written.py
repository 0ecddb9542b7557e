"""Files that a user gets, such as reports: each write has a record, so that no file of somebody else is replaced.

Beside a file ``NAME`` lies ``.empathy-judge/NAME.json``: which command wrote it, and the SHA-256 of what it wrote. A
file without a record, of another command, or changed since, is not replaced. Copied with its folder, a report keeps its
records; there is one for each file, so that commands that write into one folder at once do not lose any.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .errors import UserError, system_errors
from .files import file_hash, replace_text
from .locks import locked
from .staging import check_new, command_lock

RECORDS = ".empathy-judge"
FILES = {
    "evaluate": ("agreement.json", "items.csv", "results.csv", "agreement.md", "index.html"),
    "compare": ("comparison.json", "results.csv", "comparison.md", "index.html"),
    "inspect": ("index.html",),
    "leaderboard": ("index.html", "leaderboard.json", "systems.csv", "differences.csv"),
    "plan": ("plan.csv", "plan.json", "plan.png"),
    "stress": ("results.csv", "stress.json"),
}
"""What commands write into a folder."""


def check_replaceable(command: str, paths: Iterable[Path]) -> None:
    """Check that each of some files does not exist, or is as a command wrote it.

    Raises:
        UserError: If one is of somebody else, of another command, changed since, or no plain file (a symbolic link is
            none: it would be lost).
        OSError: If one cannot be read.
    """
    for path in paths:
        if not os.path.lexists(path):
            continue
        by, known = _record(path)
        if path.is_symlink() or not path.is_file():
            found = "is no plain file"
        elif not known:
            found = f"exists, and `{command}` did not write it"
        elif by != command:
            found = f"was written by `{by}`"
        elif file_hash(path) not in known:
            found = f"was changed since `{command}` wrote it"
        else:
            continue
        raise UserError(f"{path}: {found}; expected another place, or that this file is moved away")


def write_files(command: str, folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made if missing. If one cannot be replaced, or there is no room for all of
    them, all earlier ones stay.

    Args:
        command: Who writes: the name of the command, also where Python calls the function behind it.
        folder: Where.
        files: Name -> content.

    Raises:
        UserError: As `check_replaceable`.
        OSError: If one cannot be written, with its name.
    """
    paths = {folder / name: content for name, content in files.items()}
    check_replaceable(command, paths)
    folder.mkdir(parents=True, exist_ok=True)
    # Within the folder, so on its disk: a rename from another one would be a copy, which may be cut off
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as stage:
        for path, content in paths.items():
            try:
                Path(stage, path.name).write_bytes(content)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
        # The earlier hash stays in the record: after a kill either file may stand there.
        for path, content in paths.items():
            earlier = [file_hash(path)] if path.exists() else []
            record = {"command": command, "sha256": [hashlib.sha256(content).hexdigest(), *earlier]}
            _record_file(path).parent.mkdir(exist_ok=True)
            replace_text(_record_file(path), f"{json.dumps(record)}\n")
        # Again, as late as possible: somebody may have changed a file since
        check_replaceable(command, paths)
        # Renaming needs no room on the disk: from here on all files are replaced.
        for path in paths:
            os.replace(Path(stage, path.name), path)


@contextmanager
def writing(command: str, folder: Path | None, file: str = "") -> Iterator[None]:
    """Work whose results will be written: first check that they can be, and keep other processes out until the end.

    Args:
        command: As for `write_files`.
        folder: Where they go; made, and removed again if nothing was written. None = nowhere, nothing is checked.
        file: The one file that is written, where others may write into the folder at the same time; "" = the `FILES`
            of the command, and nothing else meanwhile.

    Raises:
        UserError: As `check_replaceable`, or if another process works there.
    """
    if folder is None:
        yield
        return
    check_replaceable(command, (folder / name for name in ([file] if file else FILES[command])))
    lock, place = (f"{file}.lock", folder / file) if file else ("lock", folder)
    with _alone(place, folder / RECORDS / lock):
        yield


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Change what is in a folder, or make it: keep other processes out until the end.

    Raises:
        UserError: If another process changes it.
    """
    with _alone(folder, folder / RECORDS / "lock"):
        yield


@contextmanager
def making(folder: Path, overwrite: bool | None = None) -> Iterator[None]:
    """Make a folder that may not hold anything before: first check that, and keep other processes out until the end.

    Args:
        folder: The folder.
        overwrite: As for `staging.check_new`.

    Raises:
        UserError: If it holds something, or another process makes it.
    """
    with system_errors(folder, "written"):
        check_new(folder, overwrite)
    with _alone(folder, command_lock(folder)):
        yield


@contextmanager
def _alone(place: Path, lock: Path) -> Iterator[None]:
    """Hold a lock, without a trace of it at the end."""
    made = [path for path in lock.parents if path.name == RECORDS or not path.exists()]
    taken = f"{place}: another process is writing it; wait for it, or choose another place"
    unlocked = f"{place}: its file system knows no locks; make sure that no other command writes there"
    try:
        with ExitStack() as until_the_end:
            with system_errors(place, "written"):
                until_the_end.enter_context(locked(lock, taken, unlocked))
            yield
    finally:
        for path in made:
            # A folder that holds something stays.
            with suppress(OSError):
                path.rmdir()


def _record_file(path: Path) -> Path:
    return path.parent / RECORDS / f"{path.name}.json"


def _record(path: Path) -> tuple[str, list[str]]:
    """Who wrote a file, and the hashes of what may stand there; nobody and none where no record says so."""
    try:
        record = json.loads(_record_file(path).read_text(encoding="utf-8"))
        return str(record["command"]), [str(known) for known in record["sha256"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", []
