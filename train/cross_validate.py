"""Cross-validation over groups, the choice between probe and LoRA (method auto), and the refit on all pairs.

Whatever is chosen here is chosen by scores of pairs that a judge was not trained on (`left_out.py`). Each run has a
folder of its own, METHOD/foldN, and one that is finished is not trained again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback

from ..core.processes import say
from ..core.written import write_files
from ..data_modules.datamodule import RunPairs
from ..data_modules.schema import Pair, PairDataset
from ..models import BEST, CALIBRATION_FILE, CHECKPOINTS, CONFIG_FILE
from ..models.closed_form import EXACT, LANDMARKS
from ..models.heads import Prediction
from ..models.weight_files import read_checkpoint
from ..scoring.artifact import read_settings
from ..scoring.ensemble import write_ensemble
from .features import temporary_folder
from .left_out import (
    AllPairs,
    can_decide,
    check_folds,
    check_free,
    is_ahead,
    print_agreement,
    read_scores,
    score_pairs,
    write_scores,
)
from .lora import refit_lora, train_lora
from .probe import refit_probe, train_probe
from .recipe import RecipeParser, name_part
from .run_folder import ENSEMBLE, LEFT_OUT, LORA, PROBE, check_same_data, check_same_settings, run_folder
from .settings import Recipe
from .trainer import own_log

_ELSEWHERE = (
    "run", "resume", "method", "refit", "checkpoint_steps", "gradient_checkpointing",
    "compile_layers", "expected_trainable", "cache", "data.path", "data.num_workers", "data.eval_batch_size",
    "judge.attention", *(f"trainer.{name}" for name in (
        "accelerator", "strategy", "devices", "num_nodes", "logger", "log_every_n_steps", "enable_progress_bar")),
)  # fmt: skip
"""Settings that a finished part need not share: where and how it runs, and what else is tried."""
_NOT_OF_A_PROBE = (
    "judge.lora", "objective", "optimizer", "trainer", "patience", "data.batch_size", "data.batch_tokens",
    "data.batches",
)  # fmt: skip
"""Settings that a finished probe need not share either: it does not use them."""


def cross_validate(
    recipe: Recipe, parser: RecipeParser, values: Namespace, given: PairDataset | None, watching: Sequence[Callback]
) -> None:
    """Train a judge for each fold, choose the method where it is `auto`, and leave the final judge in the folder.

    Args:
        recipe: With `folds`, method auto, or `refit` and method lora.
        parser: Makes the recipes of single runs.
        values: What the recipe was made of.
        given: A dataset in memory, which must equal what is read.
        watching: Further callbacks of Lightning.

    Raises:
        UserError: If the recipe does not fit the data, runs that are finished are of another, or as `train`.
    """
    folder, text = run_folder(recipe), parser.text(values)
    pairs = AllPairs.of(recipe)
    check_folds(recipe, pairs)
    check_free(recipe, folder)
    _check_finished(recipe, folder, pairs, text)
    write_files("train", folder, {CONFIG_FILE: text.encode()})

    with _shared_cache(recipe, folder) as cache:
        changes = {"refit": False, "folds": 0, "resume": "auto" if recipe.resume else False, **cache}
        runs = _Runs(recipe, folder, parser, values, changes, pairs, given, watching)

        # Each method is tried on the same pairs. The probe is quick, so it comes first: mistakes in the data show
        # before adapters are trained
        chosen = _tried(runs, PROBE if recipe.method == "auto" else recipe.method)
        if recipe.method == "auto" and can_decide(pairs, chosen.scores):
            adapted = _tried(runs, LORA)
            if adapted.epochs == 0:  # it is the probe, in another form
                say(f"auto: {PROBE}: adapters agreed best with people before their first epoch")
            elif is_ahead(pairs, adapted.scores, chosen.scores, recipe.seed):
                chosen = adapted

        if recipe.folds or recipe.refit:
            # What was chosen is trained once more, on all pairs. None is left to measure it by: the scores above do it
            final, _ = runs.changed(chosen.method)
            if chosen.method == LORA:
                refit_lora(final, text, pairs.ids, chosen.scores, chosen.epochs, chosen.start, given, watching)
            else:
                # Without folds the probe has scored the validation split alone. Regressions are cheap: some more
                # score all pairs
                scores = chosen.scores if recipe.folds else None
                refit_probe(final, text, pairs.ids, scores, given, watching, one_process=True)
        else:  # the chosen run becomes the run itself
            shutil.copytree(folder / chosen.method / CHECKPOINTS, folder / CHECKPOINTS, dirs_exist_ok=True)
            if (folder / chosen.method / CALIBRATION_FILE).is_file():
                shutil.copy(folder / chosen.method / CALIBRATION_FILE, folder / CALIBRATION_FILE)

    if recipe.folds:
        write_scores(folder / LEFT_OUT, chosen.scores, pairs.dimensions)
        print_agreement(pairs, chosen.scores, recipe.seed)
        folds = [folder / chosen.method / fold.name for fold in _folds(recipe, pairs, chosen.method)]
        _put_together(folds, folder / ENSEMBLE)


@dataclass(frozen=True)
class _Runs:
    """State that all runs of a cross-validation share."""

    recipe: Recipe  # the whole
    folder: Path  # theirs lie below it
    parser: RecipeParser
    values: Namespace  # what the recipe was made of
    changes: Mapping[str, Any]  # settings that differ from it in every run
    pairs: AllPairs
    given: PairDataset | None
    watching: Sequence[Callback]

    def changed(self, method: str, **more: Any) -> tuple[Recipe, str]:
        """The recipe of one run, and its text."""
        values = self.values.clone()
        for name, value in {**self.changes, "method": method, **more}.items():
            values[name] = value
        part = Path(values.run).relative_to(self.folder).as_posix()
        name_part(values, self.folder.absolute().name, "" if part == "." else part)
        return self.parser.recipe(values), self.parser.text(values)


# ---------------------------------------------------------------- before anything is trained


def _check_finished(recipe: Recipe, folder: Path, pairs: AllPairs, text: str) -> None:
    """Check that recipe (as YAML) and data are those of the runs that are finished: they are not trained again."""
    finished = {file.parent: method for method in (PROBE, LORA) for file in (folder / method).rglob(LEFT_OUT)}
    if finished:
        # While only probes are finished, settings of adapters may still change
        unused = _NOT_OF_A_PROBE if LORA not in finished.values() else ()
        check_same_settings(folder, text, [""], [*_ELSEWHERE, *unused])
    for part in sorted(finished):
        origin = read_checkpoint(part / CHECKPOINTS / BEST)["description"]["provenance"]
        check_same_data(part, origin, pairs.hashes, recipe.data.path)


@contextmanager
def _shared_cache(recipe: Recipe, folder: Path) -> Iterator[Mapping[str, Any]]:
    """Settings by which all runs share one cache of the activations of frozen layers."""
    if recipe.cache.what == "none" or recipe.cache.folder is not None:
        yield {}
    else:
        with temporary_folder(folder, 0) as cache:
            yield {"cache.folder": str(cache)}


# ---------------------------------------------------------------- a method, tried on pairs that are left out


@dataclass(frozen=True)
class _Fold:
    """One of the runs of a method, or the only one."""

    name: str  # name of its folder
    parts: RunPairs | None  # what it trains on; None = as the splits say
    left_out: Sequence[Pair]  # pairs that it is not trained on
    least_landmarks: int | None  # of a kernel


@dataclass(frozen=True)
class _Tried:
    """The result of a method."""

    method: str
    scores: Mapping[str, Prediction]  # pair -> prediction of a judge that was not trained on it
    epochs: float  # epochs that the best checkpoint was trained for; the median of the folds
    start: dict[str, dict[str, float | None]]  # `Provenance.start`; the mean of the folds, without interval


def _folds(recipe: Recipe, pairs: AllPairs, method: str) -> Iterator[_Fold]:
    """The runs of a method. A probe's left-out fold chooses nothing; adapters leave out one more, to choose by."""
    if not recipe.folds:
        yield _Fold("", None, pairs.of_validation, None)
        return
    folds = pairs.folds(recipe)
    # the same for all folds although they differ in their number of pairs
    smallest = len(pairs.pairs) - max(map(len, folds))
    landmarks = LANDMARKS if smallest > EXACT else min(len(pairs.pairs), EXACT)
    for number, fold in enumerate(folds):
        choosing = fold if method == PROBE else folds[(number + 1) % len(folds)]
        left_out = [pair for pair in pairs.pairs if pair.pair_id in fold]
        yield _Fold(f"fold{number + 1}", RunPairs(pairs.ids - fold - choosing, choosing), left_out, landmarks)


