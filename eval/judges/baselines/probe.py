"""The baseline that hears with a frozen backbone: what `train --method probe` makes, fitted within the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ....data_modules.errors import DataError, UserError
from ....data_modules.schema import PairDataset
from ....data_modules.splits import kept_together
from ....models.artifact import describe, read_settings
from ....models.description import Provenance
from ....models.feature_cache import DiskStore
from ....models.hub import is_judge
from ....models.judge import EmpathyJudge
from ....models.probe import ClipReader, Probe, Rated, compare_as, head_at, shuffled, standardise, without_adapters
from ....models.scoring import PairScorer, choose_device
from ....models.settings import HeadInputSettings, JudgeSettings, Quantization
from ...judge_names import PROBE
from ..trained import TrainedJudge


def open_probe(
    spec: str,
    dataset: PairDataset,
    seed: int,
    *,
    device: str | None = None,
    backbone: str | None = None,
    quantization: Quantization | None = None,
    cache: str | Path | None = None,
    windows: bool = True,
) -> TrainedJudge:
    """Fit it.

    Args:
        spec: `PROBE`, and what has the backbone. Of a judge, nothing that was trained is used.
        dataset: What it is fitted to: the training pairs.
        seed: Of the order of pairs.
        device: "cpu", "cuda", ...; None = a GPU if there is one.
        backbone: Where the backbone of a judge lies now.
        quantization: "nf4" or "none".
        cache: Folder for what the audio tower makes of clips.
        windows: Whether long clips are heard in windows.

    Raises:
        UserError: If there is no such judge or backbone.
        DataError: If there are too few pairs with ratings.
    """
    own = settings_of(spec.removeprefix(PROBE))
    settings = without_adapters(
        replace(
            own,
            backbone=backbone or own.backbone,
            quantization=quantization or own.quantization,
            pooling="response_mean",
            head="regression",
            head_input=HeadInputSettings("all_layers", functionals=True),
        )
    )
    counts = dataset.mean_scores().notna().sum().to_dict()
    dimensions = tuple(own for own in dataset.card.dimensions if counts[own.name])
    if not dimensions:
        raise DataError(f"{dataset.root}: judge {spec} cannot be fitted, none of its training pairs has a rating")
    judge = EmpathyJudge(settings, dimensions).to(choose_device(device)).eval().requires_grad_(False)
    store = None if cache is None else DiskStore(Path(cache))
    record = _fit(spec, judge, dataset, seed, ClipReader(judge, store=store))
    splits = sorted({pair.split for pair in dataset.pairs if pair.split is not None})
    card = dataset.card
    provenance = Provenance(
        card.name,
        card.synthetic,
        card.content_hash,
        dataset.split_hash(),
        {own.name: None for own in dimensions},
        splits,
        [],
        target="mean",
    )
    description = {**describe(judge, provenance), "fitted": record}
    return TrainedJudge(_name(spec), description, PairScorer(judge, store=store, windows=windows))


def settings_of(what: str) -> JudgeSettings:
    """Of a judge folder or a run folder, or of a plain judge on a backbone."""
    if not what:
        raise UserError(f"judge {PROBE}: expected {PROBE}JUDGE, a judge or run folder, or {PROBE}BACKBONE")
    path = Path(what)
    if is_judge(path):
        return read_settings(path)
    return JudgeSettings(backbone=what)


def _name(spec: str) -> str:
    what = Path(spec.removeprefix(PROBE))
    return f"{PROBE}{what.resolve().name if what.exists() else what}"


def _fit(spec: str, judge: EmpathyJudge, dataset: PairDataset, seed: int, reader: ClipReader) -> dict[str, object]:
    """Put the head at the regression; what was chosen."""
    means = dataset.mean_scores().reindex(columns=[dimension.name for dimension in judge.dimensions])
    of_pair = dict(zip((pair.pair_id for pair in dataset.pairs), means.to_numpy(np.float64), strict=True))
    pairs = shuffled([pair for pair in dataset.pairs if np.isfinite(of_pair[pair.pair_id]).any()], seed)
    targets = np.stack([of_pair[pair.pair_id] for pair in pairs])
    groups = kept_together(pairs, dataset.pairs)
    try:
        standardise(reader, pairs)
        solution = Probe(reader, Rated(pairs, targets, np.ones_like(targets), groups)).fit()
    except ValueError as error:
        raise DataError(f"{dataset.root}: judge {spec} cannot be fitted: {error}") from None
    at = torch.from_numpy(np.nanmean(targets, 0)).float()
    compare_as(judge, solution)
    judge.head.load_state_dict(head_at(judge, solution, at).state_dict())
    return {**solution.record, "unusable_pairs": len(pairs) - solution.record["pairs"]}
