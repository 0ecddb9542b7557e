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
``/data/upload/3/x.wav`` is ``upload/3/x.wav``, ``3/x.wav`` or ``x.wav``. Names may be percent-encoded.
Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from ...core.errors import AudioError, DataError, UserError, bad_value, counted, shown
from ...core.numerals import to_number
from ..ratings import RATING_COLUMNS, SECONDS, check_ratings, is_name, parse_dimension
from ..schema import DatasetCard
from ..storage import NAME_COLUMNS, PAIR_COLUMNS, TAG_PREFIX, TAGS, TEXT_COLUMNS
from ..tables import SourceTable, TableRow, parse_mapping, plain_text, read_records
from ..writing import checked_pairs, sorted_tags
from . import REPEATABLE, AudioRoot
from .assemble import Imported
from .clips import ClipCell, find_clip
from .collector import Collector

EXAMPLE = (
    "label-studio export.json --response answer --context question --dimension empathy=1:5:1 "
    "--field system_id=model --audio media --out data"
)
_FIELDS = ("group_id", *NAME_COLUMNS, *TEXT_COLUMNS)
_RATING = (*RATING_COLUMNS, SECONDS)
_SIDES = ("left", "right", "tie")
_SCORE_KEYS = ("rating", "number", "choices")


@dataclass(frozen=True)
class _Mapping:
    """The command line."""

    responses: Sequence[str]  # fields of responses
    context: Sequence[tuple[str, str]]  # role and field of each turn, oldest first
    # our column and the response field that it is for (empty = all) -> field of the task
    fields: Mapping[tuple[str, str], str]
    ratings: Mapping[str, tuple[str, str]]  # control -> response field that it is about and dimension
    preferences: Mapping[str, str]  # control -> dimension
    choices: Mapping[str, str]  # label -> what it stands for

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
    """What one person set one control (``from_name``) to, such as ``{"rating": 4}``; `seconds` is ``lead_time`` as
    exported, for the whole annotation."""

    task: str
    rater: str
    seconds: Any
    control: str
    value: Mapping[str, Any]
    where: str


@dataclass(frozen=True, kw_only=True)
class Options(AudioRoot):
    """Options of Label Studio exports.

    Attributes:
        response (FIELD): field of the response; repeatable
        context ([ROLE=]FIELD): field of a context turn, oldest first; the role is user unless stated; repeatable
        dimension (NAME=LOW:HIGH[:STEP][:lower]): scale; repeatable
        rating (DIMENSION[@RESPONSE]=CONTROL): control that rates a dimension, where it has another name; repeatable
        preference (DIMENSION=CONTROL): control that compares two responses; repeatable
        choice (LABEL=SCORE): what a label of Choices stands for: a score, left, right or tie; repeatable
        field (OURS[@RESPONSE]=FIELD): field for another column, such as group_id, system_id, situation, or a tag such
            as tag:cue; repeatable
        audio (FOLDER): where the clips are (default: beside the export)
        synthetic: the ratings were not given by people
    """

    response: Sequence[str] = dataclasses.field(metadata=REPEATABLE)
    context: Sequence[str] = dataclasses.field(default=(), metadata=REPEATABLE)
    dimension: Sequence[str] = dataclasses.field(metadata=REPEATABLE)
    rating: Sequence[str] = dataclasses.field(default=(), metadata=REPEATABLE)
    preference: Sequence[str] = dataclasses.field(default=(), metadata=REPEATABLE)
    choice: Sequence[str] = dataclasses.field(default=(), metadata=REPEATABLE)
    field: Sequence[str] = dataclasses.field(default=(), metadata=REPEATABLE)
    audio: Path | None = None
    synthetic: bool = False


