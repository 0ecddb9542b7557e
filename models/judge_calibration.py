"""Calibrates a judge on rated pairs, and puts the result beside its weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from ..data_modules.errors import AudioError, UserError
from ..data_modules.folders import replace_file
from ..data_modules.schema import Dimension, PairDataset
from .artifact import LoadedJudge
from .calibration import Calibration
from .calibration_files import to_json, weights_hash, write_calibration
from .calibration_fit import fit_dimension
from .domain import fit_domain
from .file_names import CALIBRATION_FILE, JUDGE_FILE
from .score_mapping import MappingName
from .scoring import Judged, PairScorer, check_scales, placed


def calibrate_judge(
    loaded: LoadedJudge,
    dataset: PairDataset,
    splits: Collection[str] | None,
    *,
    method: MappingName = "none",
    abstain: float | None = None,
    device: str | None = None,
    batch_size: int = 16,
) -> Calibration:
    """Score the rated pairs of some splits and fit a calibration to them.

    The validation split also chose the best checkpoint, which makes its errors look a little too small; a split that
    nothing was chosen on has no such fault. Pairs whose audio cannot be used are counted and left out. A dimension that
    nobody rated there stays without one.

    Args:
        loaded: The judge; a calibration that it has is not used.
        dataset: Ratings of the judge's dimensions, on its scales.
        splits: Which pairs; None = all.
        method: How scores are mapped to ratings (`score_mapping`).
        abstain: Share of the pairs from which the judge abstains; None = it never does.
        device: "cpu", "cuda", ..., "auto" if it was spread; None = a GPU if there is one.
        batch_size: Pairs per forward pass.

    Raises:
        UserError: If no pair has a rating, scales differ, the judge was trained on one of the splits, or as
            `fit_dimension`.
        DataError: If a split does not exist.
    """
    check_scales("to calibrate", loaded.judge.dimensions, dataset.card)
    _check_not_trained_on(loaded, dataset, splits)
    part = dataset.subset(splits)
    pairs = [part.pairs[position] for position in _rated(part, loaded.judge.dimensions, splits)]
    console = Console(stderr=True)
    scored = PairScorer(placed(loaded, device), batch_size, measures=True).run(pairs)
    judged = [
        found
        for _, found in track(scored, "calibrating", total=len(pairs), console=console, disable=not console.is_terminal)
    ]
    if all(isinstance(found.outcome, AudioError) for found in judged):
        raise UserError(f"{dataset.root}: no rated pair has audio that can be used; the first: {judged[0].outcome}")
    return fit_calibration(
        weights_hash(loaded.judge),
        loaded.judge.dimensions,
        dataset,
        splits,
        {pair.pair_id: found for pair, found in zip(pairs, judged, strict=True)},
        method=method,
        abstain=abstain,
    )


def fit_calibration(
    weights: str,
    dimensions: Sequence[Dimension],
    dataset: PairDataset,
    splits: Collection[str] | None,
    judged: Mapping[str, Judged],
    *,
    method: MappingName = "none",
    abstain: float | None = None,
) -> Calibration:
    """Fit a calibration to scores that are known.

    Args:
        weights: Hash of the judge's weights, `weights_hash`.
        dimensions: Of the judge.
        dataset: As for `calibrate_judge`.
        splits: As for `calibrate_judge`.
        judged: Scores and clips of each rated pair of the splits by its id; pairs with an error are counted.
        method: How scores are mapped to ratings.
        abstain: Share of the pairs from which the judge abstains; None = it never does.

    Raises:
        UserError: If no pair has a rating, or as `fit_dimension`.
    """
    part = dataset.subset(splits)
    rated = _rated(part, dimensions, splits)
    pairs = [part.pairs[position] for position in rated]
    found = [judged[pair.pair_id] for pair in pairs]
    usable = [position for position, own in enumerate(found) if not isinstance(own.outcome, AudioError)]
    kept = [own.outcome for own in found if not isinstance(own.outcome, AudioError)]
    score = np.stack([own.score.numpy() for own in kept])
    deviations = [own.deviation.numpy() for own in kept if own.deviation is not None]
    human = _means(part, dimensions)[rated][usable]
    groups = np.array([pairs[position].group_id for position in usable])
    return Calibration(
        weights=weights,
        dataset=dataset.card.name,
        synthetic=dataset.card.synthetic,
        content_hash=dataset.card.content_hash,
        split_hash=dataset.split_hash(),
        splits=None if splits is None else tuple(splits),
        failed=len(pairs) - len(usable),
        method=method,
        abstain_share=abstain,
        dimensions={
            dimension.name: fit_dimension(
                dimension,
                score[:, column],
                np.stack(deviations)[:, column] if deviations else None,
                human[:, column],
                groups,
                method=method,
                abstain=abstain,
            )
            for column, dimension in enumerate(dimensions)
        },
        domain=fit_domain([found[position].facts for position in usable]),
    )


def _means(part: PairDataset, dimensions: Sequence[Dimension]) -> np.ndarray:
    """Mean ratings `(pairs, dimensions)`; NaN = not rated."""
    return part.mean_scores().reindex(columns=[dimension.name for dimension in dimensions]).to_numpy(np.float64)


def _rated(part: PairDataset, dimensions: Sequence[Dimension], splits: Collection[str] | None) -> np.ndarray:
    """Positions of the pairs that somebody rated."""
    rated = np.flatnonzero(np.isfinite(_means(part, dimensions)).any(axis=1))
    if not len(rated):
        where = "the data" if splits is None else f"split {', '.join(sorted(splits))}"
        names = ", ".join(dimension.name for dimension in dimensions)
        raise UserError(f"{part.root}: {where} has no rating of {names}; accepted: rated pairs")
    return rated


def store_calibration(calibration: Calibration, folder: Path) -> Path:
    """Put a calibration beside the weights that it was fitted to, in place of an earlier one.

    Args:
        calibration: Of this judge.
        folder: Of a judge, whose `judge.json` is rewritten, or of a run.

    Returns:
        The file that holds it; readers see the old one or the new one.
    """
    if not (folder / JUDGE_FILE).is_file():
        write_calibration(folder / CALIBRATION_FILE, calibration)
        return folder / CALIBRATION_FILE
    description = json.loads((folder / JUDGE_FILE).read_text(encoding="utf-8"))
    text = json.dumps({**description, "calibration": to_json(calibration)}, indent=2, allow_nan=False) + "\n"
    replace_file(folder / JUDGE_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    return folder / JUDGE_FILE


def _check_not_trained_on(loaded: LoadedJudge, dataset: PairDataset, splits: Collection[str] | None) -> None:
    here = dataset.card.content_hash, dataset.split_hash()
    # of an ensemble, nothing that any of its members was trained on
    for origin in loaded.description.get("member_provenance", [loaded.description["provenance"]]):
        known = [name for name in origin["train_splits"] if splits is None or name in splits]
        if known and (origin["content_hash"], origin["split_hash"]) == here:
            raise UserError(
                f"{dataset.root}: this judge was trained on split {', '.join(known)}, where its errors are too small; "
                "accepted: other splits, such as validation"
            )
