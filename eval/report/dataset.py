"""A judge on a dataset, ``agreement.json``, and judges against each other, ``comparison.json``."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..statistics.agreement import Statistic
from ..statistics.bootstrap import Interval
from .base import Count, Part, Share, Versioned
from .dimension import CheckReport, DimensionReport, SliceReport, VoiceAndWords

OVER_BUDGET = "not asked: the budget is used up"
"""The failure of a question that a budget left no room for."""
Cluster = Literal["group_id", "context_speaker", "response_speaker", "system_id"]
"""Units that a bootstrap can draw as a whole."""


class DatasetFacts(Part):
    """The dataset, from its card."""

    name: str
    """Its name."""
    source: str
    """Where the data comes from."""
    licence: str
    """Under which terms it may be used."""
    synthetic: bool
    """Whether the ratings were not given by people."""
    content_hash: str
    """SHA-256 of its content."""


class LeftOut(Part):
    """Dimensions of one side alone."""

    not_judged: tuple[str, ...]
    """Rated, but the judge does not score them."""
    not_rated: tuple[str, ...]
    """Scored, but nobody rated them."""


class Runtime(Part):
    """How long scoring took."""

    seconds_per_pair: float
    """Of the pass over the unchanged pairs."""
    measured: Literal["requests", "wall_clock"]
    """Sum over requests, waiting and earlier runs included; or the time of the pass."""


class Failure(Part):
    """Questions that failed in one way."""

    count: Count
    """How many."""
    rate: Share
    """Share of all questions."""


class Prompting(Part):
    """Counts and cost of a prompted judge on the unchanged pairs."""

    pairs: Count
    """Pairs of the split."""
    scored: Count
    """Pairs with a score on every dimension."""
    without_score: dict[str, Count]
    """Status -> pairs."""
    questions: Count
    """Questions about these pairs."""
    requests: Count
    """Requests with any answer."""
    kept: Count
    """Answers from earlier runs."""
    failed: Count
    """Questions that failed."""
    failure_rate: Share | None
    """Share of the questions; null without questions."""
    failures: dict[str, Failure]
    """Kind of failure -> how many."""
    cost: float | None
    """Dollars; null for a `cost_reason`."""
    cost_per_1000_pairs: float | None
    """Dollars; null for a `cost_reason`."""
    cost_reason: str | None
    """Why the cost is not known; null where it is."""
    versions: dict[str, Count]
    """Version of the model -> pairs."""
    version_changed: bool
    """Whether several versions answered."""
    check_requests: Count
    """Requests of the listening checks."""
    check_cost: float | None
    """Dollars for the listening checks; null where it is not known."""

    check_failures: dict[str, Count]
    """Kind of failure -> questions of the listening checks."""
    reserve: float
    """Dollars that must be free before the dearest question that the budget left no room for is asked; 0 = none."""

    @property
    def unasked(self) -> int:
        """Questions that the budget left no room for, those of listening checks included."""
        own = self.failures[OVER_BUDGET].count if OVER_BUDGET in self.failures else 0
        return own + self.check_failures.get(OVER_BUDGET, 0)

    @property
    def unasked_cost(self) -> float | None:
        """Dollars of a budget that they need, rounded up to two digits: each as the answers so far did, or with the
        most where that is not known, and before the last one its reservation. None without an answer."""
        each = (self.reserve if self.cost is None else self.cost / self.requests) if self.requests else 0.0
        if not (each and self.unasked):
            return None
        cost = each * self.unasked + self.reserve
        unit = 10.0 ** (math.floor(math.log10(cost)) - 1)
        return math.ceil(cost / unit * (1 - 1e-12)) * unit


class Report(Versioned):
    """A judge on a dataset: ``agreement.json`` of `evaluate`."""

    signature: str
    """All that the figures depend on, in one line."""
    judge: str
    """Name of the judge."""
    dataset: DatasetFacts
    """What was judged."""
    split: str | None
    """The split that was scored; null = all pairs."""
    split_hash: str
    """SHA-256 of the splits of the whole dataset."""
    command: str
    """The command line; empty if it was called from Python."""
    seed: int
    """Seed of all random draws."""
    cluster: Cluster
    """The column whose values intervals draw as wholes."""
    interval: Interval
    """Kind of the intervals."""
    resamples: Count
    """Bootstrap resamples of an interval."""
    versions: dict[str, str]
    """Package -> version."""
    provenance: dict[str, Any]
    """What else is known of the judge."""
    left_out: LeftOut
    """Dimensions of one side alone."""
    in_windows: Count | None
    """Pairs that were read in several windows; null = unknown."""
    runtime: Runtime
    """How long scoring took."""
    prompting: Prompting | None
    """Null if the judge is not prompted."""
    dimensions: dict[str, DimensionReport]
    """Dimension -> the judge on it."""
    checks: dict[str, dict[str, CheckReport]]
    """Listening check -> dimension -> its result."""
    voice_and_words: dict[str, VoiceAndWords]
    """Dimension -> shares; only where the two checks were run."""
    slices: dict[str, dict[str, dict[str, SliceReport]]]
    """Column -> value -> dimension -> the judge on this slice; for columns with two values or more."""

    def checks_of(self, dimension: str) -> dict[str, CheckReport]:
        """The listening checks of a dimension."""
        return {check: results[dimension] for check, results in self.checks.items()}


# ---------------------------------------------------------------- judges against each other


class Pairwise(Part):
    """Two judges against each other."""

    first: str
    """Name of a judge."""
    second: str
    """Name of another."""
    difference: Statistic
    """Of their Spearman, first minus second, with the interval of a paired cluster bootstrap."""
    p: float | None
    """Two-sided; null without a difference."""
    p_adjusted: float | None
    """Of all pairs of judges, by Holm; null without a `p`."""


class Compared(Pairwise):
    """Two judges on a dimension, over the items that both scored; `p` is of a paired permutation test."""

    n_items: Count
    """Items that both scored."""
    n_groups: Count
    """Groups of these."""
    permutations: Count | None
    """How many are behind `p`; null without a difference."""
    bootstrap_p: float | None
    """Of the paired cluster bootstrap; null where there is no interval."""
    williams_p: float | None
    """Of Williams' t, which takes items for independent; null where it is undefined."""
    power: float | None
    """Probability that as many groups show a difference as large as this one."""
    detectable_difference: float | None
    """Smallest true difference that these groups show with a power of 0.8."""
    groups_needed: Count | None
    """Groups in all to show the observed difference with a power of 0.8."""
    groups_low: Count | None
    """The same at the end of the interval that is farther from 0."""
    groups_high: Count | None
    """The same at the end nearer to 0; null where the interval reaches 0 and no number is enough."""
    items_needed: Count | None
    """Items in these `groups_needed` groups."""
    power_reason: str | None
    """Why one of these is null."""


class RankedJudge(Part):
    """A judge in a ranking."""

    judge: str
    """Its name."""
    cluster: int | None
    """1 = best; null for a `reason`."""
    spearman: float | None
    """On all of its items; null where it is undefined."""
    reason: str | None
    """Why it has no rank; null where it has one."""


class Ranking(Part):
    """The judges of a dimension against each other."""

    judges: tuple[RankedJudge, ...]
    """Best first; those without a rank are last."""
    comparisons: tuple[Compared, ...]
    """Every two judges."""


class ComparisonReport(Versioned):
    """Several judges on the same pairs: ``comparison.json`` of `compare`."""

    reports: tuple[Report, ...]
    """One per judge, in the order given."""
    rankings: dict[str, Ranking]
    """Dimension -> the judges that score it; only where there are at least two."""