def read(path: Path, options: Options) -> Imported:
    """Reads the export; clips are looked up, not decoded.

    Raises:
        DataError: If it is no such export, or a rating breaks the contract; task, annotation and control are named.
        UserError: If an option has another form or names what the export does not have.
    """
    import pandas as pd  # takes 0.2 s: not for the help

    dimensions = [parse_dimension(text) for text in options.dimension]
    mapping = _mapping(options, [dimension.name for dimension in dimensions])
    folder = (options.audio or path.parent).resolve()
    if not folder.is_dir():
        raise UserError(f"--audio {options.audio}: no such folder")
    tasks, answers, cancelled = _read_export(path)
    controls = dict.fromkeys(answer.control for answer in answers)
    fields = dict.fromkeys(name for task in tasks for name in task.data)
    for field in mapping.task_fields:
        if field not in fields:
            raise DataError(f"{path}: no task has a field {shown(field)}; they have {', '.join(map(shown, fields))}")
    used_controls = {*mapping.ratings, *mapping.preferences}
    # Without an annotation there is no control to name: the error below says so
    for control in sorted(used_controls - controls.keys()) if controls else ():
        present = ", ".join(map(shown, sorted(controls)))
        raise DataError(f"{path}: no annotation has a control {shown(control)}; they have {present}")

    find = partial(find_clip, folder=folder, root=options.audio_root, may_name=True)
    rows = [(task.where, _pair_row(task, response, mapping, find)) for task in tasks for response in mapping.responses]
    # Where no field says the group, `assemble` makes groups of contexts.
    grouped = any(ours == "group_id" for ours, _ in mapping.fields)
    pairs = list(
        checked_pairs(
            (row for _, row in rows), path, lambda n, column: f"{rows[n][0]}, column {column!r}", grouped=grouped
        )
    )
    scored = [answer for answer in answers if answer.control in mapping.ratings]
    ratings = pd.DataFrame([_rating(answer, mapping) for answer in scored], columns=pd.Index(_RATING), dtype=object)

    def locate(position: int, column: str) -> str:
        return scored[position].where + (", lead_time of its annotation" if column == SECONDS else "")

    ratings = check_ratings(ratings, [row["pair_id"] for row in pairs], dimensions, path, locate)
    collector = Collector()
    compared = [answer for answer in answers if answer.control in mapping.preferences]
    for answer in compared:
        collector.add_preference(*_preference(answer, mapping), answer.where)
    if not scored and not compared:
        raise DataError(f"{path}: no annotation that counts ({cancelled} cancelled)")
    ignored_fields = [name for name in fields if name not in mapping.task_fields]
    ignored_controls = [control for control in controls if control not in used_controls]
    notes = [
        f"Fields not imported: {', '.join(ignored_fields)}." if ignored_fields else "",
        f"Controls not imported: {', '.join(ignored_controls)}." if ignored_controls else "",
        f"{counted(cancelled, 'cancelled annotation')} left out." if cancelled else "",
    ]
    description = " ".join(filter(None, notes))
    card = DatasetCard("", tuple(dimensions), "unknown", "unknown", options.synthetic, description)
    imported = collector.imported(card, pairs, compared=bool(mapping.preferences))
    return replace(imported, ratings=ratings)


def _mapping(options: Options, names: Sequence[str]) -> _Mapping:
    """The options, checked against each other; `names` are those of the dimensions."""
    responses = options.response
    if len(set(responses)) < len(responses):
        raise UserError(f"--response {shown(responses)}; expected each field once")
    preferences = _by_control(options.preference, "--preference")
    for control, name in preferences.items():
        _check_known(f"--preference {name}={control}", name, names)
    if preferences and len(responses) != 2:
        raise UserError(f"--preference with {len(responses)} --response; expected two, the left one first")
    ratings: dict[str, tuple[str, str]] = {}
    for control, target in _by_control(options.rating, "--rating").items():
        name, separator, response = target.partition("@")
        _check_known(f"--rating {target}={control}", name, names)
        if not separator and len(responses) > 1:
            expected = ", ".join(f"{name}@{field}={control}" for field in responses)
            raise UserError(f"--rating {target}={control}: expected {expected}")
        _check_known(f"--rating {target}={control}", response or responses[0], responses)
        ratings[control] = response or responses[0], name
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
    context = [(role, field) if separator else ("user", role) for role, separator, field in turns]
    return _Mapping(responses, context, fields, ratings, preferences, parse_mapping(options.choice, "--choice"))


