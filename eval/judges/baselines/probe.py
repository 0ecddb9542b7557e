"""The baseline that hears with a frozen backbone: what `train --method probe` makes, fitted within the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from sklearn.model_selection import GroupKFold

from ....data_modules.errors import DataError, UserError
from ....data_modules.schema import PairDataset
from ....data_modules.splits import kept_together
from ....models.artifact import describe, read_settings
from ....models.closed_form import EXACT, FOLDS, Portion, fit
from ....models.description import Provenance
from ....models.feature_cache import DiskStore
from ....models.hub import is_judge
from ....models.judge import EmpathyJudge
from ....models.probe import ClipReader, Probe, Rated, compare_as, head_at, shuffled, standardise, without_adapters
from ....models.scoring import PairScorer, choose_device
from ....models.settings import HeadInputSettings, JudgeSettings
from ...judge_names import PROBE
from ...statistics.agreement import as_report
from ...statistics.bootstrap import Resamples, difference, spearmans, with_interval
from ..trained import Placing, TrainedJudge

_SHARES, _REPEATS = (0.125, 0.25, 0.5, 1.0), 3


def open_probe(spec: str, dataset: PairDataset, seed: int, **placing: Unpack[Placing]) -> TrainedJudge:
    """Fit it.

    Args:
        spec: `PROBE`, and what has the backbone. Of a judge, nothing that was trained is used.
        dataset: What it is fitted to: the training pairs.
        seed: Of the order of pairs.
        placing: How its backbone is loaded.

    Raises:
        UserError: If there is no such judge or backbone.
        DataError: If there are too few pairs with ratings.
    """
    what = spec.removeprefix(PROBE)
    own = settings_of(what)
    backbone, quantization = placing.get("backbone") or own.backbone, placing.get("quantization") or own.quantization
    placed = replace(own, backbone=backbone, quantization=quantization)
    judge = _frozen(spec, placed, dataset, placing.get("device"))
    store = None if (cache := placing.get("cache")) is None else DiskStore(Path(cache))
    record = _fit(spec, judge, dataset, seed, ClipReader(judge, store=store))
    splits = sorted({pair.split for pair in dataset.pairs if pair.split is not None})
    known, card = dict.fromkeys(dimension.name for dimension in judge.dimensions), dataset.card
    data = card.name, card.synthetic, card.content_hash, dataset.split_hash()
    description = {**describe(judge, Provenance(*data, known, splits, [], target="mean")), "fitted": record}
    name = Path(what).resolve().name if Path(what).exists() else what
    return TrainedJudge(PROBE + name, description, PairScorer(judge, store=store, windows=placing.get("windows", True)))


def settings_of(what: str) -> JudgeSettings:
    """Of a judge folder or a run folder, or of a plain judge on a backbone."""
    if not what:
        raise UserError(f"judge {PROBE}: expected {PROBE}JUDGE, a judge or run folder, or {PROBE}BACKBONE")
    path = Path(what)
    if is_judge(path):
        return read_settings(path)
    return JudgeSettings(backbone=what)


def _frozen(spec: str, settings: JudgeSettings, dataset: PairDataset, device: str | None) -> EmpathyJudge:
    """A judge of the rated dimensions, of whose backbone nothing is trained."""
    counts = dataset.mean_scores().notna().sum().to_dict()
    dimensions = tuple(own for own in dataset.card.dimensions if counts[own.name])
    if not dimensions:
        raise DataError(f"{dataset.root}: judge {spec} cannot be fitted, none of its training pairs has a rating")
    read = HeadInputSettings("all_layers", functionals=True)
    settings = replace(settings, pooling="response_mean", head="regression", head_input=read)
    judge = EmpathyJudge(without_adapters(settings), dimensions)
    return judge.to(choose_device(device)).eval().requires_grad_(False)


def learning_curve(what: str, dataset: PairDataset, *, resamples: int, seed: int) -> list[dict[str, Any]]:
    """What a probe reaches on groups left out, by the number of pairs that it is fitted to.

    The backbone hears every pair once. The training groups of each of `FOLDS` folds are drawn `_REPEATS` times for
    each of `_SHARES`.

    Args:
        what: As `open_probe` takes it, without `PROBE`.
        dataset: With ratings.
        resamples: Of groups, for the intervals.
        seed: Of folds, draws and resamples.

    Returns:
        For each dimension and share ``dimension, pairs`` (at most), ``spearman``, mean over the repeats, and
        ``behind``: how far it is behind that of all pairs (null for these).

    Raises:
        UserError: If there is no such judge or backbone.
        DataError: If there are too few rated pairs or groups.
    """
    judge = _frozen(what, settings_of(what), dataset, None)
    reader, names = ClipReader(judge), [dimension.name for dimension in judge.dimensions]
    means = dataset.mean_scores()[names]
    known = np.isfinite(means.to_numpy(np.float64)).any(axis=1)
    rated = [dataset.pairs[place] for place in np.flatnonzero(known)]
    try:
        standardise(reader, shuffled(rated, seed))
        heard, parts = [], []
        for some, values in reader.features(rated):
            heard += some
            parts.append(values)
        features, groups = np.concatenate(parts), np.array(kept_together(heard, dataset.pairs))
        targets = means.loc[[pair.pair_id for pair in heard]].to_numpy(np.float64)
        rng, made = np.random.default_rng(seed), {share: np.zeros((_REPEATS, *targets.shape)) for share in _SHARES}
        sizes = dict.fromkeys(_SHARES, 0)
        folds = GroupKFold(min(FOLDS, len(set(groups.tolist()))), shuffle=True, random_state=seed)
        for rows, left_out in folds.split(features, groups=groups):
            for repeat in range(_REPEATS):
                order = rng.permutation(np.unique(groups[rows]))
                for share in _SHARES:
                    some = rng.permutation(rows[np.isin(groups[rows], order[: max(2, round(share * len(order)))])])
                    some = some[:EXACT]
                    own = Portion(features[some], targets[some], np.ones_like(targets[some]), groups[some])
                    solution = fit(own, judge.head_input.blocks, may_omit_first=True, may_rank=True, seed=seed)
                    made[share][repeat, left_out] = solution.predict(features[left_out])
                    sizes[share] = max(sizes[share], len(some))
    except ValueError as error:
        raise DataError(f"{dataset.root}: no learning curve of {what}: {error}") from None
    draws, found = Resamples.draw(groups, resamples, seed), []
    for column, name in enumerate(names):
        known = np.isfinite(targets[:, column])
        seen = draws.select(known)
        own = {}
        for share, scores in made.items():
            each = spearmans([*scores[:, known, column]], targets[known, column], seen)
            values = [one.value for one in each if one.value is not None]
            if len(values) == len(each):
                mean = replace(each[0], value=float(np.mean(values)), low=None, high=None)
                drawn = np.mean([one.draws for one in each], axis=0)
                own[sizes[share]] = with_interval(mean, drawn, seen, correlation=True)
            else:  # so few pairs that nothing is learned
                own[sizes[share]] = next(one for one in each if one.value is None)
        most = max(own)
        for size, reached in own.items():
            behind = None if size == most else difference(own[most], reached, seen)
            found.append({"dimension": name, "pairs": size, **as_report({"spearman": reached, "behind": behind})})
    return found


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
