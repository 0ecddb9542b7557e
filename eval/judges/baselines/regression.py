"""Regression from features to scores: one model per dimension, fitted on training pairs and chosen by grouped
cross-validation. Also the text baseline, which shows how well the words alone predict the ratings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from ....core.errors import DataError, counted
from ....data_modules.folds import even_folds, group_of
from ....data_modules.schema import Dimension, Pair, PairDataset
from ....models import closed_form
from .. import OK, score_table

FOLDS = 5
_ERRORS = "cross_validated_rmse"  # of a record: model or kernel -> root mean squared error on left-out groups
NO_TRANSCRIPT = "no transcript of the response"
# A word of its own: scikit-learn refuses a column without any word
_NO_CONTEXT = "(no context)"
# The most frequent ones of a column and kind; memory grows with all of them
_MOST_WORDS = 50_000
# Standard deviations, to which measures are clipped: one odd clip must not decide its own score
_FURTHEST = 5.0


class FittedModel(Protocol):
    """A fitted model: predicts rating points `(n,)` from features `(n, k)`."""

    def predict(self, features: np.ndarray) -> np.ndarray: ...


Learn = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[FittedModel, Mapping[str, Any]]]
"""Maps features `(n, k)`, targets `(n,)` and groups `(n,)` to a fitted model and a record of what was chosen, with
`_ERRORS`."""


Features = Callable[[Sequence[Pair]], tuple[np.ndarray, list[str]]]
"""Maps n pairs to features `(n, k)` and, per pair, ``ok`` or the reason why it has none."""


class RegressionJudge:
    """Implements `Judge`: on each dimension a regression on features of a pair, fitted to the mean ratings.

    Pairs without features are left out and counted; pairs without a rating of a dimension do not count for it.

    Args:
        name: Name in reports.
        dataset: The training pairs.
        features: Computes the features of pairs.
        learns: Each fits one dimension to pairs of two groups or more; the model with the least squared error on
            left-out groups is chosen.
        record: Further entries of the judge's record; must fit strict JSON.

    Raises:
        DataError: If no dimension has rated pairs of at least two groups.
    """

    only_given: str | None = None

    def __init__(
        self, name: str, dataset: PairDataset, features: Features, learns: Sequence[Learn], **record: Any
    ) -> None:
        matrix, statuses = features(dataset.pairs)
        usable, means = np.array([status == OK for status in statuses]), dataset.mean_scores()
        groups = np.array([group_of(pair) for pair in dataset.pairs])
        self._models: list[tuple[Dimension, FittedModel]] = []
        fitted = {}
        for dimension in dataset.card.dimensions:
            rated = np.flatnonzero(usable & means[dimension.name].notna().to_numpy())
            n_groups = len(np.unique(groups[rated]))
            if n_groups >= 2:
                target = means[dimension.name].to_numpy()[rated]
                candidates = [learn(matrix[rated], target, groups[rated]) for learn in learns]
                # By errors on groups that were left out: on its own data the most flexible one would always win
                model, chosen = min(candidates, key=lambda candidate: min(candidate[1][_ERRORS].values()))
                self._models.append((dimension, model))
                errors = {name: error for _, tried in candidates for name, error in tried[_ERRORS].items()}
                fitted[dimension.name] = {**chosen, _ERRORS: errors, "pairs": len(rated), "groups": n_groups}
        if not fitted:
            names = ", ".join(dimension.name for dimension in dataset.card.dimensions)
            raise DataError(
                f"{dataset.root}: judge {name} cannot be fitted, there are not two groups with usable pairs that are "
                f"rated on {names}; expected more groups in the training split"
            )
        self.name, self.dimensions, self._features = name, tuple(fitted), features
        self.record: Mapping[str, Any] = {**record, "unusable_pairs": int((~usable).sum()), "fitted": fitted}

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. Scores lie inside the scales; a pair without features says why in `status`."""
        matrix, statuses = self._features(pairs)
        rows = [row for row, status in enumerate(statuses) if status == OK]
        scores = np.full((len(pairs), len(self._models)), np.nan)
        for column, (dimension, model) in enumerate(self._models if rows else ()):
            # Inside the scale, as raters are: an error beyond its end would be one that no rater can make
            scores[rows, column] = np.clip(model.predict(matrix[rows]), dimension.minimum, dimension.maximum)
        return score_table(pairs, self.dimensions, scores, statuses=statuses)


