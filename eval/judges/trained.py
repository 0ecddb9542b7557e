"""The trained judge, behind the protocol that all judges share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from ...data_modules.errors import AudioError, UserError
from ...data_modules.schema import DatasetCard, Pair
from ...models.artifact import LoadedJudge, Placement, load_any
from ...models.backbones.common.base import Quantization
from ...models.scoring import SPREAD, PairScorer, placed
from . import OK, score_table


class TrainedJudge:
    """Implements `Judge` for a judge folder."""

    def __init__(self, loaded: LoadedJudge, name: str, device: str | None = None, batch_size: int = 16) -> None:
        """Put a loaded judge on a device.

        Args:
            loaded: From `load_judge`.
            name: How reports call it.
            device: "cpu", "cuda", ..., "auto" if it was spread; None = a GPU if there is one.
            batch_size: Pairs per forward pass.
        """
        self.name = name
        self.description = loaded.description
        self.dimensions = tuple(dimension.name for dimension in loaded.judge.dimensions)
        self.scales = loaded.judge.dimensions
        self._scorer = PairScorer(placed(loaded, device), batch_size)

    @classmethod
    def load(
        cls,
        folder: Path,
        backbone: str | None = None,
        device: str | None = None,
        quantization: Quantization | None = None,
        batch_size: int = 16,
    ):
        """Read a judge folder, a run folder or a checkpoint; see `load_any` for errors."""
        loaded = load_any(folder, Placement(backbone, quantization, device == SPREAD))
        return cls(loaded, folder.resolve().name, device, batch_size)

    def check_scales(self, card: DatasetCard) -> None:
        """The dataset rates the judge's dimensions on the scales that the judge was trained on.

        Raises:
            UserError: If one differs: scores and ratings would not be in the same points.
        """
        rated = {dimension.name: dimension for dimension in card.dimensions}
        for own in self.scales:
            other = rated.get(own.name, own)
            if (own.minimum, own.maximum, own.higher_is_better) != (
                other.minimum,
                other.maximum,
                other.higher_is_better,
            ):
                raise UserError(
                    f"judge {self.name}: trained on {own.name} from {own.minimum:g} to {own.maximum:g}, but dataset "
                    f"{card.name} rates it from {other.minimum:g} to {other.maximum:g}; accepted: the same scale"
                )

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """One row per pair and dimension; a pair whose audio cannot be used has no score and says why in `status`."""
        console = Console(stderr=True)
        scored = track(
            self._scorer.score(pairs),
            "scoring",
            total=len(pairs),
            console=console,
            disable=not console.is_terminal,
        )
        scores, statuses = [], []
        for _, outcome in scored:
            failed = isinstance(outcome, AudioError)
            scores.append([float("nan")] * len(self.dimensions) if failed else outcome.tolist())
            statuses.append(str(outcome) if failed else OK)
        return score_table(pairs, self.dimensions, np.reshape(scores, (len(pairs), -1)), statuses=statuses)
