"""What `inspect` reports of the ratings, preferences and skipped pairs of a dataset."""

from __future__ import annotations

from ..statistics.raters import RaterFacts
from .base import Count, Part
from .people import PeopleReport


class Histogram(Part):
    """How often each part of the scale was used."""

    edges: tuple[float, ...]
    """Edges of the bins, ascending, rating points."""
    counts: tuple[Count, ...]
    """Ratings in each bin."""


class Disputed(Part):
    """An item whose ratings differ."""

    pair_id: str
    """Its id in the data."""
    spread: float
    """Standard deviation over n - 1, rating points."""
    ratings: tuple[tuple[str, float], ...]
    """Rater and score, in rising order of scores, then of raters."""


class RatingFacts(Part):
    """Ratings of a dimension."""

    scores: Histogram
    """All ratings."""
    scores_by_rater: dict[str, tuple[Count, ...]]
    """Rater -> ratings in each bin, in the order of names."""
    pairs_by_raters: dict[int, Count]
    """Number of raters -> pairs with that many; 0 = unrated."""
    disputed: tuple[Disputed, ...]
    """The items whose ratings spread most."""
    raters: tuple[RaterFacts, ...]
    """Raters one by one, flagged ones first."""


class DisputedCouple(Part):
    """Two items on which raters differ."""

    pair_ids: tuple[str, str]
    """In sorted order."""
    votes: tuple[Count, Count, Count]
    """For the first, ties, for the second."""


class PreferenceFacts(Part):
    """Comparisons of a dimension."""

    comparisons: Count
    """Of two items by one rater."""
    raters: Count
    """Raters who compared."""
    ties: Count
    """Comparisons of strength 0."""
    couples: Count
    """Couples of items, in either order."""
    shared_couples: Count
    """Those that were compared more than once."""
    unanimous_couples: Count
    """Those of these that were always decided alike."""
    disputed: tuple[DisputedCouple, ...]
    """Those with the highest dissent."""


class InspectionReport(Part):
    """What people said about a dataset, without any judge: a part of what `inspect --json` prints."""

    ratings: dict[str, RatingFacts]
    """Dimension -> its ratings."""
    preferences: dict[str, PreferenceFacts]
    """Dimension -> its comparisons; only those that have some."""
    skipped: tuple[dict[str, str], ...]
    """Rows of ``skipped.csv``: pairs that the import left out."""
    reliability: dict[str, PeopleReport]
    """Dimension -> how well its raters agree."""
