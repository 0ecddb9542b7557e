"""What the programs of training share (`lora.py`, `probe.py`, `cross_validate.py`), in the order in which they use it:
the folder of a run and where it begins, the trainer, the data, the judge, and what is published of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from ..core.quiet import silence_libraries
from ..data_modules.audio import AudioSource
from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError, counted
from ..data_modules.folders import CARD_FILE
from ..data_modules.parallel import say
from ..data_modules.prosody import ClipFacts, clip_facts
from ..data_modules.sampling import Position
from ..data_modules.schema import Pair, PairDataset
from ..data_modules.settings import DataSettings
from ..data_modules.targets import MAX_STEPS
from ..data_modules.written import write_files
from ..models import BEST, CHECKPOINTS, CONFIG_FILE, JUDGE_FILE, LAST
from ..models.backbones.layers import recompute_activations
from ..models.description import parse, start_in_words
from ..models.disk_store import DiskStore
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from ..models.judge_calibration import fit_calibration, store_calibration
from ..models.lora import check_trainable, count_parameters, parameter_table
from ..models.scoring import ScoredPair
from ..models.settings import BuiltSettings
from ..models.weight_files import hash_of, read_checkpoint
from .checkpointing import (
    AtomicCheckpoints,
    EarlyStopping,
    ModelCheckpoint,
    PreemptionCheckpoints,
    check_same_settings,
    find_resumable,
    no_handlers,
    position_of,
)
from .collate import Collate
from .features import Features, all_gather_object, barrier, rank_and_world_size, temporary_folder
from .module import MONITOR, CompileLayers, FillCache, JudgeModule
from .objective import Objective, RaterEmbedding
from .settings import Recipe
from .strategies import ShardedStrategy, refused_by_lightning, started_by
from .throughput import ProgressLines, Throughput

# ---------------------------------------------------------------- the folder of a run, and where it begins


def is_global_zero() -> bool:
    """Whether this is the first process of the run, the only one that writes files and prints."""
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


def run_folder(recipe: Recipe) -> Path:
    """The folder of a run.

    Raises:
        UserError: If there is none, or it is a judge or a dataset.
    """
    if not recipe.run:
        raise UserError("no --run; expected the folder of this run, such as --run runs/first")
    for name, what in ((JUDGE_FILE, "a judge"), (CARD_FILE, "a pair dataset")):  # training would write into it
        if (Path(recipe.run) / name).exists():
            raise UserError(f"{recipe.run}: is {what}; expected another --run")
    return Path(recipe.run)


def starting_point(run: Path, resume: bool | Literal["auto"]) -> Path | None:
    """The checkpoint from which a run resumes; None = a new run.

    Raises:
        UserError: If there shall be one and is none, or the other way round.
    """
    # left by a kill; only the first process deletes: others could delete what it is already writing
    for unfinished in (run / CHECKPOINTS).glob(".*.tmp") if is_global_zero() else ():
        unfinished.unlink(missing_ok=True)
    checkpoint, passed_over = find_resumable(run / CHECKPOINTS)
    for line in passed_over if is_global_zero() else ():
        say(f"passed over {line}", "yellow")
    if resume is True and checkpoint is None:
        raise UserError(f"{run / CHECKPOINTS}: nothing to resume from; expected a run with a whole {LAST} or {BEST}")
    if not resume and checkpoint is not None:
        raise UserError(f"{run}: already holds a run; expected another --run, or --resume true to continue it")
    return checkpoint if resume else None


def begin_anew(recipe: Recipe, text: str) -> Path:
    """Write a recipe into the folder of its run, and seed everything that is drawn from here on.

    The folder is checked as that of any run, but a checkpoint in it is left aside: a probe is fitted anew, which takes
    no longer than resuming.

    Raises:
        UserError: As `run_folder` and `starting_point`.
    """
    folder = run_folder(recipe)
    starting_point(folder, recipe.resume)
    _write_recipe(folder, text, recipe.seed)
    return folder


def begin_or_resume(recipe: Recipe, text: str) -> tuple[Path, Resumed]:
    """As `begin_anew`, for a run that goes on from its last checkpoint.

    Raises:
        UserError: Also if the settings are others than those of the checkpoint.
    """
    folder = run_folder(recipe)
    checkpoint = starting_point(folder, recipe.resume)
    # Once the new recipe is written, there is nothing left to compare the settings with
    if checkpoint is not None:
        check_same_settings(folder, text)
    _write_recipe(folder, text, recipe.seed)
    return folder, Resumed() if checkpoint is None else _resumed_from(checkpoint)


def _write_recipe(run: Path, text: str, seed: int) -> None:
    if is_global_zero():
        write_files("train", run, {CONFIG_FILE: text.encode()})
    L.seed_everything(seed, workers=True, verbose=False)
    silence_libraries()  # once more: Lightning has set the levels of its loggers


@dataclass(frozen=True)
class Resumed:
    """State that a run takes from a checkpoint before Lightning restores the rest; by default that of a new run."""

    checkpoint: Path | None = None
    position: Position = field(default_factory=Position)  # next batch
    loops: Mapping[str, Any] | None = None  # state of Lightning's loops
    batch_tokens: int | None = None  # what `data.batch_tokens` auto has found
    # of the head: it began at a probe, which may have chosen one
    kernel: Mapping[str, Any] = field(default_factory=dict)

    def reading(self, settings: DataSettings) -> DataSettings:
        """Settings of the data with the size of batches found then, even if more memory is free now."""
        if settings.batch_tokens != "auto":
            return settings
        return replace(settings, batch_tokens=self.batch_tokens or "auto")

    def judge(self, settings: BuiltSettings) -> BuiltSettings:
        """Settings of the judge with the kernel of then."""
        return replace(settings, head_input=replace(settings.head_input, **self.kernel))


def _resumed_from(checkpoint: Path) -> Resumed:
    """Read that state from a checkpoint."""
    content = read_checkpoint(checkpoint)
    # The head must have the size of its kernel before Lightning copies weights into it
    saved = parse(checkpoint, content["description"]).settings.head_input
    return Resumed(
        checkpoint,
        position_of(content),
        content["loops"],
        content["order"].get("data.batch_tokens"),
        {"landmarks": saved.landmarks, "beside_landmarks": saved.beside_landmarks},
    )


# ---------------------------------------------------------------- the trainer


def selection_callbacks(recipe: Recipe, run: Path) -> list[Callback]:
    """Keep the checkpoint of best agreement, and stop early."""
    # With a version counter, a second save would become best-v1.ckpt beside the first
    best = ModelCheckpoint(
        run / CHECKPOINTS, filename="best", monitor=MONITOR, mode="max", enable_version_counter=False
    )
    # not strict: max_steps may end an epoch before its validation
    # `check_finite`: agreement is NaN while all scores are equal, which is no reason to stop
    early = EarlyStopping(MONITOR, mode="max", patience=recipe.patience, check_finite=False, strict=False)
    return [best, early]


def build_trainer(
    recipe: Recipe,
    run: Path,
    *,
    stopping: Sequence[Callback],
    starting: Sequence[Callback],
    watching: Sequence[Callback],
    changed: Mapping[str, Any] | None = None,
    one_process: bool = False,
) -> L.Trainer:
    """Lightning's trainer with our checkpoints, figures and loggers.

    Args:
        recipe: What is trained.
        run: Folder.
        stopping: Callbacks that decide when training ends, and what is kept.
        starting: Callbacks that put weights where training starts.
        watching: Callbacks that come after all others.
        changed: Arguments of the trainer that are not those of the recipe.
        one_process: Whether other runs follow in this process.

    Raises:
        UserError: If Lightning refuses the arguments, or there are several processes where one is needed.
    """
    arguments = {**recipe.trainer, **(changed or {})}
    if recipe.profile:
        # Kineto logs an error on a machine without a GPU
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        # torch warns that only the last cycle is reported, unless `acc_events` is set
        a_few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
        arguments["profiler"] = PyTorchProfiler(run / "profile", "summary", schedule=a_few_steps, acc_events=True)
    logger, folder = arguments.pop("logger", None), run / CHECKPOINTS
    loggers = [
        CSVLogger(run / "logs", name="csv"),  # a new version for each start: it would delete an earlier file
        TensorBoardLogger(run, name="logs", version="tensorboard"),
    ]
    # A bar that redraws itself would fill the log of a batch job: there, lines are printed
    shown, terminal = arguments.pop("enable_progress_bar", None) is not False, Console(stderr=True).is_terminal
    pictures = []
    if logger is not False:
        from .validation_pictures import ValidationPictures  # draws with matplotlib

        pictures = [LearningRateMonitor("step"), ValidationPictures(recipe.log_audio)]
    with refused_by_lightning(TypeError, ValueError):  # as it raises for wrong options, such as too many devices
        trainer = L.Trainer(
            **arguments,
            logger=loggers if logger in (None, True) else logger,
            # Lightning calls them in this order, except that those that keep checkpoints come last
            callbacks=[
                *stopping,
                ModelCheckpoint(folder, filename="last", enable_version_counter=False),
                FillCache(),
                Throughput(),  # its clock stops before a checkpoint is written
                PreemptionCheckpoints(folder, recipe.checkpoint_steps),  # listens before the start is validated
                *starting,
                *([CompileLayers()] if recipe.compile_layers else []),
                *pictures,
                *([TQDMProgressBar(leave=True) if terminal else ProgressLines()] if shown else []),
                *watching,
            ],
            enable_progress_bar=shown and terminal,
            enable_model_summary=False,  # a table of our own shows what is trained
            default_root_dir=run,
            use_distributed_sampler=False,  # the data module gives each rank its share
            num_sanity_val_steps=0,
            plugins=[AtomicCheckpoints(), *started_by()],
        )
    # Lightning 2.6 sets its handlers in every run, and has no option against it
    trainer._signal_connector.register_signal_handlers = no_handlers
    if one_process and trainer.world_size > 1:
        raise UserError(
            f"{trainer.world_size} processes with several runs (folds, method auto, or refit with method lora); "
            "expected trainer.devices 1"
        )
    return trainer


# ---------------------------------------------------------------- the data


def read_data(data: PairDataModule, given: PairDataset | None) -> None:
    """Read the data of a run, and check that a dataset in memory equals what its folder holds, which training reads.

    Raises:
        UserError: If it does not, or as `PairDataModule.setup`.
    """
    data.setup("fit")
    if given is None:
        return
    loaded = data.dataset
    tables = (given.ratings, loaded.ratings), (given.preferences, loaded.preferences)
    same = all(left is right if left is None else left.equals(right) for left, right in tables)
    if not same or (given.card, given.pairs) != (loaded.card, loaded.pairs):
        raise UserError(
            f"data: the PairDataset is not what {loaded.root} holds (a part of it, or of other splits?); expected it "
            "as PairDataset.load gives it now; data.train_split and data.validation_split choose pairs"
        )


def check_cache(recipe: Recipe) -> None:
    """Check that cached activations would be the same in each epoch.

    Raises:
        UserError: If clips are augmented.
    """
    if recipe.cache.what != "none" and recipe.data.augmentation.active:
        raise UserError(
            f"cache: {recipe.cache.what} with augmentation: each epoch hears every clip anew, so that nothing can be "
            "kept; expected cache.what none, or no augmentation"
        )


def check_labels(recipe: Recipe, data: PairDataModule) -> None:
    """Check that the data has what the recipe trains on.

    Raises:
        UserError: If it has not.
    """
    data.check_supervision()
    if recipe.objective.rater_embedding and recipe.data.target != "single":
        raise UserError(
            f"objective.rater_embedding {recipe.objective.rater_embedding} with data.target {recipe.data.target}; "
            "expected single"
        )


# ---------------------------------------------------------------- the judge


def build_judge(recipe: Recipe, settings: BuiltSettings, data: PairDataModule, trainer: L.Trainer) -> EmpathyJudge:
    """A judge for the scales of the data that says the mean rating.

    Raises:
        UserError: If the backbone cannot be loaded, or its layers not be computed again.
    """
    # Where weights are sharded, `shard` converts them layer by layer: no process holds all of them in float32
    judge = EmpathyJudge(settings, data.dimensions, deferred=isinstance(trainer.strategy, ShardedStrategy))
    judge.head.start_at(data.mean_ratings().to(judge.device))
    if recipe.gradient_checkpointing and not recompute_activations(judge.network):
        name = judge.backbone.name
        raise UserError(f"gradient_checkpointing: backbone {name} has no layers that can be recomputed")
    return judge


@contextmanager
def build_module(
    recipe: Recipe, run: Path, judge: EmpathyJudge, data: PairDataModule, trainer: L.Trainer
) -> Iterator[JudgeModule]:
    """The judge with its objective, what is learned of raters, and the cache of what frozen layers compute.

    Raises:
        UserError: If losses, trained parts or the cache do not fit the data or the judge.
    """
    objective = Objective(recipe.objective.losses, recipe.objective.settings, recipe.judge.head, data.dimensions)
    if objective.needs_counts and data.train.histograms is None:
        raise UserError(f"objective.losses: a scale has more than {MAX_STEPS} steps; expected losses of the score")
    raters = None
    if size := recipe.objective.rater_embedding:
        raters = RaterEmbedding(data.train.rater_counts, judge.head_input.size, size)
    _print_parts(judge, raters, recipe, data)
    # A cache of the user's stays for later runs; one in a temporary folder goes with this run
    with ExitStack() as until_the_end:
        features = None
        if (what := recipe.cache.what) not in ("none", "auto"):  # the parser has resolved "auto"
            path = recipe.cache.folder
            cache = Path(path) if path else until_the_end.enter_context(temporary_folder(run, trainer.local_rank))
            features = Features(judge, what, DiskStore(cache, recipe.cache.gigabytes), str(trainer.precision))
        collate = Collate(judge, features, with_counts=objective.needs_counts)
        yield JudgeModule(judge, objective, collate, recipe.optimizer, raters)


def _print_parts(judge: EmpathyJudge, raters: RaterEmbedding | None, recipe: Recipe, data: PairDataModule) -> None:
    """Print what is trained, and compare it with what the recipe expects."""
    learned = {} if raters is None else {"raters": raters}
    counts = count_parameters(judge.backbone, {**judge.own_modules(), **learned})
    if is_global_zero():
        say(parameter_table(counts))
        unread = sum(pair.situation_or_none is not None for pair in data.train.pairs)
        if unread and not judge.backbone.reads_text:
            whose = counted(unread, "training pair has", "training pairs have")
            say(f"{whose} a situation text, which backbone {judge.backbone.name} cannot read", "yellow")
    check_trainable(counts, recipe.expected_trainable or {})


# ---------------------------------------------------------------- what is published


def publish(run: Path, judge: EmpathyJudge, data: PairDataModule) -> None:
    """Check the best checkpoint of a run, say where it began, and calibrate it.

    Raises:
        UserError: If there is none.
    """
    best = check_best(run)
    if is_global_zero():
        for line in start_in_words(best["description"]["provenance"]):
            say(line)
    calibrate(run, best, judge, data)


def check_best(run: Path) -> dict[str, Any]:
    """Load the best checkpoint of a run.

    Raises:
        UserError: If there is none, or its agreement is undefined.
    """
    path = run / CHECKPOINTS / BEST
    if not path.is_file():
        raise UserError(
            f"{run}: no best checkpoint: training ended before the first validation; expected more trainer.max_steps, "
            "or a trainer.val_check_interval that is reached"
        )
    # Lightning keeps a first checkpoint although the value it watches is NaN
    checkpoint = read_checkpoint(path)
    # The file may be deleted below: all processes must have read it before
    barrier()
    if math.isnan(checkpoint["agreement"]):
        path.unlink(missing_ok=True)
        raise UserError(f"{run}: no best checkpoint: agreement on the validation split was undefined after every epoch")
    return checkpoint


def calibrate(run: Path, checkpoint: dict[str, Any], judge: EmpathyJudge, data: PairDataModule) -> None:
    """Calibrate the best checkpoint of a run from the scores of its validation, which are in it.

    Where that is not possible, print why: the run is usable without. Each process measures some of the clips, so that
    all end at the same time: a scheduler that waits for none is not kept waiting by the first.
    """
    facts = measured(data.validation.pairs, judge)
    if not is_global_zero():
        return
    try:
        if "validation" not in checkpoint:
            raise UserError(f"{run}: its best checkpoint has no scores; `empathy-judge calibrate` scores anew")
        # `judge` has the weights of the last step, and the calibration belongs to those of the checkpoint
        trained = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("judge.")}
        predictions = Prediction.kept(*(checkpoint["validation"][key].float() for key in ("score", "deviation"))).each()
        judged = {
            pair.pair_id: ScoredPair(prediction, tuple(facts[source] for source in pair.clips))
            for pair, prediction in zip(data.validation.pairs, predictions, strict=True)
        }
        weights = hash_of([{key.removeprefix("judge."): value for key, value in trained.items()}])
        calibration = fit_calibration(weights, judge.dimensions, data.dataset, data.validation_splits, judged)
    except UserError as error:
        say(f"no calibration: {error}")
    else:
        store_calibration(calibration, run)


def measured(pairs: Sequence[Pair], judge: EmpathyJudge) -> dict[AudioSource, ClipFacts]:
    """Facts about the clips of scored pairs. A collective operation of all processes."""
    clips = list(dict.fromkeys(source for pair in pairs for source in pair.clips))
    rank, ranks = rank_and_world_size()
    share = clips[rank::ranks]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda clip: clip_facts(judge.decode(clip), judge.backbone.sampling_rate), share)
        share_facts = dict(zip(share, results, strict=True))
    return {clip: facts for part in all_gather_object(share_facts) for clip, facts in part.items()}
