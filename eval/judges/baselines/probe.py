"""The baseline on a frozen backbone: the judge that `train --method probe` makes, fitted when it is opened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from ....core.disk_store import DiskStore
from ....core.errors import DataError, UserError
from ....data_modules.folds import even_folds
from ....data_modules.schema import Pair, PairDataset
from ....data_modules.splits import kept_together
from ....data_modules.unchanged import check_unchanged
from ....models.backbones.inputs import Inputs
from ....models.closed_form import EXACT, FOLDS, FeatureBatch, fit
from ....models.description import Provenance
from ....models.hub import is_judge
from ....models.judge import EmpathyJudge
from ....models.probe import OfClips, Probe, Rated, compare_as, head_at, shuffled, standardise, without_adapters
from ....models.settings import HeadInputSettings, JudgeSettings
from ....scoring import KEPT_BYTES
from ....scoring.artifact import describe, read_settings
from ....scoring.clip_encoder import ClipEncoder
from ....scoring.predictor import Predictor, choose_device
from ...judge_names import PROBE
from ...measurement import Loading
from ...report.others import LearningPoint
from ...statistics.bootstrap import Resamples, difference, spearmans, with_interval
from ..trained import TrainedJudge

_BATCH = 16  # pairs that the backbone reads at once
_SHARES, _REPEATS = (0.125, 0.25, 0.5, 1.0), 3


def open_probe(spec: str, dataset: PairDataset, seed: int, how: Loading | None = None) -> TrainedJudge:
    """Fits a probe to the training pairs.

    Args:
        spec: `PROBE` and a judge or backbone. Of a judge, nothing that was trained is used.
        dataset: The training pairs.
        seed: Seed of the order of pairs.
        how: How the backbone is loaded.

    Raises:
        UserError: If there is no such judge or backbone.
        DataError: If there are too few pairs with ratings.
    """
    what, how = spec.removeprefix(PROBE), how or Loading()
    base = _settings_of(what)
    placed = replace(base, backbone=how.backbone or base.backbone, quantization=how.quantization or base.quantization)
    judge = _frozen(spec, placed, dataset, how.device)
    store = None if how.cache is None else DiskStore(Path(how.cache))
    record = _fit(spec, judge, dataset, seed, ClipReader(judge, store=store))
    splits = sorted({pair.split for pair in dataset.pairs if pair.split is not None})
    dimensions, card = dict.fromkeys(dimension.name for dimension in judge.dimensions), dataset.card
    provenance = Provenance(
        dataset=card.name,
        synthetic=card.synthetic,
        content_hash=card.content_hash,
        split_hash=dataset.split_hash(),
        validation=dimensions,
        train_splits=splits,
        validation_splits=[],
        target="mean",
        preferences_met={},
        losses={},
        shares={},
        refit=False,
        start={},
        probe="",
    )
    description = {**describe(judge, provenance), "fitted": record}
    name = Path(what).resolve().name if Path(what).exists() else what
    return TrainedJudge(PROBE + name, description, Predictor(judge, store=store, windows=how.windows))


def _settings_of(what: str) -> JudgeSettings:
    """The settings of a judge folder or run folder, or of a plain judge on a backbone."""
    if not what:
        raise UserError(f"judge {PROBE}: expected {PROBE}JUDGE, a judge or run folder, or {PROBE}BACKBONE")
    path = Path(what)
    if is_judge(path):
        return read_settings(path)
    return JudgeSettings(backbone=what)


def _frozen(spec: str, settings: JudgeSettings, dataset: PairDataset, device: str | None) -> EmpathyJudge:
    """A judge of the rated dimensions on a frozen backbone without adapters."""
    counts = dataset.mean_scores().notna().sum().to_dict()
    dimensions = tuple(dimension for dimension in dataset.card.dimensions if counts[dimension.name])
    if not dimensions:
        raise DataError(f"{dataset.root}: judge {spec} cannot be fitted, none of its training pairs has a rating")
    read = HeadInputSettings("all_layers", functionals=True)
    settings = replace(settings, pooling="response_mean", head="regression", head_input=read)
    judge = EmpathyJudge(without_adapters(settings), dimensions)
    return judge.to(choose_device(device)).eval().requires_grad_(False)


def learning_curve(what: str, dataset: PairDataset, *, resamples: int, seed: int) -> tuple[LearningPoint, ...]:
    """Cross-validated agreement of a probe by the number of pairs that it is fitted to.

    The backbone reads every pair once. For each of `_SHARES`, this share of the training groups of each of `FOLDS`
    folds is sampled `_REPEATS` times.

    Args:
        what: A judge or backbone, as in the spec of `open_probe` without `PROBE`.
        dataset: A dataset with ratings.
        resamples: Number of resamples of groups, for the intervals.
        seed: Seed of folds, draws and resamples.

    Returns:
        For each dimension and share: pairs are the most in a fold, the Spearman is the mean over the repeats. Of shares
        that come to as many pairs, the largest alone.

    Raises:
        UserError: If there is no such judge or backbone.
        DataError: If there are too few rated pairs or groups, or audio is not what was imported.
    """
    check_unchanged(dataset)
    judge = _frozen(what, _settings_of(what), dataset, None)
    reader, names = ClipReader(judge), [dimension.name for dimension in judge.dimensions]
    means = dataset.mean_scores()[names]
    known = np.isfinite(means.to_numpy(np.float64)).any(axis=1)
    rated = [dataset.pairs[position] for position in np.flatnonzero(known)]
    try:
        standardise(reader, shuffled(rated, seed))
        used, parts = [], []
        for sample, values in reader.features(rated):
            used += sample
            parts.append(values)
        features, groups = np.concatenate(parts), np.array(kept_together(used, dataset.pairs))
        targets = means.loc[[pair.pair_id for pair in used]].to_numpy(np.float64)
        rng, predicted = np.random.default_rng(seed), {share: np.zeros((_REPEATS, *targets.shape)) for share in _SHARES}
        sizes = dict.fromkeys(_SHARES, 0)
        for rows, left_out in even_folds(groups, min(FOLDS, len(set(groups.tolist()))), seed).split():
            for repeat in range(_REPEATS):
                # Drawn once for all shares: a smaller part lies in the larger ones, which then differ in size alone
                order = rng.permutation(np.unique(groups[rows]))
                for share in _SHARES:
                    sample = rng.permutation(rows[np.isin(groups[rows], order[: max(2, round(share * len(order)))])])
                    sample = sample[:EXACT]
                    fitted = FeatureBatch(
                        features[sample], targets[sample], np.ones_like(targets[sample]), groups[sample]
                    )
                    solution = fit(fitted, judge.head_input.blocks, may_omit=True, may_rank=True, seed=seed)
                    predicted[share][repeat, left_out] = solution.predict(features[left_out])
                    sizes[share] = max(sizes[share], len(sample))
    except ValueError as error:
        raise DataError(f"{dataset.root}: no learning curve of {what}: {error}") from None
    draws, entries = Resamples.sample(groups, resamples, seed), []
    for column, name in enumerate(names):
        known = np.isfinite(targets[:, column])
        seen = draws.select(known)
        fitted = {}
        for share, scores in predicted.items():
            repeats = spearmans([*scores[:, known, column]], targets[known, column], seen)
            values = [statistic.value for statistic in repeats if statistic.value is not None]
            if len(values) == len(repeats):
                mean = replace(repeats[0], value=float(np.mean(values)), low=None, high=None)
                drawn = np.mean([statistic.draws for statistic in repeats], axis=0)
                fitted[sizes[share]] = with_interval(mean, drawn, seen, correlation=True)
            else:
                # So few pairs that nothing is learned, and a constant score has no correlation
                fitted[sizes[share]] = next(statistic for statistic in repeats if statistic.value is None)
        largest = max(fitted)
        for size, spearman in fitted.items():
            behind = None if size == largest else difference(fitted[largest], spearman, seen)
            entries.append(LearningPoint(dimension=name, pairs=size, spearman=spearman, behind=behind))
    return tuple(entries)


def _fit(spec: str, judge: EmpathyJudge, dataset: PairDataset, seed: int, reader: ClipReader) -> dict[str, object]:
    """Fits the regression and loads it into the head; returns what was chosen."""
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


class ClipReader:
    """A `Reader` in one process that encodes each clip once; pairs whose audio cannot be used are left out.

    Of an encoder without a language model no audio states are kept, which take megabytes a second (all layers), but
    their statistics alone, some kilobytes a clip: a probe reads nothing else, since the fusion is untrained.
    """

    def __init__(self, judge: EmpathyJudge, store: DiskStore | None = None) -> None:
        """See `ClipEncoder` for the arguments."""
        self.judge = judge
        statistics = judge.backbone.untrained_states
        kept = math.inf if statistics else KEPT_BYTES
        self._encoder = ClipEncoder(judge, _BATCH, store, kept_bytes=kept, statistics_alone=statistics)

    def inputs(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], Inputs]]:
        """Pairs whose audio can be used, in batches, and what the judge reads of them, on its device."""
        for start in range(0, len(pairs), _BATCH):
            batch = pairs[start : start + _BATCH]
            clips = dict.fromkeys(chain.from_iterable(pair.clips for pair in batch))
            states, _, failed = self._encoder.encode(clips)
            usable = [pair for pair in batch if failed.keys().isdisjoint(pair.clips)]
            if usable:
                yield usable, self.judge.build_inputs(usable, states).to(self.judge.device)

    @torch.inference_mode()
    def clip_features(self, pairs: Sequence[Pair]) -> Iterator[OfClips]:
        for _, inputs in self.inputs(pairs):
            layers, functionals = self.judge.clip_features(inputs)
            yield None if layers is None else layers.cpu(), None if functionals is None else functionals.cpu()

    @torch.inference_mode()
    def features(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], np.ndarray]]:
        for usable, inputs in self.inputs(pairs):
            yield usable, self.judge.pooled(inputs, untrained=False).cpu().double().numpy()
