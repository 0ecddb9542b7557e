"""Training by method probe, from the recipe to the judge: the head becomes the closed-form regression of ratings on
features of the frozen backbone. It takes one pass over the training split, without gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning as L
from lightning.pytorch.callbacks import Callback

from ..core.errors import UserError
from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.schema import PairDataset
from ..models import BEST, CHECKPOINTS
from ..models.closed_form import Solution
from ..models.heads import Prediction
from ..models.probe import Probe, without_adapters
from ..models.settings import BuiltSettings
from .module import JudgeModule
from .preparation import build_judge, build_module, read_data
from .publishing import keep_as_best, publish
from .regression import closed_form, put_head_at, standardised_reader
from .run_folder import begin
from .settings import Recipe
from .strategies import ShardedStrategy
from .trainer import build_trainer, selection_callbacks

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
) -> dict[str, Prediction]:
    """Fit a probe to the training split, measure and calibrate it on the validation split; see `train_lora` for the
    arguments and errors. Returns predictions for the pairs of the validation split by id."""
    folder, _ = begin(recipe, text)
    data = PairDataModule(recipe.data, seed=recipe.seed, parts=parts)
    # Nothing is saved or stopped by agreement in a fit without steps: a checkpoint merely has the state of these
    # callbacks, as that of any run
    trainer = build_trainer(
        recipe,
        text,
        folder,
        stopping=selection_callbacks(recipe, folder),
        starting=[FitProbe(least_landmarks)],
        watching=watching,
        changed=NO_STEPS,
        one_process=one_process,
    )
    check_probe(recipe)
    read_data(recipe, data, given)

    # No adapter would be trained, so the judge has none, and nobody loads any with it
    judge = build_judge(recipe, BuiltSettings.of(without_adapters(recipe.judge)), data, trainer)
    # The objective stands in the checkpoint, and nothing is minimised
    with build_module(recipe, folder, judge, data, trainer) as module:
        trainer.fit(module, data, weights_only=True)
        # Lightning skips the validation of a fit without steps, too
        trainer.validate(module, data, verbose=False)
        trainer.save_checkpoint(folder / CHECKPOINTS / BEST)
        publish(folder, judge, data)
        return module.left_out()


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
    folder, _ = begin(recipe, text)
    # All pairs are those of the validation split as well, since the given scores stand in for one (`keep_as_best`)
    data = PairDataModule(recipe.data, seed=recipe.seed, parts=RunPairs(pairs, pairs))
    leaving_out = FitLeavingOut()
    trainer = build_trainer(
        recipe,
        text,
        folder,
        stopping=[],
        starting=[leaving_out if scores is None else FitProbe()],
        watching=watching,
        changed={"limit_val_batches": 0, **NO_STEPS},
        one_process=one_process,
    )
    check_probe(recipe)
    read_data(recipe, data, given)
    # The rest is as in `train_probe`, without its validation
    judge = build_judge(recipe, BuiltSettings.of(without_adapters(recipe.judge)), data, trainer)
    with build_module(recipe, folder, judge, data, trainer) as module:
        module.refit = True
        trainer.fit(module, data, weights_only=True)
        keep_as_best(trainer, module, folder, leaving_out.left_out if scores is None else scores)
        publish(folder, judge, data)


def check_probe(recipe: Recipe) -> None:
    """Check that the head of a recipe reads what a probe can be fitted to.

    Raises:
        UserError: If not.
    """
    if not recipe.judge.head_input.of_clips:
        raise UserError(
            f"method {recipe.method} with judge.head_input.audio none; expected --judge.head_input.audio all_layers, "
            "or of a backbone without audio tower --judge.head_input.functionals true"
        )
    if recipe.data.augmentation.active:
        raise UserError(f"method {recipe.method} with augmentation: a probe reads every clip once; expected none")


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
            linear = isinstance(trainer.strategy, ShardedStrategy)
            try:
                solution = closed_form(trainer, reader, pairs, linear, self._least_landmarks, self.solve)
            except ValueError as error:  # a head that nothing was fitted to would say anything
                cure = "expected at least three groups, or a dataset without this dimension"
                raise UserError(f"method probe: {error}; {cure}") from None
            pl_module.probe = solution.in_words(pl_module.data.dimensions)
            put_head_at(pl_module, solution, with_states=False)

    def solve(self, regression: Probe, data: PairDataModule) -> Solution:
        """Fit to the ratings of the training split of these data."""
        return regression.fit()


class FitLeavingOut(FitProbe):
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
