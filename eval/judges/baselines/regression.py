"""From features to scores: one model per dimension, fitted on training pairs and chosen by grouped cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, GroupKFold

from ....data_modules.errors import DataError
from ....data_modules.schema import Dimension, PairDataset
from ...probes import group_of

FOLDS = 5


@dataclass(frozen=True)
class Candidate:
    """A model that may be chosen.

    Attributes:
        model: A regressor of scikit-learn, from raw features.
        settings: Parameter of it -> values to choose among.
    """

    model: BaseEstimator
    settings: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Regression:
    """Fitted models.

    Attributes:
        dimensions: What they score.
        models: One per dimension.
        record: Dimension -> which model was chosen, on how many pairs and groups, and the root mean square error of
            each candidate's best settings in cross-validation (rating points). Fits strict JSON.
    """

    dimensions: tuple[Dimension, ...]
    models: tuple[BaseEstimator, ...]
    record: Mapping[str, Any]

    def predict(self, features: np.ndarray, usable: Sequence[bool] | np.ndarray) -> np.ndarray:
        """Scores inside the scales.

        Args:
            features: Shape (n, k), as in fitting.
            usable: Shape (n,), which rows may be predicted.

        Returns:
            Shape (n, dimensions), rating points; NaN in the other rows.
        """
        rows = np.flatnonzero(usable)
        scores = np.full((len(features), len(self.dimensions)), np.nan)
        if rows.size:
            for column, (dimension, model) in enumerate(zip(self.dimensions, self.models, strict=True)):
                predicted = model.predict(features[rows])  # pyright: ignore[reportAttributeAccessIssue]
                scores[rows, column] = np.clip(predicted, dimension.minimum, dimension.maximum)
        return scores


def fit(
    judge: str,
    dataset: PairDataset,
    features: np.ndarray,
    usable: Sequence[bool] | np.ndarray,
    candidates: Mapping[str, Candidate],
    seed: int,
) -> Regression:
    """Fits the mean ratings of each dimension; pairs without a rating of it do not count for it.

    The candidate and its settings are those with the least squared error of groups that were left out, in `FOLDS` folds
    (fewer where there are fewer groups); it is then fitted to all pairs.

    Args:
        judge: Its name, for messages.
        dataset: The n training pairs.
        features: Shape (n, k).
        usable: Shape (n,), which rows have features.
        candidates: By name.
        seed: Of the folds.

    Raises:
        DataError: If no dimension has rated pairs of at least two groups.
    """
    means = dataset.mean_scores()
    groups = np.array([group_of(pair) for pair in dataset.pairs])
    dimensions, models, record = [], [], {}
    for dimension in dataset.card.dimensions:
        rated = np.flatnonzero(np.asarray(usable) & means[dimension.name].notna().to_numpy())
        n_groups = len(np.unique(groups[rated]))
        if n_groups < 2:
            continue
        target = means[dimension.name].to_numpy()[rated]
        searches = {
            name: _search(candidate, min(FOLDS, n_groups), seed).fit(features[rated], target, groups=groups[rated])
            for name, candidate in candidates.items()
        }
        chosen = max(searches, key=lambda name: searches[name].best_score_)
        dimensions.append(dimension)
        models.append(searches[chosen].best_estimator_)
        record[dimension.name] = {
            "model": chosen,
            "settings": dict(searches[chosen].best_params_),
            "cross_validated_rmse": {name: float(np.sqrt(-search.best_score_)) for name, search in searches.items()},
            "pairs": len(rated),
            "groups": n_groups,
        }
    if not dimensions:
        names = ", ".join(dimension.name for dimension in dataset.card.dimensions)
        raise DataError(
            f"{dataset.root}: judge {judge} cannot be fitted, there are not two groups with usable pairs that are "
            f"rated on {names}; expected more groups in the training split"
        )
    return Regression(tuple(dimensions), tuple(models), record)


def _search(candidate: Candidate, folds: int, seed: int) -> GridSearchCV:
    return GridSearchCV(
        candidate.model,
        {name: list(values) for name, values in candidate.settings.items()},
        scoring="neg_mean_squared_error",
        cv=GroupKFold(folds, shuffle=True, random_state=seed),
        error_score="raise",  # pyright: ignore[reportArgumentType]
    )
