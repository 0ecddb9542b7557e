"""Scores on the steps of their scale: what raters gave, whatever type of number it was stored in since."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np

STEP_TOLERANCE = 1e-4
"""Steps by which a score may be off: text of few digits (0.33333), and sums in floating point."""
_NARROW = (np.float32, np.float16)
# Digits that people write at most; a number of more may be what a narrower type made of one of few: 1.1 is 1.099609375
_MOST_WRITTEN = 7


def on_scale(scores: np.ndarray, minimum: float, maximum: float, step: float | None) -> np.ndarray:
    """The scores that a rater gave, from how they were stored.

    A score is stored exactly (1.1), comes from arithmetic (0.1 + 0.2), or was in a narrower type: 1.1 is 1.10000002 in
    float32 and 1.0996 in float16. These are one score, and only equal numbers tie. So a value is taken for the nearest
    step if it is off by at most `STEP_TOLERANCE` steps, or is exactly that step rounded to float32 or float16, where
    neighbours in that type are closer than steps. Steps divide the scale evenly; each is the float64 nearest to
    the decimal number that people write. What has few digits (`_MOST_WRITTEN`) was written so: 70.125 is not 70.1,
    though 70.1 is 70.125 in float16.

    Args:
        scores: Rating points, shape (n,), float64.
        minimum: Lowest score of the scale.
        maximum: Highest score.
        step: Distance between scores. None = any number in the range; then scores stay as they are, except an end of
            the scale that rounding to a narrower type put outside.

    Returns:
        Shape (n,), float64; NaN for what is outside the scale, between its steps, or NaN.
    """
    scores = np.asarray(scores, np.float64)
    if step is None:
        # Negated, so that NaN counts as outside.
        outside = ~((minimum <= scores) & (scores <= maximum))
        beyond, result = scores[outside], scores.copy()
        is_low, is_high = (_is_rounded(beyond, np.full(len(beyond), end), np.inf) for end in (minimum, maximum))
        result[outside] = np.select([is_low, is_high], [minimum, maximum], np.nan)
        return result
    distinct, codes = np.unique(scores, return_inverse=True)
    intervals = round((maximum - minimum) / step)
    with np.errstate(invalid="ignore"):  # infinities
        share = (distinct - minimum) / (maximum - minimum) * intervals
    nearest = np.clip(np.rint(np.nan_to_num(share)), 0, intervals)
    # In fractions of what is written, since 1 + 3 * 0.1 is not 1.3 in floating point.
    low, high = Fraction(str(minimum)), Fraction(str(maximum))
    numbers, of = np.unique(nearest, return_inverse=True)
    steps = np.array([float(low + (high - low) * int(number) / intervals) for number in numbers], np.float64)[of]
    is_step = np.abs(share - nearest) <= STEP_TOLERANCE
    if not is_step.all():
        is_step |= _is_rounded(distinct, steps, step)
    return np.where(is_step, steps, np.nan)[codes]


def same_scores(scores: np.ndarray) -> np.ndarray:
    """Scores of one quality whose scale is not known, some of which were stored in a narrower type than others.

    A value of many digits that is another one rounded to float32 or float16 becomes that other one, if it takes fewer
    digits to write: 1.100000023841858 is 1.1 where 1.1 occurs. All else stays, as `on_scale` has it.

    Args:
        scores: Rating points, shape (n,), float64; NaN = missing.

    Returns:
        Shape (n,), float64.
    """
    distinct, codes = np.unique(np.asarray(scores, np.float64), return_inverse=True)
    result = distinct.copy()
    for kind in _NARROW:
        rounded = _narrow(distinct, kind)
        at = np.minimum(np.searchsorted(distinct, rounded), max(len(distinct) - 1, 0))
        candidates = np.flatnonzero((distinct[at] == rounded) & (distinct != rounded))
        for number in candidates[_is_long(rounded[candidates])]:
            value = float(distinct[number])
            if len(repr(value)) < len(repr(float(result[at[number]]))):
                result[at[number]] = value
    return result[codes]


def as_written(values: np.ndarray) -> np.ndarray:
    """Numbers of float32 or float16 as the decimal numbers that they were made of.

    Each decimal number of few digits (6 in float32, 3 in float16: ``FLT_DIG`` of C) has a float of its own, which
    becomes that decimal number: 1.1, not 1.100000023841858. All else stays: whole numbers, and 2.03125 in float16.

    Args:
        values: Shape (n,), float32 or float16; NaN and infinities stay.

    Returns:
        Shape (n,), float64.
    """
    kind = values.dtype.type
    distinct, codes = np.unique(values.astype(np.float64), return_inverse=True)
    digits = np.finfo(kind).precision
    short = np.array([float(f"{value:.{digits}g}") for value in distinct.tolist()], np.float64)
    is_decimal = (_narrow(short, kind) == distinct) & (np.rint(distinct) != distinct)
    return np.where(is_decimal, short, distinct)[codes]


def _narrow(values: np.ndarray, kind: type[np.floating]) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(kind).astype(np.float64)


def _is_rounded(values: np.ndarray, steps: np.ndarray, distance: float) -> np.ndarray:
    """Whether each value is its step in a narrower type, in which no other step is the same number."""
    found = np.zeros(len(values), bool)
    for kind in _NARROW:
        rounded = _narrow(steps, kind)
        with np.errstate(invalid="ignore"):  # infinities
            found |= (values == rounded) & (np.spacing(np.abs(rounded).astype(kind)).astype(np.float64) < distance)
    # Digits are counted for these alone: to count those of one number takes as long as all of the above.
    found[found] = _is_long(values[found])
    return found


def _is_long(values: np.ndarray) -> np.ndarray:
    """Whether each value takes more digits than people write."""
    digits = [len(Decimal(repr(value)).normalize().as_tuple().digits) for value in values.tolist()]
    return np.array(digits, int) > _MOST_WRITTEN
