"""What `leaderboard` writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Count, Part, Share, Versioned

BoardSource = Literal["judge", "judge and ratings"]
"""What the means rest on: the judge's opinion alone, or its scores corrected by ratings."""


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
    """Mean share of shared contexts in which its score is higher than another system's, ties counting half."""
    unlike_training: Share | None
    """Share of its scores that carry a warning; null where the scores say nothing of warnings."""


class BoardDifference(Part):
    """Two systems, over the contexts that both answer."""

    first: str
    """The system with the higher mean."""
    second: str
    """The other one."""
    difference: Figure
    """Mean of the first less mean of the second."""
    in_rater_noise: float | None
    """The difference in standard deviations of one rater's noise; null where that is not known."""
    p: float | None
    """Two-sided, of no difference, after Holm's correction over all pairs of systems of the dimension."""
    better: bool
    """Whether the first is better at the 5 % level."""
    wins: Share | None
    """Share of the shared contexts in which the first scores higher."""
    losses: Share | None
    """Share in which it scores lower; the rest are ties."""


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
    n_ratings: Count
    """Ratings that entered."""
    weight: float | None
    """Lambda of the means: 0 = ratings alone; null without ratings."""
    ratings_worth: float | None
    """As many times the ratings would have been needed without the judge, for these intervals; null without ratings."""
    rater_noise: float | None
    """Standard deviation of one rater's ratings of one response, in rating points; null where it is not known."""
    systems: tuple[BoardSystem, ...]
    """Best first."""
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
    baseline: str | None
    """The system that others are compared with; null = the best one."""
    boards: tuple[Board, ...] = Field(min_length=1)
    """One for each dimension."""
