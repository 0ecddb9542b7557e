"""Folders that appear complete or not at all, such as datasets and judges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import DataError, system_errors
from .files import CARD_FILE, replace_text

STAGE_NOTES = ".unfinished"
"""Folder in a staged folder: its key, its lock, and what a resumed call needs to know."""
_COMMAND_LOCK = "command"


@contextmanager
def staged_folder(out: str | Path, overwrite: bool = False, key: str | None = None) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block ends well and vanishes when it fails.

    With a `key` work can be resumed: after a kill or an interrupt (Ctrl-C) the folder stays, and the next call with the
    same key gets it as it was left. A folder of another key is emptied: what it holds belongs to other input. Notes for
    the next call go into `STAGE_NOTES`, which does not come along to `out`.

    Args:
        out: Must not exist; an empty folder, or with `overwrite` another pair dataset, is replaced. Where the folder
            above was closed meanwhile, an empty folder stays beside it, which the next call takes.
        overwrite: Replace a pair dataset.
        key: Holds all that determines what the block writes; None = begin anew, and leave nothing in any case.

    Raises:
        DataError: If `out` exists and may not be replaced, or another process is writing it.
    """
    out = Path(out).resolve()
    # not `with_name`, which the root of the file system does not have
    stage, replaced = (out.parent / f".{out.name}.{suffix}" for suffix in ("unfinished", "replaced"))
    notes = stage / STAGE_NOTES  # as in `command_lock`
    with system_errors(out, "written"):
        # An earlier call was killed between the two renames below.
        if replaced.exists() and not out.exists():
            replaced.rename(out)
        check_new(out, overwrite)
        notes.mkdir(parents=True, exist_ok=True)
        lock = FileLock(notes / "lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:  # an OSError, too
            raise DataError(f"{out}: another process is writing it; wait for it, or choose another folder") from None
        try:
            _begin(stage, key)
            yield stage
            lock.release()
            shutil.rmtree(notes)
            # Again: another command may have written there meanwhile.
            check_new(out, overwrite)
            if (out / CARD_FILE).exists():
                shutil.rmtree(replaced, ignore_errors=True)
                out.rename(replaced)
            # The system refuses this where there is more than an empty folder.
            stage.rename(out)
        except BaseException as error:
            lock.release()
            if key is None or isinstance(error, Exception):
                shutil.rmtree(stage, ignore_errors=True)
            if replaced.exists() and not out.exists():
                replaced.rename(out)
            raise
        shutil.rmtree(replaced, ignore_errors=True)


def command_lock(out: Path) -> Path:
    """The file that a command locks while it makes what will be a `staged_folder`; it lies in the stage of `out`."""
    out = out.resolve()
    return out.parent / f".{out.name}.unfinished" / STAGE_NOTES / _COMMAND_LOCK


def check_new(out: Path, overwrite: bool | None = None) -> None:
    """Check that a folder does not exist or is empty.

    Args:
        out: The folder.
        overwrite: Whether it may be a pair dataset; None = what is made is none.

    Raises:
        DataError: If it is something else.
    """
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if overwrite is None:
        raise DataError(f"{out}: exists; expected a folder that does not exist yet")
    if not (out / CARD_FILE).is_file():
        raise DataError(f"{out}: exists and is not a pair dataset; expected a folder that does not exist yet")
    if not overwrite:
        raise DataError(f"{out}: exists; expected a folder that does not exist yet, or --overwrite")


def _begin(stage: Path, key: str | None) -> None:
    """Keeps what an earlier call with this key finished, removes everything else."""
    notes = stage / STAGE_NOTES
    stored = notes / "key"
    if key is None or not stored.is_file() or stored.read_text(encoding="utf-8") != key:
        for path in (*stage.iterdir(), *notes.iterdir()):
            if path not in (notes, notes / "lock", notes / _COMMAND_LOCK):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        replace_text(stored, key or "")
    # What `replace_file` was writing when the process was killed.
    for path in stage.rglob(".*.tmp"):
        path.unlink()
