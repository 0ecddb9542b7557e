"""Folders and files that appear complete or not at all, and paths that stay in their folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from .errors import DataError, shown

CARD_FILE = "dataset.yaml"


@contextmanager
def staged_folder(out: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block ends well and vanishes when it does not.

    Args:
        out: Must not exist; an empty folder, or with `overwrite` another pair dataset, is replaced.
        overwrite: Replace a pair dataset.

    Raises:
        DataError: If `out` exists and may not be replaced.
    """
    out = Path(out).resolve()
    if out.exists():
        is_empty = out.is_dir() and not any(out.iterdir())
        if not is_empty and not (out / CARD_FILE).is_file():
            raise DataError(f"{out}: exists and is not a pair dataset; accepted: a folder that does not exist yet")
        if not is_empty and not overwrite:
            raise DataError(f"{out}: exists; accepted: a folder that does not exist yet, or --overwrite")
    mark = uuid.uuid4().hex[:8]
    stage, old = (out.with_name(f".{out.name}.{mark}.{suffix}") for suffix in ("new", "old"))
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"{out}: cannot be made ({error.strerror})") from None
    try:
        yield stage
        if out.exists():
            out.rename(old)
        stage.rename(out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(old, ignore_errors=True)


def resolve_inside(root: Path, relative: str, where: str) -> Path:
    """The absolute path of a file in `root`, symlinks followed.

    Args:
        root: A folder, already resolved.
        relative: Path with ``/``, relative to it.
        where: Head of the message (file, row, column).

    Raises:
        DataError: If the path is absolute, leaves the folder (``..`` or a symlink) or is no file.
    """
    parts = PureWindowsPath(relative).parts  # splits at both kinds of slash
    leaves = not parts or bool(PureWindowsPath(relative).anchor) or ".." in parts
    try:
        path = root if leaves else (root / relative).resolve()
        exists = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long a name, a loop of links, a zero byte
        path, exists = root, False
    if leaves or not path.is_relative_to(root):
        raise DataError(f"{where}: value {shown(relative)} leaves the folder {root}; accepted: a path relative to it")
    if not exists:
        raise DataError(f"{where}: value {shown(relative)}: no such file in {root}")
    return path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write(temporary path beside path)``, then renames: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
