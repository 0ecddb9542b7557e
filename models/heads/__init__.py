"""From a pooled vector to scores on the rating scale: every head takes `(batch, hidden)` and gives a `Prediction`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

from ...data_modules.schema import Dimension
from .gaussian import GaussianHead
from .histogram import HistogramHead
from .ordinal import CoralHead, CornHead
from .regression import RegressionHead

HeadName = Literal["regression", "gaussian", "coral", "corn", "histogram"]
Head = RegressionHead | GaussianHead | CoralHead | CornHead | HistogramHead


def build_head(name: HeadName, hidden_size: int, dimensions: Sequence[Dimension]) -> Head:
    """A fresh head.

    Raises:
        UserError: If it does not fit the scales.
    """
    match name:
        case "regression":
            return RegressionHead(hidden_size, dimensions)
        case "gaussian":
            return GaussianHead(hidden_size, dimensions)
        case "coral":
            return CoralHead(hidden_size, dimensions)
        case "corn":
            return CornHead(hidden_size, dimensions)
        case "histogram":
            return HistogramHead(hidden_size, dimensions)
        case _:
            assert_never(name)
