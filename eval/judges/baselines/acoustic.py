"""The baseline that hears delivery through a list of measures: no words, no learned ear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ....data_modules.schema import Pair, PairDataset
from .. import OK, score_table
from .clip_features import ClipFeatures, Measures
from .functionals import FUNCTIONALS, functionals
from .regression import Candidate, Regression, fit

ITERATIONS = 300
"""Trees of gradient boosting for each dimension."""

OURS = Measures(tuple(FUNCTIONALS), functionals)


class AcousticJudge:
    """Implements `Judge` by regression on measures of the last context turn, of the response, and of their difference.

    Ridge regression can only weigh them; gradient boosting can also learn which delivery suits which. For ridge a
    missing measure is its median in training, and one more feature says that it is missing; boosting learns where
    missing ones go.

    Args:
        name: How reports call it.
        features: Of pairs.
        regression: Fitted to them.
        record: What it says of itself; fits strict JSON.
    """

    only_given: str | None = None

    def __init__(self, name: str, features: ClipFeatures, regression: Regression, record: Mapping[str, Any]) -> None:
        self.name, self.record = name, record
        self.dimensions = tuple(dimension.name for dimension in regression.dimensions)
        self._features, self._regression = features, regression

    @classmethod
    def fitted_to(cls, dataset: PairDataset, measures: Measures = OURS, name: str = "acoustic", seed: int = 0):
        """Fits it to the mean ratings of `dataset` (its training split).

        Pairs with a clip that cannot be used are left out and counted in the record.

        Raises:
            DataError: If there are too few usable pairs with ratings.
        """
        features = ClipFeatures(measures)
        found, statuses = features.of(dataset.pairs)
        usable = [status == OK for status in statuses]
        regression = fit(name, dataset, found, usable, candidates(seed), seed)
        record = {
            "measures": list(measures.names),
            "unusable_pairs": usable.count(False),
            "fitted": dict(regression.record),
        }
        return cls(name, features, regression, record)

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. A pair with a clip that cannot be used has no score and says why in `status`."""
        found, statuses = self._features.of(pairs)
        scores = self._regression.predict(found, [status == OK for status in statuses])
        return score_table(pairs, self.dimensions, scores, statuses=statuses)


class FillEmpty(TransformerMixin, BaseEstimator):
    """Puts 0 into columns that were all missing when it was fitted: boosting cannot bin these."""

    def fit(self, features: np.ndarray, target: object = None) -> FillEmpty:
        """Remembers the columns; `features` has shape (n, k)."""
        del target
        self.empty_ = np.isnan(features).all(axis=0)
        return self

    def transform(self, features: np.ndarray) -> np.ndarray:
        """The features, shape (n, k)."""
        return np.where(self.empty_, 0.0, features)


def candidates(seed: int) -> dict[str, Candidate]:
    """The models that may be chosen, from features with gaps."""
    ridge = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True), StandardScaler(), Ridge()
    )
    boosting = HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=ITERATIONS,
        l2_regularization=1.0,
        early_stopping=False,  # pyright: ignore[reportArgumentType]
        random_state=seed,
    )
    return {
        "ridge": Candidate(ridge, {"ridge__alpha": (1.0, 10.0, 100.0, 1000.0, 10000.0)}),
        "boosting": Candidate(
            make_pipeline(FillEmpty(), boosting), {"histgradientboostingregressor__max_leaf_nodes": (4, 31)}
        ),
    }
