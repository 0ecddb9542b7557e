"""The trained judge, behind the protocol that all judges share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from ...data_modules.errors import AudioError
from ...data_modules.schema import DatasetCard, Pair
from ...models.artifact import LoadedJudge, Placement, load_any
from ...models.backbones.base import Quantization
from ...models.calibration import uncalibrated
from ...models.feature_cache import DiskStore
from ...models.scoring import SPREAD, PairScorer, check_scales, placed
from ...models.weight_files import weights_hash
from . import ABSTAINED, INTERVAL_COLUMNS, OK, WINDOWS, score_table


class TrainedJudge:
    """Implements `Judge` for a judge folder."""

    only_given: str | None = None

    def __init__(
        self,
        loaded: LoadedJudge,
        name: str,
        device: str | None = None,
        cache: Path | None = None,
        windows: bool = True,
    ) -> None:
        """Put a loaded judge on a device.

        Args:
            loaded: From `load_judge`.
            name: How reports call it.
            device: "cpu", "cuda", ..., "auto" if it was spread; None = a GPU if there is one.
            cache: Folder for audio states, see `Scorer.from_pretrained`.
            windows: Long clips are heard in windows, see there.
        """
        self.name = name
        self.description = loaded.description
        weights = weights_hash(loaded.judge) if loaded.calibration is None else loaded.calibration.weights
        calibrated, backbone = loaded.description.get("calibration"), loaded.description["backbone_fingerprint"]
        identity = [weights, backbone, loaded.judge.settings.quantization, calibrated, windows]
        self.record = {**loaded.description, "identity": identity}
        self.dimensions = tuple(dimension.name for dimension in loaded.judge.dimensions)
        self.scales = loaded.judge.dimensions
        store = None if cache is None else DiskStore(cache)
        self._scorer = PairScorer(placed(loaded, device), calibration=loaded.calibration, store=store, windows=windows)

    @classmethod
    def load(
        cls,
        folder: Path,
        backbone: str | None = None,
        device: str | None = None,
        quantization: Quantization | None = None,
        cache: Path | None = None,
        windows: bool = True,
    ):
        """Read a judge folder, a run folder or a checkpoint; see `load_any` for errors."""
        loaded = load_any(folder, Placement(backbone, quantization, device == SPREAD))
        return cls(loaded, folder.resolve().name, device, cache, windows)

    def check_scales(self, card: DatasetCard) -> None:
        """The dataset rates the judge's dimensions on the scales that the judge was trained on.

        Raises:
            UserError: If one differs: scores and ratings would not be in the same points.
        """
        check_scales(self.name, self.scales, card)

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """One row per pair and dimension; a pair whose audio cannot be used has no score and says why in `status`.

        A calibrated judge states the standard error of its scores as their uncertainty, and intervals of all levels.
        """
        console = Console(stderr=True)
        heard = track(
            self._scorer.run(pairs),
            "scoring",
            total=len(pairs),
            console=console,
            disable=not console.is_terminal,
        )
        nothing = np.full(len(self.dimensions), np.nan, dtype=np.float32)
        scores, deviations, statuses, windows = [], [], [], []
        for own in heard:
            found = own.outcome
            failed = isinstance(found, AudioError)
            scores.append(nothing if failed else found.score.numpy())
            deviations.append(nothing if failed or found.deviation is None else found.deviation.numpy())
            statuses.append(str(found) if failed else OK)
            windows.append(own.windows)
        shape = len(pairs), len(self.dimensions)
        table = self._table(pairs, np.reshape(scores, shape), np.reshape(deviations, shape), statuses)
        return table.assign(**{WINDOWS: np.repeat(windows, len(self.dimensions))})

    def _table(
        self, pairs: Sequence[Pair], score: np.ndarray, deviation: np.ndarray, statuses: Sequence[str]
    ) -> pd.DataFrame:
        """From what the head predicts, arrays `(pairs, dimensions)`."""
        if self._scorer.calibration is None:
            return score_table(pairs, self.dimensions, score, statuses=statuses)
        columns: dict[str, np.ndarray] = {}
        found = uncalibrated(score)
        for level, (low, high) in INTERVAL_COLUMNS.items():
            found = self._scorer.calibration.apply(score, deviation, self.scales, level)
            columns |= {low: found.low.ravel(), high: found.high.ravel()}
        if self._scorer.calibration.abstains:
            columns[ABSTAINED] = found.abstained.ravel()
        table = score_table(pairs, self.dimensions, found.score, found.standard_error, statuses)
        return table.assign(**columns)
