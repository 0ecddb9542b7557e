"""Decision models: they write nothing, and give each level of a scale a probability."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from .provider import Provider
from .replies import ANSWERED, EMPTY, Reply, RequestError, read
from .rubrics import CHOICES
from .settings import AnswerMode


class DecisionProvider(Provider):
    """A service that answers a map of questions of type ``score`` or ``choice``, whose form all of them share.

    The score of an answer is the mean of its distribution, and the field ``score`` is left alone; so is
    ``confidence``, which means another thing at each vendor. A subclass says how clips and questions are sent.
    """

    modes: tuple[AnswerMode, ...] = ("levels",)
    likely_tokens = max_tokens = 0  # output is not billed
    most_levels: ClassVar[int]  # of a question
    most_questions: ClassVar[int]  # of a request

    def decode(self, content: bytes) -> Any:
        try:
            return json.loads(content, object_pairs_hook=_named_once)
        except RecursionError:
            raise ValueError("nested too deep") from None

    def error(self, status: int, headers: Mapping[str, str], fields: dict[str, Any], text: str) -> RequestError:
        error = super().error(status, headers, fields, " ".join(text.split()))
        if status == 501:  # the model decides nothing, or hears nothing: no request changes that
            return RequestError("HTTP 501", error.detail.removeprefix("HTTP 501 "), final=True)
        return error

    def reply(self, body: Any) -> Reply:
        answers = read(body, "answers", dict)
        if not answers:
            return Reply(EMPTY)
        version = read(body, "model", str)
        levels = {self._without_key(name): _in_order(answer) for name, answer in answers.items()}
        return Reply(ANSWERED, version=version, levels=levels)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without what stands in it twice, such as a level with two probabilities: neither is the right one, and
    the rest of the answer was paid for."""
    times = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if times[name] == 1}


def _in_order(answer: Any) -> list[float | None]:
    """The probabilities of levels 0, 1, 2 ..., or of `CHOICES`, None = none; an empty list where they have other names,
    or there are none: the other answers were paid for with this one."""
    probabilities = answer.get("probabilities") if isinstance(answer, dict) else None
    if not isinstance(probabilities, dict):
        return []
    names = CHOICES if CHOICES[0] in probabilities else [str(number) for number in range(len(probabilities))]
    if probabilities.keys() != {*names}:
        return []
    values = [probabilities[name] for name in names]
    return [float(value) if type(value) in (int, float) and 0 <= value <= 2 else None for value in values]
