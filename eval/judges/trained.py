"""The trained judge, behind the protocol that all judges share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd

from ...data_modules.errors import AudioError
from ...data_modules.parallel import progress
from ...data_modules.schema import Pair
from ...models.calibration import uncalibrated
from ...models.feature_cache import DiskStore
from ...models.scoring import PairScorer, load_to_score
from ...models.settings import Quantization
from ...models.weight_files import weights_hash
from ...scorer import Scorer
from . import ABSTAINED, INTERVAL_COLUMNS, OK, WINDOWS, score_table


class Placing(TypedDict, total=False):
    """Where and how a backbone is loaded; see `Scorer.from_pretrained`."""

    device: str | None
    backbone: str | None
    quantization: Quantization | None
    cache: str | Path | None
    windows: bool


class TrainedJudge:
    """Implements `Judge` for a judge folder."""

    only_given: str | None = None

    def __init__(self, name: str, description: dict[str, Any], scorer: PairScorer) -> None:
        """Take a judge at work.

        Args:
            name: How reports call it.
            description: What `judge.json` says.
            scorer: Scores pairs.
        """
        self.name = name
        self.description = self.record = description
        self.scales = scorer.judge.dimensions
        self.dimensions = tuple(dimension.name for dimension in self.scales)
        self._scorer = scorer
        calibration = scorer.calibration
        known = {} if calibration is None else calibration.dimensions
        self.three_way = {name: own.three_way for name, own in known.items() if own.three_way is not None}
        weights = weights_hash(scorer.judge) if calibration is None else calibration.weights
        said = description["backbone_fingerprint"], description.get("calibration")
        settings = scorer.judge.settings  # its depth is in the fingerprint
        norm = () if settings.depth_norm else ("without the norm behind the last layer",)
        self.identity = [weights, *said, settings.quantization, scorer.long_clips, *norm]

    @classmethod
    def load(cls, folder: Path, **placing: Unpack[Placing]):
        """Read a judge folder, a run folder or a checkpoint; see `load_to_score` for errors."""
        loaded = load_to_score(folder, placing.get("backbone"), placing.get("device"), placing.get("quantization"))
        store = None if (cache := placing.get("cache")) is None else DiskStore(Path(cache))
        windows = placing.get("windows", True)
        scorer = PairScorer(loaded.judge, calibration=loaded.calibration, store=store, windows=windows)
        return cls(folder.resolve().name, loaded.description, scorer)

    @classmethod
    def of_scorer(cls, scorer: Scorer):
        """The judge of a `Scorer`, where it is."""
        return cls(Path(scorer.name).resolve().name, scorer.description, scorer.pair_scorer)

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """One row per pair and dimension; a pair whose audio cannot be used has no score and says why in `status`.

        A calibrated judge states the standard error of its scores as their uncertainty, and intervals of all levels.
        """
        heard = progress(self._scorer.run(pairs), "scoring", len(pairs))
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
        score, deviation = np.reshape(scores, shape), np.reshape(deviations, shape)
        made, columns = uncalibrated(score), dict[str, np.ndarray]()
        if (calibration := self._scorer.calibration) is not None:
            for level, (low, high) in INTERVAL_COLUMNS.items():
                made = calibration.apply(score, deviation, self.scales, level)
                columns |= {low: made.low.ravel(), high: made.high.ravel()}
            if calibration.abstains:
                columns[ABSTAINED] = made.abstained.ravel()
        table = score_table(pairs, self.dimensions, made.score, made.standard_error, statuses)
        return table.assign(**columns, **{WINDOWS: np.repeat(windows, len(self.dimensions))})
