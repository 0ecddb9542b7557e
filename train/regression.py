"""The closed-form regression of ratings on the features of the frozen backbone, and the head that is put there: where
`lora.py` starts and `probe.py` ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from torch import distributed as dist

from ..core.processes import say
from ..data_modules.datamodule import PairDataModule
from ..data_modules.schema import Pair
from ..data_modules.splits import kept_together
from ..data_modules.training_items import directions
from ..models.backbones.inputs import Inputs
from ..models.closed_form import FOLDS, Solution, scale_blocks
from ..models.heads import ScaleSteps
from ..models.probe import OfClips, Probe, Rated, compare_as, head_at, shuffled, standardise
from .features import Precision, all_gather_object, evaluating, rank_and_world_size
from .module import JudgeModule
from .strategies import like


@contextmanager
def standardised_reader(trainer: L.Trainer, module: JudgeModule) -> Iterator[tuple[SharedReader, list[Pair]]]:
    """What reads features, once the scale of those of clips is known, and the training pairs in random order."""
    data, reader = module.data, SharedReader(module, trainer.precision_plugin.forward_context)
    # dropout and order are as in a run without this pass
    with torch.random.fork_rng(devices=[]), evaluating(module.judge):
        pairs = shuffled(data.train.pairs, data.seed)
        standardise(reader, pairs)
        yield reader, pairs


def closed_form(
    trainer: L.Trainer,
    reader: SharedReader,
    pairs: Sequence[Pair],
    linear: bool,
    least_landmarks: int | None,
    solve: Callable[[Probe, PairDataModule], Solution] = lambda regression, _: regression.fit(),
) -> Solution:
    """The regression of ratings or, where there are none, of preferences; it is said in one line.

    Args:
        trainer: Trains the judge that the head is of.
        reader: Reads the pairs.
        pairs: All training pairs, in random order.
        linear: Whether a kernel is no choice.
        least_landmarks: See `lora.StartAtProbe`.
        solve: Fits to ratings.

    Raises:
        ValueError: If a dimension has ratings, or preferences, of too few groups.
    """
    data = reader.module.data
    try:
        if data.shares[0]:
            solution = solve(Probe(reader, _rated(pairs, data), linear), data)
            # Heads of one shape are needed for the ensemble of all folds, which have different numbers of pairs
            solution = solution if least_landmarks is None else solution.with_landmarks(least_landmarks)
        else:
            solution = _from_preferences(reader, data)
    except np.linalg.LinAlgError as error:  # a ValueError that no other data would mend
        raise ArithmeticError(f"the probe could not be solved: {error}") from error
    if trainer.is_global_zero:
        say(f"probe: {solution.in_words(data.dimensions)}")
    return solution


@dataclass
class SharedReader:
    """Runs the frozen backbone over pairs, each process over its share."""

    module: JudgeModule  # with the judge
    precision: Precision  # context in which the trainer computes

    def __post_init__(self) -> None:
        self.judge = self.module.judge

    def _inputs(self, pairs: Sequence[Pair]) -> Inputs:
        features = self.module.collate.features
        inputs = self.judge.build_inputs(pairs) if features is None else features.inputs(pairs)
        return inputs.to(self.judge.device)

    def clip_features(self, pairs: Sequence[Pair]) -> Iterator[OfClips]:
        for batch in self._batches(pairs):
            # Spectrograms are made outside autocast, whose products would round them
            inputs = self._inputs(batch)
            with self.precision(), torch.no_grad():
                layers, functionals = self.judge.clip_features(inputs)
            own = None if layers is None else layers.cpu(), None if functionals is None else functionals.cpu()
            yield from all_gather_object(own)

    def features(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], np.ndarray]]:
        for batch in self._batches(pairs):
            inputs = self._inputs(batch)
            with self.precision(), torch.no_grad():
                states = self.judge.pooled(inputs, untrained=False)
            yield from all_gather_object((batch, states.cpu().double().numpy()))

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
        """Batches of this process; all processes have equally many, so that the last may repeat a pair."""
        rank, ranks = rank_and_world_size()
        size = self.module.data.settings.eval_batch_size * ranks
        for start in range(0, len(pairs), size):
            portion = pairs[start : start + size]
            yield list(portion[rank::ranks]) or [pairs[0]]


def _rated(pairs: Sequence[Pair], data: PairDataModule) -> Rated:
    """Weighted mean and sum of weights of each of the distinct training pairs, of which an item is one rating."""
    scores, weights = data.train.scores.double().numpy(), data.train.weights.double().numpy()
    row_of = {pair.pair_id: row for row, pair in enumerate(pairs)}
    rows = [row_of[pair.pair_id] for pair in data.train.pairs]
    # `add.at`, since a pair with several ratings comes several times; plain indexing would keep the last one
    sums, counts = np.zeros((len(pairs), scores.shape[1])), np.zeros((len(pairs), scores.shape[1]))
    np.add.at(sums, rows, np.nan_to_num(scores) * weights)
    np.add.at(counts, rows, np.where(np.isnan(scores), 0, weights))
    # 0 / 0 where nobody rated a pair on a dimension: NaN is what says so from here on
    with np.errstate(invalid="ignore"):
        targets = sums / counts
    within = None
    if (given := data.train.histograms) is not None:
        histograms = np.zeros((len(pairs), *given.shape[1:]))
        np.add.at(histograms, rows, given.numpy())
        within = spread_within(histograms, targets, ScaleSteps("training", data.dimensions).values.double().numpy())
    return Rated(pairs, targets, counts, kept_together(pairs, data.dataset.pairs), within)


def spread_within(histograms: np.ndarray, targets: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Variance of single ratings around the target of their pair, the mean over rated pairs `(dimensions,)`.

    Args:
        histograms: How many raters gave each step `(pairs, dimensions, steps)`.
        targets: Rating points `(pairs, dimensions)`; NaN = not rated.
        steps: Rating points `(dimensions, steps)`.
    """
    raters = histograms.sum(-1)
    squares = (histograms * np.square(steps - np.nan_to_num(targets)[..., None])).sum(-1) / np.maximum(raters, 1)
    return (squares * (raters > 0)).sum(0) / np.maximum((raters > 0).sum(0), 1)


