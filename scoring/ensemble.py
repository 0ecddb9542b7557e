"""One judge out of several on one frozen backbone: an ensemble that keeps them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.files import file_hash
from ..models import JUDGE_FILE
from ..models.description import MEMBERS
from .artifact import LoadedJudge, Placement, load_any, read_into, staged, write_description, write_judge

MEMBER_ORIGINS = "member_provenance"
"""Key in `judge.json`: the provenance of each judge that was combined."""


def write_ensemble(paths: Sequence[Path], out: Path, backbone: str | None = None) -> None:
    """Write a judge folder whose score is the mean of several judges' scores: `members/01` and so on are judge folders.

    Calibrations of single members are dropped: what holds for one does not hold for the mean. The folder appears
    complete or not at all; `backbone` is the present place of the backbone, if not that where the first judge found it.

    Raises:
        UserError: If there are fewer than two, one is broken, one differs from the first in backbone, dimensions or a
            setting that scores depend on, or the folder exists.
    """
    with staged(out) as stage:
        descriptions, hashes = [], {}
        for number, loaded in enumerate(_each(paths, backbone), start=1):
            name = f"{MEMBERS}/{number:02d}"
            (stage / name).mkdir(parents=True)
            write_judge(loaded, stage / name)
            hashes[f"{name}/{JUDGE_FILE}"] = file_hash(stage / name / JUDGE_FILE)
            descriptions.append(loaded.description)
        merged = {
            **_merged(descriptions),
            MEMBERS: [f"{MEMBERS}/{number:02d}" for number in range(1, len(descriptions) + 1)],
            "sha256": hashes,
        }
        write_description(merged, stage)


def _each(paths: Sequence[Path], backbone: str | None) -> Iterator[LoadedJudge]:
    """Load each judge in turn, without its calibration, into the same memory: the next one overwrites it."""
    # By where they lie: one judge under two names would count twice in the mean
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UserError(f"judges {', '.join(map(str, paths))}; expected two or more, each once")
    loaded = load_any(paths[0], Placement(backbone))
    if MEMBERS in loaded.description:
        raise UserError(f"{paths[0]}: an ensemble itself; expected single judges, such as its members")
    yield LoadedJudge(loaded.judge, {**loaded.description, "calibration": None})
    for path in paths[1:]:
        yield LoadedJudge(loaded.judge, {**read_into(loaded, path), "calibration": None})


def _merged(descriptions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of `judge.json` for several judges combined."""
    origins = [description["provenance"] for description in descriptions]
    values = {key: [origin[key] for origin in origins if key in origin] for key in origins[0]}
    merged = {key: _merged_value(key, entries) for key, entries in values.items()}
    words = [origin["probe"] for origin in origins]  # "": trained by gradients
    merged["probe"] = "; ".join(dict.fromkeys(words)) if all(words) else ""
    return {**descriptions[0], "provenance": merged, MEMBER_ORIGINS: origins}


def _merged_value(key: str, values: Sequence[Any]) -> Any:
    """The combined value of a field of `Provenance`."""
    if key in ("validation", "preferences_met"):
        return dict.fromkeys(values[0])  # the combined judge has not been measured
    if key == "start":
        return {}  # each began at a probe of its own
    if all(value == values[0] for value in values):
        return values[0]
    if isinstance(values[0], bool):  # `synthetic`, `refit`
        return True
    if isinstance(values[0], list):
        return list(dict.fromkeys(name for value in values for name in value))
    return "various" if isinstance(values[0], str) else {}
