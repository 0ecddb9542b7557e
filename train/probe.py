"""Where training starts: the head at the closed-form regression on the features of the frozen backbone.

Adapters that are trained under a random head first distort what the backbone knows (Kumar et al., 2022, "Fine-tuning
can distort pretrained features"). So the head begins at the best that a regression makes of the frozen features, and
with `method: probe` it ends there: one pass over the training split, and no gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch import distributed as dist

from ..data_modules.datamodule import PairDataModule
from ..data_modules.items import directions
from ..data_modules.parallel import say
from ..data_modules.schema import Pair
from ..data_modules.splits import kept_together
from ..models.backbones.inputs import Inputs
from ..models.closed_form import EXACT, Solution, fit_preferences
from ..models.heads import Prediction
from ..models.probe import OfClips, Probe, Rated, compare_as, head_at, shuffled, standardise
from .features import Precision, all_gather_object, evaluating, rank_and_world_size
from .module import JudgeModule, RunTask
from .strategies import ZeroStrategy, like


class StartAtProbe(Callback):
    """Standardises what the head reads and puts the head at the probe, when a run begins; then measures it.

    The start is a candidate for the best checkpoint: training never publishes what is worse.

    Attributes:
        fitted: Whether the head is at a probe.
        left_out: Pair -> what the same regression says of it when its group is left out; of a probe that is fitted to
            all pairs, else empty.
    """

    def __init__(self, method: str, resumed: bool, task: RunTask) -> None:
        """Prepare the start of a run.

        Args:
            method: "probe", or "lora", which trains on from it: adapters move the states of the language model, which
                are therefore read, also where the probe leaves them out.
            resumed: Whether it goes on from a checkpoint, which knows all this.
            task: What the run is for.
        """
        self.method, self._resumed, self._task = method, resumed, task
        self.fitted = False
        self.left_out: dict[str, Prediction] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Standardise and fit."""
        assert isinstance(pl_module, JudgeModule)
        if self._resumed or not pl_module.judge.head_input.settings.of_clips:
            return
        with torch.random.fork_rng(devices=[]):  # dropout and order are as in a run without this pass
            self.fitted = self._start(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validate the start as any epoch, so that it may be the best checkpoint."""
        if not self.fitted or self._task.refit:
            return
        assert isinstance(pl_module, JudgeModule)
        trainer.validating = True  # as the loop of epochs sets it before a validation
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
        pl_module.keep_start()
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
                # otherwise it is called at the end of an epoch only, and takes step 0 as saved already
                callback._save_topk_checkpoint(trainer, callback._monitor_candidates(trainer))

    def _start(self, trainer: L.Trainer, module: JudgeModule) -> bool:
        """Fit the head of a judge that is on its device; a collective of all processes."""
        data, reader = module.data, _SharedReader(module, trainer.precision_plugin.forward_context)
        with evaluating(module.judge):
            pairs = shuffled(data.train.pairs, data.seed)
            standardise(reader, pairs)
            if isinstance(trainer.strategy, ZeroStrategy):
                _say_where_it_starts("DeepSpeed keeps a copy of its own")
                return False
            sharded, trains = getattr(trainer.strategy, "shards_weights", False), self.method != "probe"
            # a kernel's head has another size than that for which processes and rater embeddings were prepared
            prepared = trainer.world_size > 1 or module.raters is not None
            linear = sharded or (trains and (prepared or len(pairs) > EXACT))
            if data.shares[0]:
                solution = self._from_ratings(Probe(reader, _rated(pairs, data), linear), data)
            else:
                solution = _from_preferences(reader, data)
            if solution is None:
                return False
            words = solution.in_words(data.dimensions)
            if trainer.is_global_zero:
                say(f"probe: {words}")
            module.probe = "" if trains else words
            _put(module, solution, data.mean_ratings(), trains)
            if trains and solution.landmarks is not None:  # the optimizer holds the weights of the earlier head
                trainer.strategy.setup_optimizers(trainer)
        return True

    def _from_ratings(self, probe: Probe, data: PairDataModule) -> Solution | None:
        try:
            if self._task.refit and self._task.scores is None:
                predictions = probe.left_out(data.mean_ratings()).each()
                self.left_out = {pair.pair_id: result for pair, result in zip(probe.sampled, predictions, strict=True)}
            solution = probe.fit()
        except ValueError as error:
            _say_where_it_starts(error)
            return None
        return solution if self._task.landmarks is None else solution.with_landmarks(self._task.landmarks)


def _say_where_it_starts(reason: object) -> None:
    if rank_and_world_size()[0] == 0:  # all processes know it
        say(f"the head starts at the mean rating: {reason}")


@dataclass
class _SharedReader:
    """Runs the frozen backbone over pairs, each process over its share."""

    module: JudgeModule  # with the judge
    precision: Precision  # context in which the trainer computes

    def __post_init__(self) -> None:
        self.judge = self.module.judge

    def _inputs(self, pairs: Sequence[Pair]) -> Inputs:
        features = self.module.collate.features
        inputs = self.judge.build_inputs(pairs) if features is None else features.inputs(pairs)
        return inputs.to(self.judge.device)

    def known_of_clips(self, pairs: Sequence[Pair]) -> Iterator[OfClips]:
        for batch in self._batches(pairs):
            with self.precision(), torch.no_grad():
                layers, functionals = self.judge.known_of_clips(self._inputs(batch))
            own = None if layers is None else layers.cpu(), None if functionals is None else functionals.cpu()
            yield from all_gather_object(own)

    def features(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], np.ndarray]]:
        for batch in self._batches(pairs):
            with self.precision(), torch.no_grad():
                states = self.judge.pooled(self._inputs(batch))
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
    sums, counts = np.zeros((len(pairs), scores.shape[1])), np.zeros((len(pairs), scores.shape[1]))
    np.add.at(sums, rows, np.nan_to_num(scores) * weights)
    np.add.at(counts, rows, np.where(np.isnan(scores), 0, weights))
    with np.errstate(invalid="ignore"):
        return Rated(pairs, sums / counts, counts, kept_together(pairs, data.dataset.pairs))


def _from_preferences(reader: _SharedReader, data: PairDataModule) -> Solution | None:
    """The solution where people only compared pairs: logits of preferences, each worth a quarter of the scale."""
    compared = [item for item in data.items.comparisons if (item.strength > 0).any()]
    if not compared:
        return None
    pairs = list({pair.pair_id: pair for item in compared for pair in (item.chosen, item.rejected)}.values())
    by_id = {pair.pair_id: row for batch, rows in reader.features(pairs) for pair, row in zip(batch, rows, strict=True)}
    solutions, blocks = [], reader.judge.head_input.blocks
    for column in range(len(data.dimensions)):
        decided = [item for item in compared if item.strength[column] > 0]
        if not decided:
            return None
        better, worse = (
            np.stack([by_id[getattr(item, name).pair_id] for item in decided]) for name in ("chosen", "rejected")
        )
        groups = kept_together([item.chosen for item in decided], data.dataset.pairs)
        if len(set(groups)) < 2:
            return None
        solutions.append(fit_preferences(better, worse, blocks, groups))
    spans = np.array([dimension.maximum - dimension.minimum for dimension in data.dimensions])
    signs = directions(data.dimensions).double().numpy()
    weights = np.concatenate([solution.weights for solution in solutions], 1) * signs * spans / 4
    first = solutions[0]
    return Solution(first.reach, None, weights, data.mean_ratings().double().numpy(), first.record)


def _put(module: JudgeModule, solution: Solution, means: Tensor, trains: bool) -> None:
    """Put the fitted solution into the judge of this module."""
    judge = module.judge
    if rank_and_world_size()[1] > 1:  # the same to the bit in all processes
        shared: list[Any] = [solution]
        dist.broadcast_object_list(shared)
        (solution,) = shared
    if solution.landmarks is not None:
        beside = trains and solution.record["omits_first"]
        compare_as(judge, solution, beside)
        if beside:  # weights of the language model's states begin at 0
            solution = replace(solution, weights=np.pad(solution.weights, ((0, judge.backbone.hidden_size), (0, 0))))
        module.forget_shapes()
    head = head_at(judge, solution, means)
    with torch.no_grad():
        for name, weight in judge.head.named_parameters():
            weight.copy_(like(head.get_parameter(name).to(weight.device), weight))
