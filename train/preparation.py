"""What a run is given before it fits: the data, checked against the recipe, the judge, and the module of Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lightning as L

from ..core.disk_store import DiskStore
from ..core.errors import UserError, counted
from ..core.processes import say
from ..data_modules.datamodule import PairDataModule
from ..data_modules.schema import PairDataset
from ..data_modules.targets import MAX_STEPS
from ..models.backbones.layers import recompute_activations
from ..models.judge import EmpathyJudge
from ..models.lora import check_trainable, count_parameters, parameter_table
from ..models.settings import BuiltSettings
from .collate import Collate
from .features import Features, temporary_folder
from .module import JudgeModule
from .objective import Objective, RaterEmbedding
from .run_folder import is_global_zero
from .settings import Recipe
from .strategies import ShardedStrategy


def read_data(recipe: Recipe, data: PairDataModule, given: PairDataset | None) -> None:
    """Read the data of a run, and check that it has what the recipe trains on.

    Training reads the folder. A dataset in memory must equal what the folder holds.

    Raises:
        UserError: If it does not, or as `PairDataModule.setup`.
    """
    data.setup("fit")
    if given is not None:
        loaded = data.dataset
        tables = (given.ratings, loaded.ratings), (given.preferences, loaded.preferences)
        same = all(left is right if left is None else left.equals(right) for left, right in tables)
        if not same or (given.card, given.pairs) != (loaded.card, loaded.pairs):
            raise UserError(
                f"data: the PairDataset is not what {loaded.root} holds (a part of it, or of other splits?); expected "
                "it as PairDataset.load gives it now; data.train_split and data.validation_split choose pairs"
            )
    if recipe.cache.what != "none" and recipe.data.augmentation.active:
        raise UserError(
            f"cache: {recipe.cache.what} with augmentation: each epoch changes every clip anew, so that nothing can "
            "be cached; expected cache.what none, or no augmentation"
        )
    data.check_supervision()
    if recipe.objective.rater_embedding and recipe.data.target != "single":
        raise UserError(
            f"objective.rater_embedding {recipe.objective.rater_embedding} with data.target {recipe.data.target}; "
            "expected single"
        )


def build_judge(recipe: Recipe, settings: BuiltSettings, data: PairDataModule, trainer: L.Trainer) -> EmpathyJudge:
    """A judge for the scales of the data that says the mean rating.

    Raises:
        UserError: If the backbone cannot be loaded, or its layers not be computed again.
    """
    # Where weights are sharded, `shard` converts them layer by layer: no process holds all of them in float32
    judge = EmpathyJudge(settings, data.dimensions, deferred=isinstance(trainer.strategy, ShardedStrategy))
    # So that the first steps need not find the level of the ratings
    judge.head.start_at(data.mean_ratings().to(judge.device))
    if recipe.gradient_checkpointing and not recompute_activations(judge.network):
        name = judge.backbone.name
        raise UserError(f"gradient_checkpointing: backbone {name} has no layers that can be recomputed")
    return judge


def build_objective(recipe: Recipe, data: PairDataModule) -> Objective:
    """What is minimised.

    Raises:
        UserError: If the losses do not fit the data.
    """
    objective = Objective(recipe.objective.losses, recipe.objective.settings, recipe.judge.head, data.dimensions)
    if objective.needs_counts and data.train.histograms is None:
        raise UserError(f"objective.losses: a scale has more than {MAX_STEPS} steps; expected losses of the score")
    return objective


@contextmanager
def build_module(
    recipe: Recipe, run: Path, judge: EmpathyJudge, data: PairDataModule, trainer: L.Trainer
) -> Iterator[JudgeModule]:
    """The judge with its objective, what is learned of raters, and the cache of what frozen layers compute.

    Raises:
        UserError: If losses, trained parts or the cache do not fit the data or the judge.
    """
    objective = build_objective(recipe, data)
    raters = None
    if size := recipe.objective.rater_embedding:
        raters = RaterEmbedding(data.train.rater_counts, judge.head_input.size, size)
    _print_parts(judge, raters, recipe, data)
    # A cache of the user's stays for later runs; one in a temporary folder goes with this run
    with ExitStack() as until_the_end:
        features = None
        what = recipe.cache.what  # the parser has resolved "auto"
        if what == "audio" and not judge.backbone.has_tower:
            what = "none"
            if is_global_zero():
                say(f"cache: audio: backbone {judge.backbone.name} has no audio tower; no clip is cached")
        if what not in ("none", "auto"):
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
        say(parameter_table(counts, recipe.method == "probe"))
        unread = sum(pair.situation_or_none is not None for pair in data.train.pairs)
        if unread and not judge.backbone.reads_text:
            whose = counted(unread, "training pair has", "training pairs have")
            say(f"{whose} a situation text, which backbone {judge.backbone.name} cannot read", "yellow")
    check_trainable(counts, recipe.expected_trainable or {})