def _by_control(items: Sequence[str], option: str) -> dict[str, str]:
    """Control -> what it is about; the command line states them the other way round."""
    controls = parse_mapping(items, option)
    targets = {control: target for target, control in controls.items()}
    if len(targets) < len(controls):
        raise UserError(f"{option} {shown(list(controls.values()))}; expected each control once")
    return targets


def _check_known(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UserError(f"{option}: {shown(name)}; expected {', '.join(known)}")


def scores_of_export(table: SourceTable, item: str, annotator: str) -> SourceTable:
    """The scores of an export as a table with a row for each, with columns `item` (number of the task), `annotator`,
    ``dimension`` (name of the control) and ``score``: what Rating, Number and Choices controls were set to.

    Raises:
        DataError: If it is no such export.
    """
    rows, places = [], []
    for answer in _answers_of(table.records(), table.path)[1]:
        value = next((answer.value[key] for key in _SCORE_KEYS if key in answer.value), None)
        # With these a part of the clip was rated
        if value is not None and not {"start", "end"} & answer.value.keys():
            # A single choice is exported as a list of one
            score = value[0] if isinstance(value, list) and len(value) == 1 else value
            rows.append({item: answer.task, annotator: answer.rater, "dimension": answer.control, "score": score})
            places.append(answer.where)
    if not rows:
        raise DataError(f"{table.path}: no annotation holds a score")
    return _Scores(table.path, tuple(rows[0]), rows, places=places)


@dataclass(frozen=True)
class _Scores(SourceTable):
    """Scores of an export; `places` are those of its answers."""

    places: Sequence[str] = ()

    def place(self, position: int, column: str | None = None) -> str:
        return self.places[position]


def _read_export(path: Path) -> tuple[list[_Task], list[_Answer], int]:
    return _answers_of(read_records(path), path)


def _answers_of(rows: Sequence[TableRow], path: Path) -> tuple[list[_Task], list[_Answer], int]:
    """Tasks in the order of the export, the answers to them without drafts and predictions, and the number of cancelled
    annotations, which are left out."""
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
    return tasks, answers, cancelled


def _answers(annotation: Mapping[str, Any], task: _Task) -> Iterator[_Answer]:
    where = f"{task.where}, annotation {shown(annotation.get('id'))}"
    results, person = annotation.get("result"), annotation.get("completed_by")
    if not isinstance(results, list):
        raise DataError(f"{where}: result {shown(results)}; expected a list")
    # A number, or in some exports an object with the person's number, name and address
    rater = plain_text(person.get("id") if isinstance(person, dict) else person)
    if not is_name(rater):
        raise DataError(f"{where}: completed_by {shown(person)}; expected the number or name of who rated")
    for result in results:
        if not isinstance(result, dict) or not isinstance(result.get("value", {}), dict):
            raise DataError(f"{where}: result {shown(result)}; expected from_name, to_name, type, value")
        control = result.get("from_name")
        # Relations between regions have no control.
        if isinstance(control, str):
            place = f"{where}, control {control!r}"
            yield _Answer(task.number, rater, annotation.get("lead_time"), control, result.get("value", {}), place)


def _pair_row(task: _Task, response: str, mapping: _Mapping, find: Callable[..., ClipCell]) -> dict[str, Any]:
    """The row of a pair. Responses to one task are one group, even if no field says so."""
    row: dict[str, Any] = {**dict.fromkeys(PAIR_COLUMNS), "pair_id": mapping.pair_id(task.number, response)}
    row["group_id"] = f"task-{task.number}" if len(mapping.responses) > 1 else None
    fields = {ours: field for (ours, of_response), field in mapping.fields.items() if of_response in ("", response)}
    tags = {ours.removeprefix(TAG_PREFIX): field for ours, field in fields.items() if ours.startswith(TAG_PREFIX)}
    values = {name: plain_text(task.data.get(field)) for name, field in tags.items()}
    row[TAGS] = sorted_tags(values, f"{task.where}, field {', '.join(tags.values())!r}")
    row |= {ours: plain_text(task.data.get(field)) for ours, field in fields.items() if ours in _FIELDS}
    turns = [(role, field) for role, field in mapping.context if task.data.get(field) not in (None, "")]
    row["context_audio"] = [{"role": role, "audio": _find(task, field, find)} for role, field in turns]
    row["response_audio"] = _find(task, response, find)
    return row


def _find(task: _Task, field: str, find: Callable[..., ClipCell]) -> ClipCell:
    """The clip of a field, whose value is an address inside Label Studio or a path."""
    where, value = f"{task.where}, field {field!r}", task.data.get(field)
    if not isinstance(value, str):
        return ClipCell(AudioError(f"value {shown(value)}; expected the path of an audio file"), where)
    if "://" in value:
        expected = "a file of the folder --audio; download it there and change the export"
        return ClipCell(AudioError(f"value {shown(value)} is on another machine; expected {expected}"), where)
    path, _, query = value.partition("?")
    if path.strip("/") == "data/local-files":
        return find(parse_qs(query).get("d", [""])[0].lstrip("/"), where=where)
    paths = [value]
    if value.startswith("/data/upload/"):
        parts = value.removeprefix("/data/").split("/")
        # a path that leaves the folder stays whole: it is refused
        starts = range(1 if ".." in unquote(value).split("/") else len(parts))
        paths = ["/".join(parts[start:]) for start in starts]
    candidates = [find(path, where=where) for path in dict.fromkeys([*paths, *map(unquote, paths)])]
    return next((cell for cell in candidates if isinstance(cell.content, Path)), candidates[0])


def _rating(answer: _Answer, mapping: _Mapping) -> tuple[Any, ...]:
    """Values of `_RATING`; the score is the number that the control was set to, checked later."""
    if "start" in answer.value or "end" in answer.value:
        raise DataError(f"{answer.where}: rates a region; expected a control that rates the whole clip")
    kinds = [key for key in _SCORE_KEYS if key in answer.value]
    if len(kinds) != 1:
        raise bad_value(answer.where, answer.value, f"one of {', '.join(_SCORE_KEYS)}")
    if kinds == ["choices"]:
        label = _label(answer)
        score = to_number(mapping.choices.get(label, label))
        if not isinstance(score, float):
            raise DataError(f"{answer.where}: label {shown(label)}; expected a number, or --choice LABEL=SCORE")
    else:
        score = answer.value[kinds[0]]
    response, dimension = mapping.ratings[answer.control]
    return mapping.pair_id(answer.task, response), answer.rater, dimension, score, to_number(answer.seconds)


def _label(answer: _Answer) -> str:
    labels = answer.value.get("choices")
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str):
        raise DataError(f"{answer.where}: choices {shown(labels)}; expected one label")
    return labels[0]


def _preference(answer: _Answer, mapping: _Mapping) -> tuple[str, str, str, str, float]:
    """Chosen and rejected pair, rater, dimension, strength."""
    label = answer.value["selected"] if "selected" in answer.value else _label(answer)
    side = label if "selected" in answer.value else mapping.choices.get(label, label)
    if side not in _SIDES:
        raise bad_value(answer.where, answer.value, f"{', '.join(_SIDES)}, or --choice LABEL=SIDE")
    left, right = (mapping.pair_id(answer.task, response) for response in mapping.responses)
    chosen, rejected = (right, left) if side == "right" else (left, right)
    return chosen, rejected, answer.rater, mapping.preferences[answer.control], float(side != "tie")
