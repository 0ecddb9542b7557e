"""Imports ratings and comparisons made in Label Studio: the JSON export.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from ..errors import AudioError, DataError, UserError, bad_value, shown
from ..ratings import RATING_COLUMNS, SECONDS, Dimension, check_ratings, is_name, parse_dimension
from ..rows import NAME_COLUMNS, PAIR_COLUMNS, TAG_PREFIX, TAGS, TEXT_COLUMNS, checked_pairs, sorted_tags
from ..schema import DatasetCard
from ..tables import parse_mapping, plain_text, read_records, to_number
from .assemble import Imported
from .clips import ClipCell, add_audio_root, find_clip
from .collector import Collector

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

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

    @property
    def task_fields(self) -> list[str]:
        return [*self.responses, *(field for _, field in self.context), *self.fields.values()]

    def pair_id(self, task: str, response: str) -> str:
        return task if len(self.responses) == 1 else f"{task}-{response}"


class _Task(NamedTuple):
    """What was shown to people: its ``id``, its fields, and its place for messages."""

    number: str
    data: Mapping[str, Any]
    where: str


class _Answer(NamedTuple):
    """What one person set one control to, such as ``{"rating": 4}``.

    Attributes:
        task: Number of the task.
        rater: Who answered.
        seconds: ``lead_time`` as exported: seconds for the whole annotation, or None.
        control: Name of the control (``from_name``).
        value: What it was set to.
        where: For messages.
    """

    task: str
    rater: str
    seconds: Any
    control: str
    value: Mapping[str, Any]
    where: str


class _Export(NamedTuple):
    """Tasks in the order of the export, the answers to them, and the number of cancelled annotations, left out."""

    tasks: list[_Task]
    answers: list[_Answer]
    cancelled: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of Label Studio exports."""
    for option, form, text in (
        ("--response", "FIELD", "field of the response"),
        ("--context", "[ROLE=]FIELD", "field of a context turn, oldest first; the role is user unless stated"),
        ("--dimension", "NAME=LOW:HIGH[:STEP][:lower]", "scale"),
        ("--rating", "DIMENSION[@RESPONSE]=CONTROL", "control that rates a dimension, where it has another name"),
        ("--preference", "DIMENSION=CONTROL", "control that compares two responses"),
        ("--choice", "LABEL=SCORE", "what a label of Choices stands for: a score, left, right or tie"),
        (
            "--field", "OURS[@RESPONSE]=FIELD",
            "field for another column, such as group_id, system_id, situation, or a tag such as tag:cue",
        ),
    ):  # fmt: skip
        required = option in ("--response", "--dimension")
        parser.add_argument(
            option, action="append", required=required, default=None if required else [], metavar=form,
            help=f"{text}; repeatable",
        )  # fmt: skip
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help="where the clips are (default: beside the export)")
    add_audio_root(parser)
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
    export = _read_export(path)
    _check_names(path, export, mapping)
    find = partial(find_clip, folder=folder, root=options.audio_root)
    found = [(task.where, row) for task in export.tasks for row in _pair_rows(task, mapping, find)]
    grouped = any(ours == "group_id" for ours, _ in mapping.fields)  # elsewhere `assemble` makes groups
    rows = list(
        checked_pairs(
            (row for _, row in found),
            path,
            lambda position, column: f"{found[position][0]}, column {column!r}",
            grouped=grouped,
        )
    )
    ratings = _ratings(path, export, mapping, dimensions, [row["pair_id"] for row in rows])
    preferences = _preferences(export, mapping)
    if ratings.empty and preferences.empty:
        raise DataError(f"{path}: no annotation that counts ({export.cancelled} cancelled)")
    description = _description(export, mapping)
    card = DatasetCard("", tuple(dimensions), "unknown", "unknown", options.synthetic, description)
    return Imported(card, rows, ratings, preferences if mapping.preferences else None)


def _mapping(options: argparse.Namespace, dimensions: Sequence[Dimension]) -> _Mapping:
    """The options, checked against each other."""
    responses, names = options.response, [dimension.name for dimension in dimensions]
    if len(set(responses)) < len(responses):
        raise UserError(f"--response {shown(responses)}; expected each field once")
    preferences = _by_control(parse_mapping(options.preference, "--preference"), "--preference")
    for control, name in preferences.items():
        _check_known(f"--preference {name}={control}", name, names)
    if preferences and len(responses) != 2:
        raise UserError(f"--preference with {len(responses)} --response; expected two, the left one first")
    rated = _by_control(parse_mapping(options.rating, "--rating"), "--rating")
    ratings = {control: _rated(target, control, responses, names) for control, target in rated.items()}
    if len(responses) == 1:
        ratings |= {name: (responses[0], name) for name in names if name not in {name for _, name in ratings.values()}}
    if not preferences and not ratings:
        raise UserError("no control is named; expected --rating DIMENSION@RESPONSE=CONTROL, --preference")
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
        raise UserError(f"{option} {shown(list(controls.values()))}; expected each control once")
    return targets


