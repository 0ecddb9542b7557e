"""Lightning's trainer with the callbacks, loggers and plugins of every run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from rich.console import Console

from ..models import CHECKPOINTS
from .checkpointing import AtomicCheckpoints, EarlyStopping, ModelCheckpoint, PreemptionCheckpoints
from .module import MONITOR, CompileLayers, FillCache
from .settings import LOGS, Recipe
from .strategies import SameCheckpoint, check_processes, check_strategy, refused_by_lightning, started_by
from .throughput import ProgressLines, StepClock, Throughput
from .told import RunFacts


@contextmanager
def own_log() -> Iterator[None]:
    """End the run of Weights & Biases that a training begins with it: WandbLogger of Lightning 2.6.6 writes into the
    one that is under way. One that was there before goes on: whoever began it wants it so."""

    def under_way() -> Any:
        return getattr(sys.modules.get("wandb"), "run", None)

    before, failed = under_way(), True
    try:
        yield
        failed = False
    finally:
        if before is None and (run := under_way()) is not None:
            run.finish(exit_code=int(failed))


def selection_callbacks(recipe: Recipe, run: Path) -> list[Callback]:
    """Keep the checkpoint of best agreement, and stop early."""
    # With a version counter, a second save would become best-v1.ckpt
    best = ModelCheckpoint(
        run / CHECKPOINTS, filename="best", monitor=MONITOR, mode="max", enable_version_counter=False
    )
    # not strict: max_steps may end an epoch before its validation
    # `check_finite`: agreement is NaN while all scores are equal, which is no reason to stop
    early = EarlyStopping(MONITOR, mode="max", patience=recipe.patience, check_finite=False, strict=False)
    return [best, early]


def build_trainer(
    recipe: Recipe,
    text: str,
    run: Path,
    *,
    stopping: Sequence[Callback],
    starting: Sequence[Callback],
    watching: Sequence[Callback],
    loops: Mapping[str, Any] | None = None,
    changed: Mapping[str, Any] | None = None,
    one_process: bool = False,
) -> L.Trainer:
    """Build the trainer of a run.

    Args:
        recipe: What is trained.
        text: The recipe as `config.yaml` keeps it.
        run: Folder.
        stopping: Callbacks that decide when training ends, and what is kept.
        starting: Callbacks that put weights where training starts.
        watching: Callbacks that come after all others.
        loops: State of Lightning's loops in the checkpoint from which training goes on; None = a new run.
        changed: Arguments of the trainer that are not those of the recipe.
        one_process: Whether other runs follow in this process.

    Raises:
        UserError: If Lightning refuses the arguments, the strategy does not fit the recipe, or there are several
            processes where one is needed.
    """
    check_strategy(recipe)
    arguments = {**recipe.trainer, **(changed or {})}
    logger, folder = arguments.pop("logger", None), run / CHECKPOINTS
    loggers: Any = logger
    if logger is not False:
        given = logger if isinstance(logger, list) else [logger]
        # whatever the recipe asks for, a table stays with the run; a new version for each start: it would delete an
        # earlier file
        loggers = [CSVLogger(run / LOGS, name="csv")]
        loggers += [TensorBoardLogger(run, name=LOGS, version="tensorboard")] if given in ([None], [True]) else given
    # A bar that redraws itself would fill the log of a batch job: there, lines are printed
    clock = StepClock()
    shown, terminal = arguments.pop("enable_progress_bar", None) is not False, Console(stderr=True).is_terminal
    with refused_by_lightning(TypeError, ValueError):  # as it raises for wrong options, such as too many devices
        trainer = L.Trainer(
            **arguments,
            logger=loggers,
            # Lightning calls them in this order, except that those that keep checkpoints come last
            callbacks=[
                *stopping,
                ModelCheckpoint(folder, filename="last", enable_version_counter=False),
                FillCache(),
                PreemptionCheckpoints(folder, recipe.checkpoint_steps),  # listens before the start is validated
                Throughput(clock),  # what the one above writes is no waiting for data
                RunFacts(yaml.safe_load(text), clock),
                *starting,
                *([CompileLayers()] if recipe.compile_layers else []),
                *([] if logger is False else [LearningRateMonitor("step")]),
                *([TQDMProgressBar(leave=True) if terminal else ProgressLines()] if shown else []),
                SameCheckpoint(loops),
                *watching,
            ],
            enable_progress_bar=shown and terminal,
            enable_model_summary=False,  # a table of our own shows what is trained
            default_root_dir=run,
            use_distributed_sampler=False,  # the data module gives each rank its share
            num_sanity_val_steps=0,
            plugins=[AtomicCheckpoints(), *started_by()],
        )
    if one_process:
        check_processes(trainer.world_size)
    return trainer
