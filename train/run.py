"""`empathy-judge train`: one recipe in, one run folder out. `train` is read from top to bottom."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from ..data_modules.audio import AudioSource
from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError, counted, raised_in
from ..data_modules.folders import CARD_FILE, RemotePath
from ..data_modules.parallel import say
from ..data_modules.sampling import Position
from ..data_modules.schema import Pair, PairDataset
from ..data_modules.targets import MAX_STEPS
from ..data_modules.written import write_files
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS, CONFIG_FILE, JUDGE_FILE, LAST, hush
from ..models.assessment import ClipFacts, clip_facts
from ..models.backbones.layers import recompute_activations
from ..models.description import parse, start_in_words
from ..models.disk_store import DiskStore
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from ..models.judge_calibration import fit_calibration, store_calibration
from ..models.lora import check_trainable, count_parameters, parameter_table
from ..models.probe import without_adapters
from ..models.scoring import Heard
from ..models.settings import BuiltSettings
from ..models.weight_files import hash_of, read_checkpoint
from .checkpointing import (
    AtomicCheckpoints,
    EarlyStopping,
    ModelCheckpoint,
    PreemptionCheckpoints,
    alone_in,
    check_same_settings,
    find_resumable,
    no_handlers,
    position_of,
    stopped_by_signals,
)
from .collate import Collate
from .features import Features, all_gather_object, barrier, rank_and_world_size, temporary_folder
from .module import MONITOR, CompileLayers, FillCache, JudgeModule, RunTask, StopAfter
from .objective import Objective, RaterEmbedding
from .probe import StartAtProbe
from .recipe import Config, Recipe, RecipeParser
from .strategies import SameStart, ShardedStrategy, check_accelerator, check_strategy, started_by
from .throughput import ProgressLines, Throughput

if TYPE_CHECKING:
    from ..scorer import Scorer


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        folder: Checkpoints, logs and the resolved recipe; whatever takes a judge takes this folder.
        checkpoint: The best by agreement on the validation split.
        agreement: Dimension -> Spearman of that checkpoint with the mean ratings of the validation split; None where it
            is undefined. It chose the checkpoint, so that it looks a little too good: `evaluate` measures on another.
        calibration: File with what is known of the errors; None = the judge could not be calibrated.
    """

    folder: Path
    checkpoint: Path
    agreement: Mapping[str, float | None]
    calibration: Path | None

    def scorer(self, **options: Any) -> Scorer:
        """The trained judge, ready to score; options as for `Scorer.from_pretrained`, such as `device`."""
        from ..scorer import Scorer

        return Scorer.from_pretrained(self.folder, **options)

    def export(self, folder: str | Path, report: Mapping[str, Any] | None = None) -> Path:
        """Write the judge as a folder of its own, which must not exist or be empty, as `empathy-judge export` does;
        with a report of this judge, from `evaluate`, the model card shows its figures.

        Raises:
            UserError: If the folder is not empty, or the run is damaged.
        """
        from ..models.artifact import load_any, save_judge

        loaded = load_any(self.folder)
        save_judge(loaded, Path(folder), report)
        return Path(folder)


def train(
    config: Config,
    data: str | Path | PairDataset | None = None,
    run: str | Path | None = None,
    *,
    watching: Sequence[Callback] = (),
) -> Run | None:
    """Train as a recipe says, then calibrate the best checkpoint on the validation split (`RUN/calibration.json`).

    That split also chose the checkpoint: its errors look a little too small. `empathy-judge calibrate` takes another.

    Args:
        config: A recipe: its name, a YAML file, or a tree of settings (whose key `config` names one or several recipes
            that it is laid over); or words of the command line.
        data: The rated pairs, with splits: a folder, its address, or a `PairDataset` as it was loaded. Training reads
            the folder that the dataset came from: nothing is copied, and one that was changed in memory is refused.
            None = as the recipe says (`data.path`).
        run: Folder of the run; None = as the recipe says.
        watching: Further callbacks of Lightning, such as a clock.

    Returns:
        The finished run. None after a dry run (`dry_run`), which prints what would be trained and what memory a step
        needs, reads no data, and writes nothing.

    Raises:
        UserError: If the run folder is taken, nothing can be resumed, data is unusable, or there is no best checkpoint.
    """
    dataset = None
    if isinstance(data, PairDataset):
        dataset, data = data, data.root.address if isinstance(data.root, RemotePath) else data.root
    parser = RecipeParser()
    values = {"data.path": data, "run": run}
    parsed = parser.parse(config, {name: str(value) for name, value in values.items() if value is not None})
    recipe = parser.recipe(parsed)
    if recipe.dry_run:
        from .memory import dry_run

        dry_run(recipe)
        return None
    check_accelerator(recipe)
    folder = _run_folder(recipe)
    with stopped_by_signals(), ExitStack() as until_the_end:
        if _is_first():
            until_the_end.enter_context(alone_in(folder))

        def one(changed: Mapping[str, Any], task: RunTask) -> Run:
            merged = parser.overlaid(parsed, changed, "train")
            # the run itself stores the whole recipe; the runs below it store their own
            return _train_one(
                parser.recipe(merged), parser.text(merged if "run" in changed else parsed), task, dataset, watching
            )

        if recipe.method == "auto" or recipe.folds != 0 or (recipe.refit and recipe.method == "lora"):
            from .folds import train_several  # imports the statistics, which a single run does not need

            train_several(recipe, folder, one, parser.text(parsed))
            return _finished(folder)
        task = RunTask()
        if recipe.refit:
            from .folds import everything

            task = RunTask(everything(recipe), refit=True)
        return _train_one(recipe, parser.text(parsed), task, dataset, watching)


