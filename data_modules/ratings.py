"""Rating scales, the ratings of one dimension as arrays, and the checks that ratings and preferences pass."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import ConfigDict

from ..core.errors import DataError, Locate, locate_in, names_shown, shown
from ..core.numerals import as_float, parse_number
from .steps import STEP_TOLERANCE, on_scale

if TYPE_CHECKING:
    import pandas as pd  # takes 0.2 s: not for the help of the importers

RATING_COLUMNS = ("pair_id", "rater_id", "dimension", "score")
SECONDS = "seconds"  # the optional column of ratings: time that the rater took for the judgement; NaN = unknown
SD, N_RATINGS = "sd", "n"
"""Optional columns of ratings: the score is the mean of so many ratings with this standard deviation (over n - 1,
rating points), which is all that was published of them. NaN = the score is a rating."""
OPTIONAL_COLUMNS = (SECONDS, SD, N_RATINGS)
MEAN = "mean"
OF_MEANS = (MEAN, SD, N_RATINGS)
"""What a table of published means calls its columns."""
PANEL = "panel"
"""Stands for the raters of published means, whose names are not known."""
PREFERENCE_COLUMNS = ("chosen_id", "rejected_id", "rater_id", "dimension", "strength")
_ROUNDING = 1e-12  # share of the largest magnitude by which means of the same ratings may differ
MIN_ITEMS = 3
"""Fewest items of a correlation: two points always lie on a line."""
LARGEST = 1e50
"""Rating points: most between the ends of a scale, from 0 to them, and of a score. Statistics do not overflow."""
LABELS = ("very poor", "poor", "fair", "good", "excellent")
"""Words for five points evenly spaced over a scale, from its bad to its good end."""
LONGEST_NAME = 10_000  # characters
A_NAME = "text without line breaks, not empty, without spaces around it"
"""What messages call an identifier."""
_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
NAME = re.compile(rf"(?!\s)[^{_CONTROL}]{{1,{LONGEST_NAME}}}(?<!\s)")
"""An identifier from its first to its last character; see `is_name`."""


@dataclass(frozen=True)
class Dimension:
    """One rated quality and its scale. Numbers are `int | float`: pydantic would make 1.0 of the 1 that a card says."""

    name: str  # letters, digits, ``_``, ``.`` and ``-``
    minimum: int | float  # lowest score that a rater can give (rating points)
    maximum: int | float  # highest score that a rater can give (rating points)
    step: int | float | None = None  # distance between neighbouring scores; None = any number in the range
    higher_is_better: bool = True  # False where a high score is bad (distortion, hostility)
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise DataError(f"dimension name {shown(self.name)}; expected letters, digits, '_', '.', '-'")
        # NaN is refused too. First each: of two, one may be a whole number that no float can hold
        ends = abs(self.minimum) <= LARGEST and abs(self.maximum) <= 2 * LARGEST
        if not (ends and 0 < self.maximum - self.minimum <= LARGEST):
            expected = f"low:high, at most {LARGEST:g} apart and from 0"
            scale = f"{shown(self.minimum)} to {shown(self.maximum)}"
            raise DataError(f"dimension {self.name}: scale {scale}; expected {expected}")
        if self.step is None:
            return
        steps = (self.maximum - self.minimum) / self.step if 0 < self.step <= LARGEST else math.nan
        if not (0.5 < steps < math.inf and abs(steps - round(steps)) < STEP_TOLERANCE):
            scale = f"{self.minimum:g} to {self.maximum:g}"
            raise DataError(f"dimension {self.name}: step {shown(self.step)} does not divide {scale}")

    @property
    def steps(self) -> int:
        """Number of scores that a rater can give.

        Raises:
            DataError: If any number in the range can be given.
        """
        if self.step is None:
            raise DataError(f"dimension {self.name}: expected a scale with steps; it has {self.scale}")
        return round((self.maximum - self.minimum) / self.step) + 1

    @property
    def scale(self) -> str:
        """The scores that a rater can give, in words: ``1 to 5 in steps of 1``."""
        steps = "" if self.step is None else f" in steps of {self.step:g}"
        return f"{self.minimum:g} to {self.maximum:g}{steps}"

    @property
    def described(self) -> str:
        """The scale, and its direction where lower is better."""
        return self.scale if self.higher_is_better else f"{self.scale} (lower is better)"


def parse_dimension(text: str) -> Dimension:
    """Reads ``NAME=LOW:HIGH``, ``NAME=LOW:HIGH:STEP``, each with ``:lower`` at the end where lower is better.

    Raises:
        DataError: If the text has another form.
    """
    name, _, scale = text.partition("=")
    parts = scale.split(":")
    is_lower = parts[-1].strip() == "lower"
    try:
        numbers = [parse_number(part) for part in parts[: len(parts) - is_lower]]
        if len(numbers) not in (2, 3):
            raise ValueError
    except ValueError:
        raise DataError(
            f"dimension {shown(text)}; expected NAME=LOW:HIGH or NAME=LOW:HIGH:STEP, then ':lower' "
            "where lower is better, such as vocal_empathy=1:5:1"
        ) from None
    return Dimension(name.strip(), numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None, not is_lower)


def same_range(one: Dimension, other: Dimension) -> bool:
    """Whether the same number means the same on both: ends and direction, whatever the steps."""
    ends = (one.minimum, one.maximum) == (other.minimum, other.maximum)
    return ends and one.higher_is_better == other.higher_is_better


@dataclass(frozen=True, eq=False)
class RatingTable:
    """The ratings of one dimension, in long form; no item has two ratings by one rater."""

    items: np.ndarray  # position of the rated item, 0 to `n_items` - 1 `(ratings,)`
    raters: np.ndarray  # position of the rater in `rater_ids` `(ratings,)`
    scores: np.ndarray  # `(ratings,)`, float64, rating points
    n_items: int  # number of items
    rater_ids: tuple[str, ...]  # the raters, each with at least one rating
    seconds: np.ndarray | None = None  # time that the rater took `(ratings,)`, NaN = unknown; None = there are no times
    # where each score is a published mean: standard deviation (over n - 1) and number of its ratings, each
    # `(ratings,)`; None = scores are ratings
    of_means: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, ratings: pd.DataFrame, dimension: str, pair_ids: Sequence[str]) -> RatingTable:
        """The ratings of `pair_ids` on `dimension`; items are numbered in the order of `pair_ids`."""
        import pandas as pd

        index = pd.Index(pair_ids, dtype=object)
        rows = ratings.loc[(ratings["dimension"] == dimension) & ratings["pair_id"].isin(list(pair_ids))]
        raters, rater_ids = pd.factorize(rows["rater_id"], sort=True)
        scores = rows["score"].to_numpy(np.float64)
        published = [rows[name].to_numpy(np.float64) for name in (SD, N_RATINGS) if name in rows]
        return cls(
            index.get_indexer(pd.Index(rows["pair_id"])),
            raters,
            scores,
            len(index),
            tuple(map(str, rater_ids)),
            rows[SECONDS].to_numpy(np.float64) if SECONDS in rows else None,
            (published[0], published[1]) if len(rows) and published and not np.isnan(published).any() else None,
        )

    @property
    def n_raters(self) -> int:
        """Raters who are known; published means name none."""
        return len(self.rater_ids) if self.of_means is None else 0

    @cached_property
    def counts(self) -> np.ndarray:
        """Ratings per item that are known one by one, or 1 where there is a published mean, shape (n_items,)."""
        return np.bincount(self.items, minlength=self.n_items)

    @cached_property
    def numbers(self) -> np.ndarray:
        """Ratings per item, those behind a published mean included, shape (n_items,)."""
        weights = None if self.of_means is None else self.of_means[1]
        return np.bincount(self.items, weights, self.n_items)

    @cached_property
    def sums(self) -> np.ndarray:
        """Sum of the ratings per item, shape (n_items,)."""
        return np.bincount(self.items, weights=self.scores, minlength=self.n_items)

    @cached_property
    def means(self) -> np.ndarray:
        """Mean rating per item, shape (n_items,); NaN = not rated. Means of the same ratings are equal."""
        return tied(np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), np.nan))

    def shared(self) -> np.ndarray:
        """Positions of the items with at least two raters."""
        return np.flatnonzero(self.counts >= 2)

    def others_mean(self) -> np.ndarray:
        """Per rating the mean of the other raters of its item, shape (ratings,); NaN where there is none.

        Means of the same ratings are equal.
        """
        n_others = self.counts[self.items] - 1
        # From the sums, without a loop over raters; `tied` mends what the subtraction rounds
        others_sum = self.sums[self.items] - self.scores
        return tied(np.where(n_others > 0, others_sum / np.maximum(n_others, 1), np.nan))

    def by_rater(self) -> list[np.ndarray]:
        """Positions of the ratings of each rater, rising."""
        order = np.argsort(self.raters, kind="stable")
        ends = np.cumsum(np.bincount(self.raters, minlength=len(self.rater_ids)))
        return np.split(order, ends)[: len(self.rater_ids)]


def raters_of(ratings: pd.DataFrame, pair_ids: Sequence[str]) -> np.ndarray:
    """How many raters each pair has, from ratings of one dimension and of these pairs alone `(pairs,)`; those behind a
    published mean count."""
    import pandas as pd

    positions = pd.Index(pair_ids, dtype=object).get_indexer(pd.Index(ratings["pair_id"]))
    return np.bincount(positions, ratings_behind(ratings), len(pair_ids)).astype(np.int64)


def ratings_behind(ratings: pd.DataFrame) -> np.ndarray:
    """How many ratings each row holds: those behind a published mean, else 1 `(rows,)`."""
    if N_RATINGS not in ratings:
        return np.ones(len(ratings))
    return ratings[N_RATINGS].fillna(1.0).to_numpy(np.float64)


def spread_within(sd: np.ndarray, numbers: np.ndarray) -> float:
    """Variance of single ratings around the mean of their item, pooled over items of which standard deviation (over
    n - 1) and number of ratings are known, each `(items,)`; NaN without any."""
    freedom = numbers - 1
    return float((sd**2 * freedom).sum() / freedom.sum()) if freedom.sum() > 0 else math.nan


def named_raters(ratings: pd.DataFrame) -> int:
    """How many raters are known; published means name none."""
    single = ratings.loc[ratings[SD].isna()] if SD in ratings else ratings
    return len(single["rater_id"].unique())


def tied(means: np.ndarray) -> np.ndarray:
    """Means, shape (n,), NaN allowed, in which those that differ by rounding only are equal, as ranks need it.

    In floating point 1.1 + 2.2 + 3.3 depends on the order, and (3 + 1.1) - 1.1 is not 3.
    """
    order = np.argsort(means, kind="stable")
    # argsort puts NaN last; they tie with nothing.
    order = order[: len(order) - np.count_nonzero(np.isnan(means))]
    if len(order) == 0:
        return means
    rising = means[order]
    # Neighbours that are closer than rounding get the value of the first of them
    apart = np.diff(rising, prepend=-np.inf) > _ROUNDING * np.abs(rising).max()
    result = means.copy()
    result[order] = rising[apart][np.cumsum(apart) - 1]
    return result


def check_ratings(
    ratings: pd.DataFrame,
    pair_ids: Collection[str],
    dimensions: Sequence[Dimension],
    file: object,
    locate: Locate | None = None,
    score: str | None = None,
) -> pd.DataFrame:
    """Checks a long table of ratings: columns `RATING_COLUMNS`, `SECONDS` where times are known, and `SD` and
    `N_RATINGS` where scores are published means; these need a scale without steps.

    `file` is what messages call the table, `locate` what they call a cell, where it came from another layout, and
    `score` what they expect where a score is no number.

    Returns:
        The same rows, numbers as float64 and scores put onto their scale (`on_scale`): whatever counts ratings
        takes them from here.

    Raises:
        DataError: On a missing column, an unknown pair or dimension, a rater without a name, a score that is no number,
            outside its scale or between its steps, a time that is no number or negative, a standard deviation that no
            ratings on the scale have, or two scores of one rater for one thing; the first bad row is named.
    """
    check = Check(ratings, file, locate)
    check.columns(RATING_COLUMNS)
    scales = {dimension.name: dimension for dimension in dimensions}
    check.texts("pair_id", frozenset(pair_ids), "no such pair in the pairs table")
    check.texts("dimension", scales, f"expected {', '.join(scales)}")
    check.texts("rater_id", None, f"expected {A_NAME}")
    scores = check.numbers("score", score or "a finite number, such as 3.5, or no row where it is not rated")
    names = ratings["dimension"].to_numpy()
    rated = scores.copy()
    checked = _check_means(check, scales, names) if SD in ratings or N_RATINGS in ratings else {}
    for name, dimension in scales.items():
        rows = names == name
        rated[rows] = on_scale(scores[rows], dimension.minimum, dimension.maximum, dimension.step)
        if (outside := rows & np.isnan(rated)).any():
            check.refuse("score", outside, f"expected for {name}: {dimension.scale}")
    checked["score"] = rated
    if SECONDS in ratings:
        expected = "a finite number of seconds, at least 0, or none where the time is unknown"
        checked[SECONDS] = check.numbers(SECONDS, expected, at_least=0, may_be_missing=True)
    check.unique(["pair_id", "rater_id", "dimension"])
    return ratings.assign(**checked)


def _check_means(check: Check, scales: Mapping[str, Dimension], names: np.ndarray) -> dict[str, np.ndarray]:
    """`SD` and `N_RATINGS` of all rows; a dimension has them in all its rows, one for each pair, or in none."""
    sd, counts = check_numbers_of_means(check)
    for name, dimension in scales.items():
        rows = names == name
        if np.isnan(sd[rows]).all():
            continue
        check.refuse(SD, rows & np.isnan(sd), f"expected for {name}: {SD} and {N_RATINGS} in every row")
        if dimension.step is not None:
            expected = f"{name}={dimension.minimum:g}:{dimension.maximum:g}, since means lie between steps"
            raise DataError(f"{check.file}: {name} is {dimension.scale}; expected {expected}")
        # half of the ratings at either end
        with np.errstate(invalid="ignore"):
            most = (dimension.maximum - dimension.minimum) / 2 * np.sqrt(counts / (counts - 1))
        check.refuse(SD, rows & (sd > 1.001 * most), f"expected less: no ratings from {dimension.scale} differ so much")
        means = check.table.loc[rows, ["pair_id"]]
        repeated = np.zeros(len(rows), bool)
        repeated[rows] = means.duplicated().to_numpy(bool)
        check.refuse("pair_id", repeated, f"expected one mean of {name} for each pair")
    return {SD: sd, N_RATINGS: counts}


def check_numbers_of_means(check: Check) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviation and number of the ratings behind published means, each `(rows,)`; NaN in rows that are single
    ratings.

    Raises:
        DataError: On a number that no ratings have, or one of the two without the other.
    """
    check.columns((SD, N_RATINGS))
    sd = check.numbers(SD, "the standard deviation of the ratings, at least 0", at_least=0, may_be_missing=True)
    counts = check.numbers(N_RATINGS, "the number of ratings, at least 2", at_least=2, may_be_missing=True)
    check.refuse(N_RATINGS, counts % 1 > 0, "expected a whole number of ratings")
    for column, values, other in ((SD, sd, counts), (N_RATINGS, counts, sd)):
        check.refuse(column, np.isnan(values) & ~np.isnan(other), f"expected {SD} and {N_RATINGS} of every mean")
    return sd, counts


