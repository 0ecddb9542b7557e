"""Prompted LLM judges: one that rates each pair by itself, and one that compares responses in both orders."""

from __future__ import annotations

import math
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ....data_modules.audio import audio_hash
from ....data_modules.errors import AudioError, UserError
from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from .. import OK, score_table
from .cache import AnswerCache, cache_key
from .costs import PRICES, Budget, Plan
from .provider import ANSWERED, CUT_OFF, REFUSED, Provider
from .questions import (
    Example,
    Form,
    Number,
    Preferred,
    Question,
    Unread,
    comparison_question,
    expected_score,
    score_form,
    score_question,
)
from .runner import Outcome, Runner, Task
from .settings import Settings

ALONE = "no other response to its context"
# Refusals in plain words, where a model has no field for them; only looked for where no score can be read
_REFUSAL = re.compile(
    r"\b(?:I(?:'m| am) (?:sorry|unable|not able)|I (?:cannot|can['’]t|won['’]t)|"
    r"(?:cannot|can['’]t) (?:help|assist|judge|rate))",
    re.IGNORECASE,
)


class Session:
    """Asks one model in one way: what pointwise and pairwise judges share.

    Args:
        provider: Who is asked.
        settings: How.
        answers: Where answers are kept.
        budget: Dollars that may be spent; None = no limit.

    Raises:
        UserError: If the model cannot be asked for answers of that form.
    """

    def __init__(
        self, provider: Provider, settings: Settings, answers: AnswerCache, budget: float | None = None
    ) -> None:
        if budget is not None and not 0 <= budget < math.inf:
            raise UserError(f"budget {budget}; expected dollars, 0 or more")
        mode = provider.modes[0] if settings.answers == "auto" else settings.answers
        if mode not in provider.modes:
            name = f"{provider.name}:{provider.model}"
            raise UserError(f"{name}: answers={mode}; expected one of {', '.join(provider.modes)}")
        self.provider, self.settings = provider, settings.model_copy(update={"answers": mode})
        price = settings.price or (None if provider.elsewhere else PRICES.get(f"{provider.name}:{provider.model}"))
        self.budget = Budget(provider, price, budget)
        self._answers = answers

    def ask(self, tasks: Sequence[Task], title: str) -> list[Outcome]:
        """See `Runner.ask`."""
        return Runner(self.provider, self.settings, self._answers, self.budget).ask(tasks, title)

    def plan(self, tasks: Sequence[Task]) -> Plan:
        """Looks at every question once, and asks none."""
        requests, seconds, size, dollars, unusable = 0, 0.0, 0, 0.0, 0
        example = question = built = None
        for task in tasks:
            if task.build is not built:  # samples of one question share its clips
                built, question = task.build, _built(task)
            if question is None:
                unusable += 1
                continue
            example = example or question
            if self._answers.get(cache_key(self.provider, question, task.sample)) is None:
                requests += 1
                seconds += sum(sound.seconds for sound in question.sounds)
                size += sum(len(sound.wav) for sound in question.sounds)
                dollars += self.budget.estimate(question)
        known = None if self.budget.price is None else dollars
        return Plan(len(tasks), requests, seconds, size / 1e6, known, unusable, example)


def _built(task: Task) -> Question | None:
    try:
        return task.build()
    except AudioError:
        return None


# ---------------------------------------------------------------- from replies to numbers


@dataclass(frozen=True)
class Parsed:
    """What one outcome says: numbers by name, or a failure."""

    values: Mapping[str, float]
    failure: str = ""


def parse(outcome: Outcome, form: Form) -> Parsed:
    """The numbers of an outcome; a failure is named, never guessed at."""
    if outcome.answer is None:
        return Parsed({}, outcome.failure)
    reply = outcome.answer.reply
    if reply.kind not in (ANSWERED, CUT_OFF):
        return Parsed({}, reply.kind)
    if isinstance(form, Number) and reply.alternatives:
        expected = expected_score(reply.alternatives, form.dimension)
        if expected is not None:
            return Parsed({form.dimension.name: expected})
    try:
        return Parsed(form.read(reply.content))
    except Unread as error:
        if reply.kind == CUT_OFF:
            return Parsed({}, CUT_OFF)
        return Parsed({}, REFUSED if _REFUSAL.search(reply.content) else error.kind)


