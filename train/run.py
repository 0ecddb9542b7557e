"""`empathy-judge train`: one configuration in, one run folder out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from torch import distributed as dist

from ..data_modules.audio import AudioSource
from ..data_modules.datamodule import PairDataModule
from ..data_modules.errors import UserError
from ..data_modules.schema import Pair
from ..data_modules.targets import MAX_STEPS
from ..models.cautions import ClipFacts, clip_facts
from ..models.checkpoints import read_checkpoint
from ..models.feature_cache import DiskStore
from ..models.file_names import BEST, CHECKPOINTS, LAST
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge, sources_of
from ..models.judge_calibration import fit_calibration, store_calibration
from ..models.layers import recompute_activations
from ..models.lora import check_trainable, count_parameters, parameter_table
from ..models.scoring import Heard
from ..models.weight_files import hash_of
from ..third_party import hush
from .checkpointing import AtomicCheckpoints, PreemptionCheckpoints, find_resumable, position_of, stopped_by_signals
from .collate import Collate
from .features import Features, temporary_folder
from .module import MONITOR, JudgeModule, Parts
from .objective import Objective
from .options import ModelOptions
from .raters import RaterEmbedding
from .strategies import ShardedStrategy, check_strategy, started_by
from .throughput import Throughput
from .validation_pictures import ValidationPictures

CONFIG_FILE = "config.yaml"
DRY_RUN = "--dry-run"
_DRY_RUN_ONLY = ("dry_run", "clip_seconds", "gpu_gib")
# Values of Trainer that this program sets itself
_OURS: set[str | int] = {
    "callbacks",
    "default_root_dir",
    "enable_model_summary",
    "num_sanity_val_steps",
    "plugins",
    "use_distributed_sampler",
}


def build_parser(dry_run: bool = False) -> ArgumentParser:
    """Parser of the train command: every value of model, data and trainer, from YAML and from the command line.

    Args:
        dry_run: Without need for a run folder.
    """
    parser = ArgumentParser(
        prog="empathy-judge train",
        description="Train a judge on rated pairs.",
        epilog="example: empathy-judge train --config configs/nano.yaml --data.path my_data --run runs/first",
        exit_on_error=True,
    )
    parser.add_argument(
        "--config",
        action="config",
        help="YAML file, repeatable; a later file overrides an earlier one, and arguments override files",
    )
    parser.add_argument(
        "--run", type=str, required=not dry_run, help="folder of this run: checkpoints, logs, resolved config"
    )
    parser.add_argument(
        "--resume", type=bool | Literal["auto"], default=False,
        help="continue from the last checkpoint in --run; auto: if there is one, else start",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint-steps", type=int, default=200,
        help="steps of the optimizer between checkpoints in mid-epoch; 0: only at the end of epochs",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and dropout")
    parser.add_argument("--patience", type=int, default=3, help="validations without better agreement before stopping")
    parser.add_argument(
        "--profile",
        type=bool,
        default=False,
        help="write where the time goes to RUN/profile: operations and a trace",
    )
    parser.add_argument(
        "--log-audio",
        type=bool | None,
        default=None,
        help="players of the items that validation scored worst: true = in every logger that has some, false = in "
        "none; by default in TensorBoard's files alone, for with Weights & Biases recordings of people leave this "
        "machine, those of an offline run with `wandb sync`",
    )
    parser.add_argument(
        DRY_RUN, action="store_true", help="train nothing: say what would be trained and what memory a step needs"
    )
    parser.add_argument("--clip-seconds", type=float, default=8.0, help="length of every clip in a dry run")
    parser.add_argument("--gpu-gib", type=float, help="memory of a GPU to fit; by default that of the GPU here, if any")
    parser.add_class_arguments(ModelOptions, "model")
    parser.add_class_arguments(PairDataModule, "data", skip={"seed"}, instantiate=False)
    parser.add_class_arguments(L.Trainer, "trainer", skip=_OURS, instantiate=False)
    return parser


def train(arguments: Sequence[str], watching: Sequence[Callback] = ()) -> Path | None:
    """Train as the arguments say, then calibrate the best checkpoint on the validation split (`RUN/calibration.json`).

    That split also chose the checkpoint: its errors look a little too small. `empathy-judge calibrate` takes another.

    Args:
        arguments: Of the command line.
        watching: Further callbacks, such as a clock.

    Returns:
        The best checkpoint by agreement on the validation split; None after a dry run.

    Raises:
        UserError: If the run folder is taken, there is nothing to resume, or the data is not usable.
    """
    if DRY_RUN in arguments:
        _dry_run(build_parser(dry_run=True).parse_args(_config_first(arguments)))
        return None
    parser = build_parser()
    config = parser.parse_args(_config_first(arguments))
    for name in _DRY_RUN_ONLY:
        config.pop(name)
    run = Path(config.run)
    if config.checkpoint_steps < 0:
        raise UserError(f"--checkpoint-steps {config.checkpoint_steps}; expected 0 or more")
    start = _starting_point(run, config.resume)
    if _is_first():
        run.mkdir(parents=True, exist_ok=True)
        parser.save(config.clone(with_meta=False), run / CONFIG_FILE, overwrite=True)
    L.seed_everything(config.seed, workers=True, verbose=False)
    built = parser.instantiate(config)
    data = PairDataModule(**built.data, seed=config.seed)
    check_strategy(built.trainer.as_dict(), built.model)
    module = JudgeModule(built.model, lambda module: build_parts(built.model, data, module.trainer))
    with stopped_by_signals():
        best = fit(
            module,
            data,
            built.trainer.as_dict(),
            run=run,
            patience=config.patience,
            checkpoint=start,
            checkpoint_steps=config.checkpoint_steps,
            profile=config.profile,
            log_audio=config.log_audio,
            watching=watching,
        )
        _calibrate(run, module, data)
    return best


def build_parts(options: ModelOptions, data: PairDataModule, trainer: L.Trainer) -> Parts:
    """Build the judge for the dimensions of the data, with all that it is trained with, and print what is trained.

    Args:
        options: The judge and how it is trained.
        data: Set up.
        trainer: Whose processes have found each other.

    Raises:
        UserError: If the backbone cannot be loaded, a dimension has no rating to train on, or options do not go
            together.
    """
    if options.cache != "none" and data.augmentation.active:
        raise UserError(
            f"cache: {options.cache} with augmentation: each epoch hears every clip anew, so that nothing can be "
            "kept; expected cache: none, or no augmentation"
        )
    data.check_supervision()
    deferred = isinstance(trainer.strategy, ShardedStrategy)
    judge = EmpathyJudge(options.judge_settings, data.dimensions, deferred=deferred)
    backbone = judge.backbone
    objective = Objective(options.losses, options.loss_settings, options.head, data.dimensions)
    if objective.needs_counts and data.train.histograms is None:
        raise UserError(f"model.losses: a scale has more than {MAX_STEPS} steps; expected losses of the score")
    if options.rater_embedding and data.target != "single":
        raise UserError(
            f"model.rater_embedding {options.rater_embedding} with data.target {data.target}; expected single"
        )
    raters = None
    if options.rater_embedding:
        raters = RaterEmbedding(data.train.rater_counts, backbone.hidden_size, options.rater_embedding)
    if options.gradient_checkpointing and not recompute_activations(judge.network):
        raise UserError(f"gradient_checkpointing: backbone {backbone.name} has no layers that can be recomputed")
    judge.head.start_at(data.mean_ratings())

    learned = {} if raters is None else {"raters": raters}
    counts = count_parameters(backbone, {"pooling": judge.pooling, "head": judge.head, **learned})
    if trainer.is_global_zero:
        say = Console(stderr=True).print
        say(parameter_table(counts))
        unread = sum(pair.situation is not None for pair in data.train.pairs)
        if unread and not backbone.reads_text:
            text = f"{unread} training pairs have a situation text, which backbone {backbone.name} cannot read"
            say(text, style="yellow", soft_wrap=True)
    check_trainable(counts, options.expected_trainable or {})

    features, release = None, _nothing
    if options.cache != "none":
        if options.cache_folder is None:
            folder, release = temporary_folder(judge, trainer)
        else:
            folder = Path(options.cache_folder)
        store = DiskStore(folder, options.cache_gigabytes)
        features = Features(judge, options.cache, store, str(trainer.precision))
    collate = Collate(
        judge,
        features,
        with_counts=objective.needs_counts,
        compare=options.loss_settings.compare,
    )
    return Parts(judge, objective, collate, features, raters, release)


def _nothing() -> None:
    return


def _calibrate(run: Path, module: JudgeModule, data: PairDataModule) -> None:
    """Calibrate the best checkpoint from the scores of its validation, which are in it.

    Where that is not possible say why, for the run is good without. Each process measures some of the clips, so that
    all end at the same time: a scheduler that waits for none is not kept waiting by the first.
    """
    facts = _measured(data.validation.pairs, module.built)
    if not _is_first():
        return
    try:
        checkpoint = read_checkpoint(run / CHECKPOINTS / BEST)
        if "validation" not in checkpoint:
            raise UserError(f"{run}: its best checkpoint has no scores; `empathy-judge calibrate` scores anew")
        trained = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("judge.")}
        scores, deviations = checkpoint["validation"]["score"].float(), checkpoint["validation"]["deviation"].float()
        judged = {}
        for number, pair in enumerate(data.validation.pairs):
            deviation = None if deviations.isnan().all() else deviations[number]
            found = tuple(facts[source] for source in sources_of(pair))
            judged[pair.pair_id] = Heard(Prediction(scores[number], deviation), found)
        weights = hash_of([{key.removeprefix("judge."): value for key, value in trained.items()}])
        calibration = fit_calibration(weights, module.built.dimensions, data.dataset, data.validation_splits, judged)
    except UserError as error:
        Console(stderr=True).print(f"no calibration: {error}", markup=False, soft_wrap=True)
    else:
        store_calibration(calibration, run)


def _measured(pairs: Sequence[Pair], judge: EmpathyJudge) -> dict[AudioSource, ClipFacts]:
    """What the clips of pairs that were scored are like. A collective of all processes."""
    clips = list(dict.fromkeys(source for pair in pairs for source in sources_of(pair)))
    spread = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if spread else (0, 1)
    own = clips[rank::ranks]
    with ThreadPoolExecutor() as pool:
        measured = pool.map(lambda clip: clip_facts(judge.decode(clip), judge.backbone.sampling_rate), own)
        parts: list[Any] = [dict(zip(own, measured, strict=True))]
    if spread:
        parts, (mine,) = [None] * ranks, parts
        dist.all_gather_object(parts, mine)
    return {clip: facts for part in parts for clip, facts in part.items()}


def _is_first() -> bool:
    return rank_zero_only.rank == 0  # pyright: ignore[reportFunctionMemberAccess]


def fit(
    module: JudgeModule,
    data: PairDataModule,
    trainer: dict[str, Any],
    *,
    run: Path,
    patience: int,
    checkpoint: Path | None = None,
    checkpoint_steps: int = 0,
    profile: bool = False,
    log_audio: bool | None = None,
    watching: Sequence[Callback] = (),
) -> Path:
    """Train `module` on `data`.

    Args:
        module: The judge and its optimisation.
        data: Rated pairs with a split.
        trainer: Arguments of `lightning.Trainer` that this function does not set itself.
        run: Folder for checkpoints and logs.
        patience: Validations without better agreement before training stops.
        checkpoint: Continue from here.
        checkpoint_steps: Steps of the optimizer between checkpoints in mid-epoch; 0 = none.
        profile: Write where the time goes, by Lightning's `PyTorchProfiler`.
        log_audio: See `ValidationPictures`.
        watching: Further callbacks.

    Returns:
        The best checkpoint by agreement on the validation split.

    Raises:
        UserError: If agreement on the validation split was undefined throughout, so that there is no best checkpoint.
    """
    hush()
    if checkpoint is not None:  # here, for strategies that shard weights make data loaders before they load it
        data.start = position_of(read_checkpoint(checkpoint))
    if profile:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it calls a machine without a GPU an error
        a_few_steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
        trainer["profiler"] = PyTorchProfiler(run / "profile", "summary", schedule=a_few_steps, acc_events=True)
    interactive = Console(stderr=True).is_terminal
    best = ModelCheckpoint(
        run / CHECKPOINTS, filename="best", monitor=MONITOR, mode="max", enable_version_counter=False,
    )  # fmt: skip
    last = ModelCheckpoint(run / CHECKPOINTS, filename="last", enable_version_counter=False)
    given_logger = trainer.pop("logger", None)
    bar = trainer.pop("enable_progress_bar", None)
    fitted = L.Trainer(
        **trainer,
        logger=_default_loggers(run) if given_logger in (None, True) else given_logger,
        callbacks=[
            best,
            last,
            # not strict: max_steps may end an epoch before its validation
            EarlyStopping(MONITOR, mode="max", patience=patience, check_finite=False, strict=False),
            Throughput(),
            ValidationPictures(log_audio),
            PreemptionCheckpoints(run / CHECKPOINTS, checkpoint_steps),
            *([LearningRateMonitor("step")] if given_logger is not False else []),
            *([TQDMProgressBar(leave=True)] if interactive and bar is not False else []),
            *watching,
        ],
        enable_progress_bar=interactive and bar is not False,
        enable_model_summary=False,  # the module prints what is trained, part by part
        default_root_dir=run,
        use_distributed_sampler=False,  # the data module gives each rank its share
        num_sanity_val_steps=0,
        plugins=[AtomicCheckpoints(), *started_by()],
    )
    fitted.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    path = run / CHECKPOINTS / BEST
    if not path.is_file():
        raise UserError(
            f"{run}: no best checkpoint: training ended before the first validation; expected more trainer.max_steps, "
            "or a trainer.val_check_interval that is reached"
        )
    # Lightning keeps a first checkpoint although the value it watches is NaN
    if math.isnan(read_checkpoint(path)["agreement"]):
        path.unlink()
        raise UserError(f"{run}: no best checkpoint: agreement on the validation split was undefined after every epoch")
    return path


def _dry_run(config: Namespace) -> None:
    """Print what would be trained and what memory a step needs, without weights and without data."""
    from .memory import GIB, memory_table, step_memory

    options: ModelOptions = build_parser(dry_run=True).instantiate(config).model
    found = step_memory(
        options.judge_settings,
        batch=config.data.batch_size,
        seconds=config.clip_seconds,
        mixed_precision=str(config.trainer.precision).endswith("-mixed"),
        gradient_checkpointing=options.gradient_checkpointing,
        batch_tokens=config.data.batch_tokens,
        audio_cached=options.cache != "none",
    )
    gpu = config.gpu_gib * GIB if config.gpu_gib else None
    if gpu is None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0).total_memory
    for table in (parameter_table(found.parts), memory_table(found, config.clip_seconds, gpu)):
        Console().print(table)
    check_trainable(found.parts, options.expected_trainable or {})


def _config_first(arguments: Sequence[str]) -> list[str]:
    """Files before single values, so that a value on the command line counts wherever it stands."""
    files, values = [], []
    words = iter(arguments)
    for word in words:
        if word == "--config":
            files += [word, *([next(words)] if word is not arguments[-1] else [])]
        else:
            (files if word.startswith("--config=") else values).append(word)
    return files + values


def _starting_point(run: Path, resume: bool | Literal["auto"]) -> Path | None:
    # left by a kill; the other processes must not delete what the first is writing by then
    for unfinished in (run / CHECKPOINTS).glob(".*.unfinished") if _is_first() else ():
        unfinished.unlink(missing_ok=True)
    checkpoint, passed_over = find_resumable(run / CHECKPOINTS)
    for line in passed_over:
        Console(stderr=True).print(f"passed over {line}", style="yellow", soft_wrap=True)
    if resume is True and checkpoint is None:
        raise UserError(f"{run / CHECKPOINTS}: nothing to resume from; expected a run with a whole {LAST} or {BEST}")
    if not resume and checkpoint is not None:
        raise UserError(f"{run}: already holds a run; expected another --run, or --resume true to continue it")
    return checkpoint if resume else None


def _default_loggers(run: Path) -> list[Logger]:
    return [
        CSVLogger(run / "logs", name="csv"),  # a version for each start: it would delete the file of the last one
        TensorBoardLogger(run, name="logs", version="tensorboard"),
    ]