def _rated(target: str, control: str, responses: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Response and dimension out of ``DIMENSION[@RESPONSE]``."""
    name, sign, response = target.partition("@")
    _check_known(f"--rating {target}={control}", name, names)
    if not sign and len(responses) > 1:
        expected = ", ".join(f"{name}@{field}={control}" for field in responses)
        raise UserError(f"--rating {target}={control}: expected {expected}")
    _check_known(f"--rating {target}={control}", response or responses[0], responses)
    return response or responses[0], name


def _check_known(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"{option}: {shown(name)}; expected {', '.join(known)}")


def _read_export(path: Path) -> _Export:
    """The JSON export; drafts and predictions are left out.

    Raises:
        DataError: If it is no such export, or an annotation does not say who made it.
    """
    rows = read_records(path)
    if not all(isinstance(row.values.get("data"), dict) for row in rows):
        raise DataError(f"{path}: not a JSON export of Label Studio; expected a list of annotated tasks (not JSON-MIN)")
    tasks: list[_Task] = []
    answers: list[_Answer] = []
    cancelled = 0
    for row in rows:
        task = _Task(row.name("id"), row.values["data"], f"{path}, task {shown(row.values.get('id'))}")
        tasks.append(task)
        annotations = row.values.get("annotations")
        if not isinstance(annotations, list) or not all(isinstance(item, dict) for item in annotations):
            raise row.error("annotations", "a list of annotations; the export is JSON with all of them")
        for annotation in annotations:
            if annotation.get("was_cancelled") in (None, False):
                answers += _answers(annotation, task)
            else:
                cancelled += 1
    return _Export(tasks, answers, cancelled)


def _answers(annotation: Mapping[str, Any], task: _Task) -> Iterator[_Answer]:
    where = f"{task.where}, annotation {shown(annotation.get('id'))}"
    results = annotation.get("result")
    if not isinstance(results, list):
        raise DataError(f"{where}: result {shown(results)}; expected a list")
    rater, seconds = _rater(annotation.get("completed_by"), where), annotation.get("lead_time")
    for result in results:
        if not isinstance(result, dict) or not isinstance(result.get("value", {}), dict):
            raise DataError(f"{where}: result {shown(result)}; expected from_name, to_name, type, value")
        control = result.get("from_name")
        if isinstance(control, str):  # relations between regions have none
            place = f"{where}, control {control!r}"
            yield _Answer(task.number, rater, seconds, control, result.get("value", {}), place)


def _rater(value: Any, where: str) -> str:
    """A number, or in some exports an object with the person's number, name and address."""
    name = plain_text(value.get("id") if isinstance(value, dict) else value)
    if not is_name(name):
        raise DataError(f"{where}: completed_by {shown(value)}; expected the number or name of who rated")
    return name


def _check_names(path: Path, export: _Export, mapping: _Mapping) -> None:
    """Refuses a field or control that no task has: it is a slip of the command line."""
    fields = dict.fromkeys(name for task in export.tasks for name in task.data)
    for field in mapping.task_fields:
        if field not in fields:
            raise DataError(f"{path}: no task has a field {shown(field)}; they have {', '.join(map(shown, fields))}")
    answered = {answer.control for answer in export.answers}
    for control in sorted(mapping.controls - answered) if answered else ():
        has = ", ".join(map(shown, sorted(answered)))
        raise DataError(f"{path}: no annotation has a control {shown(control)}; they have {has}")


def _pair_rows(task: _Task, mapping: _Mapping, find: Callable[..., ClipCell]) -> list[dict[str, Any]]:
    """One per response. Responses to one task are one group, also where nothing says so."""
    rows = []
    for response in mapping.responses:
        row: dict[str, Any] = {**dict.fromkeys(PAIR_COLUMNS), "pair_id": mapping.pair_id(task.number, response)}
        row["group_id"] = f"task-{task.number}" if len(mapping.responses) > 1 else None
        own = {ours: field for (ours, only), field in mapping.fields.items() if only in ("", response)}
        tags = {ours.removeprefix(TAG_PREFIX): field for ours, field in own.items() if ours.startswith(TAG_PREFIX)}
        values = {name: plain_text(task.data.get(field)) for name, field in tags.items()}
        row[TAGS] = sorted_tags(values, f"{task.where}, field {', '.join(tags.values())!r}")
        row |= {ours: plain_text(task.data.get(field)) for ours, field in own.items() if ours in _FIELDS}
        turns = [(role, field) for role, field in mapping.context if task.data.get(field) not in (None, "")]
        row["context_audio"] = [{"role": role, "audio": _find(task, field, find)} for role, field in turns]
        row["response_audio"] = _find(task, response, find)
        rows.append(row)
    return rows


def _find(task: _Task, field: str, find: Callable[..., ClipCell]) -> ClipCell:
    """The clip of a field, whose value is an address inside Label Studio or a path."""
    where = f"{task.where}, field {field!r}"
    value = task.data.get(field)
    if not isinstance(value, str):
        return ClipCell(AudioError(f"value {shown(value)}; expected the path of an audio file"), where)
    try:
        address = urlsplit(value)
    except ValueError:
        return find(value, where=where)
    if "://" in value:
        expected = "a file of the folder --audio; download it there and change the export"
        return ClipCell(AudioError(f"value {shown(value)} is on another machine; expected {expected}"), where)
    if address.path.strip("/") == "data/local-files":
        return find(parse_qs(address.query).get("d", [""])[0].lstrip("/"), where=where)
    if value.startswith("/data/upload/"):
        parts = value.removeprefix("/data/").split("/")
        starts = range(1 if ".." in parts else len(parts))  # what leaves the folder is not to be made to look harmless
        tried = [find("/".join(parts[start:]), where=where) for start in starts]
        return next((cell for cell in tried if isinstance(cell.content, Path)), tried[0])
    return find(value, where=where)


def _ratings(
    path: Path, export: _Export, mapping: _Mapping, dimensions: Sequence[Dimension], pair_ids: Sequence[str]
) -> pd.DataFrame:
    """Ratings in long form, checked, with the lead times of their annotations."""
    import pandas as pd

    answers = [answer for answer in export.answers if answer.control in mapping.ratings]
    ratings: list[tuple[Any, ...]] = []
    for answer in answers:
        response, dimension = mapping.ratings[answer.control]
        pair_id = mapping.pair_id(answer.task, response)
        ratings.append((pair_id, answer.rater, dimension, _score(answer, mapping), to_number(answer.seconds)))
    frame = pd.DataFrame(ratings, columns=pd.Index((*RATING_COLUMNS, SECONDS)), dtype=object)

    def locate(position: int, column: str) -> str:
        return answers[position].where + (", lead_time of its annotation" if column == SECONDS else "")

    check_ratings(frame, pair_ids, dimensions, path, locate)
    return frame.astype({"score": "float64", SECONDS: "float64"})


def _score(answer: _Answer, mapping: _Mapping) -> Any:
    """The number that a control was set to; checks judge the rest."""
    if "start" in answer.value or "end" in answer.value:
        raise DataError(f"{answer.where}: rates a region; expected a control that rates the whole clip")
    kinds = [key for key in _SCORE_KEYS if key in answer.value]
    if len(kinds) != 1:
        raise bad_value(answer.where, answer.value, f"one of {', '.join(_SCORE_KEYS)}")
    if kinds != ["choices"]:
        return answer.value[kinds[0]]
    label = _label(answer)
    score = to_number(mapping.choices.get(label, label))
    if not isinstance(score, float):
        raise DataError(f"{answer.where}: label {shown(label)}; expected a number, or --choice LABEL=SCORE")
    return score


def _label(answer: _Answer) -> str:
    labels = answer.value.get("choices")
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str):
        raise DataError(f"{answer.where}: choices {shown(labels)}; expected one label")
    return labels[0]


