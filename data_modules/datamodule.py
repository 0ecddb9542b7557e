"""Rated pairs for a Lightning trainer."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import lightning as L
import numpy as np
import torch
from filelock import FileLock
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..audio.decode import AudioSource
from ..core.errors import DataError
from ..core.processes import end_with_parent, listen, say
from .audit import check_splits
from .clip_measures import clip_seconds
from .ratings import MIN_ITEMS
from .sampling import (
    WINDOW,
    WINDOW_BLOCKS,
    Blocks,
    ByTokens,
    EpochBatches,
    EpochOrder,
    FixedSize,
    Kind,
    Position,
    longest_of,
    row_groups,
)
from .schema import Dimension, Pair, PairDataset
from .settings import DataSettings
from .training_items import ComparedPair, RatedPair, RatedPairs, TrainingItems, counterfactuals, human_comparisons
from .unchanged import check_unchanged

SHARES = ("ratings", "preferences", "counterfactuals")
"""Kinds of training items, in the order of `PairDataModule.shares`."""
_FORKS_SAFELY = 3, 11, 10  # before, a forked process may wait for ever for a lock of the interpreter (gh-112275)


class TokenCounter(Protocol):
    """A judge that can count the tokens of its inputs."""

    def count_tokens(self, pairs: Sequence[Pair], seconds: Mapping[AudioSource, float]) -> np.ndarray:
        """Tokens of each pair `(pairs,)`, from the durations of their clips."""
        ...


class CollatingModel(Protocol):
    """A model that can collate its inputs."""

    # makes a batch of training items; can be pickled, for processes that read data
    collate: Callable[[Sequence[RatedPair | ComparedPair]], Any]
    judge: TokenCounter


@dataclass(frozen=True)
class RunPairs:
    """The pairs to train on and to validate on, if not those of the splits."""

    train: frozenset[str]  # their ids
    validation: frozenset[str]  # their ids


class PairDataModule(L.LightningDataModule):
    """Reads a pair dataset with a split. Batches are made by the trainer's model, which alone knows its backbone's
    inputs; without a trainer, a batch is the list of its items."""

    def __init__(
        self, settings: DataSettings, seed: int = 0, start: Position | None = None, parts: RunPairs | None = None
    ) -> None:
        """Nothing is read before `setup`.

        Args:
            settings: As in a recipe.
            seed: Seed of the order in which pairs are read, and of augmentation.
            start: Where a resumed run continues: workers start before Lightning sets the epoch.
            parts: Of the pairs of both splits together, those to train on and to validate on.
        """
        super().__init__()
        self.settings, self.seed, self.start = settings, seed, start or Position()
        self.train_splits, self.validation_splits = _names(settings.train_split), _names(settings.validation_split)
        self._parts = parts
        self._planned: tuple[DataSettings, FixedSize | ByTokens] | None = None
        self._supposed: tuple[TokenCounter, int] | None = None  # judge and processes, where there is no trainer
        if parts is not None:
            both = tuple(dict.fromkeys((*self.train_splits, *self.validation_splits)))
            self.train_splits = self.validation_splits = both

    def setup(self, stage: str) -> None:
        """Load the dataset and check its split, once: a recipe does it before the trainer asks for it.

        Raises:
            DataError: If the folder breaks the data contract, audio is not what was imported, a split is missing, one
                split is to be trained on and validated on, or the splits share what `audit` refuses.
        """
        if hasattr(self, "dataset"):
            return
        settings = self.settings
        dataset = PairDataset.load(settings.path)
        user = getattr(os, "getuid", int)()
        # the first process of a machine reads all audio where that was not done yet, the others its results
        with FileLock(Path(tempfile.gettempdir()) / f"empathy-judge-{user}-{dataset.card.content_hash[:16]}.lock"):
            check_unchanged(dataset)
            check_splits(dataset)
            if settings.batch_tokens is not None:
                clip_seconds(dataset)
        self.dataset = dataset
        shared = set(self.train_splits) & set(self.validation_splits)
        if shared and self._parts is None:
            raise DataError(f"train_split and validation_split: both hold {min(shared)!r}; expected different splits")
        training, validation = dataset.subset(self.train_splits), dataset.subset(self.validation_splits)
        if self._parts is not None:
            training, validation = training.only(self._parts.train), validation.only(self._parts.validation)
        # a pair that nobody rated would fill batches and teach nothing; comparisons may still know it
        rated_ids = set(training.ratings["pair_id"])
        rated_pairs = replace(training, pairs=tuple(pair for pair in training.pairs if pair.pair_id in rated_ids))
        self.train = RatedPairs(rated_pairs, settings.augmentation, self.seed, settings.target, settings.weighting)
        if rank_zero_only.rank == 0:  # pyright: ignore[reportFunctionMemberAccess]
            for note in self.train.notes:
                say(f"training targets: {note}")
        # Plain means and no augmentation, whatever is trained on: what is measured must not change with the recipe
        self.validation, self.validation_preferences = RatedPairs(validation), human_comparisons(validation)
        self._find_comparisons(training)

    def _find_comparisons(self, training: PairDataset) -> None:
        """Finds the comparisons of the training split, by people and counterfactual, whose share is above 0."""
        preferred, counterfactual = self.settings.preference_share, self.settings.counterfactual_share
        rated = 1 - preferred - counterfactual
        for name, share in (
            ("preference_share", preferred),
            ("counterfactual_share", counterfactual),
            ("what is left for rated pairs", rated),
        ):
            if not -1e-9 <= share <= 1:  # 1 - 0.9 - 0.1 is not 0
                raise DataError(f"data.{name} {share:g}; expected shares from 0 to 1, in sum at most 1")
        self.shares = (rated if rated > 1e-9 else 0.0, preferred, counterfactual)
        self._compared: list[Sequence[ComparedPair]] = [
            human_comparisons(training) if preferred else [],
            counterfactuals(training, self.settings.counterfactual_min_score) if counterfactual else [],
        ]
        self.items = TrainingItems(self.train, [comparison for kind in self._compared for comparison in kind])
        missing = "ratings", "preferences", "a response of the same group to another context, not rated with this one"
        for share, items, description in zip(self.shares, (self.train, *self._compared), missing, strict=True):
            if share and not len(items):
                raise DataError(
                    f"{self.settings.path}: training asks for a share of {share:g} of what it has not: {description}"
                )

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What was rated."""
        return self.dataset.card.dimensions

    def check_supervision(self) -> None:
        """Check that every dimension has something to learn from, and something to choose the best checkpoint by.

        Raises:
            DataError: If one has not.
        """
        for column, dimension in enumerate(self.dimensions):
            if not all(item.strength[column].isnan() for item in self.items.comparisons):
                continue
            where = f"{dimension.name!r} in split {' or '.join(map(repr, self.train_splits))}"
            scores = self.train.scores[:, column]
            known = scores[~scores.isnan()] if self.shares[0] > 0 else scores[:0]
            if not len(known):
                raise DataError(
                    f"{self.settings.path}: nobody rated {where}; expected ratings of every dimension, a "
                    "dataset without this one, or data.preference_share 1 where people compared pairs"
                )
            if known.min() == known.max():
                raise DataError(
                    f"{self.settings.path}: the mean ratings of {where} are all {known[0]:g}; expected some that "
                    "differ, or a dataset without this dimension"
                )
        if (problem := undecided(self.dimensions, self.validation, self.validation_preferences)) is not None:
            where = f"{self.settings.path}, split {' or '.join(map(repr, self.validation_splits))}"
            raise DataError(
                f"{where}: {problem}; expected at least {MIN_ITEMS} pairs, not all rated alike, to choose the best "
                "checkpoint by"
            )

    def mean_ratings(self) -> Tensor:
        """Mean rating of each dimension; the middle of the scale where there is none."""
        middle = torch.tensor([(d.minimum + d.maximum) / 2 for d in self.dimensions])
        # Preferences fix no level: in the middle a score can move either way
        means = self.train.scores.nanmean(0) if self.shares[0] else middle
        return torch.where(means.isnan(), middle, means)

    # ------------------------------------------------------------ batches

    def train_dataloader(self) -> DataLoader:
        """Shuffled training items of this rank."""
        plan = self._training_plan()
        if isinstance(plan, ByTokens) and (self.trainer is None or self.trainer.is_global_zero):
            budget = self.settings.batch_tokens
            say(f"batches: {plan.steps} of at most {budget} tokens, {plan.padding(0):.1%} padding")
        return self._loader(self.items, EpochBatches(plan, self.start))

    def val_dataloader(self) -> DataLoader:
        """Validation pairs of this rank; some may be on two, so that all have equally many."""
        plan = self._plan(self.validation, (), (1.0,), self.settings.eval_batch_size, shuffle=False)
        return self._loader(self.validation, EpochBatches(plan, Position(), same=True))

    @property
    def batches_per_epoch(self) -> int:
        """Batches of this rank in every epoch, as the data loader has them."""
        return self._training_plan().steps

    def planned_for(self, judge: TokenCounter, processes: int) -> FixedSize | ByTokens:
        """The training batches of the first of so many processes, without a trainer: for a dry run."""
        self._supposed = judge, processes
        return self._training_plan()

    def longest_item(self) -> int:
        """Tokens of the longest training item, which is the least that `data.batch_tokens` can be."""
        return longest_of(self._kinds(self.train, self._compared, self.shares, shuffle=True))

    def largest_batch(self, tokens: int) -> Any:
        """The largest batch of the first epoch with `data.batch_tokens` set to `tokens`, which stays set."""
        self.settings = replace(self.settings, batch_tokens=tokens)
        assert self._model is not None
        return self._model.collate([self.items[0, item] for item in self._training_plan().batches(0)[0]])

    def order(self) -> dict[str, Any]:
        """The settings that decide which items are in which batch: a run resumed in mid-epoch needs the same."""
        settings = self.settings
        return {
            "seed": self.seed,
            "data.batch_size": settings.batch_size if settings.batch_tokens is None else None,
            "data.batch_tokens": settings.batch_tokens,
            "data.batches": settings.batches,
            "data.num_workers": settings.num_workers if row_groups(self.train.pairs) is not None else None,
            "data.preference_share": settings.preference_share,
            "data.counterfactual_share": settings.counterfactual_share,
            "number of processes": self._ranks,
        }

    def _training_plan(self) -> FixedSize | ByTokens:
        """The training batches, planned once for these settings: `batch_tokens` auto is replaced by what was found."""
        settings = self.settings
        # Planned once: with a million items it takes seconds, and Lightning asks several times
        if self._planned is None or self._planned[0] is not settings:
            plan = self._plan(self.train, self._compared, self.shares, settings.batch_size, shuffle=True)
            self._planned = settings, plan
        return self._planned[1]

    def _plan(
        self,
        rated: RatedPairs,
        compared: Sequence[Sequence[ComparedPair]],
        shares: Sequence[float],
        size: int,
        *,
        shuffle: bool,
    ) -> FixedSize | ByTokens:
        """Batches of `size` items each; with `batch_tokens`, of as many as that leaves room for."""
        settings, rank, ranks = self.settings, self._rank, self._ranks
        if settings.batch_tokens is not None:
            assert isinstance(settings.batch_tokens, int)
            kinds = self._kinds(rated, compared, shares, shuffle=shuffle)
            return ByTokens(kinds, settings.batch_tokens, seed=self.seed, rank=rank, ranks=ranks)
        clusters = self._clusters(rated, shuffle)
        groups = row_groups(rated.pairs) if clusters is None else None
        blocks = None if groups is None else Blocks(groups, size, settings.num_workers)
        orders = [EpochOrder(len(rated), shuffle, self.seed, rank, ranks, blocks, clusters, run=size)]
        for number, items in enumerate(compared, start=1):
            orders.append(EpochOrder(len(items), shuffle, self.seed + number, rank, ranks))
        return FixedSize(orders, size, shares)

    def _kinds(
        self, rated: RatedPairs, compared: Sequence[Sequence[ComparedPair]], shares: Sequence[float], *, shuffle: bool
    ) -> list[Kind]:
        """Rated pairs and each kind of comparisons, with their lengths; a comparison is as long as its longer pair."""
        # Data-loader processes read row groups of their own; where each clip is a file, any process may read any
        by_row_groups = row_groups(self.train.pairs) is not None
        readers = self._ranks * (max(self.settings.num_workers, 1) if by_row_groups else 1)

        def streams(
            size: int, seed: int, blocks: Blocks | None = None, clusters: np.ndarray | None = None
        ) -> list[EpochOrder]:
            return [EpochOrder(size, shuffle, seed, n, readers, blocks, clusters, run=0) for n in range(readers)]

        groups, clusters, window = row_groups(rated.pairs), self._clusters(rated, shuffle), WINDOW
        if groups is not None:
            # No more items than a process has in the blocks that it keeps in memory
            window = min(WINDOW, max(1, WINDOW_BLOCKS * len(groups) // (int(groups.max(initial=0)) + 1)))
        blocks = None if groups is None or clusters is not None else Blocks(groups, mixed=False)
        orders = streams(len(rated), self.seed, blocks, clusters)
        kinds = [Kind(orders, self._lengths(rated.pairs), share=shares[0], window=window, clusters=clusters)]
        for number, (items, share) in enumerate(zip(compared, shares[1:], strict=True), start=1):
            both = ([item.chosen for item in items], [item.rejected for item in items])
            lengths = np.maximum(*map(self._lengths, both))
            kinds.append(Kind(streams(len(items), self.seed + number), lengths, rows=2, share=share))
        return kinds

    def _clusters(self, pairs: RatedPairs, shuffle: bool) -> np.ndarray | None:
        """Numbers of the groups whose items share batches; None without such groups."""
        if not shuffle or self.settings.batches == "items":
            return None
        return np.unique([pair.group_id for pair in pairs.pairs], return_inverse=True)[1]

    def _lengths(self, pairs: Sequence[Pair]) -> np.ndarray:
        if self._model is not None:
            judge = self._model.judge
        elif self._supposed is not None:
            judge = self._supposed[0]
        else:
            raise DataError("data.batch_tokens without a model, whose tokens they are; expected batch_size")
        return judge.count_tokens(pairs, self._seconds)

    @cached_property
    def _seconds(self) -> dict[AudioSource, float]:
        return clip_seconds(self.dataset)

    @property
    def _model(self) -> CollatingModel | None:
        model: Any = None if self.trainer is None else self.trainer.lightning_module
        return model

    @property
    def _rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def _ranks(self) -> int:
        if self.trainer is None:
            return 1 if self._supposed is None else self._supposed[1]
        return self.trainer.world_size

    def _loader(self, items: Dataset[Any], batches: EpochBatches) -> DataLoader:
        workers, trainer = self.settings.num_workers, self.trainer
        if workers:
            atexit.unregister(_end_readers)  # once is enough
            atexit.register(_end_readers)
        return DataLoader(
            items,
            batch_sampler=batches,
            collate_fn=list if self._model is None else self._model.collate,
            num_workers=workers,
            multiprocessing_context=_start_method() if workers else None,
            worker_init_fn=_begin_reading,
            persistent_workers=workers > 0,  # each imports and starts once, not in every epoch
            # where a GPU trains: to pin memory is to occupy one, which may be somebody else's
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
        )


def undecided(dimensions: Sequence[Dimension], rated: RatedPairs, preferences: Sequence[ComparedPair]) -> str | None:
    """What of a dimension is missing to choose a checkpoint by, among pairs and preferences between them; None =
    nothing."""
    for column, dimension in enumerate(dimensions):
        means = rated.scores[:, column]
        means = means[~means.isnan()]
        decided = any(item.strength[column] > 0 for item in preferences)
        if not decided and (len(means) < MIN_ITEMS or means.min() == means.max()):
            kinds = len(set(means.tolist()))
            return f"{dimension.name!r} has {len(means)} rated pairs with {kinds} different means"
    return None


def _begin_reading(_: int) -> None:
    """Ignore signals in a data worker: SLURM and torchrun send them to all processes, and the trainer decides."""
    listen(signal.SIG_IGN)
    end_with_parent()


def _end_readers() -> None:
    """At exit, those that hang in a read: Python itself sends SIGTERM, over which they pass, and waits for ever."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def _start_method() -> str:
    """Start method of data workers: the default, unless that is an unsafe fork."""
    method = multiprocessing.get_start_method()
    if sys.version_info >= _FORKS_SAFELY or method != "fork" or not _guarded():
        return method
    package = __name__.rpartition(".data_modules")[0]  # imported once, not by each process
    multiprocessing.set_forkserver_preload([f"{package}.core.quiet_process", f"{package}.train.collate"])
    return "forkserver"


def _guarded() -> bool:
    """Whether the main script may be imported again, as processes that are not forked do. A script without a main
    guard would start to train in each of them."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        return script is None or re.search("^if __name__ ==", Path(script).read_text("utf-8"), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _names(splits: list[str] | str) -> tuple[str, ...]:
    return (splits,) if isinstance(splits, str) else tuple(splits)