def check_preferences(
    preferences: pd.DataFrame, pair_ids: Collection[str], dimensions: Sequence[Dimension], file: object
) -> pd.DataFrame:
    """Checks a table of preferences (columns `PREFERENCE_COLUMNS`) as `check_ratings` does; strength 0 = tie.

    Returns:
        The same rows, strengths as float64.

    Raises:
        DataError: Also where a pair is preferred to itself or a strength is negative.
    """
    check = Check(preferences, file)
    check.columns(PREFERENCE_COLUMNS)
    ids, names = frozenset(pair_ids), [dimension.name for dimension in dimensions]
    for column in ("chosen_id", "rejected_id"):
        check.texts(column, ids, "no such pair in the pairs table")
    check.texts("dimension", names, f"expected {', '.join(names)}")
    check.texts("rater_id", None, f"expected {A_NAME}")
    strengths = check.numbers("strength", "a finite number")
    check.refuse("strength", strengths < 0, "expected 0 (tie) or more")
    same_pair = preferences["chosen_id"].to_numpy() == preferences["rejected_id"].to_numpy()
    check.refuse("rejected_id", same_pair, "expected another pair than chosen_id")
    check.unique(["chosen_id", "rejected_id", "rater_id", "dimension"])
    return preferences.assign(strength=strengths)


