"""What every head makes of a pooled vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """Scores with what the head knows beside them, float32.

    Attributes:
        score: Rating points inside the scale `(batch, dimensions)`.
        deviation: Standard deviation around the score in rating points `(batch, dimensions)`, above 0: of the target (a
            Gaussian head) or of what single raters would say (heads over the steps of a scale). As the head has it;
            `models.calibration` makes it a standard error that held on held-out ratings. None where a head has none.
        log_probabilities: Of each step of the scale, the lowest first `(batch, dimensions, steps)`; of steps that only
            a longer scale has, the lowest finite number. None where a head predicts no distribution.
        thresholds: Logits of an ordinal head `(batch, dimensions, steps - 1)`: of a rating above each step, as the head
            defines them.
    """

    score: Tensor
    deviation: Tensor | None = None
    log_probabilities: Tensor | None = None
    thresholds: Tensor | None = None
