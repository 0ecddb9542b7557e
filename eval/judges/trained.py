"""The trained judge, with the protocol that all judges share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...core.disk_store import DiskStore
from ...core.errors import AudioError
from ...core.processes import progress
from ...data_modules.schema import Pair
from ...models.weight_files import weights_hash
from ...scoring.calibration import Calibration, uncalibrated
from ...scoring.predictor import Predictor, load_to_score
from ...scoring.score_table import ABSTAINED, DISTRIBUTION, OK, WINDOWS
from ...scoring.scorer import Scorer
from ..measurement import Loading
from . import INTERVAL_COLUMNS, score_table


class TrainedJudge:
    """Implements `Judge` for a judge folder."""

    only_given: str | None = None

    def __init__(
        self, name: str, description: dict[str, Any], predictor: Predictor, calibration: Calibration | None = None
    ) -> None:
        """A judge with its name in reports, the content of its `judge.json`, and what is known of its errors."""
        self.name = name
        self.description = self.record = description
        self.scales = predictor.judge.dimensions
        self.dimensions = tuple(dimension.name for dimension in self.scales)
        self._predictor, self._calibration = predictor, calibration
        dimensions = {} if calibration is None else calibration.dimensions
        self.three_way = {
            name: dimension.three_way for name, dimension in dimensions.items() if dimension.three_way is not None
        }
        weights = weights_hash(predictor.judge) if calibration is None else calibration.weights
        recorded = description["backbone_fingerprint"], description.get("calibration")
        # What scores depend on, for signatures of reports; the depth of the backbone is in its fingerprint
        settings = predictor.judge.settings
        norm = () if settings.depth_norm else ("without the norm behind the last layer",)
        self.identity = [weights, *recorded, settings.quantization, predictor.long_clips, *norm]

    @classmethod
    def load(cls, folder: Path, how: Loading | None = None):
        """Read a judge folder, a run folder or a checkpoint; see `load_to_score` for errors."""
        how = how or Loading()
        loaded = load_to_score(folder, how.backbone, how.device, how.quantization)
        store = None if how.cache is None else DiskStore(Path(how.cache))
        predictor = Predictor(loaded.judge, store=store, windows=how.windows)
        return cls(folder.resolve().name, loaded.description, predictor, loaded.calibration)

    @classmethod
    def of_scorer(cls, scorer: Scorer):
        """The judge of a `Scorer`, on its device."""
        return cls(Path(scorer.name).resolve().name, scorer.description, scorer.predictor, scorer.calibration)

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """One row per pair and dimension; a pair whose audio cannot be used has no score and says why in `status`.

        A calibrated judge states the standard error of its scores as their uncertainty, and intervals of all levels.
        """
        results = progress(self._predictor.run(pairs), "scoring", len(pairs))
        nothing = np.full(len(self.dimensions), np.nan, dtype=np.float32)
        scores, deviations, statuses, windows, metas = [], [], [], [], []
        for result in results:
            outcome = result.outcome
            failed = isinstance(outcome, AudioError)
            scores.append(nothing if failed else outcome.score.numpy())
            deviations.append(nothing if failed or outcome.deviation is None else outcome.deviation.numpy())
            statuses.append(str(outcome) if failed else OK)
            windows.append(result.windows)
            levels = None if failed else outcome.levels(self.scales)
            metas.append({} if levels is None else {DISTRIBUTION: levels})
        shape = len(pairs), len(self.dimensions)
        score, deviation = np.reshape(scores, shape), np.reshape(deviations, shape)
        prediction, columns = uncalibrated(score), dict[str, np.ndarray]()
        if (calibration := self._calibration) is not None:
            for level, (low, high) in INTERVAL_COLUMNS.items():
                prediction = calibration.apply(score, deviation, self.scales, level)
                columns |= {low: prediction.low.ravel(), high: prediction.high.ravel()}
            if calibration.abstains:
                columns[ABSTAINED] = prediction.abstained.ravel()
        table = score_table(pairs, self.dimensions, prediction.score, prediction.standard_error, statuses, metas)
        return table.assign(**columns, **{WINDOWS: np.repeat(windows, len(self.dimensions))})
