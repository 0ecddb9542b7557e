"""Imports ratings and comparisons made in Label Studio: the full JSON export, or JSON-MIN.

A task is a pair; its number is the ``pair_id``. With several --response fields it is a pair for each of them, in one
group: its number, a dash, and the name of the field.

Which control says what:

    - ``--dimension empathy=1:5:1`` states a scale; the control of that name gives the scores, or another with
      ``--rating empathy=CONTROL``, and with several responses ``--rating empathy@FIELD=CONTROL`` for each;
    - Rating and Number controls give numbers. Choices give the number that a label spells, or that
      ``--choice LABEL=SCORE`` gives it;
    - ``--preference empathy=CONTROL``: a Pairwise control, or Choices with ``--choice LABEL=left``, ``right`` or
      ``tie``. Left is the first --response, right the second.

Cancelled (skipped) annotations, drafts and predictions never count; how many annotations were cancelled is written
into the card. The rater is ``completed_by``. ``lead_time`` is the time for a whole annotation, in seconds: every rating
of the annotation carries all of it.

Audio stands in --audio FOLDER (default: that of the export): ``/data/local-files/?d=PATH`` is PATH in it,
``/data/upload/3/x.wav`` is ``upload/3/x.wav``, ``3/x.wav`` or ``x.wav``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd

from ..errors import AudioError, DataError, UserError, shown
from ..intake.assemble import Imported
from ..intake.clips import ClipCell, find_clip
from ..intake.label_studio import Answer, Task, read_tasks
from ..intake.opinions import Preferences
from ..intake.options import parse_mapping
from ..intake.rating_layouts import to_number
from ..intake.tables import plain_text
from ..ratings import RATING_COLUMNS, SECONDS, Dimension, check_ratings, parse_dimension
from ..rows import NAME_COLUMNS, PAIR_COLUMNS, TAG_PREFIX, TAGS, TEXT_COLUMNS, check_pair_rows, sorted_tags
from ..schema import DatasetCard

EXAMPLE = (
    "label-studio export.json --response answer --context question --dimension empathy=1:5:1 "
    "--field system_id=model --audio media --out data"
)
_FIELDS = ("group_id", *NAME_COLUMNS, *TEXT_COLUMNS)
_SIDES = ("left", "right", "tie")
_SCORE_KEYS = ("rating", "number", "choices")


@dataclass(frozen=True)
class _Mapping:
    """The command line.

    Attributes:
        responses: Fields of responses.
        context: Role and field of each turn, oldest first.
        fields: Our column and the response field that it is for (empty = all) -> field of the task.
        ratings: Control -> response field that it is about and dimension.
        preferences: Control -> dimension.
        choices: Label -> what it stands for.
    """

    responses: Sequence[str]
    context: Sequence[tuple[str, str]]
    fields: Mapping[tuple[str, str], str]
    ratings: Mapping[str, tuple[str, str]]
    preferences: Mapping[str, str]
    choices: Mapping[str, str]

    @property
    def controls(self) -> set[str]:
        return {*self.ratings, *self.preferences}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of Label Studio exports."""
    parser.add_argument(
        "--response", action="append", required=True, metavar="FIELD", help="field of the response; repeatable"
    )
    parser.add_argument(
        "--context", action="append", default=[], metavar="[ROLE=]FIELD",
        help="field of a context turn, oldest first; repeatable; the role is user unless stated",
    )  # fmt: skip
    parser.add_argument(
        "--dimension", action="append", required=True, metavar="NAME=LOW:HIGH[:STEP][:lower]",
        help="scale; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--rating", action="append", default=[], metavar="DIMENSION[@RESPONSE]=CONTROL",
        help="control that rates a dimension, where it has another name; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--preference", action="append", default=[], metavar="DIMENSION=CONTROL",
        help="control that compares two responses; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--choice", action="append", default=[], metavar="LABEL=SCORE",
        help="what a label of Choices stands for: a score, left, right or tie; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--field", action="append", default=[], metavar="OURS[@RESPONSE]=FIELD",
        help="field for another column, such as group_id, system_id, situation, or a tag such as tag:cue; repeatable",
    )  # fmt: skip
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help="where the clips are (default: beside the export)")
    parser.add_argument("--synthetic", action="store_true", help="the ratings were not given by people")


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads the export; clips are looked up, not decoded.

    Raises:
        DataError: If it is no such export, or a rating breaks the contract; task, annotation and control are named.
        UserError: If an option has another form or names what the export does not have.
    """
    dimensions = [parse_dimension(text) for text in options.dimension]
    mapping = _mapping(options, dimensions)
    folder = (options.audio or path.parent).resolve()
    if not folder.is_dir():
        raise UserError(f"--audio {options.audio}: no such folder")
    tasks, cancelled = read_tasks(path, mapping.controls)
    _check_names(path, tasks, mapping)
    places, rows = zip(*((task.where, row) for task in tasks for row in _pair_rows(task, mapping, folder)), strict=True)
    grouped = any(ours == "group_id" for ours, _ in mapping.fields)  # elsewhere `assemble` makes groups
    checked = rows if grouped else [{**row, "group_id": "-"} for row in rows]
    check_pair_rows(checked, path, lambda position, column: f"{places[position]}, column {column!r}")
    ratings = _ratings(path, tasks, mapping, dimensions, [row["pair_id"] for row in rows])
    preferences = _preferences(tasks, mapping)
    if ratings.empty and preferences.empty:
        raise DataError(f"{path}: no annotation that counts ({cancelled} cancelled)")
    card = DatasetCard("", tuple(dimensions), "unknown", "unknown", options.synthetic)
    card = dataclasses.replace(card, description=_description(tasks, mapping, cancelled))
    return Imported(card, rows, ratings, preferences if mapping.preferences else None)


def _mapping(options: argparse.Namespace, dimensions: Sequence[Dimension]) -> _Mapping:
    """The options, checked against each other."""
    responses, names = options.response, [dimension.name for dimension in dimensions]
    if len(set(responses)) < len(responses):
        raise UserError(f"--response {shown(responses)}; accepted: each field once")
    preferences = _by_control(parse_mapping(options.preference, "--preference"), "--preference")
    for control, name in preferences.items():
        _check_known(f"--preference {name}={control}", name, names)
    if preferences and len(responses) != 2:
        raise UserError(f"--preference with {len(responses)} --response; accepted: two, the left one first")
    rated = _by_control(parse_mapping(options.rating, "--rating"), "--rating")
    ratings = {control: _rated(target, control, responses, names) for control, target in rated.items()}
    if len(responses) == 1:
        ratings |= {name: (responses[0], name) for name in names if name not in {name for _, name in ratings.values()}}
    if not preferences and not ratings:
        raise UserError("no control is named; accepted: --rating DIMENSION@RESPONSE=CONTROL, --preference")
    fields = {}
    for target, field in parse_mapping(options.field, "--field").items():
        ours, _, response = target.partition("@")
        if not ours.startswith(TAG_PREFIX):
            _check_known(f"--field {target}={field}", ours, (*_FIELDS, f"{TAG_PREFIX}NAME"))
        _check_known(f"--field {target}={field}", response or responses[0], responses)
        fields[ours, response] = field
    turns = [item.partition("=") for item in options.context]
    context = [(role, field) if sign else ("user", role) for role, sign, field in turns]
    return _Mapping(responses, context, fields, ratings, preferences, parse_mapping(options.choice, "--choice"))


def _by_control(controls: Mapping[str, str], option: str) -> dict[str, str]:
    """Control -> what it is about, turned round from the order of the command line."""
    targets = {control: target for target, control in controls.items()}
    if len(targets) < len(controls):
        raise UserError(f"{option} {shown(list(controls.values()))}; accepted: each control once")
    return targets


def _rated(target: str, control: str, responses: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Response and dimension out of ``DIMENSION[@RESPONSE]``."""
    name, sign, response = target.partition("@")
    _check_known(f"--rating {target}={control}", name, names)
    if not sign and len(responses) > 1:
        accepted = ", ".join(f"{name}@{field}={control}" for field in responses)
        raise UserError(f"--rating {target}={control}: accepted: {accepted}")
    _check_known(f"--rating {target}={control}", response or responses[0], responses)
    return response or responses[0], name


