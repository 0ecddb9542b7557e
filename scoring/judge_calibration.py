"""Calibrates a judge on rated pairs, and stores the result with its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import AudioError, UserError, counted
from ..core.files import replace_text
from ..core.processes import progress
from ..data_modules.folds import group_of
from ..data_modules.schema import Dimension, Pair, PairDataset
from ..data_modules.unchanged import check_unchanged
from ..models import CALIBRATION_FILE, JUDGE_FILE
from ..models.heads import Prediction
from ..models.weight_files import weights_hash
from .artifact import LoadedJudge, writing
from .assessment import fit_domain
from .calibration import (
    DEFAULT_LEVEL,
    LEVELS,
    Calibration,
    DimensionCalibration,
    MappingName,
    Quantile,
    fit_mapping,
    no_calibration,
    to_json,
)
from .predictor import Predictor, ScoredPair, check_scales, placed
from .three_way import PreferenceModel, comparisons, fit_three_way, verdict_of

MIN_MAPPED = 20
"""Fewest rated pairs of a mapping."""
FOLDS = 5
"""Parts in which the groups are divided to measure a mapping on pairs that it was not fitted on."""
_ROUNDING = 1e-9  # (n + 1) * level is often a whole number, and its last bit cannot be trusted


def calibrate_judge(
    loaded: LoadedJudge,
    dataset: PairDataset,
    splits: Collection[str] | None,
    *,
    method: MappingName = "none",
    abstain: float | None = None,
    device: str | None = None,
) -> Calibration:
    """Score the rated pairs of some splits and fit a calibration to them.

    On the validation split errors look a little too small, because it also chose the best checkpoint; a split on which
    nothing was chosen has no such bias. Pairs whose audio cannot be used are counted and left out. A dimension that
    nobody rated in these splits gets no standard errors.

    Args:
        loaded: The judge; its present calibration is not used.
        dataset: Ratings of the judge's dimensions, on its scales.
        splits: Which pairs; None = all.
        method: How scores are mapped to ratings (`calibration.fit_mapping`).
        abstain: Fraction of the pairs from which the judge abstains; None = it never does.
        device: As in `placed`.

    Raises:
        UserError: If no pair has a rating, scales differ, the judge was trained on one of the splits, or as
            `fit_dimension`.
        DataError: If a split does not exist, or audio is not what was imported.
    """
    check_scales("to calibrate", loaded.judge.dimensions, dataset.card)
    # Before the audio is scored, which may take hours
    _check_not_trained_on(loaded, dataset, splits)
    check_unchanged(dataset)
    pairs, _ = _rated(dataset, splits, loaded.judge.dimensions)
    scored = Predictor(placed(loaded, device), measures=True).run(pairs)
    results = list(progress(scored, "calibrating", len(pairs)))
    if all(isinstance(result.outcome, AudioError) for result in results):
        raise UserError(f"{dataset.root}: no rated pair has audio that can be used; the first: {results[0].outcome}")
    judged = {pair.pair_id: result for pair, result in zip(pairs, results, strict=True)}
    weights, dimensions = weights_hash(loaded.judge), loaded.judge.dimensions
    return fit_calibration(weights, dimensions, dataset, splits, judged, method=method, abstain=abstain)


def fit_calibration(
    weights: str,
    dimensions: Sequence[Dimension],
    dataset: PairDataset,
    splits: Collection[str] | None,
    judged: Mapping[str, ScoredPair],
    *,
    method: MappingName = "none",
    abstain: float | None = None,
) -> Calibration:
    """Fit a calibration to given scores; otherwise as `calibrate_judge`.

    Args:
        weights: Hash of the judge's weights, `weights_hash`.
        judged: Scores and clips of rated pairs of the splits by their ids; pairs with an error are counted, missing
            pairs are not.
    """
    rated = zip(*_rated(dataset, splits, dimensions), strict=True)
    scored = [(pair, row, judged[pair.pair_id]) for pair, row in rated if pair.pair_id in judged]
    usable = [(pair, row, result) for pair, row, result in scored if isinstance(result.outcome, Prediction)]
    pairs, human = [pair for pair, *_ in usable], np.stack([row for _, row, _ in usable])
    predictions: list[Any] = [result.outcome for *_, result in usable]
    score = np.stack([prediction.score.numpy() for prediction in predictions])
    spread = [prediction.deviation.numpy() for prediction in predictions if prediction.deviation is not None]
    deviations = np.stack(spread).T if spread else [None] * len(dimensions)
    groups = np.array([pair.group_id for pair in pairs])
    part, fitted = dataset.subset(splits), dict[str, DimensionCalibration]()
    for dimension, points, deviation, rating in zip(dimensions, score.T, deviations, human.T, strict=True):
        calibration = fit_dimension(dimension, points, deviation, rating, groups, method=method, abstain=abstain)
        # What people prefer is fitted to scores and errors as users get them
        calibrated = calibration.apply(dimension, points, deviation, DEFAULT_LEVEL)
        fitted[dimension.name] = replace(
            calibration, three_way=_three_way(part, pairs, dimension, calibrated.score, calibrated.standard_error)
        )
    if not any(calibration.n or calibration.three_way for calibration in fitted.values()):
        raise _nothing_known(dataset, splits, [*fitted])
    return Calibration(
        weights=weights,
        dataset=dataset.card.name,
        synthetic=dataset.card.synthetic,
        content_hash=dataset.card.content_hash,
        split_hash=dataset.split_hash(),
        splits=None if splits is None else tuple(splits),
        failed=len(scored) - len(usable),
        method=method,
        abstain_share=abstain,
        dimensions=fitted,
        domain=fit_domain([result.facts for *_, result in usable]),
    )


def _three_way(
    part: PairDataset, pairs: Sequence[Pair], dimension: Dimension, score: np.ndarray, error: np.ndarray
) -> PreferenceModel | None:
    first, second, counts = comparisons(part, pairs, dimension)
    sign = 1.0 if dimension.higher_is_better else -1.0
    difference, combined = sign * (score[first] - score[second]), np.hypot(error[first], error[second])
    uses_error = bool(np.isfinite(error).any())
    # A judge without standard errors can still say which is better, only less surely
    usable = np.isfinite(combined if uses_error else difference)
    groups = np.array([group_of(pairs[position]) for position in first])
    errors = combined[usable] if uses_error else None
    return fit_three_way(difference[usable], errors, verdict_of(counts)[usable], groups[usable])


def _rated(
    dataset: PairDataset, splits: Collection[str] | None, dimensions: Sequence[Dimension]
) -> tuple[list[Pair], np.ndarray]:
    """Pairs of the splits that somebody rated or compared, and their mean ratings `(pairs, dimensions)`; NaN = not
    rated."""
    part, names = dataset.subset(splits), [dimension.name for dimension in dimensions]
    means = part.mean_scores().reindex(columns=names).to_numpy(np.float64)
    relevant = np.isfinite(means).any(axis=1)
    if part.preferences is not None:
        preferences = part.preferences[part.preferences["dimension"].isin(names)]
        compared = {*preferences["chosen_id"], *preferences["rejected_id"]}
        relevant |= np.array([pair.pair_id in compared for pair in part.pairs], dtype=bool)
    rated = np.flatnonzero(relevant)
    if not len(rated):
        raise _nothing_known(part, splits, names)
    return [part.pairs[position] for position in rated], means[rated]


def _nothing_known(dataset: PairDataset, splits: Collection[str] | None, names: Sequence[str]) -> UserError:
    where = "the data" if splits is None else f"split {', '.join(sorted(splits))}"
    what = f"{where} has no rating of {', '.join(names)}"
    return UserError(f"{dataset.root}: {what}; expected rated pairs, or comparisons in 20 groups")


def store_calibration(calibration: Calibration, folder: Path) -> Path:
    """Store a calibration in `judge.json` of a judge folder, or in a file of a run's folder, whose path is returned.
    Readers see either the old file or the new one.

    Raises:
        UserError: If the disk is full or may not be written.
    """
    path, values = folder / CALIBRATION_FILE, to_json(calibration)
    if (folder / JUDGE_FILE).is_file():
        path = folder / JUDGE_FILE
        values = {**json.loads(path.read_text(encoding="utf-8")), "calibration": values}
    with writing(path):
        replace_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")
    return path


def _check_not_trained_on(loaded: LoadedJudge, dataset: PairDataset, splits: Collection[str] | None) -> None:
    hashes = dataset.card.content_hash, dataset.split_hash()
    # for an ensemble, the training data of every member counts
    for origin in loaded.description.get("member_provenance", [loaded.description["provenance"]]):
        seen = [name for name in origin["train_splits"] if splits is None or name in splits]
        if seen and (origin["content_hash"], origin["split_hash"]) == hashes:
            raise UserError(
                f"{dataset.root}: this judge was trained on split {', '.join(seen)}, where its errors are too small; "
                "calibrate on other splits"
            )


def fit_dimension(
    dimension: Dimension,
    score: np.ndarray,
    deviation: np.ndarray | None,
    human: np.ndarray,
    groups: np.ndarray,
    *,
    method: MappingName = "none",
    abstain: float | None = None,
) -> DimensionCalibration:
    """Mapping, standard error, quantiles and threshold of one dimension.

    The standard error is the deviation of the head times the factor that makes the mean squared standardised error 1
    on these pairs; without deviations it is the root mean square of the errors, the same for all pairs. The quantile of
    a level is the ceil((n + 1) * level)-th smallest |rating - score| / deviation (Lei et al., 2018).

    A mapping is judged by errors on groups that it was not fitted on, in `FOLDS` parts; what is returned is fitted on
    all. The guarantee of the intervals is exact for `none`, and approximate for a mapping (Barber et al., 2021).

    Args:
        dimension: The scale.
        score: Of the head `(pairs,)`, rating points; NaN = no score.
        deviation: Of the head `(pairs,)`, above 0; None where it has none.
        human: Mean ratings `(pairs,)`; NaN = not rated. Pairs without a score or a rating do not count.
        groups: Group of each pair `(pairs,)`.
        method: How scores are mapped.
        abstain: Fraction of the pairs, those with the largest standard errors, that the judge abstains from.

    Raises:
        UserError: If a mapping has too few pairs or would reverse the order, or a threshold would not tell pairs apart.
        ValueError: If shapes differ or a deviation is not above 0.
    """
    rated = np.isfinite(score) & np.isfinite(human)
    if not rated.any():
        return no_calibration(deviation is not None)
    score, human, groups = score[rated].astype(np.float64), human[rated], groups[rated]
    scale = np.ones(len(score)) if deviation is None else deviation[rated].astype(np.float64)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"{dimension.name}: deviations must be finite and above 0")
    codes = np.unique(groups, return_inverse=True)[1]
    if method != "none":
        _check_mappable(dimension, score, human, codes)
    standardised = np.abs(human - _mapped(method, score, human, codes, dimension)) / scale
    # Errors of a curve on groups that it has not seen, although the curve that is kept has seen all: those would be
    # too small
    factor = float(np.sqrt(np.mean(standardised**2)))
    return DimensionCalibration(
        n=len(score),
        groups=len(np.unique(codes)),
        mapping=fit_mapping(method, score, human, dimension),
        uses_deviation=deviation is not None,
        factor=factor,
        quantiles=tuple(conformal_quantile(standardised, level) for level in LEVELS),
        abstain_above=None if abstain is None else _threshold(dimension, factor * scale, abstain),
    )


def conformal_quantile(errors: np.ndarray, level: float) -> Quantile:
    """The ceil((n + 1) * level)-th smallest of n errors `(pairs,)`; undefined, with the reason, where there is none."""
    # n + 1: the new pair is one of the exchangeable ones, and its error may be the largest of all
    rank = math.ceil((len(errors) + 1) * level - _ROUNDING)
    if rank > len(errors):
        needed = math.ceil(level / (1 - level) - _ROUNDING)
        return Quantile(level, None, f"{counted(len(errors), 'rated pair')}, at least {needed} needed")
    return Quantile(level, float(np.partition(errors, rank - 1)[rank - 1]))


def _mapped(
    method: MappingName, score: np.ndarray, human: np.ndarray, codes: np.ndarray, dimension: Dimension
) -> np.ndarray:
    """Scores `(pairs,)`, each mapped by a curve that has not seen its group."""
    if method == "none":
        return score
    # Whole groups are left out: pairs of one script are alike
    # The same folds whenever a judge is calibrated on these pairs, so that its intervals do not change by chance
    fold = np.random.default_rng(0).permutation(int(codes.max()) + 1)[codes] % FOLDS
    mapped = np.empty(len(score))
    for number in range(FOLDS):
        held_out = fold == number
        fitted = fit_mapping(method, score[~held_out], human[~held_out], dimension)
        mapped[held_out] = fitted.apply(score[held_out], dimension)
    return mapped


def _check_mappable(dimension: Dimension, score: np.ndarray, human: np.ndarray, codes: np.ndarray) -> None:
    groups = int(codes.max()) + 1
    if len(score) < MIN_MAPPED or groups < FOLDS:
        raise UserError(
            f"dimension {dimension.name}: {counted(len(score), 'rated pair')} in {counted(groups, 'group')}; a mapping "
            f"needs at least {MIN_MAPPED} in {FOLDS}; use method none"
        )
    # A rising curve cannot mend a judge that ranks the wrong way: the best one would be flat
    if (score - score.mean()) @ (human - human.mean()) <= 0:
        raise UserError(
            f"dimension {dimension.name}: ratings do not rise with the scores, and a mapping would reverse their order "
            "or make them all the same; use method none, or a judge that agrees with people"
        )


def _threshold(dimension: Dimension, errors: np.ndarray, fraction: float) -> float:
    """The standard error that this fraction of the pairs exceeds, or as many as ties allow."""
    count = math.floor(fraction * len(errors) + _ROUNDING)
    ordered = np.sort(errors)
    if not 0 < fraction < 1 or count == 0:
        raise UserError(
            f"dimension {dimension.name}: abstaining from a fraction of {fraction:g} of "
            f"{counted(len(errors), 'pair')}; expected a fraction between 0 and 1 that is at least one pair"
        )
    # The largest error that is still answered, as `apply` abstains above it and not at it
    threshold = ordered[len(errors) - count - 1]
    if threshold == ordered[-1]:
        raise UserError(
            f"dimension {dimension.name}: the standard error of the pairs to abstain from is that of the others; "
            "expected a head with a deviation (such as gaussian), or no fraction to abstain from"
        )
    return float(threshold)