def _tried(runs: _Runs, method: str) -> _Tried:
    """Train the runs that are not finished yet, and score the pairs that each run has left out."""
    scores: dict[str, Prediction] = {}
    epochs: list[float] = []
    starts: list[dict[str, dict[str, float | None]]] = []
    train, dimensions = train_probe if method == PROBE else train_lora, runs.pairs.dimensions
    for fold in _folds(runs.recipe, runs.pairs, method):
        folder = runs.folder / method / fold.name
        file = folder / LEFT_OUT
        if not file.is_file():
            if fold.name:
                say(f"{method}: {fold.name} of {runs.recipe.folds}")
            recipe, text = runs.changed(method, run=str(folder))
            with own_log():
                validated = train(
                    recipe, text, runs.given, runs.watching, parts=fold.parts, least_landmarks=fold.least_landmarks,
                    one_process=True,
                )  # fmt: skip
            # Without folds the pairs left out are those of the validation split, which are scored already
            found = score_pairs(recipe, folder, fold.left_out) if runs.recipe.folds else validated
            write_scores(file, found, dimensions)
        # read in any case: a run that goes on has the numbers of one that was not interrupted
        scores |= read_scores(file, fold.left_out, dimensions)
        best = read_checkpoint(folder / CHECKPOINTS / BEST)
        epochs.append(best["epochs"])
        starts.append(best["description"]["provenance"]["start"])
    start = starts[0] if len(starts) == 1 else _mean_start(starts)
    return _Tried(method, scores, float(np.median(epochs)), start)


