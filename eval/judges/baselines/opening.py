"""From a spec such as ``acoustic:egemaps`` to a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ....data_modules.errors import UserError
from ....data_modules.schema import PairDataset
from .. import Judge
from ..constant import ConstantJudge
from .random_scores import RandomJudge

FITTED = ("acoustic", "acoustic:egemaps", "text")
"""Specs of judges that are fitted on pairs and must not be measured on these."""
BASELINES = (*FITTED, "quality", "random", "constant")


class Baseline(Judge, Protocol):
    """A judge that says what it is.

    Attributes:
        record: For reports; fits strict JSON.
    """

    record: Mapping[str, Any]


def open_baseline(spec: str, dataset: PairDataset, learn_from: Sequence[str], split: str | None, seed: int) -> Baseline:
    """The judge that a spec names.

    Args:
        spec: One of `BASELINES`.
        dataset: Its dimensions are scored.
        learn_from: The splits that a judge may be fitted on.
        split: The one that it will be measured on; None = all pairs.
        seed: Of folds, boosting and draws.

    Raises:
        UserError: If it would be measured on pairs that it is fitted on, a package is missing, or the pairs do not do.
    """
    if spec in FITTED and (split is None or split in learn_from):
        raise UserError(
            f"judge {spec}: it is fitted on split {', '.join(learn_from)} and would be measured on it; accepted: "
            "--split NAME of another"
        )
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
    from .acoustic import OURS, AcousticJudge

    if spec == "acoustic":
        return AcousticJudge.fitted_to(learned, OURS, spec, seed)
    from .egemaps import egemaps

    return AcousticJudge.fitted_to(learned, egemaps(), spec, seed)
