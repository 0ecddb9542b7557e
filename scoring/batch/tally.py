"""What the scores of a manifest say together: means of systems, minutes of audio, and what judges warn of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...core.errors import counted
from ..score_table import STATUS, WINDOWS, Column, Value

_MOST_SYSTEMS = 50  # beyond, a column system_id names something else than systems
_ALL = ""  # the system of rows that name none
_IN_WORDS = {
    "unlike_training": "unlike the clips that this judge was calibrated on: it may be wrong there",
    "no_speech": "almost without a voice",
    "short": "very short",
}


class Tally:
    """Counts over rows of `row_columns`, as they come.

    Attributes:
        rows: How many there were.
        windowed: How many were read in several windows.
        seconds: Of all responses with scores.
        warnings: How many rows have each warning.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        """Get ready for rows of these columns."""
        names = [column.name for column in columns]
        self._at = {name: names.index(name) for name in (WINDOWS, "seconds", "warnings", STATUS)}
        self._system = names.index("system_id") if "system_id" in names else None
        # A dimension has a label
        self._dimensions = {
            column.name: number
            for number, column in enumerate(columns)
            if column.kind == "number" and f"{column.name}_label" in names
        }
        self.rows = self.windowed = 0
        self.seconds = 0.0
        self.warnings: Counter[str] = Counter()
        self._scores: dict[str, dict[str, list[float]]] = {}  # system -> dimension -> rows, sum, lowest, highest

    def add(self, rows: Iterable[Sequence[Value]]) -> None:
        """Count further rows."""
        for row in rows:
            values: list[Any] = list(row)
            self.rows += 1
            self.windowed += (values[self._at[WINDOWS]] or 0) > 1
            self.seconds += values[self._at["seconds"]] or 0.0
            self.warnings.update(code for code in (values[self._at["warnings"]] or "").split(";") if code)
            system = _ALL if self._system is None or values[self._system] is None else values[self._system]
            for name, number in self._dimensions.items():
                score = values[number]
                if score is not None:
                    known = self._scores.setdefault(system, {}).setdefault(name, [0, 0.0, score, score])
                    known[:] = known[0] + 1, known[1] + score, min(known[2], score), max(known[3], score)

    @property
    def systems(self) -> dict[str, dict[str, dict[str, float]]]:
        """System -> dimension -> `rows`, `mean`, `lowest` and `highest`; where there are very many, or no column
        names them, the only system is empty."""
        scores = self._scores
        if len(scores) > _MOST_SYSTEMS:
            scores = {_ALL: {}}
            for own in self._scores.values():
                for name, more in own.items():
                    known = scores[_ALL].setdefault(name, [0, 0.0, more[2], more[3]])
                    known[:] = known[0] + more[0], known[1] + more[1], min(known[2], more[2]), max(known[3], more[3])
        return {
            system: {
                name: {"rows": count, "mean": round(total / count, 6), "lowest": low, "highest": high}
                for name, (count, total, low, high) in own.items()
            }
            for system, own in scores.items()
        }


def in_words(
    rows: int, seconds: float, systems: dict[str, dict[str, dict[str, float]]], warnings: dict[str, int]
) -> Iterator[str]:
    """Lines about so many rows: minutes, the mean and the range of each system, and warnings by kind."""
    yield f"responses: {seconds / 60:,.1f} minutes"
    for system, own in systems.items():
        for name, found in own.items():
            of = f"{name}, {system}" if system else name
            spread = f"{found['lowest']:.2f} to {found['highest']:.2f}"
            yield f"{of}: mean {found['mean']:.2f}, from {spread} ({counted(int(found['rows']), 'row')})"
    for code, count in sorted(warnings.items(), key=lambda item: -item[1]):
        yield f"{count:,} of {rows:,} are {_IN_WORDS.get(code, code)} ({code})"