def _check_known(option: str, name: str, accepted: Sequence[str]) -> None:
    if name not in accepted:
        raise UserError(f"{option}: {shown(name)}; accepted: {', '.join(accepted)}")


def _check_names(path: Path, tasks: Sequence[Task], mapping: _Mapping) -> None:
    """Refuses a field or control that no task has: it is a slip of the command line."""
    fields = dict.fromkeys(name for task in tasks for name in task.data)
    wanted = [*mapping.responses, *(field for _, field in mapping.context), *mapping.fields.values()]
    for field in wanted:
        if field not in fields:
            raise DataError(f"{path}: no task has a field {shown(field)}; they have {', '.join(map(shown, fields))}")
    answered = {answer.control for task in tasks for annotation in task.annotations for answer in annotation.answers}
    for control in sorted(mapping.controls - answered) if answered else ():
        has = ", ".join(map(shown, sorted(answered)))
        raise DataError(f"{path}: no annotation has a control {shown(control)}; they have {has}")


def _pair_id(task: Task, response: str, mapping: _Mapping) -> str:
    return task.number if len(mapping.responses) == 1 else f"{task.number}-{response}"


def _pair_rows(task: Task, mapping: _Mapping, folder: Path) -> list[dict[str, Any]]:
    """One per response. Responses to one task are one group, also where nothing says so."""
    rows = []
    for response in mapping.responses:
        row: dict[str, Any] = {**dict.fromkeys(PAIR_COLUMNS), "pair_id": _pair_id(task, response, mapping)}
        row["group_id"] = f"task-{task.number}" if len(mapping.responses) > 1 else None
        own = {ours: field for (ours, only), field in mapping.fields.items() if only in ("", response)}
        tags = {ours.removeprefix(TAG_PREFIX): field for ours, field in own.items() if ours.startswith(TAG_PREFIX)}
        values = {name: plain_text(task.data.get(field)) for name, field in tags.items()}
        row[TAGS] = sorted_tags(values, f"{task.where}, field {', '.join(tags.values())!r}")
        row |= {ours: plain_text(task.data.get(field)) for ours, field in own.items() if ours in _FIELDS}
        turns = [(role, field) for role, field in mapping.context if task.data.get(field) not in (None, "")]
        row["context_audio"] = [{"role": role, "audio": _find(task, field, folder)} for role, field in turns]
        row["response_audio"] = _find(task, response, folder)
        rows.append(row)
    return rows


