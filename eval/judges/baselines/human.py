"""One rater of the dataset as a judge, against the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....data_modules.errors import DataError, UserError, shown
from ....data_modules.schema import Pair, PairDataset
from .. import OK, score_table

PREFIX = "human:"
_LISTED = 10


class HumanJudge:
    """Gives the ratings of one rater. What it is compared with must come from `without_raters`.

    Args:
        dataset: With the rater's ratings.
        rater: Its id.

    Raises:
        UserError: If there is no such rater.
    """

    only_given: str | None = "a rater of the dataset cannot be asked about changed pairs"

    def __init__(self, dataset: PairDataset, rater: str) -> None:
        own = dataset.ratings[dataset.ratings["rater_id"] == rater]
        if own.empty:
            raise UserError(f"judge {shown(PREFIX + rater)}: accepted: {_listed(dataset)}")
        self.name = PREFIX + rater
        rated = set(own["dimension"])
        self.dimensions = tuple(d.name for d in dataset.card.dimensions if d.name in rated)
        self.record: Mapping[str, Any] = {"rater": rater, "ratings": len(own)}
        self._scores = dict(zip(zip(own["pair_id"], own["dimension"], strict=True), own["score"], strict=True))

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. What the rater did not rate has no score."""
        scores = [[self._scores.get((pair.pair_id, name), math.nan) for name in self.dimensions] for pair in pairs]
        table = score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), len(self.dimensions))))
        table.loc[table["status"] != OK, "status"] = "not rated by this rater"
        return table


def without_raters(dataset: PairDataset, raters: Sequence[str]) -> PairDataset:
    """The dataset without the ratings and preferences of some raters; its hashes stay those of the whole.

    Raises:
        DataError: If no rating is left.
    """
    ratings = dataset.ratings[~dataset.ratings["rater_id"].isin(list(raters))].reset_index(drop=True)
    if ratings.empty:
        raise DataError(
            f"{dataset.root}: there are no ratings but those of {', '.join(map(shown, raters))}; accepted: judges that "
            "leave at least one rater to compare with"
        )
    preferences = dataset.preferences
    if preferences is not None:
        preferences = preferences[~preferences["rater_id"].isin(list(raters))].reset_index(drop=True)
    return dataclasses.replace(dataset, ratings=ratings, preferences=preferences)


def _listed(dataset: PairDataset) -> str:
    raters = sorted(set(dataset.ratings["rater_id"]))
    more = f" and {len(raters) - _LISTED} more" if len(raters) > _LISTED else ""
    return ", ".join(PREFIX + rater for rater in raters[:_LISTED]) + more
