"""Opens judges from what a user gives: a folder, a name, a `Scorer` or an object of their own.

Raters of the dataset may be judges, too: no judge is then compared with their ratings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import UserError
from ...data_modules.schema import Pair, PairDataset
from ...data_modules.unchanged import check_unchanged
from ...scoring.predictor import check_scales
from ...scoring.scorer import Scorer
from ..checks import Check, choose
from ..judge_names import BASELINES, HUMAN, PROBE, SCORES, is_prompted, require_judges
from ..measurement import Asking
from . import Judge
from .baselines.probe import open_probe
from .baselines.simple import ConstantJudge, HumanJudge, RandomJudge, without_raters
from .prompted.factory import open_prompted
from .scores_file import ScoresFile
from .trained import TrainedJudge

if TYPE_CHECKING:
    from .prompted.judges import PromptedJudge

AnyJudge = str | Path | Judge | Scorer
"""Folder of a judge or a run; a name (``VENDOR:MODEL`` with one of `judge_names.PROVIDERS`, ``scores:FILE``,
``probe:JUDGE_OR_BACKBONE``, ``human:RATER`` or one of `judge_names.BASELINES`); a `Scorer`; or any object that is a
`Judge`."""


@dataclass(frozen=True)
class Opened:
    """Opened judges, and the dataset they are measured on."""

    dataset: PairDataset  # without the ratings of raters who are judges
    judges: list[Judge]  # in the order given
    provenances: list[Mapping[str, Any] | None]  # what is known of each


def open_judges(
    judges: Sequence[AnyJudge],
    data: str | Path | PairDataset,
    how: Asking,
    checks: Sequence[str] | Literal["all"] | None = None,
    dry_run: bool = False,
) -> Opened:
    """Loads judges for the pairs of a split.

    Where raters of the dataset are judges, their ratings are removed for all judges, so that all are compared with the
    same people. This is printed to standard error. So is what prompted judges would send and what it would cost, before
    anything is sent.

    Args:
        judges: Judges of any kind.
        data: Folder of a pair dataset, its address, or a dataset.
        how: The split that they are measured on, and not fitted to; how they are loaded; what prompted ones may spend.
        checks: Listening checks that were asked for by name; None = none were.
        dry_run: Print a request of each prompted judge, too, and do not ask for a budget.

    Raises:
        UserError: If there is no such judge, it cannot be loaded, or it does not fit the data.
        DataError: If the dataset cannot be read, or its audio is not what was imported.
    """
    split = how.split
    require_judges((str(judge) for judge in judges if isinstance(judge, str | Path)), how.backbone)
    dataset = data if isinstance(data, PairDataset) else PairDataset.load(data)
    check_unchanged(dataset)
    # A rater who is a judge must not be among the people whom it is compared with
    raters = [judge.removeprefix(HUMAN) for judge in judges if isinstance(judge, str) and judge.startswith(HUMAN)]
    people = {HUMAN + rater: HumanJudge(dataset, rater) for rater in raters}
    if people:
        dataset = without_raters(dataset, raters)
        print(f"judges are compared with the other raters: without {', '.join(people)}", file=sys.stderr)
    # Splits that a judge may be fitted on: train, or where there are folds, all but the measured one
    splits = sorted({pair.split for pair in dataset.pairs if pair.split is not None} - {split})
    learn_from = splits if splits and "train" not in splits else ["train"]

    def opened(judge: AnyJudge) -> Judge:
        if isinstance(judge, str) and judge in people:
            return people[judge]
        if isinstance(judge, Scorer):
            loaded: Any = TrainedJudge.of_scorer(judge)
        elif not isinstance(judge, str | Path):
            loaded = judge
        elif is_prompted(str(judge)):
            loaded = open_prompted(str(judge), dataset, learn_from, how, checks is not None, dry_run)
            _disclose(loaded, dataset.subset(split).pairs, () if checks is None else choose(checks), dry_run)
        else:
            loaded = _named(str(judge), dataset, learn_from, how)
        if isinstance(loaded, TrainedJudge):
            check_scales(loaded.name, loaded.scales, dataset.card)
            _warn_of_known_pairs(loaded.description, dataset, split)
        if not callable(getattr(loaded, "score", None)):
            raise UserError(
                f"judge of type {type(loaded).__name__}; expected a folder, a name, a Scorer, or an object with the "
                "attributes of a Judge"
            )
        return loaded

    all_opened = [opened(judge) for judge in judges]
    # Without a word it would look as if there were no dry run of these
    if dry_run and not any(is_prompted(str(judge)) for judge in judges):
        print("no judge here asks a service: nothing would be sent", file=sys.stderr)
    # Judges of users may have no record
    provenances = [getattr(judge, "record", None) for judge in all_opened]
    if raters:
        provenances = [{**(record or {}), "raters_left_out": raters} for record in provenances]
    return Opened(dataset, all_opened, provenances)


def _named(spec: str, dataset: PairDataset, learn_from: Sequence[str], how: Asking) -> Judge:
    """A judge that is not prompted, by its name or folder."""
    split, seed = how.split, how.seed
    if spec.startswith(SCORES):
        return ScoresFile(Path(spec.removeprefix(SCORES)), [pair.pair_id for pair in dataset.pairs])
    if spec == "random":
        return RandomJudge(dataset.card.dimensions, seed)
    if not (spec in BASELINES or spec.startswith(PROBE)):
        return TrainedJudge.load(Path(spec), how)
    # The constant may be fitted to the measured pairs: it has no correlation, and its error there is the least possible
    if spec != "constant" and (split is None or split in learn_from):
        raise UserError(
            f"judge {spec}: it is fitted on split {', '.join(learn_from)} and would be measured on it; name "
            "another with --split"
        )
    training = dataset.subset(learn_from)
    if spec.startswith(PROBE):
        return open_probe(spec, training, seed, how)
    if spec == "constant":
        return ConstantJudge.fitted_to(training)
    # These two load parts of scikit-learn that no other judge needs
    if spec == "text":
        from .baselines.regression import TextJudge

        return TextJudge(training, seed)
    from .baselines.acoustic import OURS, AcousticJudge, egemaps

    return AcousticJudge(training, OURS if spec == "acoustic" else egemaps(), spec, seed)


def _disclose(judge: PromptedJudge, pairs: Sequence[Pair], checks: Sequence[Check], dry_run: bool) -> None:
    """Prints what a prompted judge would send and its cost; with a dry run also a request, else checks the budget."""
    from .prompted.costs import check_budget, disclosure, example_request, planned

    plan = planned(judge, pairs)
    print(disclosure(judge, plan, 1 + len(checks)), file=sys.stderr)
    if dry_run:
        print(example_request(judge, plan))
    else:
        check_budget(judge, plan, 1 + len(checks))


def _warn_of_known_pairs(description: Mapping[str, Any], dataset: PairDataset, split: str | None) -> None:
    """Warns on standard error if a judge is measured on pairs that it was trained or chosen on."""
    here = (dataset.card.content_hash, dataset.split_hash())
    warnings: dict[str, None] = {}
    for origin in description.get("member_provenance", [description["provenance"]]):
        if (origin["content_hash"], origin["split_hash"]) == here:
            for use, splits in (("trained", origin.get("train_splits")), ("chosen", origin.get("validation_splits"))):
                if splits and (split is None or split in splits):
                    name = "all" if split is None else split
                    warnings[f"warning: split {name}: this judge was {use} on {', '.join(splits)}"] = None
    for warning in warnings:
        print(warning, file=sys.stderr)
