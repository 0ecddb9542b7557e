"""A prompted judge that compares the responses to a context with each other, in both orders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import combinations

import numpy as np
import pandas as pd

from ....data_modules.audio import audio_hash
from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from .. import OK, score_table
from .asking import comparison_question
from .forms import Preferred
from .reading import Said, read, record
from .runner import Job, Outcome
from .session import Session

ALONE = "no other response to its context"


class PairwiseJudge:
    """Implements `Judge`: a response's score is how often it is preferred to the others of its context.

    The score is in rating points, the middle of the scale where it wins as often as it loses; it says who is better in
    a context and nothing about whether all of them are good. Both orders count alike, so that a taste for the first one
    cancels; how often they disagree is told.

    Args:
        name: How reports call it.
        session: Who is asked, and how.
        dimensions: What it compares, with their scales.
        only_given: See `Judge.only_given`.
    """

    def __init__(
        self, name: str, session: Session, dimensions: Sequence[Dimension], only_given: str | None = None
    ) -> None:
        self.name, self.only_given = name, only_given
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.session = session
        self._scales = tuple(dimensions)

    def jobs(self, pairs: Sequence[Pair]) -> list[Job]:
        """All questions: comparison by comparison, then the two orders, then sample by sample."""
        return self._jobs(pairs, matches(pairs, self.session.manner.asking.opponents))

    def _jobs(self, pairs: Sequence[Pair], played: Iterable[tuple[int, int]]) -> list[Job]:
        return [
            Job(build, sample)
            for one, other in played
            for first, second in ((one, other), (other, one))
            for build in [partial(comparison_question, pairs[first], pairs[second], self._scales, self.session.manner)]
            for sample in range(self.session.manner.asking.samples)
        ]

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` has what `record` tells, of the comparisons in which the pair comes first in the data, so that sums
        over pairs count each once; and their ``orders`` by dimension: the verdicts with this response first and second,
        each between -1 (the second is better) and 1 (the first).
        """
        played = matches(pairs, self.session.manner.asking.opponents)
        outcomes = self.session.ask(self._jobs(pairs, played), self.name)
        samples = self.session.manner.asking.samples
        wins: list[list[np.ndarray]] = [[] for _ in pairs]
        failures: list[Counter[str]] = [Counter() for _ in pairs]
        orders: list[list[np.ndarray]] = [[] for _ in pairs]
        own: list[list[tuple[Outcome, Said]]] = [[] for _ in pairs]
        form = Preferred(self._scales)
        for number, (one, other) in enumerate(played):
            asked = outcomes[2 * samples * number : 2 * samples * (number + 1)]
            said = [read(outcome, form) for outcome in asked]
            own[one] += zip(asked, said, strict=True)
            for pair in (one, other):
                failures[pair].update(verdict.failure for verdict in said if verdict.failure)
            forth, back = (
                [[verdict.values[name] for name in self.dimensions] for verdict in half if verdict.values]
                for half in (said[:samples], said[samples:])
            )
            if forth and back:  # one order alone would tell the judge's taste for a place
                verdicts = np.array([np.mean(forth, axis=0), np.mean(back, axis=0)])
                orders[one].append(verdicts)
                wins[one].append((verdicts[0] - verdicts[1]) / 2)
                wins[other].append((verdicts[1] - verdicts[0]) / 2)
        middle, half = (np.array([(d.maximum + sign * d.minimum) / 2 for d in self._scales]) for sign in (1, -1))
        scores = [middle + half * np.mean(won, axis=0) if won else np.full(len(middle), np.nan) for won in wins]
        metas = [
            {
                **record([outcome for outcome, _ in asked], [one for _, one in asked]),
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
    played: list[tuple[int, int]] = []
    for members in contexts.values():
        if opponents == 0 or len(members) - 1 <= opponents:
            played += combinations(members, 2)
            continue
        circle = sorted(members, key=lambda position: pairs[position].pair_id)
        random.Random(pairs[circle[0]].pair_id).shuffle(circle)
        for away in range(1, max(1, opponents // 2) + 1):
            met = zip(circle, circle[away:] + circle[:away], strict=True)
            played += sorted((min(two), max(two)) for two in met)
    return played
