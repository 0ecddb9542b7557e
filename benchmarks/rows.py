"""Results of a study that goes on where it was killed: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows so far; none where there is no file yet."""
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())] if path.is_file() else []


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one, in one write: several processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def spread(values: list[float], sign: str = "") -> str:
    """Mean and standard deviation over seeds."""
    deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.3f}{deviation}"