def _train_one(
    recipe: Recipe, text: str, task: RunTask, given: PairDataset | None, watching: Sequence[Callback]
) -> Run:
    """One run, as `train` does it; `text` is that of its `config.yaml`."""
    folder = _run_folder(recipe)
    start = _starting_point(folder, recipe.resume)
    if recipe.method == "probe":
        start = None  # it is fitted anew, which takes no longer than resuming
    if start is not None:
        check_same_settings(folder, text)
    if _is_first():
        write_files("train", folder, {CONFIG_FILE: text.encode()})
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    hush()
    with ExitStack() as until_the_end:
        position, loops, reading, kernel = Position(), None, recipe.data, {}
        if start is not None:
            resumed = read_checkpoint(start)
            position, loops = position_of(resumed), resumed["loops"]
            # it began at a probe, which may have chosen a kernel
            saved = parse(start, resumed["description"]).settings.head_input
            kernel = {"landmarks": saved.landmarks, "beside_landmarks": saved.beside_landmarks}
            if reading.batch_tokens == "auto":  # the size found then, even if more memory is free now
                reading = replace(reading, batch_tokens=resumed["order"].get("data.batch_tokens") or "auto")
        datamodule = PairDataModule(reading, seed=recipe.seed, start=position, parts=task.parts)
        check_strategy(recipe)
        at_probe = StartAtProbe(recipe.method, start is not None, task)
        try:
            trainer = _trainer(recipe, folder, at_probe, task, [SameStart(loops), *watching])
        except (MisconfigurationException, TypeError, ValueError) as error:
            if not raised_in(error, "lightning"):  # it raises them for wrong options, such as too many devices
                raise
            raise UserError(f"trainer: {str(error).strip().splitlines()[0]}") from None
        datamodule.setup("fit")
        if given is not None:
            _check_same(given, datamodule.dataset)
        _check_data(recipe, datamodule)

        settings = BuiltSettings.of(without_adapters(recipe.judge) if recipe.method == "probe" else recipe.judge)
        settings = replace(settings, head_input=replace(settings.head_input, **kernel))
        judge = EmpathyJudge(settings, datamodule.dimensions, deferred=isinstance(trainer.strategy, ShardedStrategy))
        judge.head.start_at(datamodule.mean_ratings().to(judge.device))
        if recipe.gradient_checkpointing and not recompute_activations(judge.network):
            name = judge.backbone.name
            raise UserError(f"gradient_checkpointing: backbone {name} has no layers that can be recomputed")
        objective = Objective(
            recipe.objective.losses, recipe.objective.settings, recipe.judge.head, datamodule.dimensions
        )
        if objective.needs_counts and datamodule.train.histograms is None:
            raise UserError(f"objective.losses: a scale has more than {MAX_STEPS} steps; expected losses of the score")
        raters = None
        if size := recipe.objective.rater_embedding:
            raters = RaterEmbedding(datamodule.train.rater_counts, judge.head_input.size, size)
        _print_parts(judge, raters, recipe, datamodule)

        features = None
        if (what := recipe.cache.what) not in ("none", "auto"):  # the parser has resolved "auto"
            path = recipe.cache.folder
            cache = Path(path) if path else until_the_end.enter_context(temporary_folder(folder, trainer.local_rank))
            features = Features(judge, what, DiskStore(cache, recipe.cache.gigabytes), str(trainer.precision))
        collate = Collate(judge, features, with_counts=objective.needs_counts)
        module = JudgeModule(judge, objective, collate, recipe.optimizer, raters, task)

        trainer.fit(module, datamodule, ckpt_path=start, weights_only=True)
        if task.refit:
            scores = at_probe.left_out if task.scores is None else task.scores
            if not scores:
                raise UserError("refit: no pair can be left out; expected ratings of each dimension in several groups")
            module.measure(scores)
        elif recipe.method == "probe":  # the fit had no steps
            trainer.validate(module, datamodule, verbose=False)
        if task.refit or recipe.method == "probe":
            trainer.save_checkpoint(folder / CHECKPOINTS / BEST)
        best = _check_best(folder)
        if _is_first():
            for line in start_in_words(best["description"]["provenance"]):
                say(line)
        _calibrate(folder, best, judge, datamodule)
    return _finished(folder)


