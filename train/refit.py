"""The refit: after model selection, a judge is trained on all pairs, including those of the validation split.

None are left to measure it by. So it is measured and calibrated by scores of other judges of the same recipe, which
were not trained on these pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.errors import UserError
from ..data_modules.schema import PairDataset
from ..models import BEST, CHECKPOINTS
from ..models.closed_form import Solution
from ..models.heads import Prediction
from ..models.probe import Probe, without_adapters
from ..models.settings import BuiltSettings
from .module import JudgeModule, steps_of_epoch
from .probe import NO_STEPS, FitProbe, check_probe
from .settings import Recipe
from .shared import (
    begin_anew,
    begin_or_resume,
    build_judge,
    build_module,
    build_trainer,
    check_cache,
    check_labels,
    publish,
    read_data,
)
from .start import StartAtProbe
from .strategies import BroadcastInitialState, check_strategy


def refit_probe(
    recipe: Recipe,
    text: str,
    pairs: frozenset[str],
    scores: Mapping[str, Prediction] | None,
    given: PairDataset | None,
    watching: Sequence[Callback],
    *,
    one_process: bool = False,
) -> None:
    """Fit a probe to all pairs, and calibrate it by scores of judges that were not trained on a pair.

    Args:
        recipe, text, given, watching, one_process: See `train_lora`.
        pairs: Ids of all pairs.
        scores: Of such judges, by pair. None = the probe is fitted once more for each fold of the groups, to all but
            this fold.

    Raises:
        UserError: As `train_probe`, or if no pair has scores.
    """
    folder = begin_anew(recipe, text)
    # All pairs are those of the validation split as well, since the given scores stand in for one (`measure`)
    data = PairDataModule(recipe.data, seed=recipe.seed, parts=RunPairs(pairs, pairs))
    check_strategy(recipe)
    leaving_out = _FitLeavingOut()
    trainer = build_trainer(
        recipe,
        folder,
        stopping=[],
        starting=[leaving_out if scores is None else FitProbe()],
        watching=[BroadcastInitialState(None), *watching],
        changed={"limit_val_batches": 0, **NO_STEPS},
        one_process=one_process,
    )
    read_data(data, given)
    check_probe(recipe, data)
    # The rest is as in `train_probe`, without its validation
    judge = build_judge(recipe, BuiltSettings.of(without_adapters(recipe.judge)), data, trainer)
    with build_module(recipe, folder, judge, data, trainer) as module:
        module.refit = True
        trainer.fit(module, data, weights_only=True)
        _keep_as_best(trainer, module, folder, leaving_out.left_out if scores is None else scores)
        publish(folder, judge, data)


def refit_lora(
    recipe: Recipe,
    text: str,
    pairs: frozenset[str],
    scores: Mapping[str, Prediction],
    epochs: float,
    added: dict[str, dict[str, float | None]],
    given: PairDataset | None,
    watching: Sequence[Callback],
) -> None:
    """Train adapters on all pairs for as many epochs as were best while some were left out; else as `train_lora`.

    Args:
        recipe, text, given, watching: See `train_lora`.
        pairs: Ids of all pairs.
        scores: Of judges that were not trained on a pair, by pair.
        epochs: How long.
        added: What training has added to the probe while pairs were left out (`Provenance.start`).

    Raises:
        UserError: As `train_lora`, or if no pair has scores.
    """
    # The steps are those of `train_lora`; comments stand where they differ
    folder, resumed = begin_or_resume(recipe, text)
    data = PairDataModule(
        resumed.reading(recipe.data), seed=recipe.seed, start=resumed.position, parts=RunPairs(pairs, pairs)
    )
    check_strategy(recipe)
    # Without a validation there is no best epoch, and the start is no candidate: the epochs are given
    trainer = build_trainer(
        recipe,
        folder,
        stopping=[StopAfter(epochs)],
        starting=[StartAtProbe(resumed.checkpoint is not None)],
        watching=[BroadcastInitialState(resumed.loops), *watching],
        changed={"limit_val_batches": 0},
        one_process=True,
    )
    read_data(data, given)
    check_cache(recipe)
    check_labels(recipe, data)
    judge = build_judge(recipe, resumed.judge(BuiltSettings.of(recipe.judge)), data, trainer)
    with build_module(recipe, folder, judge, data, trainer) as module:
        # What training adds cannot be measured on pairs that it has seen: it is taken from the runs that left pairs out
        module.refit, module.added = True, added
        trainer.fit(module, data, ckpt_path=resumed.checkpoint, weights_only=True)
        _keep_as_best(trainer, module, folder, scores)
        publish(folder, judge, data)


def _keep_as_best(trainer: L.Trainer, module: JudgeModule, folder: Path, scores: Mapping[str, Prediction]) -> None:
    """Keep a refit judge as the best checkpoint, with these scores for those of a validation."""
    if not scores:
        raise UserError("refit: no pair can be left out; expected ratings of each dimension in several groups")
    module.measure(scores)
    trainer.save_checkpoint(folder / CHECKPOINTS / BEST)


class _FitLeavingOut(FitProbe):
    """Fits the head to all pairs.

    Attributes:
        left_out: Pair -> what the same regression says of it when its group is left out.
    """

    def __init__(self) -> None:
        """No pair is left out yet."""
        super().__init__()
        self.left_out: dict[str, Prediction] = {}

    def solve(self, regression: Probe, data: PairDataModule) -> Solution:
        """Fit without each fold of groups first, then to all."""
        predictions = regression.left_out(data.mean_ratings()).each()
        self.left_out = {pair.pair_id: found for pair, found in zip(regression.sampled, predictions, strict=True)}
        return super().solve(regression, data)


class StopAfter(Callback):
    """Ends training after so many epochs; learning rates follow the schedule of the whole training."""

    def __init__(self, epochs: float) -> None:
        """Keep the number of epochs, which may have a fraction."""
        self._epochs = epochs

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop if the number of epochs is reached."""
        if trainer.global_step >= round(self._epochs * steps_of_epoch(trainer)):
            trainer.should_stop = True

    on_train_start = on_train_batch_end  # there may be nothing to train
