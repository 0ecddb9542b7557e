"""Whether people seem to have used two scales: some 1 to 7, others 1 to 5."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data_modules.ratings import RatingTable
from .report.others import RaterRange, RaterRanges
from .statistics.bootstrap import Resamples
from .statistics.krippendorff import krippendorff_alpha

_MIN_RATINGS = 10  # of a rater whose range counts
_MIN_GAP = 0.15  # of the wider range, by which the highest scores differ
_MIN_GAIN = 0.05  # of alpha


def rater_ranges(table: RatingTable) -> RaterRanges | None:
    """The two groups of raters that agree best once the narrower range is mapped linearly onto the wider one.

    Raters with few ratings are left out. None unless alpha gains `_MIN_GAIN`, and more than by adding the same number
    to all scores of the narrower range: strict raters, who never give the highest score, gain by that.
    """
    raters = table.by_rater()
    rated = [number for number, positions in enumerate(raters) if len(positions) >= _MIN_RATINGS]
    high = np.array([table.scores[raters[number]].max() for number in rated])
    low = np.array([table.scores[raters[number]].min() for number in rated])
    if len(np.unique(high)) < 2:
        return None
    kept = np.isin(table.raters, rated)
    own = replace(table, items=table.items[kept], raters=table.raters[kept], scores=table.scores[kept])
    alpha = _alpha(own)
    best: tuple[float, np.ndarray] | None = None
    for end in np.unique(high)[:-1]:
        narrow = high <= end
        wide_range = high.max() - low[~narrow].min()
        # Raters who gave one score alone have no range that could be stretched
        if high[~narrow].min() - end < _MIN_GAP * wide_range or low[narrow].min() == end:
            continue
        chosen = np.isin(table.raters, np.array(rated)[narrow])
        share = (table.scores - low[narrow].min()) / (end - low[narrow].min())
        stretched = np.where(chosen, low[~narrow].min() + share * wide_range, table.scores)
        mapped = _alpha(replace(own, scores=stretched[kept]))
        if mapped - alpha < _MIN_GAIN or (best is not None and mapped <= best[0]):
            continue
        strictness = table.scores[~chosen & kept].mean() - table.scores[chosen].mean()
        if mapped > _alpha(replace(own, scores=(table.scores + chosen * strictness)[kept])):
            best = mapped, narrow
    if best is None:
        return None
    ranges = tuple(
        RaterRange(
            raters=tuple(table.rater_ids[rated[number]] for number in np.flatnonzero(group)),
            low=float(low[group].min()),
            high=float(high[group].max()),
        )
        for group in (~best[1], best[1])
    )
    wide, narrow_range = ranges
    text = (
        f"{_users(wide)}, {_users(narrow_range)}: alpha {alpha:.2f}; after mapping the second range onto the first "
        f"{best[0]:.2f}. If these are two scales, map one before you use the ratings."
    )
    return RaterRanges(ranges=(wide, narrow_range), alpha=alpha, alpha_mapped=best[0], text=text)


def _users(own: RaterRange) -> str:
    names = ", ".join(own.raters[:4]) + (f" and {len(own.raters) - 4} more" if len(own.raters) > 4 else "")
    return f"{names} {'uses' if len(own.raters) == 1 else 'use'} {own.low:g} to {own.high:g}"


def _alpha(table: RatingTable) -> float:
    """Alpha alone; -inf where it is undefined."""
    none = Resamples.sample(list(map(str, range(table.n_items))), 0, 0)
    value = krippendorff_alpha(table, "interval", none).value
    return -np.inf if value is None else value
