"""Exports of Label Studio: tasks, and what people answered to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, shown
from ..ratings import is_name
from .records import Record, read_records
from .tables import plain_text

# What JSON-MIN adds to the fields of a task and its controls.
_MIN_FIELDS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement")


@dataclass(frozen=True)
class Answer:
    """What one person set one control to.

    Attributes:
        control: Name of the control (``from_name``).
        value: What it was set to, such as ``{"rating": 4}``.
        where: For messages.
    """

    control: str
    value: Mapping[str, Any]
    where: str


@dataclass(frozen=True)
class Annotation:
    """All that one person answered to a task; it was not cancelled.

    Attributes:
        rater: Who answered.
        answers: What.
        lead_time: As exported: seconds for the whole annotation, or None.
    """

    rater: str
    answers: Sequence[Answer]
    lead_time: Any


@dataclass
class Task:
    """What was shown to people.

    Attributes:
        number: Its ``id``.
        data: Field -> value.
        where: For messages.
        annotations: What people answered.
    """

    number: str
    data: Mapping[str, Any]
    where: str
    annotations: list[Annotation]


def read_tasks(path: Path, controls: Collection[str]) -> tuple[list[Task], int]:
    """The tasks in the order of the export, and the number of cancelled annotations, which are left out.

    Drafts and predictions are left out too.

    Args:
        path: JSON or JSON-MIN.
        controls: Names of the controls that count; JSON-MIN does not tell controls from fields.

    Raises:
        DataError: If it is no such export, or an annotation does not say who made it.
    """
    records = read_records(path)
    is_full = {isinstance(record.values.get("data"), dict) for record in records}
    if is_full == {True}:
        return _full_tasks(records)
    if is_full == {False} and "annotation_id" in records[0].table.columns:
        return _min_tasks(records, controls), 0
    raise DataError(f"{path}: not an export of Label Studio; accepted: JSON or JSON-MIN, a list of annotated tasks")


def _full_tasks(records: Sequence[Record]) -> tuple[list[Task], int]:
    tasks, cancelled = [], 0
    for record in records:
        task = Task(record.name("id"), record.values["data"], _place(record), [])
        listed = record.values.get("annotations")
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise record.error("annotations", "a list of annotations; the export is JSON with all of them")
        for annotation in listed:
            if annotation.get("was_cancelled") not in (None, False):
                cancelled += 1
                continue
            task.annotations.append(_annotation(annotation, f"{task.where}, annotation {shown(annotation.get('id'))}"))
        tasks.append(task)
    return tasks, cancelled


def _place(record: Record) -> str:
    return f"{record.table.path}, task {shown(record.values.get('id'))}"


def _annotation(annotation: Mapping[str, Any], where: str) -> Annotation:
    results = annotation.get("result")
    if not isinstance(results, list):
        raise DataError(f"{where}: result {shown(results)}; accepted: a list")
    answers = []
    for result in results:
        if not isinstance(result, dict) or not isinstance(result.get("value", {}), dict):
            raise DataError(f"{where}: result {shown(result)}; accepted: from_name, to_name, type, value")
        control = result.get("from_name")
        if isinstance(control, str):  # relations between regions have none
            answers.append(Answer(control, result.get("value", {}), f"{where}, control {control!r}"))
    return Annotation(_rater(annotation.get("completed_by"), where), answers, annotation.get("lead_time"))


def _rater(value: Any, where: str) -> str:
    """A number, or in some exports an object with the person's number, name and address."""
    name = plain_text(value.get("id") if isinstance(value, dict) else value)
    if not is_name(name):
        raise DataError(f"{where}: completed_by {shown(value)}; accepted: the number or name of who rated")
    return name


def _min_tasks(records: Sequence[Record], controls: Collection[str]) -> list[Task]:
    """JSON-MIN has a record per annotation, which repeats the fields of the task."""
    tasks: dict[str, Task] = {}
    for record in records:
        extra = {*_MIN_FIELDS, *controls}
        data = {name: value for name, value in record.values.items() if name not in extra}
        task = tasks.setdefault(record.name("id"), Task(record.name("id"), data, _place(record), []))
        where = f"{task.where}, annotation {shown(record.values.get('annotation_id'))}"
        answers = [
            Answer(control, value, f"{where}, control {control!r}")
            for control in sorted(set(controls) & set(record.values))
            for value in _min_values(record.values[control], f"{where}, control {control!r}")
        ]
        if answers:
            rater = _rater(record.values.get("annotator"), where)
            task.annotations.append(Annotation(rater, answers, record.values.get("lead_time")))
    return list(tasks.values())


def _min_values(value: Any, where: str) -> list[Mapping[str, Any]]:
    """JSON-MIN writes a single label as text and any other value as a list of objects."""
    if isinstance(value, str):
        return [{"choices": [value]}]
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise DataError(f"{where}: value {shown(value)}; accepted: a label, or a list of objects")