def _mean_start(starts: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """Mean over folds of where the judges began and what training added, for dimensions that every fold measured."""
    means: dict[str, dict[str, float | None]] = {}
    for name in starts[0]:
        values = [(start[name]["probe"], start[name]["added"]) for start in starts if name in start]
        measured = [(probe, added) for probe, added in values if probe is not None and added is not None]
        if len(measured) == len(starts):
            probe, added = np.mean(measured, axis=0).tolist()
            means[name] = {"probe": probe, "added": added, "low": None, "high": None}
    return means


# ---------------------------------------------------------------- the judges of the folds


def _put_together(folders: Sequence[Path], out: Path) -> None:
    """Write an ensemble of the folds' judges that have the most common kernel: each fold chooses its own."""
    if out.exists():
        return
    kinds = [read_settings(folder).head_input for folder in folders]
    common, count = Counter(kinds).most_common(1)[0]
    others = [folder.name for folder, kind in zip(folders, kinds, strict=True) if kind != common]
    # An ensemble needs heads of one shape, and one judge is none
    if count > 1:
        write_ensemble([folder for folder, kind in zip(folders, kinds, strict=True) if kind == common], out)
    if others:
        word = "without" if count > 1 else "none, of"
        say(f"ensemble: {word} {', '.join(others)}, which chose another kernel")