def _preferences(export: _Export, mapping: _Mapping) -> pd.DataFrame:
    found = Collector()
    for answer in export.answers:
        if answer.control not in mapping.preferences:
            continue
        label = answer.value["selected"] if "selected" in answer.value else _label(answer)
        side = label if "selected" in answer.value else mapping.choices.get(label, label)
        if side not in _SIDES:
            raise bad_value(answer.where, answer.value, f"{', '.join(_SIDES)}, or --choice LABEL=SIDE")
        left, right = (mapping.pair_id(answer.task, response) for response in mapping.responses)
        chosen, rejected = (right, left) if side == "right" else (left, right)
        dimension, strength = mapping.preferences[answer.control], float(side != "tie")
        found.add_preference(chosen, rejected, answer.rater, dimension, strength, answer.where)
    return found.preferences()


def _description(export: _Export, mapping: _Mapping) -> str:
    """What was left out."""
    used = mapping.task_fields
    fields = dict.fromkeys(name for task in export.tasks for name in task.data if name not in used)
    controls = dict.fromkeys(answer.control for answer in export.answers if answer.control not in mapping.controls)
    notes = [
        f"Fields not imported: {', '.join(fields)}." if fields else "",
        f"Controls not imported: {', '.join(controls)}." if controls else "",
        f"{export.cancelled} cancelled annotations left out." if export.cancelled else "",
    ]
    return " ".join(filter(None, notes))
