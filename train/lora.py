"""Training by method lora, from the recipe to the judge: adapters in the backbone, pooling and head learn by gradients.

Adapters that are trained under a random head first distort what the backbone knows (Kumar et al., 2022, "Fine-tuning
can distort pretrained features"). So the head begins at the closed-form probe, the best that a regression makes of the
frozen features. This start stays the best checkpoint until training improves on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from ..core.processes import say
from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.schema import PairDataset
from ..models.closed_form import EXACT
from ..models.heads import Prediction
from ..models.settings import BuiltSettings
from .module import JudgeModule, steps_of_epoch
from .preparation import build_judge, build_module, read_data
from .publishing import keep_as_best, publish
from .regression import closed_form, put_head_at, standardised_reader
from .run_folder import begin
from .settings import Recipe
from .strategies import ShardedStrategy, ZeroStrategy
from .trainer import build_trainer, selection_callbacks


def train_lora(
    recipe: Recipe,
    text: str,
    given: PairDataset | None = None,
    watching: Sequence[Callback] = (),
    *,
    parts: RunPairs | None = None,
    least_landmarks: int | None = None,
    one_process: bool = False,
) -> dict[str, Prediction]:
    """Train until validation agreement stops improving, and calibrate the best checkpoint on the validation split.

    Args:
        recipe: What is trained.
        text: The recipe as `config.yaml` keeps it.
        given: A dataset in memory, which must equal what is read.
        watching: Further callbacks of Lightning.
        parts: The pairs to train on and to validate on; None = those of the splits.
        least_landmarks: See `StartAtProbe`.
        one_process: Whether other runs follow, so that this one cannot be spread over processes.

    Returns:
        Predictions for the pairs of the validation split by id, each after the epoch that pairs of other groups chose:
        of the best epoch, which this pair has chosen, too, they would be too good.

    Raises:
        UserError: As `train`.
    """
    # Lightning restores weights, optimizer and loops when it fits; what it does not know of is taken over before
    folder, resumed = begin(recipe, text)
    data = PairDataModule(resumed.data_settings(recipe.data), seed=recipe.seed, start=resumed.position, parts=parts)

    # The trainer comes before data and weights: wrong options are refused at once, and a strategy that shards weights
    # decides how the judge is built
    trainer = build_trainer(
        recipe,
        text,
        folder,
        stopping=selection_callbacks(recipe, folder),
        starting=[StartAtProbe(resumed.checkpoint is not None, least_landmarks)],
        watching=watching,
        loops=resumed.loops,
        one_process=one_process,
    )

    # Data is read and checked before a backbone of many gigabytes is loaded
    read_data(recipe, data, given)

    # The backbone with adapters that change nothing yet, and a head that says the mean rating until `StartAtProbe`
    judge = build_judge(recipe, resumed.judge_settings(BuiltSettings.of(recipe.judge)), data, trainer)

    # Judge, objective and optimizer as Lightning trains them. Within, states of frozen layers are kept on the disk:
    # the temporary folder goes when all is over
    with build_module(recipe, folder, judge, data, trainer) as module:
        # `weights_only`: tensors and plain values alone are read, nothing is unpickled
        trainer.fit(module, data, ckpt_path=resumed.checkpoint, weights_only=True)
        # What is published is the best checkpoint, not the last; the calibration uses the scores that are in it
        publish(folder, judge, data)
        return module.left_out()


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
    """Train once more on all pairs, also those of the validation split, for as many epochs as were best without these.

    No pair is left to measure this judge by. It is measured and calibrated by scores of other judges of the same
    recipe.

    Args:
        recipe, text, given, watching: See `train_lora`.
        pairs: Ids of all pairs.
        scores: Pair -> prediction of a judge that was not trained on it.
        epochs: How long.
        added: What training has added to the probe while pairs were left out (`Provenance.start`).

    Raises:
        UserError: As `train_lora`, or if no pair has scores.
    """
    # The steps are those of `train_lora`; comments stand where they differ
    folder, resumed = begin(recipe, text)
    # All pairs are those of the validation split as well, since the given scores stand in for one (`keep_as_best`)
    data = PairDataModule(
        resumed.data_settings(recipe.data), seed=recipe.seed, start=resumed.position, parts=RunPairs(pairs, pairs)
    )
    # Without a validation there is no best epoch, and the start is no candidate: the epochs are given
    trainer = build_trainer(
        recipe,
        text,
        folder,
        stopping=[StopAfter(epochs)],
        starting=[StartAtProbe(resumed.checkpoint is not None)],
        watching=watching,
        loops=resumed.loops,
        changed={"limit_val_batches": 0},
        one_process=True,
    )
    read_data(recipe, data, given)
    judge = build_judge(recipe, resumed.judge_settings(BuiltSettings.of(recipe.judge)), data, trainer)
    with build_module(recipe, folder, judge, data, trainer) as module:
        # What training adds cannot be measured on pairs that it has seen: it is taken from the runs that left pairs out
        module.refit, module.added = True, added
        trainer.fit(module, data, ckpt_path=resumed.checkpoint, weights_only=True)
        keep_as_best(trainer, module, folder, scores)
        publish(folder, judge, data)


def _say_why_not(trainer: L.Trainer, reason: object) -> None:
    if trainer.is_global_zero:  # all processes know it
        say(f"the head starts at the mean rating: {reason}")


class StartAtProbe(Callback):
    """Puts the head at the probe when LoRA training begins, and validates this start as any epoch.

    So the start is a candidate for the best checkpoint: training never publishes what is worse.
    """

    def __init__(self, resumed: bool, least_landmarks: int | None = None) -> None:
        """Prepare the start.

        Args:
            resumed: Whether training goes on from a checkpoint, which knows all this.
            least_landmarks: Least number of landmarks of a kernel, so that judges of several folds make an ensemble.
        """
        self._resumed, self._least_landmarks = resumed, least_landmarks
        self._fitted = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Fit the head of a judge that is on its device; a collective of all processes."""
        assert isinstance(pl_module, JudgeModule)
        if self._resumed or not pl_module.judge.head_input.of_clips:
            return
        with standardised_reader(trainer, pl_module) as (reader, pairs):
            # It trains copies of the weights, which what is put into the head would not reach
            if isinstance(trainer.strategy, ZeroStrategy):
                _say_why_not(trainer, "DeepSpeed keeps a copy of its own")
                return
            # A kernel's head has another size than that for which shards, processes and rater embeddings were prepared
            sharded = isinstance(trainer.strategy, ShardedStrategy)
            prepared = sharded or trainer.world_size > 1 or pl_module.raters is not None
            linear = prepared or len(pairs) > EXACT
            try:
                solution = closed_form(trainer, reader, pairs, linear, self._least_landmarks)
            except ValueError as error:
                _say_why_not(trainer, error)
                return
            # Adapters move the states of the language model, which are therefore read, also where the probe leaves
            # them out
            put_head_at(pl_module, solution, with_states=True)
            # The optimizer holds the weights of the earlier head
            if solution.landmarks is not None:
                trainer.strategy.setup_optimizers(trainer)
        self._fitted = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validate, if the head is at a probe; a refit has nothing to validate on."""
        if not self._fitted or not trainer.enable_validation:
            return
        assert isinstance(pl_module, JudgeModule)
        trainer.validating = True  # as the loop of epochs sets it before a validation
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
        pl_module.keep_start()
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
                # Lightning calls it at the end of an epoch only, and takes step 0 as saved already
                callback._save_topk_checkpoint(trainer, callback._monitor_candidates(trainer))


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