def _finished(folder: Path) -> Run:
    best, calibration = folder / CHECKPOINTS / BEST, folder / CALIBRATION_FILE
    provenance = read_checkpoint(best)["description"]["provenance"]
    return Run(folder, best, provenance["validation"], calibration if calibration.is_file() else None)


def _run_folder(recipe: Recipe) -> Path:
    if not recipe.run:
        raise UserError("no --run; expected the folder of this run, such as --run runs/first")
    for name, what in ((JUDGE_FILE, "a judge"), (CARD_FILE, "a pair dataset")):  # training would write into it
        if (Path(recipe.run) / name).exists():
            raise UserError(f"{recipe.run}: is {what}; expected another --run")
    return Path(recipe.run)


def _starting_point(run: Path, resume: bool | Literal["auto"]) -> Path | None:
    # left by a kill; only the first process deletes: others could delete what it is already writing
    for unfinished in (run / CHECKPOINTS).glob(".*.tmp") if _is_first() else ():
        unfinished.unlink(missing_ok=True)
    checkpoint, passed_over = find_resumable(run / CHECKPOINTS)
    for line in passed_over if _is_first() else ():
        say(f"passed over {line}", "yellow")
    if resume is True and checkpoint is None:
        raise UserError(f"{run / CHECKPOINTS}: nothing to resume from; expected a run with a whole {LAST} or {BEST}")
    if not resume and checkpoint is not None:
        raise UserError(f"{run}: already holds a run; expected another --run, or --resume true to continue it")
    return checkpoint if resume else None


def _check_same(given: PairDataset, loaded: PairDataset) -> None:
    """Check that a dataset in memory equals what its folder holds, which is what training reads."""
    tables = (given.ratings, loaded.ratings), (given.preferences, loaded.preferences)
    same = all(left is right if left is None else left.equals(right) for left, right in tables)
    if not same or (given.card, given.pairs) != (loaded.card, loaded.pairs):
        raise UserError(
            f"data: the PairDataset is not what {loaded.root} holds (a part of it, or of other splits?); expected it "
            "as PairDataset.load gives it now; data.train_split and data.validation_split choose pairs"
        )


def _is_first() -> bool:
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