def record(outcomes: Sequence[Outcome], parsed: Sequence[Parsed]) -> dict[str, Any]:
    """What `Judge.score` says of a pair beside its scores; `asked_report` makes statistics of it.

    Returns:
        ``questions`` that were to be asked, ``requests`` with an answer, ``kept`` of them from earlier runs,
        ``failures`` by kind, ``cost`` (dollars; None = unknown), ``seconds`` that requests took, ``versions`` of the
        model.
    """
    answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    costs = [answer.cost for answer in answers if answer.cost is not None]
    return {
        "questions": len(outcomes),
        "requests": len(answers),
        "kept": sum(outcome.kept for outcome in outcomes),
        "failures": dict(Counter(one.failure for one in parsed if one.failure)),
        "cost": sum(costs) if costs else None,
        "seconds": sum(answer.seconds for answer in answers),
        "versions": sorted({answer.reply.version for answer in answers if answer.reply.version}),
    }


# ---------------------------------------------------------------- judges


class PromptedJudge(ABC):
    """Implements `Judge`: what both kinds share.

    Args:
        name: How reports call it.
        session: Who is asked, and how.
        dimensions: What it scores, with their scales.
        only_given: See `Judge.only_given`.
    """

    def __init__(
        self, name: str, session: Session, dimensions: Sequence[Dimension], only_given: str | None = None
    ) -> None:
        self.name, self.only_given, self.record = name, only_given, None
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.session = session
        self._scales = tuple(dimensions)

    @abstractmethod
    def tasks(self, pairs: Sequence[Pair]) -> list[Task]:
        """All questions about the pairs."""

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`."""

    def _sampled(self, questions: Iterable[Callable[[], Question]]) -> list[Task]:
        """Each as often as the settings say."""
        samples = range(self.session.settings.samples)
        return [Task(build, sample) for build in questions for sample in samples]


class PointwiseJudge(PromptedJudge):
    """The mean of several answers for each pair; `examples` are rated pairs that it is shown before each question."""

    def __init__(
        self,
        name: str,
        session: Session,
        dimensions: Sequence[Dimension],
        examples: Sequence[Example] = (),
        only_given: str | None = None,
    ) -> None:
        super().__init__(name, session, dimensions, only_given)
        self._examples = tuple(examples)
        # the probabilities of a first token are those of one number
        single = session.settings.answers == "logprobs"
        self._asked: list[tuple[Dimension, ...]] = [(d,) for d in dimensions] if single else [tuple(dimensions)]

    def tasks(self, pairs: Sequence[Pair]) -> list[Task]:
        """All questions: pair by pair, then by what is asked at once, then sample by sample."""
        settings, most = self.session.settings, self.session.provider.max_tokens
        return self._sampled(
            partial(score_question, pair, asked, settings, most, self._examples)
            for pair in pairs
            for asked in self._asked
        )

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` holds the ``samples`` of each dimension, beside them the versions of the model that gave them
        (``sample_versions``, None = not told), and what `record` tells.
        """
        outcomes = self.session.ask(self.tasks(pairs), self.name)
        settings = self.session.settings
        forms = [score_form(asked, settings.answers) for asked in self._asked for _ in range(settings.samples)]
        scores, statuses, metas = [], [], []
        for start in range(0, len(outcomes), len(forms)):
            own = outcomes[start : start + len(forms)]
            parsed = [parse(outcome, form) for outcome, form in zip(own, forms, strict=True)]
            samples = {name: [one.values[name] for one in parsed if name in one.values] for name in self.dimensions}
            versions = {
                name: [
                    outcome.answer and outcome.answer.reply.version
                    for outcome, one in zip(own, parsed, strict=True)
                    if name in one.values
                ]
                for name in self.dimensions
            }
            scores.append([np.mean(values) if values else np.nan for values in samples.values()])
            failures = Counter(one.failure for one in parsed if one.failure)
            statuses.append(OK if all(samples.values()) else failures.most_common(1)[0][0])
            metas.append({"samples": samples, "sample_versions": versions, **record(own, parsed)})
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), -1)), None, statuses, metas)


class PairwiseJudge(PromptedJudge):
    """A response's score is how often it is preferred to the others of its context.

    The score is in rating points, the middle of the scale where it wins as often as it loses; it says who is better in
    a context and nothing about whether all of them are good. Both orders count alike, so that position bias cancels;
    how often they disagree is told.
    """

    def tasks(self, pairs: Sequence[Pair]) -> list[Task]:
        """All questions: comparison by comparison, then the two orders, then sample by sample."""
        return self._tasks(pairs, matches(pairs, self.session.settings.opponents))

    def _tasks(self, pairs: Sequence[Pair], compared: Iterable[tuple[int, int]]) -> list[Task]:
        settings, most = self.session.settings, self.session.provider.max_tokens
        return self._sampled(
            partial(comparison_question, pairs[first], pairs[second], self._scales, settings, most)
            for one, other in compared
            for first, second in ((one, other), (other, one))
        )

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` has what `record` tells, of the comparisons in which the pair comes first in the data, so that sums
        over pairs count each once; and their ``orders`` by dimension: the verdicts with this response first and second,
        each between -1 (the second is better) and 1 (the first).
        """
        compared = matches(pairs, self.session.settings.opponents)
        outcomes = self.session.ask(self._tasks(pairs, compared), self.name)
        parsed = [parse(outcome, Preferred(self._scales)) for outcome in outcomes]
        samples = self.session.settings.samples
        wins: list[list[np.ndarray]] = [[] for _ in pairs]
        failures: list[Counter[str]] = [Counter() for _ in pairs]
        orders: list[list[np.ndarray]] = [[] for _ in pairs]
        own: list[list[int]] = [[] for _ in pairs]  # positions of outcomes
        for number, (one, other) in enumerate(compared):
            asked = range(2 * samples * number, 2 * samples * (number + 1))
            own[one] += asked
            for pair in (one, other):
                failures[pair].update(parsed[position].failure for position in asked if parsed[position].failure)
            forth, back = (
                [[verdict.values[name] for name in self.dimensions] for verdict in half if verdict.values]
                for half in (parsed[asked.start : asked.start + samples], parsed[asked.start + samples : asked.stop])
            )
            if forth and back:  # one order alone would tell the judge's position bias
                verdicts = np.array([np.mean(forth, axis=0), np.mean(back, axis=0)])
                orders[one].append(verdicts)
                wins[one].append((verdicts[0] - verdicts[1]) / 2)
                wins[other].append((verdicts[1] - verdicts[0]) / 2)
        middle, half = (np.array([(d.maximum + sign * d.minimum) / 2 for d in self._scales]) for sign in (1, -1))
        scores = [middle + half * np.mean(won, axis=0) if won else np.full(len(middle), np.nan) for won in wins]
        metas = [
            {
                **record([outcomes[position] for position in asked], [parsed[position] for position in asked]),
                "orders": {
                    name: [[float(both[0, column]), float(both[1, column])] for both in seen]
                    for column, name in enumerate(self.dimensions)
                },
            }
            for asked, seen in zip(own, orders, strict=True)
        ]
        statuses = [
            OK if won else failed.most_common(1)[0][0] if failed else ALONE
            for won, failed in zip(wins, failures, strict=True)
        ]
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), -1)), None, statuses, metas)


def matches(pairs: Sequence[Pair], opponents: int) -> list[tuple[int, int]]:
    """Who is compared with whom: positions of responses to the same context.

    Args:
        pairs: The pairs.
        opponents: Of each response; 0 = all others. With fewer than all, neighbours on a circle in an order that
            depends on nothing but the ids.
    """
    contexts: dict[object, list[int]] = {}
    hash_of = cache(audio_hash)  # a context is that of several pairs
    for position, pair in enumerate(pairs):
        heard = tuple((turn.role, hash_of(turn.audio)) for turn in pair.context)
        contexts.setdefault((pair.situation, heard or pair.group_id), []).append(position)
    compared: list[tuple[int, int]] = []
    for members in contexts.values():
        if opponents == 0 or len(members) - 1 <= opponents:
            compared += combinations(members, 2)
            continue
        circle = sorted(members, key=lambda position: pairs[position].pair_id)
        random.Random(pairs[circle[0]].pair_id).shuffle(circle)
        for away in range(1, max(1, opponents // 2) + 1):
            met = zip(circle, circle[away:] + circle[:away], strict=True)
            compared += sorted((min(two), max(two)) for two in met)
    return compared
