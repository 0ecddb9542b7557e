"""Prompted LLM judges: one that rates each pair by itself, and one that compares responses in both orders."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from ...checks.pairs import context_keys
from .. import OK, score_table
from .questions import Example, Question, comparison_question, read_levels, score_question
from .runner import AskedOutcome, QueuedQuestion, Session

ALONE = "no other response to its context"


@dataclass(eq=False)
class PromptedJudge(ABC):
    """Implements `Judge`: base class of both kinds."""

    name: str
    session: Session  # the model that is asked, and how
    scales: Sequence[Dimension]  # of what it scores
    only_given: str | None = None
    examples: Sequence[Example] = ()  # rated pairs that it is shown before each question about one pair
    record: None = None

    def __post_init__(self) -> None:
        self.dimensions = tuple(scale.name for scale in self.scales)

    @abstractmethod
    def tasks(self, pairs: Sequence[Pair]) -> list[QueuedQuestion]:
        """All questions about the pairs, each as often as `PromptedSettings.samples`."""

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`."""

    def _sampled(self, questions: Iterable[Callable[[], Question]]) -> list[QueuedQuestion]:
        samples = range(self.session.settings.samples)
        return [QueuedQuestion(build, sample) for build in questions for sample in samples]

    def _table(
        self, pairs: Sequence[Pair], scores: Sequence[Any], failures: Sequence[Counter[str]], metas: Sequence[Any]
    ) -> pd.DataFrame:
        """The table from one row of `scores` per pair; a row with NaN gets its most frequent failure as status."""
        values = np.reshape(scores, (len(pairs), -1))
        statuses = [
            OK if np.isfinite(row).all() else failed.most_common(1)[0][0] if failed else ALONE
            for row, failed in zip(values, failures, strict=True)
        ]
        return score_table(pairs, self.dimensions, values, None, statuses, metas)