def _from_preferences(reader: SharedReader, data: PairDataModule) -> Solution:
    """The solution where people only compared pairs: logits of preferences, each worth a quarter of the scale; a
    `ValueError` if it is not known of a dimension."""
    compared = [item for item in data.items.comparisons if (item.strength > 0).any()]
    of_dimensions = []
    for column, dimension in enumerate(data.dimensions):
        decided = [item for item in compared if item.strength[column] > 0]
        groups = kept_together([item.chosen for item in decided], data.dataset.pairs) if decided else ()
        # The strength of the ridge is chosen on groups that are left out, of which there must be one
        if len(set(groups)) < 2:
            raise ValueError(f"{dimension.name} has preferences of fewer than two groups")
        of_dimensions.append((decided, groups))
    pairs = list({pair.pair_id: pair for item in compared for pair in (item.chosen, item.rejected)}.values())
    by_id = {pair.pair_id: row for batch, rows in reader.features(pairs) for pair, row in zip(batch, rows, strict=True)}
    solutions, blocks = [], reader.judge.head_input.blocks
    for decided, groups in of_dimensions:
        better, worse = (
            np.stack([by_id[getattr(item, name).pair_id] for item in decided]) for name in ("chosen", "rejected")
        )
        solutions.append(fit_preferences(better, worse, blocks, groups))
    spans = np.array([dimension.maximum - dimension.minimum for dimension in data.dimensions])
    # Logits grow with what people prefer; on a scale whose low end is good, scores have to fall with it
    signs = directions(data.dimensions).double().numpy()
    weights = np.concatenate([solution.weights for solution in solutions], 1) * signs * spans / 4
    first = solutions[0]
    return Solution(first.block_scale, None, weights, data.mean_ratings().double().numpy(), first.record)


def put_head_at(module: JudgeModule, solution: Solution, *, with_states: bool) -> None:
    """Put a fitted solution into the judge of this module. With `with_states`, the head also reads the states of the
    language model where the kernel leaves them out, with weights that begin at 0."""
    judge = module.judge
    if rank_and_world_size()[1] > 1:  # the same to the bit in all processes
        shared: list[Any] = [solution]
        dist.broadcast_object_list(shared)
        (solution,) = shared
    if solution.landmarks is not None:
        # A head that reads the states already has weights for them
        with_states = with_states and solution.omits_first
        compare_as(judge, solution, with_states)
        if with_states:
            solution = replace(solution, weights=np.pad(solution.weights, ((0, judge.backbone.hidden_size), (0, 0))))
        # The head has another size than when the module was made
        module.forget_shapes()
    head = head_at(judge, solution, module.data.mean_ratings())
    with torch.no_grad():
        for name, weight in judge.head.named_parameters():
            weight.copy_(like(head.get_parameter(name).to(weight.device), weight))


def fit_preferences(better: np.ndarray, worse: np.ndarray, blocks: np.ndarray, groups: np.ndarray) -> Solution:
    """Logistic ridge regression of which response people prefer (Bradley & Terry, 1952) on differences of features
    `(comparisons, features)`; blocks and groups are as in
    `closed_form.fit`.

    Returns:
        Weights `(features, 1)` in logits; the bias is 0.
    """
    block_scale = scale_blocks(np.concatenate([better, worse]), blocks)
    differences = (better - worse) * block_scale
    # Both directions of each comparison, and no intercept: who is named first must not matter
    features, labels = np.concatenate([differences, -differences]), np.repeat([1, 0], len(differences))
    folds = list(GroupKFold(min(FOLDS, len(set(groups.tolist())))).split(features, groups=np.tile(groups, 2)))

    def logistic(strength: float, rows: np.ndarray) -> np.ndarray:
        model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1_000)
        return model.fit(features[rows], labels[rows]).coef_[0]

    losses = {
        strength: sum(
            np.logaddexp(0, -(features[left_out] @ logistic(strength, rows)) * (2 * labels[left_out] - 1)).sum()
            for rows, left_out in folds
        )
        for strength in 10.0 ** np.arange(-2, 4)
    }
    best = min(losses, key=lambda strength: losses[strength])
    weights = block_scale * logistic(best, np.arange(len(features)))
    record = {
        "kernel": "linear",
        "strength": best,
        "log_loss": losses[best] / len(features),
        "comparisons": len(differences),
    }
    return Solution(block_scale, None, weights[:, None], np.zeros(1), record)
