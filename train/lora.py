"""Training by method lora, from the recipe to the judge: adapters in the backbone, pooling and head learn by gradients.

They start at the closed-form probe (`start.py`), which stays the best checkpoint until training improves on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.callbacks import Callback

from ..data_modules.datamodule import PairDataModule, RunPairs
from ..data_modules.schema import PairDataset
from ..models.settings import BuiltSettings
from .settings import Recipe
from .shared import (
    begin_or_resume,
    build_judge,
    build_module,
    build_trainer,
    check_cache,
    check_labels,
    publish,
    read_data,
    selection_callbacks,
)
from .start import StartAtProbe, ValidateStart
from .strategies import BroadcastInitialState, check_strategy


def train_lora(
    recipe: Recipe,
    text: str,
    given: PairDataset | None = None,
    watching: Sequence[Callback] = (),
    *,
    parts: RunPairs | None = None,
    least_landmarks: int | None = None,
    one_process: bool = False,
) -> None:
    """Train until validation agreement stops improving, and calibrate the best checkpoint on the validation split.

    Args:
        recipe: What is trained.
        text: The recipe as `config.yaml` keeps it.
        given: A dataset in memory, which must equal what is read.
        watching: Further callbacks of Lightning.
        parts: The pairs to train on and to validate on; None = those of the splits.
        least_landmarks: See `StartAtProbe`.
        one_process: Whether other runs follow, so that this one cannot be spread over processes.

    Raises:
        UserError: As `train`.
    """
    # Lightning restores weights, optimizer and loops when it fits; what it does not know of is taken over before
    folder, resumed = begin_or_resume(recipe, text)
    data = PairDataModule(resumed.reading(recipe.data), seed=recipe.seed, start=resumed.position, parts=parts)

    # The trainer comes before data and weights: wrong options are told at once, and a strategy that shards weights
    # says how the judge is to be built
    check_strategy(recipe)
    start = StartAtProbe(resumed.checkpoint is not None, least_landmarks)
    trainer = build_trainer(
        recipe,
        folder,
        stopping=selection_callbacks(recipe, folder),
        starting=[start, ValidateStart(start)],
        watching=[BroadcastInitialState(resumed.loops), *watching],
        one_process=one_process,
    )

    # Data is read and checked before a backbone of many gigabytes is loaded
    read_data(data, given)
    check_cache(recipe)
    check_labels(recipe, data)

    # The backbone with adapters that change nothing yet, and a head that says the mean rating until `StartAtProbe`
    judge = build_judge(recipe, resumed.judge(BuiltSettings.of(recipe.judge)), data, trainer)

    # Judge, objective and optimizer as Lightning trains them. Within, states of frozen layers are kept on the disk:
    # the temporary folder goes when all is over
    with build_module(recipe, folder, judge, data, trainer) as module:
        # `weights_only`: tensors and plain values alone are read, nothing is unpickled
        trainer.fit(module, data, ckpt_path=resumed.checkpoint, weights_only=True)
        # What is published is the best checkpoint, not the last; the calibration uses the scores that are in it
        publish(folder, judge, data)