class PointwiseJudge(PromptedJudge):
    """The mean of several answers for each pair."""

    @property
    def _asked(self) -> list[Sequence[Dimension]]:
        """Dimensions of each question: one where scores come from the probabilities of a first token, else all."""
        single = self.session.settings.answers == "logprobs"
        return [(scale,) for scale in self.scales] if single else [self.scales]

    def tasks(self, pairs: Sequence[Pair]) -> list[QueuedQuestion]:
        """All questions: pair by pair, then question by question (`_asked`), then sample by sample."""
        settings, max_tokens = self.session.settings, self.session.provider.max_tokens
        return self._sampled(
            partial(score_question, pair, asked, settings, max_tokens, self.examples)
            for pair in pairs
            for asked in self._asked
        )

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` has the ``samples`` of each dimension, the versions of the model that gave them (``sample_versions``,
        None = unknown), and the entries of `record`. A decision model adds ``levels``: by dimension, the probability of
        each step of its scale, lowest first.
        """
        outcomes = self.session.ask(self.tasks(pairs), self.name)
        count = len(self._asked) * self.session.settings.samples
        scores, failures, metas = [], [], []
        for start in range(0, len(outcomes), count):
            of_pair = outcomes[start : start + count]
            answered = {name: [outcome for outcome in of_pair if name in outcome.values] for name in self.dimensions}
            samples = {name: [outcome.values[name] for outcome in scored] for name, scored in answered.items()}
            versions = {
                name: [outcome.answer and outcome.answer.reply.version for outcome in scored]
                for name, scored in answered.items()
            }
            scores.append([np.mean(values) if values else np.nan for values in samples.values()])
            metas.append({"samples": samples, "sample_versions": versions, **record(of_pair)})
            if self.session.settings.answers == "levels":  # then there is one answer to each question
                answers = [outcome.answer.reply for outcome in of_pair if outcome.answer and outcome.values]
                metas[-1]["levels"] = {d.name: read_levels(reply.levels, d) for reply in answers for d in self.scales}
            failures.append(Counter(outcome.failure for outcome in of_pair if outcome.failure))
        return self._table(pairs, scores, failures, metas)


class PairwiseJudge(PromptedJudge):
    """A response's score is how often it is preferred to the others of its context.

    The score is in rating points: the middle of the scale where a response wins as often as it loses. It says which
    response to a context is better, and nothing about whether all of them are good. Both orders have equal weight, so
    that position bias cancels; how often they disagree is recorded.
    """

    def tasks(self, pairs: Sequence[Pair]) -> list[QueuedQuestion]:
        """All questions: comparison by comparison, then the two orders, then sample by sample."""
        settings, max_tokens = self.session.settings, self.session.provider.max_tokens
        return self._sampled(
            partial(comparison_question, pairs[first], pairs[second], self.scales, settings, max_tokens)
            for a, b in matches(pairs, settings.opponents)
            for first, second in ((a, b), (b, a))
        )

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` has the entries of `record` for the comparisons in which the pair comes first in the data, so that sums
        over pairs count each comparison once. It also has their ``orders`` by dimension: the verdicts with this
        response first and second, each between -1 (the second is better) and 1 (the first).
        """
        compared = matches(pairs, self.session.settings.opponents)
        outcomes = self.session.ask(self.tasks(pairs), self.name)
        samples = self.session.settings.samples
        wins: list[list[np.ndarray]] = [[] for _ in pairs]
        failures: list[Counter[str]] = [Counter() for _ in pairs]
        orders: list[list[np.ndarray]] = [[] for _ in pairs]
        counted: list[list[AskedOutcome]] = [[] for _ in pairs]
        for index, (a, b) in enumerate(compared):
            asked = outcomes[2 * samples * index : 2 * samples * (index + 1)]
            counted[a] += asked
            for pair in (a, b):
                failures[pair].update(outcome.failure for outcome in asked if outcome.failure)
            forth, back = (
                [[outcome.values[name] for name in self.dimensions] for outcome in half if outcome.values]
                for half in (asked[:samples], asked[samples:])
            )
            if forth and back:  # one order alone would include the judge's position bias
                verdicts = np.array([np.mean(forth, axis=0), np.mean(back, axis=0)])
                orders[a].append(verdicts)
                wins[a].append((verdicts[0] - verdicts[1]) / 2)
                wins[b].append((verdicts[1] - verdicts[0]) / 2)
        middle, half = (np.array([(d.maximum + sign * d.minimum) / 2 for d in self.scales]) for sign in (1, -1))
        scores = [middle + half * np.mean(won, axis=0) if won else np.full(len(middle), np.nan) for won in wins]
        metas = []
        for asked, seen in zip(counted, orders, strict=True):
            by_dimension = {name: [both[:, at].tolist() for both in seen] for at, name in enumerate(self.dimensions)}
            metas.append({**record(asked), "orders": by_dimension})
        return self._table(pairs, scores, failures, metas)


def record(outcomes: Sequence[AskedOutcome]) -> dict[str, Any]:
    """Facts about the requests for a pair, for its ``meta``; `eval.prompted_report` computes statistics from them.

    Returns:
        ``questions`` in all, ``requests`` with an answer, ``kept`` (those of them from earlier runs), ``failures`` by
        kind, ``cost`` (dollars, of each answer once, whenever it was paid; None = not known of every answer),
        ``seconds`` that requests took, ``versions`` of the model, ``reserve`` (dollars that must be free before the
        dearest question that the budget left no room for is asked; 0 where there is none).
    """
    answered = [(outcome, outcome.answer) for outcome in outcomes if outcome.answer is not None]
    answers = [answer for _, answer in answered]
    paid = [answer.cost for outcome, answer in answered if not outcome.repeated]
    costs = [cost for cost in paid if cost is not None]
    return {
        "questions": len(outcomes),
        "requests": len(answers),
        "kept": sum(outcome.cached for outcome in outcomes),
        "failures": dict(Counter(outcome.failure for outcome in outcomes if outcome.failure)),
        "cost": float(sum(costs)) if answers and len(costs) == len(paid) else None,
        "seconds": sum(answer.seconds for answer in answers),
        "versions": sorted({answer.reply.version for answer in answers if answer.reply.version}),
        "reserve": max((outcome.reserve for outcome in outcomes), default=0.0),
    }


def matches(pairs: Sequence[Pair], opponents: int) -> list[tuple[int, int]]:
    """Which responses are compared: positions of two responses to the same context.

    Each has as many opponents, an even number; 0 = all others. With fewer than all, they are its neighbours on a
    circle, in an order that depends on the ids alone.
    """
    contexts: dict[object, list[int]] = {}
    for position, (pair, key) in enumerate(zip(pairs, context_keys(pairs), strict=True)):
        contexts.setdefault((key, None if pair.context else pair.group_id), []).append(position)
    compared: list[tuple[int, int]] = []
    for members in contexts.values():
        if opponents == 0 or len(members) - 1 <= opponents:
            compared += combinations(members, 2)
            continue
        circle = sorted(members, key=lambda position: pairs[position].pair_id)
        random.Random(pairs[circle[0]].pair_id).shuffle(circle)
        for distance in range(1, opponents // 2 + 1):
            neighbours = zip(circle, circle[distance:] + circle[:distance], strict=True)
            compared += sorted((min(pair), max(pair)) for pair in neighbours)
    return compared
