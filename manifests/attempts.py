"""Notes beside a part about starts that did not end: a row that kills whoever scores it must not stop a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..data_modules.folders import replace_file

_RETRIES = 2
_ROW_DEATHS = 2
_MOST_CULPRITS = 3


class Attempts:
    """Of one chunk, by whoever holds its lock.

    A chunk whose process died is tried twice again. Then its rows are scored one by one, and one whose process died
    twice is passed over; where there are many of these, all rows of the chunk are. A process that is asked to stop
    takes its start back.
    """

    def __init__(self, path: Path) -> None:
        """Read what is noted.

        Args:
            path: Of the notes, whether they exist or not.
        """
        self._path = path
        try:
            self._notes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # never begun
            self._notes = {"starts": 0, "row": None, "deaths": {}}

    def begin(self) -> None:
        """Note a start, and that the last one ended in the row where it was, if it was careful."""
        row = self._notes["row"]
        if row is not None:
            self._notes["deaths"][str(row)] = self._notes["deaths"].get(str(row), 0) + 1
        self._notes["row"] = None
        self._notes["starts"] += 1
        self._write()

    @property
    def careful(self) -> bool:
        """Whether rows are to be scored one by one."""
        return self._notes["starts"] > 1 + _RETRIES

    @property
    def hopeless(self) -> bool:
        """Whether there are too many rows that kill."""
        return len(self.culprits) > _MOST_CULPRITS

    @property
    def culprits(self) -> set[int]:
        """Positions of the rows in the chunk, from 0, that are passed over."""
        return {int(row) for row, deaths in self._notes["deaths"].items() if deaths >= _ROW_DEATHS}

    def at(self, row: int) -> None:
        """Note the row that is scored next."""
        self._notes["row"] = row
        self._write()

    def withdraw(self) -> None:
        """The start ended because somebody asked for it."""
        self._notes["starts"] -= 1
        self._notes["row"] = None
        self._write()

    def end(self) -> None:
        """The chunk is done."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        replace_file(self._path, lambda path: path.write_text(json.dumps(self._notes), encoding="utf-8"))