def is_name(value: object) -> bool:
    """Whether the value can be an identifier, see `A_NAME`: also without control characters, and not so long that a
    table of a million such names fills the memory. A name with a space at its end would pass for another one."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_text(value: object) -> bool:
    """Whether it is text that UTF-8 can hold; JSON can spell half of a surrogate pair."""
    try:
        return isinstance(value, str) and (value.isascii() or value.encode() is not None)
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True)
class Check:
    """Checks on the columns of one table; the first bad cell is named, and how many more there are."""

    table: pd.DataFrame
    file: object
    locate: Locate | None = None

    def columns(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.table]
        if missing:
            raise DataError(f"{self.file}: no column {missing[0]!r}; it has {names_shown(self.table.columns)}")

    def refuse(self, column: str, bad: np.ndarray, expected: str) -> None:
        if not bad.any():
            return
        first = int(bad.argmax())
        value = self.table[column].iloc[first]
        value = value.item() if isinstance(value, np.generic) else value
        # As people write it: 9 and not np.float64(9.0)
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        more = f" ({int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        locate = self.locate or locate_in(self.file)
        raise DataError(f"{locate(first, column)}: value {shown(value)}; {expected}{more}")

    def texts(self, column: str, known: Collection[str] | None, expected: str) -> None:
        """Each cell is one of the `known` texts; None = a name. Each distinct one is checked once."""
        import pandas as pd

        try:
            # A million cells have few distinct texts, and each is checked once
            codes, distinct = pd.factorize(self.table[column], use_na_sentinel=False)
        except TypeError:  # a list, say, which is refused then
            codes, distinct = np.arange(len(self.table)), self.table[column]
        good = [isinstance(v, str) and (v in known if known is not None else bool(NAME.fullmatch(v))) for v in distinct]
        self.refuse(column, ~np.array(good, bool)[codes], expected)

    def numbers(
        self, column: str, expected: str, *, at_least: float = -math.inf, may_be_missing: bool = False
    ) -> np.ndarray:
        """The column as float64, shape (rows,), of finite numbers; NaN where one may be missing."""
        import pandas as pd

        cells = self.table[column]
        if not pd.api.types.is_numeric_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
            values = cells.map(as_float).to_numpy(np.float64)
        else:
            values = cells.to_numpy(np.float64, na_value=np.nan)
        bad = ~(np.isfinite(values) & (values >= at_least))
        self.refuse(column, bad & cells.notna().to_numpy(bool) if may_be_missing else bad, f"expected {expected}")
        return values

    def unique(self, columns: list[str]) -> None:
        repeated = self.table.duplicated(columns).to_numpy(bool)
        if repeated.any():
            second = int(repeated.argmax())
            values = list(zip(*(self.table[column] for column in columns), strict=True))
            first = (self.locate or locate_in(self.file))(values.index(values[second]), columns[0])
            self.refuse(columns[0], repeated, f"expected each {', '.join(columns)} once; it stands at {first} already")
