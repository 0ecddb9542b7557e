"""Judges that keep the others honest: they know little of how a response fits its context, and anybody can have them.

`acoustic` hears delivery through a documented list of measures, `probe` through a frozen backbone, `text` reads the
words, `quality` hears the recording, those of `simple` hear nothing. `regression` fits `acoustic` and `text`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....data_modules.errors import UserError
from ....data_modules.schema import PairDataset
from ...judge_names import FITTED
from .. import Judge
from .simple import ConstantJudge, RandomJudge


def check_apart(spec: str, learn_from: Sequence[str], split: str | None) -> None:
    """Refuses (`UserError`) a judge that would be measured on a split (None = all pairs) that it is fitted on."""
    if split is None or split in learn_from:
        raise UserError(
            f"judge {spec}: it is fitted on split {', '.join(learn_from)} and would be measured on it; name "
            "another with --split"
        )


def open_baseline(spec: str, dataset: PairDataset, learn_from: Sequence[str], split: str | None, seed: int) -> Judge:
    """The judge that a spec names.

    Args:
        spec: One of `judge_names.BASELINES`.
        dataset: Its dimensions are scored.
        learn_from: The splits that a judge may be fitted on.
        split: The one that it will be measured on; None = all pairs.
        seed: Of folds, boosting and draws.

    Raises:
        UserError: If it would be measured on pairs that it is fitted on, a package is missing, or the pairs do not do.
    """
    if spec in FITTED:
        check_apart(spec, learn_from, split)
    if spec == "random":
        return RandomJudge(dataset.card.dimensions, seed)
    if spec == "quality":
        from .quality import QualityJudge

        return QualityJudge(dataset.card.dimensions)
    learned = dataset.subset(learn_from)
    if spec == "constant":
        return ConstantJudge.fitted_to(learned)
    if spec == "text":
        from .text import TextJudge

        return TextJudge.fitted_to(learned, seed)
    from .acoustic import OURS, AcousticJudge, egemaps

    return AcousticJudge.fitted_to(learned, OURS if spec == "acoustic" else egemaps(), spec, seed)
