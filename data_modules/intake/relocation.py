"""Audio paths that were written on another machine: folders that all of them begin with may be missing here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from .clips import ClipCell, find_clip


class AudioFolder:
    """Where the clips of one table lie.

    ``speech_drame/finetuning/data/x.wav`` in a table beside ``x.wav`` names that file. Only folders that all paths of
    the table share are left off: two different paths never become one file.
    """

    def __init__(self, folder: Path, values: Iterable[Any]) -> None:
        """Finds out which leading folders are left off: the fewest with which a file is there.

        Args:
            folder: Where to look.
            values: All audio values of the table; those that are no paths (bytes, null) do not count, nor do paths
                that leave the folder, which `find` refuses.
        """
        self._folder = folder.resolve()
        paths = {PurePosixPath(value).parts for value in values if isinstance(value, str)}
        self._left_off = self._missing_start(sorted(path for path in paths if ".." not in path and path[:1] != ("/",)))

    def find(self, value: Any, where: str) -> ClipCell:
        """The clip that a value refers to: all that `find_clip` takes."""
        if isinstance(value, str):
            parts = PurePosixPath(value).parts
            if self._left_off and parts[: len(self._left_off)] == self._left_off:
                value = "/".join(parts[len(self._left_off) :])
        return find_clip(value, self._folder, where)

    def _missing_start(self, paths: list[tuple[str, ...]]) -> tuple[str, ...]:
        shared = _shared_start([path[:-1] for path in paths])
        for count in range(len(shared) + 1):
            if any(_is_file(self._folder / Path(*path[count:])) for path in paths):
                return shared[:count]
        return ()


def _shared_start(folders: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The leading parts that are the same in all."""
    shared = []
    for level in zip(*folders, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return tuple(shared)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a zero byte
        return False