def _find(task: Task, field: str, folder: Path) -> ClipCell:
    """The clip of a field, whose value is an address inside Label Studio or a path."""
    where = f"{task.where}, field {field!r}"
    value = task.data.get(field)
    if not isinstance(value, str):
        return ClipCell(AudioError(f"value {shown(value)}; accepted: the path of an audio file"), where)
    try:
        address = urlsplit(value)
    except ValueError:
        return find_clip(value, folder, where)
    if "://" in value:
        accepted = "a file of the folder --audio; download it there and change the export"
        return ClipCell(AudioError(f"value {shown(value)} is on another machine; accepted: {accepted}"), where)
    if address.path.strip("/") == "data/local-files":
        return find_clip(parse_qs(address.query).get("d", [""])[0].lstrip("/"), folder, where)
    if value.startswith("/data/upload/"):
        parts = value.removeprefix("/data/").split("/")
        starts = range(1 if ".." in parts else len(parts))  # what leaves the folder is not to be made to look harmless
        tried = [find_clip("/".join(parts[start:]), folder, where) for start in starts]
        return next((cell for cell in tried if isinstance(cell.content, Path)), tried[0])
    return find_clip(value, folder, where)


def _ratings(
    path: Path, tasks: Sequence[Task], mapping: _Mapping, dimensions: Sequence[Dimension], pair_ids: Sequence[str]
) -> pd.DataFrame:
    """Ratings in long form, checked, with the lead times of their annotations."""
    ratings: list[tuple[str, str, str, Any, Any]] = []
    places: list[str] = []
    for task in tasks:
        for annotation in task.annotations:
            for answer in annotation.answers:
                if answer.control in mapping.ratings:
                    response, dimension = mapping.ratings[answer.control]
                    pair_id, score = _pair_id(task, response, mapping), _score(answer, mapping)
                    ratings.append((pair_id, annotation.rater, dimension, score, to_number(annotation.lead_time)))
                    places.append(answer.where)
    frame = pd.DataFrame(ratings, columns=pd.Index((*RATING_COLUMNS, SECONDS)), dtype=object)
    check_ratings(
        frame,
        pair_ids,
        dimensions,
        path,
        lambda position, column: places[position] + (", lead_time of its annotation" if column == SECONDS else ""),
    )
    return frame.astype({"score": "float64", SECONDS: "float64"})


