"""Everything that can score a pair: the `Judge` protocol and the table that judges return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ...data_modules.schema import Pair
from ...scoring.calibration import LEVELS
from ...scoring.score_table import DISTRIBUTION, OK, SCORE_COLUMNS, are_shares

INTERVAL_COLUMNS = {level: (f"low_{100 * level:g}", f"high_{100 * level:g}") for level in LEVELS}
"""Level -> columns with the ends of an interval that should contain this share of the mean ratings, for judges that
give intervals (rating points, NaN = none)."""


class Judge(Protocol):
    """Scores pairs.

    Attributes:
        name: Name of the judge in reports.
        dimensions: What it scores; names of the dataset's dimensions.
        only_given: Why it is not asked about changed versions of the pairs, for listening checks; None = it may be.
    """

    name: str
    dimensions: tuple[str, ...]
    only_given: str | None

    @property
    def record(self) -> Mapping[str, Any] | None:
        """Facts about the judge for reports, which must fit strict JSON; None = nothing."""
        ...

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """Scores every pair on every dimension.

        A pair that cannot be scored gets a row with another status than ``ok``, or no row; it never gets a
        stand-in score. `score_table` builds the table.

        Returns:
            One row per pair and dimension: ``pair_id``, ``dimension``, ``score`` (float64, rating points, NaN
            where the status is not ``ok``), ``uncertainty`` (float64, standard deviation in rating points,
            NaN = not stated), ``status`` (str), ``meta`` (mapping: what else the judge says of this row). A judge that
            predicts how ratings spread adds `score_table.DISTRIBUTION` (a tuple of shares, one for each step of the
            scale, the lowest first; None = none). A calibrated judge adds all of `INTERVAL_COLUMNS`, and
            `score_table.ABSTAINED` where it may abstain; a trained one `score_table.WINDOWS`.
        """
        ...


def score_table(
    pairs: Sequence[Pair],
    dimensions: Sequence[str],
    scores: np.ndarray,
    uncertainties: np.ndarray | None = None,
    statuses: Sequence[str] | None = None,
    metas: Sequence[Mapping[str, Any]] | None = None,
) -> pd.DataFrame:
    """The table of `Judge.score` from arrays.

    Args:
        pairs: The n pairs.
        dimensions: The d dimensions.
        scores: Shape (n, d), rating points.
        uncertainties: Shape (n, d), rating points.
        statuses: Length n, ``ok`` or why the pair has no score. A score that is not finite never is ``ok``.
        metas: Length n. Where one has ``levels``, shares by dimension, they are the column `DISTRIBUTION`.

    Returns:
        n * d rows, pair by pair.
    """
    n, d = len(pairs), len(dimensions)
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (n, d):
        raise ValueError(f"scores of shape {values.shape} for {n} pairs and {d} dimensions")
    status = np.repeat(np.asarray(statuses if statuses is not None else [OK] * n, dtype=object), d)
    flat = values.reshape(-1).copy()
    status[(status == OK) & ~np.isfinite(flat)] = "score is not finite"
    flat[status != OK] = np.nan
    metas = metas if metas is not None else [{}] * n
    table = pd.DataFrame(
        {
            "pair_id": np.repeat(np.array([pair.pair_id for pair in pairs], dtype=object), d),
            "dimension": list(dimensions) * n,
            "score": flat,
            "uncertainty": np.full(n * d, np.nan) if uncertainties is None else np.reshape(uncertainties, -1),
            "status": status,
            "meta": [meta for meta in metas for _ in range(d)],
        }
    )
    if any(meta.get(DISTRIBUTION) for meta in metas):
        given = [(meta.get(DISTRIBUTION) or {}).get(name) for meta in metas for name in dimensions]
        table[DISTRIBUTION] = pd.Series([None if own is None else tuple(own) for own in given], dtype=object)
    return table


def given_scores(
    pairs: Sequence[Pair],
    dimensions: Sequence[str],
    scores: Mapping[tuple[str, str], float],
    absent: str,
    uncertainties: Mapping[tuple[str, str], float] | None = None,
    levels: Mapping[tuple[str, str], tuple[float, ...]] | None = None,
) -> pd.DataFrame:
    """The table of a judge whose scores are given by pair and dimension; where there is none the status is `absent`."""
    keys, shape = [(pair.pair_id, name) for pair in pairs for name in dimensions], (len(pairs), len(dimensions))
    values, spread = (np.array([given.get(key, math.nan) for key in keys]) for given in (scores, uncertainties or {}))
    metas = [{DISTRIBUTION: {name: (levels or {}).get((pair.pair_id, name)) for name in dimensions}} for pair in pairs]
    table = score_table(pairs, dimensions, values.reshape(shape), spread, metas=metas if levels else None)
    table.loc[table["status"] != OK, "status"] = absent
    return table


def check_score_table(table: pd.DataFrame, judge: Judge, pairs: Sequence[Pair]) -> None:
    """Checks what a judge returned.

    Raises:
        ValueError: If a column is missing, a row is for a pair or a dimension that was not asked for, a pair
            has two rows for one dimension, or status ``ok`` and a finite score do not go together.
    """
    missing = [column for column in SCORE_COLUMNS if column not in table]
    if missing:
        raise ValueError(f"judge {judge.name}: its table has no column {missing[0]!r}; it has {list(table.columns)}")
    for column, known in (
        ("pair_id", {pair.pair_id for pair in pairs}),
        ("dimension", set(judge.dimensions)),
    ):
        unknown = [value for value in table[column] if value not in known]
        if unknown:
            raise ValueError(f"judge {judge.name}: row for {column} {unknown[0]!r}, which was not asked for")
    duplicates = table.duplicated(["pair_id", "dimension"]).to_numpy(bool)
    if duplicates.any():
        raise ValueError(f"judge {judge.name}: two rows for pair {table['pair_id'].iloc[int(duplicates.argmax())]!r}")
    stated = table[DISTRIBUTION].tolist() if DISTRIBUTION in table else []
    for own in stated:
        if isinstance(own, tuple) and not are_shares(own):
            raise ValueError(f"judge {judge.name}: levels {own}; expected shares that sum to 1")
    wrong = np.isfinite(table["score"].to_numpy(np.float64)) != (table["status"] == OK).to_numpy()
    if wrong.any():
        row = table.iloc[int(wrong.argmax())]
        raise ValueError(
            f"judge {judge.name}: pair {row['pair_id']!r} has status {row['status']!r} and score "
            f"{row['score']}; expected {OK!r} with a finite score, or another status and NaN"
        )
