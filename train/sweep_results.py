"""What came out of a sweep: a table, and the recipe of the best trial."""

from __future__ import annotations

import csv
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.table import Table

from ..data_modules.errors import DataError, shown
from ..data_modules.folders import replace_file
from .sweep_file import Sweep

TABLE_FILE = "sweep.csv"
BEST_FILE = "best.yaml"
TRIAL_FILE = "trial.json"
State = Literal["complete", "failed", "running"]


@dataclass
class TrialValues:
    """What the runs of a trial reached; kept in the trial's folder, so that a killed sweep goes on.

    Attributes:
        values: Seed -> agreement of the best checkpoint on the validation split, by which training chose it.
        reason: Why the trial failed, if it did.
    """

    values: dict[int, float] = field(default_factory=dict)
    reason: str | None = None

    @classmethod
    def read(cls, folder: Path) -> TrialValues:
        """Read them; nothing if the trial has not begun.

        Raises:
            DataError: If the file is not what `write` made.
        """
        path = folder / TRIAL_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls({int(seed): float(value) for seed, value in content["values"].items()}, content["reason"])
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: not the values of a trial: {error}") from None

    def write(self, folder: Path) -> None:
        """Keep them."""
        text = json.dumps({"values": self.values, "reason": self.reason}, indent=2, allow_nan=False)
        replace_file(folder / TRIAL_FILE, lambda path: path.write_text(text + "\n", encoding="utf-8"))


@dataclass(frozen=True)
class TrialResult:
    """A row of the table.

    Attributes:
        number: Of the trial, from 0.
        state: "running" may also be one that was killed and will go on.
        parameters: Dotted name -> value.
        values: Seed -> agreement on the validation split.
        reason: Why it failed, if it did.
    """

    number: int
    state: State
    parameters: dict[str, Any]
    values: dict[int, float]
    reason: str | None = None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None unless the trial is complete."""
        return statistics.fmean(self.values.values()) if self.state == "complete" else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (divisor: seeds - 1); None with one seed, or if it is not complete."""
        several = self.state == "complete" and len(self.values) > 1
        return statistics.stdev(self.values.values()) if several else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "mean": self.mean, "sd": self.spread}


def trial_folder(out: Path, number: int) -> Path:
    """Where a trial keeps its runs."""
    return out / f"trial-{number:04d}"


def run_folder(out: Path, number: int, seed: int) -> Path:
    """Where a trial keeps the run of a seed."""
    return trial_folder(out, number) / f"seed-{seed}"


def best_of(results: Sequence[TrialResult]) -> TrialResult | None:
    """The trial of the highest mean, of equal ones the first; None if none is complete."""
    complete = [(result.mean, result) for result in results if result.mean is not None]
    return max(complete, key=lambda found: found[0])[1] if complete else None


def write_results(sweep: Sweep, results: Sequence[TrialResult], out: Path) -> None:
    """Write `sweep.csv`, a row for each trial, and `best.yaml`, if a trial is complete."""
    replace_file(out / TABLE_FILE, lambda path: _write_table(sweep, results, out, path))
    best = best_of(results)
    if best is not None:
        text = _best_recipe(sweep, best, out)
        replace_file(out / BEST_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def _write_table(sweep: Sweep, results: Sequence[TrialResult], out: Path, path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        seeds = [f"seed {seed}" for seed in sweep.seeds]
        writer.writerow(["trial", "state", *sweep.search, *seeds, "mean", "sd", "runs", "reason"])
        for result in results:
            writer.writerow(
                [
                    result.number,
                    result.state,
                    *(_text(result.parameters[name]) for name in sweep.search),
                    *(result.values.get(seed, "") for seed in sweep.seeds),
                    "" if result.mean is None else result.mean,
                    "" if result.spread is None else result.spread,
                    " ".join(_runs(result, sweep, out)),
                    result.reason or "",
                ]
            )


def _runs(result: TrialResult, sweep: Sweep, out: Path) -> list[str]:
    """Run folders that there are, relative to the folder of the sweep."""
    folders = [run_folder(out, result.number, seed) for seed in sweep.seeds]
    return [folder.relative_to(out).as_posix() for folder in folders if folder.is_dir()]


def _best_recipe(sweep: Sweep, best: TrialResult, out: Path) -> str:
    files = [word for recipe in [*sweep.recipes, out / BEST_FILE] for word in ("--config", str(recipe))]
    command = shlex.join(["empathy-judge", "train", *files, "--run", str(out / "best")])
    spread = "" if best.spread is None else f" (sd {best.spread:.3f})"
    return (
        f"# {command}\n"
        f"# Trial {best.number} of a sweep: agreement on the validation split {best.mean:.3f}{spread} over seeds "
        f"{', '.join(map(str, sweep.seeds))}. It was chosen by that, so that only another split says how good it is.\n"
        + yaml.safe_dump(sweep.recipe(best.parameters), sort_keys=False, allow_unicode=True)
    )


def results_table(sweep: Sweep, results: Sequence[TrialResult]) -> Table:
    """All trials, the best first, for a terminal."""
    table = Table("trial", *sweep.search, "mean", "sd", "state", title="Agreement on the validation split")
    best = best_of(results)
    for result in sorted(results, key=lambda result: (result.mean is None, -(result.mean or 0), result.number)):
        table.add_row(
            str(result.number),
            *(_cell(result.parameters[name]) for name in sweep.search),
            _number(result.mean),
            _number(result.spread),
            result.state if result.reason is None else f"{result.state}: {shown(result.reason)}",
            style="bold" if result is best else None,
        )
    return table


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
