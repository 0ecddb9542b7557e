"""What one run of several is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..data_modules.datamodule import Parts
from ..models.heads import Prediction


@dataclass(frozen=True)
class Task:
    """Of a run; by default it is the only one.

    Attributes:
        parts: Which pairs it trains on and validates on; None = those of its splits.
        refit: It trains on all that there is. Nothing is left to choose or to measure by.
        scores: Pair -> what a judge that was not trained on it says; the refit judge is calibrated with it. None = a
            probe fits itself once more to all but a fold of the groups, for each fold.
        epochs: For which the refit trains; None = a probe, which does not.
        landmarks: How many a kernel shall have at least, so that judges of several folds make an ensemble.
        one_process: Other runs follow, so that it cannot be spread over processes.
    """

    parts: Parts | None = None
    refit: bool = False
    scores: Mapping[str, Prediction] | None = None
    epochs: float | None = None
    landmarks: int | None = None
    one_process: bool = False
