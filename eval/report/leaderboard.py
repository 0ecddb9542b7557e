"""What `leaderboard` writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..statistics.agreement import Statistic
from .base import Count, Part, Share, Versioned

BoardSource = Literal["judge", "judge and ratings"]
"""What the means rest on: the judge's opinion alone, or its scores corrected by ratings."""
Verdict = Literal["better", "worse", "not told apart", "cannot be told"]


class Figure(Part):
    """A mean, or a difference of two, in rating points."""

    value: float | None
    """The figure; null for a `reason`."""
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    """Upper end of the 95 % interval."""
    standard_error: float | None = None
    """By the jackknife over groups."""
    n_groups: Count = 0
    """Groups that it rests on: with a score, or with a rating where ratings enter."""
    reason: str | None = None
    """Why the value, or else the interval, is missing."""


class BoardSystem(Part):
    """A system on a board."""

    system: str
    """Its name."""
    cluster: int | None
    """1 = best. Every system of a cluster is better than all of later ones; null where no order can be stated."""
    n_pairs: Count
    """Responses with a score."""
    n_rated: Count
    """Of these, responses that people rated."""
    mean: Figure
    """Mean of the board's source."""
    judge: Figure
    """Mean of the judge's scores alone."""
    ratings: Figure | None
    """Mean of the ratings alone; null without ratings."""
    win_rate: Share | None
    """Mean over the other systems of the share of shared contexts that it wins, ties counting half."""
    unlike_training: Share
    """Share of its responses that are unlike what the judge was calibrated on, by its warnings."""


class BoardDifference(Part):
    """Two systems, over the contexts that both answer."""

    first: str
    """The system that does better."""
    second: str
    """The other one."""
    difference: Figure
    """Mean of the first less mean of the second."""
    in_rater_noise: float | None
    """The difference in standard deviations of one rater's noise; null where that is not known."""
    p: float | None
    """Two-sided, of no difference, after Holm's correction over all pairs of systems of the dimension."""
    better: bool
    """Whether the first is better at the 5 % level; never where the board is refused."""
    wins: Share | None
    """Share of the shared contexts in which people would prefer the first, by the judge."""
    losses: Share | None
    """Share in which they would prefer the second; the rest are ties."""
    by_length: float | None
    """What the judge's slope on the length of responses alone would make of their lengths, rating points."""


class AgainstBaseline(Part):
    """A system beside the one that it is compared with."""

    system: str
    """Its name."""
    difference: Figure
    """Its mean less that of the baseline."""
    p: float | None
    """Two-sided, after Holm's correction over all systems but the baseline."""
    verdict: Verdict
    """At the 5 % level; `cannot be told` without an interval, or where the board is refused."""


class Measured(Part):
    """How well the judge did where `evaluate` measured it."""

    dataset: str
    """Name of the data."""
    synthetic: bool
    """Whether its ratings were not given by people."""
    spearman: Statistic
    """With the mean ratings, item by item."""
    n_systems: Count
    """Systems in that data; 0 = it names none."""
    pairwise_accuracy: Statistic | None
    """Share of pairs of its systems that the judge ordered as people did."""


class Board(Part):
    """All systems on one dimension."""

    dimension: str
    """Its name."""
    higher_is_better: bool
    """Whether a high mean is good."""
    source: BoardSource
    """What the means rest on."""
    n_contexts: Count
    """Groups with a score."""
    n_shared: Count
    """Groups that every two systems share, at least."""
    n_ratings: Count
    """Ratings that entered."""
    weight: float | None
    """Lambda of the means: 0 = ratings alone; null without ratings."""
    ratings_worth: float | None
    """As many times the ratings would have been needed without the judge, for these intervals; null without ratings."""
    rater_noise: float | None
    """Standard deviation of one rater's ratings of one response, in rating points; null where it is not known."""
    ties: bool
    """Whether wins and ties are by the preferences that the judge was calibrated on; otherwise a higher score wins."""
    measured: Measured | None
    """What the report says that was named; null = none was."""
    raised_by: tuple[str, ...]
    """Checks of `stress` that raise the judge's scores and should not; empty = none, or its report was not named."""
    refused: str | None
    """Why the judge cannot carry an order of systems; null = it can, or ratings carry it."""
    baseline: str
    """The system that `against` compares with: the best one, if none was named."""
    systems: tuple[BoardSystem, ...]
    """Best first."""
    against: tuple[AgainstBaseline, ...]
    """All systems but the baseline, best first."""
    differences: tuple[BoardDifference, ...]
    """All pairs of systems, in the order of `systems`."""
    text: tuple[str, ...]
    """What may be said of it, in sentences; the most important first."""


class LeaderboardReport(Versioned):
    """Which systems sound better: ``leaderboard.json``."""

    signature: str
    """All that the figures depend on, in one line."""
    by: str
    """The column that names the systems."""
    boards: tuple[Board, ...] = Field(min_length=1)
    """One for each dimension."""