def _score(answer: Answer, mapping: _Mapping) -> Any:
    """The number that a control was set to; checks judge the rest."""
    if "start" in answer.value or "end" in answer.value:
        raise DataError(f"{answer.where}: rates a region; accepted: a control that rates the whole clip")
    kinds = [key for key in _SCORE_KEYS if key in answer.value]
    if len(kinds) != 1:
        raise DataError(f"{answer.where}: value {shown(answer.value)}; accepted: one of {', '.join(_SCORE_KEYS)}")
    if kinds != ["choices"]:
        return answer.value[kinds[0]]
    label = _label(answer)
    score = to_number(mapping.choices.get(label, label))
    if not isinstance(score, float):
        raise DataError(f"{answer.where}: label {shown(label)}; accepted: a number, or --choice LABEL=SCORE")
    return score


def _label(answer: Answer) -> str:
    labels = answer.value.get("choices")
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str):
        raise DataError(f"{answer.where}: choices {shown(labels)}; accepted: one label")
    return labels[0]


def _preferences(tasks: Sequence[Task], mapping: _Mapping) -> pd.DataFrame:
    preferences = Preferences()
    for task in tasks:
        for annotation in task.annotations:
            for answer in annotation.answers:
                if answer.control in mapping.preferences:
                    side = _side(answer, mapping)
                    left, right = (_pair_id(task, response, mapping) for response in mapping.responses)
                    chosen, rejected = (right, left) if side == "right" else (left, right)
                    dimension, strength = mapping.preferences[answer.control], float(side != "tie")
                    preferences.add(chosen, rejected, annotation.rater, dimension, strength, answer.where)
    return preferences.frame()


def _side(answer: Answer, mapping: _Mapping) -> str:
    if "selected" in answer.value:
        side = answer.value["selected"]
    else:
        label = _label(answer)
        side = mapping.choices.get(label, label)
    if side not in _SIDES:
        accepted = f"{', '.join(_SIDES)}, or --choice LABEL=SIDE"
        raise DataError(f"{answer.where}: value {shown(answer.value)}; accepted: {accepted}")
    return side


def _description(tasks: Sequence[Task], mapping: _Mapping, cancelled: int) -> str:
    """What was left out."""
    used = {*mapping.responses, *(field for _, field in mapping.context), *mapping.fields.values()}
    fields = [name for name in dict.fromkeys(name for task in tasks for name in task.data) if name not in used]
    answers = [answer for task in tasks for annotation in task.annotations for answer in annotation.answers]
    controls = [name for name in dict.fromkeys(a.control for a in answers) if name not in mapping.controls]
    notes = []
    if fields:
        notes.append(f"Fields not imported: {', '.join(fields)}.")
    if controls:
        notes.append(f"Controls not imported: {', '.join(controls)}.")
    if cancelled:
        notes.append(f"{cancelled} cancelled annotations left out.")
    return " ".join(notes)
