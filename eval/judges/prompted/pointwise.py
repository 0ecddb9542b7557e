"""A prompted judge that rates each pair by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from ....data_modules.ratings import Dimension
from ....data_modules.schema import Pair
from .. import OK, score_table
from .asking import Example, score_form, score_question
from .reading import Said, read, record, version_of
from .runner import Job, Outcome
from .session import Session


class PointwiseJudge:
    """Implements `Judge`: the mean of several answers for each pair.

    Args:
        name: How reports call it.
        session: Who is asked, and how.
        dimensions: What it rates, with their scales.
        examples: Rated pairs that it is shown before each question.
        only_given: See `Judge.only_given`.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        dimensions: Sequence[Dimension],
        examples: Sequence[Example] = (),
        only_given: str | None = None,
    ) -> None:
        self.name, self.only_given = name, only_given
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.session = session
        self._examples = tuple(examples)
        # the probabilities of a first token are those of one number
        single = session.manner.mode == "logprobs"
        self._asked: list[tuple[Dimension, ...]] = [(d,) for d in dimensions] if single else [tuple(dimensions)]

    def jobs(self, pairs: Sequence[Pair]) -> list[Job]:
        """All questions about the pairs: pair by pair, then by what is asked at once, then sample by sample."""
        return [
            Job(build, sample)
            for pair in pairs
            for asked in self._asked
            for build in [partial(score_question, pair, asked, self.session.manner, self._examples)]
            for sample in range(self.session.manner.asking.samples)
        ]

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`.

        ``meta`` holds the ``samples`` of each dimension, beside them the versions of the model that gave them
        (``sample_versions``, None = not told), and what `record` tells.
        """
        outcomes = self.session.ask(self.jobs(pairs), self.name)
        per_pair = len(outcomes) // max(1, len(pairs))
        scores, statuses, metas = [], [], []
        for start in range(0, len(outcomes), max(1, per_pair)):
            own = outcomes[start : start + per_pair]
            said = self._read(own)
            samples = {name: [one.values[name] for one in said if name in one.values] for name in self.dimensions}
            versions = {
                name: [version_of(outcome) for outcome, one in zip(own, said, strict=True) if name in one.values]
                for name in self.dimensions
            }
            scores.append([np.mean(values) if values else np.nan for values in samples.values()])
            failures = Counter(one.failure for one in said if one.failure)
            statuses.append(OK if all(samples.values()) else failures.most_common(1)[0][0])
            metas.append({"samples": samples, "sample_versions": versions, **record(own, said)})
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), -1)), None, statuses, metas)

    def _read(self, outcomes: Sequence[Outcome]) -> list[Said]:
        manner = self.session.manner
        forms = [score_form(asked, manner.mode) for asked in self._asked for _ in range(manner.asking.samples)]
        return [read(outcome, form) for outcome, form in zip(outcomes, forms, strict=True)]
