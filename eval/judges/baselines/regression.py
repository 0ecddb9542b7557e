"""From features to scores: one model per dimension, fitted on training pairs and chosen by grouped cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, GroupKFold

from ....data_modules.errors import DataError
from ....data_modules.schema import Dimension, Pair, PairDataset
from ....models import closed_form
from ...probes import group_of
from .. import OK, score_table

FOLDS = 5
_FURTHEST = 5.0  # standard deviations: a measure beyond says no more for its distance


class Model(Protocol):
    """What was fitted: rating points `(n,)` from features `(n, k)`."""

    def predict(self, features: np.ndarray) -> np.ndarray: ...


Learn = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Model, Mapping[str, Any]]]
"""From features `(n, k)`, targets `(n,)` and groups `(n,)` to a model and what was chosen."""


@dataclass(frozen=True)
class Regression:
    """Fitted models.

    Attributes:
        dimensions: What they score.
        models: One per dimension.
        record: Dimension -> on how many pairs and groups its model was fitted, and what `Learn` says. Fits strict JSON.
    """

    dimensions: tuple[Dimension, ...]
    models: tuple[Model, ...]
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
                scores[rows, column] = np.clip(model.predict(features[rows]), dimension.minimum, dimension.maximum)
        return scores


Features = Callable[[Sequence[Pair]], tuple[np.ndarray, list[str]]]
"""From n pairs to features `(n, k)` and per pair ``ok``, or why it has none."""


class RegressionJudge:
    """Implements `Judge` by regression on features of pairs.

    Args:
        name: How reports call it.
        features: Of pairs.
        regression: Fitted to them.
        record: What it says of itself; fits strict JSON.
    """

    only_given: str | None = None

    def __init__(self, name: str, features: Features, regression: Regression, record: Mapping[str, Any]) -> None:
        self.name, self.record = name, record
        self.dimensions = tuple(dimension.name for dimension in regression.dimensions)
        self._features, self._regression = features, regression

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. A pair without features has no score and says why in `status`."""
        found, statuses = self._features(pairs)
        scores = self._regression.predict(found, [status == OK for status in statuses])
        return score_table(pairs, self.dimensions, scores, statuses=statuses)


def fit(
    judge: str, dataset: PairDataset, features: np.ndarray, usable: Sequence[bool] | np.ndarray, learn: Learn
) -> Regression:
    """Fits the mean ratings of each dimension; pairs without a rating of it do not count for it.

    Args:
        judge: Its name, for messages.
        dataset: The n training pairs.
        features: Shape (n, k).
        usable: Shape (n,), which rows have features.
        learn: Fits one dimension; gets pairs of two groups or more.

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
        model, chosen = learn(features[rated], means[dimension.name].to_numpy()[rated], groups[rated])
        dimensions.append(dimension)
        models.append(model)
        record[dimension.name] = {**chosen, "pairs": len(rated), "groups": n_groups}
    if not dimensions:
        names = ", ".join(dimension.name for dimension in dataset.card.dimensions)
        raise DataError(
            f"{dataset.root}: judge {judge} cannot be fitted, there are not two groups with usable pairs that are "
            f"rated on {names}; expected more groups in the training split"
        )
    return Regression(tuple(dimensions), tuple(models), record)


def searched(name: str, model: BaseEstimator, settings: Mapping[str, Sequence[float]], seed: int) -> Learn:
    """A regressor of scikit-learn with the settings (parameter -> values) that have the least squared error of groups
    left out, in `FOLDS` folds (fewer where there are fewer groups)."""

    def learn(features: np.ndarray, target: np.ndarray, groups: np.ndarray) -> tuple[Model, Mapping[str, Any]]:
        search = GridSearchCV(
            model,
            {name: list(values) for name, values in settings.items()},
            scoring="neg_mean_squared_error",
            cv=GroupKFold(min(FOLDS, len(np.unique(groups))), shuffle=True, random_state=seed),
            error_score="raise",  # pyright: ignore[reportArgumentType]
        ).fit(features, target, groups=groups)
        errors = {name: float(np.sqrt(-search.best_score_))}
        chosen = {"model": name, "settings": dict(search.best_params_)}
        return search.best_estimator_, {**chosen, "cross_validated_rmse": errors}

    return learn


def the_best_of(*learns: Learn) -> Learn:
    """Whichever has the least squared error of groups that were left out."""

    def learn(features: np.ndarray, target: np.ndarray, groups: np.ndarray) -> tuple[Model, Mapping[str, Any]]:
        found = [learn(features, target, groups) for learn in learns]
        model, chosen = min(found, key=lambda own: min(own[1]["cross_validated_rmse"].values()))
        errors = {name: error for _, own in found for name, error in own["cross_validated_rmse"].items()}
        return model, {**chosen, "cross_validated_rmse": errors}

    return learn


@dataclass(frozen=True)
class Standardised:
    """Ridge or kernel regression on standardised features; a missing one is its mean in training.

    Attributes:
        mean: Shape (k,), in training.
        scale: Shape (k,), standard deviation in training; inf where a feature never varied.
        solution: Of the closed form.
    """

    mean: np.ndarray
    scale: np.ndarray
    solution: closed_form.Solution

    @classmethod
    def learn(
        cls, features: np.ndarray, target: np.ndarray, groups: np.ndarray, *, seed: int
    ) -> tuple[Model, Mapping[str, Any]]:
        """A `Learn`: linear or kernel, whichever has the least squared error of groups left out."""
        known = ~np.isnan(features)
        count = np.maximum(known.sum(0), 1)
        mean = np.where(known, features, 0).sum(0) / count
        scale = np.sqrt((np.where(known, features - mean, 0) ** 2).sum(0) / count)
        scale[scale <= 1e-6 * np.abs(mean)] = np.inf  # what never varied says nothing
        order = np.random.default_rng(seed).permutation(len(target))
        standardised = _standardised(features, mean, scale)[order]
        every = closed_form.Portion(standardised, target[order, None], np.ones((len(order), 1)), groups[order])
        whole = len(order) <= closed_form.EXACT
        few = every if whole else closed_form.Portion(*(own[: closed_form.LANDMARKS] for own in every))
        solution = closed_form.fit(few, np.zeros(features.shape[1], int), None if whole else [every], seed=seed)
        spread, record = float(np.std(target)), solution.record
        errors = {name: spread * max(0.0, share) ** 0.5 for name, share in record["unexplained"].items()}
        chosen = {"kernel": record["kernel"], "width": record["width"], "penalty": record["penalty"][0]}
        return cls(mean, scale, solution), {**chosen, "cross_validated_rmse": errors}

    def predict(self, features: np.ndarray) -> np.ndarray:
        """See `Model`."""
        return self.solution.predict(_standardised(features, self.mean, self.scale))[:, 0]


def _standardised(features: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num((features - mean) / scale), -_FURTHEST, _FURTHEST)