def _trainer(recipe: Recipe, run: Path, start: StartAtProbe, task: RunTask, watching: Sequence[Callback]) -> L.Trainer:
    """Lightning's trainer with our checkpoints, figures and loggers."""
    arguments = dict(recipe.trainer)
    if task.refit:
        arguments |= {"limit_val_batches": 0}
    if recipe.method == "probe":
        arguments |= {"max_epochs": 0, "max_steps": -1}
    if recipe.profile:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it logs an error on a machine without a GPU
        a_few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
        arguments["profiler"] = PyTorchProfiler(run / "profile", "summary", schedule=a_few_steps, acc_events=True)
    logger, folder = arguments.pop("logger", None), run / CHECKPOINTS
    loggers = [
        CSVLogger(run / "logs", name="csv"),  # a new version for each start: it would delete an earlier file
        TensorBoardLogger(run, name="logs", version="tensorboard"),
    ]
    shown, terminal = arguments.pop("enable_progress_bar", None) is not False, Console(stderr=True).is_terminal
    best = ModelCheckpoint(folder, filename="best", monitor=MONITOR, mode="max", enable_version_counter=False)
    pictures = []
    if logger is not False:
        from .validation_pictures import ValidationPictures  # draws with matplotlib

        pictures = [LearningRateMonitor("step"), ValidationPictures(recipe.log_audio)]
    # not strict: max_steps may end an epoch before its validation
    early = EarlyStopping(MONITOR, mode="max", patience=recipe.patience, check_finite=False, strict=False)
    trainer = L.Trainer(
        **arguments,
        logger=loggers if logger in (None, True) else logger,
        callbacks=[
            *([] if task.refit else [best]),
            ModelCheckpoint(folder, filename="last", enable_version_counter=False),
            *([] if task.refit else [early]),
            *([] if task.epochs is None else [StopAfter(task.epochs)]),
            FillCache(),
            Throughput(),  # its clock stops before a checkpoint is written
            PreemptionCheckpoints(folder, recipe.checkpoint_steps),  # listens before the start is validated
            start,
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
    trainer._signal_connector.register_signal_handlers = no_handlers
    if task.one_process and trainer.world_size > 1:
        raise UserError(
            f"{trainer.world_size} processes with several runs (folds, method auto, or refit with method lora); "
            "expected trainer.devices 1"
        )
    return trainer


def _check_data(recipe: Recipe, data: PairDataModule) -> None:
    """Check that the data has what the recipe trains on."""
    if recipe.cache.what != "none" and recipe.data.augmentation.active:
        raise UserError(
            f"cache: {recipe.cache.what} with augmentation: each epoch hears every clip anew, so that nothing can be "
            "kept; expected cache.what none, or no augmentation"
        )
    if recipe.method == "probe" and not recipe.judge.head_input.of_clips:
        raise UserError("method probe with judge.head_input.audio none; expected --judge.head_input.audio all_layers")
    if recipe.method == "probe" and recipe.data.augmentation.active:
        raise UserError("method probe with augmentation: it hears every clip once; expected none")
    data.check_supervision()
    if recipe.objective.rater_embedding and recipe.data.target != "single":
        raise UserError(
            f"objective.rater_embedding {recipe.objective.rater_embedding} with data.target {recipe.data.target}; "
            "expected single"
        )


def _print_parts(judge: EmpathyJudge, raters: RaterEmbedding | None, recipe: Recipe, data: PairDataModule) -> None:
    """Print what is trained, and compare it with what the recipe expects."""
    learned = {} if raters is None else {"raters": raters}
    counts = count_parameters(judge.backbone, {**judge.own_modules(), **learned})
    if _is_first():
        say(parameter_table(counts))
        unread = sum(pair.told is not None for pair in data.train.pairs)
        if unread and not judge.backbone.reads_text:
            whose = counted(unread, "training pair has", "training pairs have")
            say(f"{whose} a situation text, which backbone {judge.backbone.name} cannot read", "yellow")
    check_trainable(counts, recipe.expected_trainable or {})


def _check_best(run: Path) -> dict[str, Any]:
    """Load the best checkpoint of a run."""
    path = run / CHECKPOINTS / BEST
    if not path.is_file():
        raise UserError(
            f"{run}: no best checkpoint: training ended before the first validation; expected more trainer.max_steps, "
            "or a trainer.val_check_interval that is reached"
        )
    # Lightning keeps a first checkpoint although the value it watches is NaN
    checkpoint = read_checkpoint(path)
    barrier()  # waits until all have read it
    if math.isnan(checkpoint["agreement"]):
        path.unlink(missing_ok=True)
        raise UserError(f"{run}: no best checkpoint: agreement on the validation split was undefined after every epoch")
    return checkpoint


def _calibrate(run: Path, checkpoint: dict[str, Any], judge: EmpathyJudge, data: PairDataModule) -> None:
    """Calibrate the best checkpoint of a run from the scores of its validation, which are in it.

    Where that is not possible, print why: the run is usable without. Each process measures some of the clips, so that
    all end at the same time: a scheduler that waits for none is not kept waiting by the first.
    """
    facts = _measured(data.validation.pairs, judge)
    if not _is_first():
        return
    try:
        if "validation" not in checkpoint:
            raise UserError(f"{run}: its best checkpoint has no scores; `empathy-judge calibrate` scores anew")
        trained = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("judge.")}
        predictions = Prediction.kept(*(checkpoint["validation"][key].float() for key in ("score", "deviation"))).each()
        judged = {
            pair.pair_id: Heard(prediction, tuple(facts[source] for source in pair.clips))
            for pair, prediction in zip(data.validation.pairs, predictions, strict=True)
        }
        weights = hash_of([{key.removeprefix("judge."): value for key, value in trained.items()}])
        calibration = fit_calibration(weights, judge.dimensions, data.dataset, data.validation_splits, judged)
    except UserError as error:
        say(f"no calibration: {error}")
    else:
        store_calibration(calibration, run)


def _measured(pairs: Sequence[Pair], judge: EmpathyJudge) -> dict[AudioSource, ClipFacts]:
    """Facts about the clips of scored pairs. A collective operation of all processes."""
    clips = list(dict.fromkeys(source for pair in pairs for source in pair.clips))
    rank, ranks = rank_and_world_size()
    share = clips[rank::ranks]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda clip: clip_facts(judge.decode(clip), judge.backbone.sampling_rate), share)
        share_facts = dict(zip(share, results, strict=True))
    return {clip: facts for part in all_gather_object(share_facts) for clip, facts in part.items()}