def searched(name: str, model: BaseEstimator, settings: Mapping[str, Sequence[float]], seed: int) -> Learn:
    """Grid search of a scikit-learn regressor over settings (parameter -> values), for the least squared error on
    left-out groups in `FOLDS` folds (fewer where there are fewer groups)."""

    def learn(features: np.ndarray, target: np.ndarray, groups: np.ndarray) -> tuple[FittedModel, Mapping[str, Any]]:
        search = GridSearchCV(
            model,
            {name: list(values) for name, values in settings.items()},
            scoring="neg_mean_squared_error",
            cv=even_folds(groups, min(FOLDS, len(np.unique(groups))), seed),
            error_score="raise",  # pyright: ignore[reportArgumentType]
        ).fit(features, target)
        errors = {name: float(np.sqrt(-search.best_score_))}
        return search.best_estimator_, {"model": name, "settings": dict(search.best_params_), _ERRORS: errors}

    return learn


@dataclass(frozen=True)
class Standardised:
    """Ridge or kernel regression on standardised features; a missing feature is imputed by its training mean."""

    mean: np.ndarray  # shape (k,), in training
    scale: np.ndarray  # shape (k,), standard deviation in training; inf where a feature never varied
    solution: closed_form.Solution  # of the closed form

    @classmethod
    def learn(
        cls, features: np.ndarray, target: np.ndarray, groups: np.ndarray, *, seed: int
    ) -> tuple[FittedModel, Mapping[str, Any]]:
        """A `Learn`: linear or kernel, on ratings or their ranks, whichever is best on left-out groups; errors are of
        what is fitted."""
        known = ~np.isnan(features)
        count = np.maximum(known.sum(0), 1)
        mean = np.where(known, features, 0).sum(0) / count
        scale = np.sqrt((np.where(known, features - mean, 0) ** 2).sum(0) / count)
        # What never varied but for rounding says nothing
        scale[scale <= 1e-6 * np.abs(mean)] = np.inf
        # Landmarks are the first rows, so these must be a sample
        order = np.random.default_rng(seed).permutation(len(target))
        standardised = _standardised(features, mean, scale)[order]
        portion = closed_form.FeatureBatch(standardised, target[order, None], np.ones((len(order), 1)), groups[order])
        is_exact = len(order) <= closed_form.EXACT
        subset = (
            portion if is_exact else closed_form.FeatureBatch(*(array[: closed_form.LANDMARKS] for array in portion))
        )
        blocks, portions = np.zeros(features.shape[1], int), None if is_exact else [portion]
        solution = closed_form.fit(subset, blocks, portions, seed=seed, may_rank=True)
        spread, record = float(np.std(target)), solution.record
        errors = {name: spread * max(0.0, share) ** 0.5 for name, share in record["unexplained"].items()}
        chosen = {name: record[name] for name in ("kernel", "width", "ranks")} | {"penalty": record["penalty"][0]}
        return cls(mean, scale, solution), {**chosen, _ERRORS: errors}

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.solution.predict(_standardised(features, self.mean, self.scale))[:, 0]


def _standardised(features: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num((features - mean) / scale), -_FURTHEST, _FURTHEST)


# ---------------------------------------------------------------- words


class TextJudge(RegressionJudge):
    """Ridge regression on TF-IDF of words and characters, of context and response.

    The context is the text about the situation and the transcript of what is answered. A judge of delivery must beat
    this baseline. Where it agrees with the raters, the ratings or the written responses depend on the words.
    """

    def __init__(self, dataset: PairDataset, seed: int = 0) -> None:
        """Fits it to a dataset (its training split); see `RegressionJudge`.

        Raises:
            DataError: Also if no response has a transcript.
        """
        if OK not in _documents(dataset.pairs)[1]:
            raise DataError(
                f"{dataset.root}: judge text reads transcripts, and none of the {counted(len(dataset.pairs), 'pair')} "
                "to fit it on has a response_text; expected pairs with transcripts"
            )
        super().__init__("text", dataset, _documents, [_ridge(seed)])


def _documents(pairs: Sequence[Pair]) -> tuple[np.ndarray, list[str]]:
    """Texts of contexts and responses, shape (n, 2), and per pair whether it can be read."""
    texts = np.empty((len(pairs), 2), dtype=object)
    for row, pair in enumerate(pairs):
        context = " ".join(text for text in (pair.situation, pair.context_text) if text and text.strip())
        texts[row] = context or _NO_CONTEXT, pair.response_text or ""
    return texts, [OK if text.strip() else NO_TRANSCRIPT for text in texts[:, 1]]


def _ridge(seed: int) -> Learn:
    # Punctuation counts as a word: "oh!" is another answer than "oh."
    words = TfidfVectorizer(
        token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True, max_features=_MOST_WORDS
    )
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, max_features=_MOST_WORDS)
    columns = make_column_transformer(*((kind, column) for column in (0, 1) for kind in (words, characters)))
    return searched("ridge", make_pipeline(columns, Ridge()), {"ridge__alpha": (0.1, 1.0, 10.0, 100.0)}, seed)
