"""From replies to numbers, or to the reason why there is none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .forms import Form, Number, Unread, expected_score
from .provider import ANSWERED, CUT_OFF, REFUSED
from .runner import Outcome

# Refusals in plain words, where a model has no field for them; only looked for where no score can be read
_REFUSAL = re.compile(
    r"\b(?:I(?:'m| am) (?:sorry|unable|not able)|I (?:cannot|can['’]t|won['’]t)|"
    r"(?:cannot|can['’]t) (?:help|assist|judge|rate))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Said:
    """What one outcome says: numbers by name, or a failure."""

    values: Mapping[str, float]
    failure: str = ""


def read(outcome: Outcome, form: Form) -> Said:
    """The numbers of an outcome; a failure is named, never guessed at."""
    if outcome.answer is None:
        return Said({}, outcome.failure)
    reply = outcome.answer.reply
    if reply.kind not in (ANSWERED, CUT_OFF):
        return Said({}, reply.kind)
    if isinstance(form, Number) and reply.alternatives:
        expected = expected_score(reply.alternatives, form.dimension)
        if expected is not None:
            return Said({form.dimension.name: expected})
    try:
        return Said(form.read(reply.content))
    except Unread as error:
        if reply.kind == CUT_OFF:
            return Said({}, CUT_OFF)
        return Said({}, REFUSED if _REFUSAL.search(reply.content) else error.kind)


def version_of(outcome: Outcome) -> str | None:
    """The version of the model that answered; None where it is not told, or nobody answered."""
    return None if outcome.answer is None else outcome.answer.reply.version


def record(outcomes: Sequence[Outcome], said: Sequence[Said]) -> dict[str, Any]:
    """What `Judge.score` says of a pair beside its scores; `asked_report` makes statistics of it.

    Returns:
        ``questions`` that were to be asked, ``requests`` with an answer, ``kept`` of them from earlier runs,
        ``failures`` by kind, ``cost`` (dollars; None = unknown), ``seconds`` that requests took, ``versions`` of the
        model.
    """
    answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    costs = [answer.cost for answer in answers]
    return {
        "questions": len(outcomes),
        "requests": len(answers),
        "kept": sum(outcome.kept for outcome in outcomes),
        "failures": dict(Counter(one.failure for one in said if one.failure)),
        "cost": sum(cost for cost in costs if cost is not None) if any(cost is not None for cost in costs) else None,
        "seconds": sum(answer.seconds for answer in answers),
        "versions": sorted({answer.reply.version for answer in answers if answer.reply.version}),
    }
