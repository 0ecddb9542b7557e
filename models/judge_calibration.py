"""Calibrates a judge on rated pairs, and puts the result beside its weights."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from ..data_modules.errors import AudioError, UserError
from ..data_modules.folders import replace_file
from ..data_modules.schema import PairDataset
from .artifact import LoadedJudge
from .calibration import Calibration
from .calibration_files import to_json, weights_hash, write_calibration
from .calibration_fit import fit_dimension
from .domain import fit_domain
from .file_names import CALIBRATION_FILE, JUDGE_FILE
from .score_mapping import MappingName
from .scoring import PairScorer, check_scales, placed


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
    names = [dimension.name for dimension in loaded.judge.dimensions]
    means = part.mean_scores().reindex(columns=names).to_numpy(np.float64)
    rated = np.flatnonzero(np.isfinite(means).any(axis=1))
    if not len(rated):
        where = "the data" if splits is None else f"split {', '.join(sorted(splits))}"
        raise UserError(f"{dataset.root}: {where} has no rating of {', '.join(names)}; accepted: rated pairs")
    pairs = [part.pairs[position] for position in rated]
    console = Console(stderr=True)
    scored = PairScorer(placed(loaded, device), batch_size, measures=True).run(pairs)
    judged = [
        found
        for _, found in track(scored, "calibrating", total=len(pairs), console=console, disable=not console.is_terminal)
    ]
    usable = [position for position, found in enumerate(judged) if not isinstance(found.outcome, AudioError)]
    if not usable:
        raise UserError(f"{dataset.root}: no rated pair has audio that can be used; the first: {judged[0].outcome}")
    kept = [found.outcome for found in judged if not isinstance(found.outcome, AudioError)]
    score = np.stack([found.score.numpy() for found in kept])
    deviations = [found.deviation.numpy() for found in kept if found.deviation is not None]
    human = means[rated][usable]
    groups = np.array([pairs[position].group_id for position in usable])
    return Calibration(
        weights=weights_hash(loaded.judge),
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
            for column, dimension in enumerate(loaded.judge.dimensions)
        },
        domain=fit_domain([judged[position].facts for position in usable]),
    )


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
