"""Training by method probe, from the recipe to the judge: the head becomes the closed-form regression of ratings on
features of the frozen backbone. It takes one pass over the training split, without gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning as L
from lightning.pytorch.callbacks import Callback

from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.errors import UserError
from ..data_modules.schema import PairDataset
from ..models import BEST, CHECKPOINTS
from ..models.closed_form import Solution
from ..models.probe import Probe, without_adapters
from ..models.settings import BuiltSettings
from .module import JudgeModule
from .settings import Recipe
from .shared import (
    begin_anew,
    build_judge,
    build_module,
    build_trainer,
    check_cache,
    check_labels,
    publish,
    read_data,
    selection_callbacks,
)
from .start import closed_form, put_head_at, shards_weights, standardised_reader
from .strategies import BroadcastInitialState, check_strategy

NO_STEPS: Mapping[str, int] = {"max_epochs": 0, "max_steps": -1}
"""Arguments of a trainer that prepares a judge for training and takes no step."""


def train_probe(
    recipe: Recipe,
    text: str,
    given: PairDataset | None = None,
    watching: Sequence[Callback] = (),
    *,
    parts: RunPairs | None = None,
    least_landmarks: int | None = None,
    one_process: bool = False,
) -> None:
    """Fit a probe to the training split, measure and calibrate it on the validation split; see `train_lora` for the
    arguments and errors."""
    folder = begin_anew(recipe, text)

    data = PairDataModule(recipe.data, seed=recipe.seed, parts=parts)
    check_strategy(recipe)
    # Nothing is saved or stopped by agreement in a fit without steps: a checkpoint merely has the state of these
    # callbacks, as that of any run
    trainer = build_trainer(
        recipe,
        folder,
        stopping=selection_callbacks(recipe, folder),
        starting=[FitProbe(least_landmarks)],
        watching=[BroadcastInitialState(None), *watching],
        changed=NO_STEPS,
        one_process=one_process,
    )
    read_data(data, given)
    check_probe(recipe, data)

    # No adapter would be trained, so the judge has none, and nobody loads any with it
    judge = build_judge(recipe, BuiltSettings.of(without_adapters(recipe.judge)), data, trainer)
    # The objective stands in the checkpoint, and nothing is minimised
    with build_module(recipe, folder, judge, data, trainer) as module:
        trainer.fit(module, data, weights_only=True)
        # Lightning skips the validation of a fit without steps, too
        trainer.validate(module, data, verbose=False)
        trainer.save_checkpoint(folder / CHECKPOINTS / BEST)
        publish(folder, judge, data)


def check_probe(recipe: Recipe, data: PairDataModule) -> None:
    """Check that a probe can be fitted as a recipe says.

    Raises:
        UserError: If there is nothing to fit to, or to read.
    """
    check_cache(recipe)
    if not recipe.judge.head_input.of_clips:
        raise UserError("method probe with judge.head_input.audio none; expected --judge.head_input.audio all_layers")
    if recipe.data.augmentation.active:
        raise UserError("method probe with augmentation: it hears every clip once; expected none")
    check_labels(recipe, data)


class FitProbe(Callback):
    """Fits the head when the judge is on its device and weights are where the strategy keeps them."""

    def __init__(self, least_landmarks: int | None = None) -> None:
        """See `StartAtProbe`."""
        self._least_landmarks = least_landmarks

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Standardise what the head reads, fit it, and say in the checkpoint what was fitted."""
        assert isinstance(pl_module, JudgeModule)
        with standardised_reader(trainer, pl_module) as (reader, pairs):
            # A kernel's head has another size than the one that was sharded
            linear = shards_weights(trainer)
            solution = closed_form(trainer, reader, pairs, linear, self._least_landmarks, self.solve)
            if solution is not None:
                pl_module.probe = solution.in_words(pl_module.data.dimensions)
                put_head_at(pl_module, solution, beside=False)

    def solve(self, regression: Probe, data: PairDataModule) -> Solution:
        """Fit to the ratings of the training split of these data."""
        return regression.fit()
