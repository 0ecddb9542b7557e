"""Agreement on the whole validation split, gathered from all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data_modules.datamodule import PairDataModule
from ..data_modules.schema import Dimension
from ..data_modules.training_items import ComparedPair, RatedPairs, directions
from ..eval.statistics.agreement import spearman
from ..eval.statistics.bootstrap import MIN_GROUPS, Resamples, estimate
from ..eval.statistics.reliability import measure, rated_items
from ..models.heads import Prediction
from .features import all_gather_object

_LEAD_INTERVAL = (0.05, 0.95)  # quantiles of the lead of a trained judge over the probe
START_RESAMPLES = 500
_DRAWS = 20  # of intervals of people that nobody reads here


@dataclass(frozen=True)
class Agreement:
    """Agreement on one dimension: Spearman with the mean ratings (None where it is undefined, with the reason), and the
    share of the preferences (ties left out) whose chosen pair has the better score, equal scores counting half; None
    where there are none."""

    spearman: float | None
    reason: str | None
    preferences_met: float | None

    @property
    def value(self) -> float:
        """Spearman or, where there are no ratings, preferences met from -1 (none) to 1 (all); NaN without either."""
        if self.spearman is None and self.preferences_met is not None:
            return 2 * self.preferences_met - 1
        return math.nan if self.spearman is None else self.spearman


class Validation:
    """Collects scores of the validation split and compares them with their labels.

    Attributes:
        pairs: The split.
        targets: Mean ratings `(items, dimensions)`, float64; NaN = not rated.
        scores: Of the last validation, all ranks together, the same on every rank `(items, dimensions)`, float64; NaN =
            not scored.
        deviations: As `scores`, what the head says of its error (`Prediction.deviation`); NaN where it says nothing.
    """

    def __init__(self, pairs: RatedPairs, preferences: Sequence[ComparedPair], dimensions: Sequence[Dimension]) -> None:
        """Collect for the pairs of a split and the preferences between them."""
        self.pairs = pairs
        self.targets = pairs.scores.double().numpy()
        self.scores = self.deviations = np.full(self.targets.shape, np.nan)
        self._dimensions = tuple(dimensions)
        positions = {pair.pair_id: position for position, pair in enumerate(pairs.pairs)}
        self._chosen = np.array([positions[item.chosen.pair_id] for item in preferences], dtype=np.int64)
        self._rejected = np.array([positions[item.rejected.pair_id] for item in preferences], dtype=np.int64)
        strengths = [item.strength.numpy() for item in preferences]
        self._strengths = np.reshape(strengths, (len(preferences), len(self._dimensions)))
        self._parts: list[tuple[Tensor, Tensor]] = []

    def clear(self) -> None:
        """Forget the scores of the last validation."""
        self._parts.clear()

    def add(self, indices: Tensor, prediction: Prediction) -> None:
        """Keep what was predicted for pairs at `indices` `(batch,)`: agreement is of the whole split, not a batch."""
        sigma = torch.full_like(prediction.score, torch.nan) if prediction.deviation is None else prediction.deviation
        self._parts.append((indices, torch.stack([prediction.score, sigma], -1)))

    def agreement(self) -> list[Agreement]:
        """Agreement of each dimension, the same on every rank."""
        self.scores, self.deviations = np.ascontiguousarray(np.moveaxis(self._gathered(), -1, 0))
        return [self._of(column, self.scores[:, column]) for column in range(len(self._dimensions))]

    def added_to(self, start: np.ndarray, groups: np.ndarray) -> dict[str, dict[str, float | None]]:
        """By how much the last scores agree better than earlier ones, see `Provenance.start`.

        Args:
            start: As `scores`.
            groups: What is drawn as a whole for the interval `(items,)`.
        """
        results: dict[str, dict[str, float | None]] = {}
        for column, dimension in enumerate(self._dimensions):
            parts = np.stack([start[:, column], self.scores[:, column], self.targets[:, column]])
            # Only items that both have scored: otherwise the difference would be one of items, too
            rated = np.isfinite(parts).all(0)
            before, now, human = parts[:, rated]
            result: dict[str, float | None] = dict.fromkeys(("probe", "added", "low", "high"))
            if rated.any() and not math.isnan(lead := spearman(now, human) - spearman(before, human)):
                result |= {"probe": spearman(before, human), "added": lead}
                # The same seed at every validation: intervals of two checkpoints differ by the scores and not by the
                # draws
                draws = Resamples.sample(groups[rated], START_RESAMPLES, 0)
                # Both on the same draws: which items are drawn moves both alike, and cancels
                leads = draws.compute(spearman, now, human) - draws.compute(spearman, before, human)
                result |= dict(zip(("low", "high"), lead_interval(draws, leads), strict=True))
            results[dimension.name] = result
        return results

    def _of(self, column: int, scores: np.ndarray) -> Agreement:
        result = estimate(spearman, scores, self.targets[:, column])
        decided = self._strengths[:, column] > 0
        leads = scores[self._chosen[decided]] - scores[self._rejected[decided]]
        # Where the low end of a scale is the good one, the preferred response has the lower score
        leads = leads * directions(self._dimensions)[column].item()
        met = float(np.mean(0.5 * (np.sign(leads) + 1))) if decided.any() and np.isfinite(leads).all() else None
        return Agreement(result.value, result.reason, met)

    def _gathered(self) -> np.ndarray:
        """Scores and deviations in the order of the split `(items, dimensions, 2)`, float64, each once."""
        indices = torch.cat([part[0] for part in self._parts]).cpu()
        values = torch.cat([part[1] for part in self._parts]).cpu().double()
        # Written by position, so that neither the order of ranks nor a pair that filled up a last batch matters
        whole = torch.full((*self.targets.shape, 2), torch.nan, dtype=torch.float64)
        for part_indices, part_values in all_gather_object((indices, values)):
            whole[part_indices] = part_values
        return whole.numpy()


def lead_interval(draws: Resamples, leads: np.ndarray) -> tuple[float, float] | tuple[None, None]:
    """The 90 % interval of a gain, from those of the draws; None where draws of fewer than `MIN_GROUPS` groups hardly
    differ, whoever leads, or where no draw has a lead."""
    # With few groups most draws are the same groups again: the interval would be narrow and mean nothing
    if draws.n_groups < MIN_GROUPS or np.isnan(leads).all():
        return None, None
    low, high = np.nanquantile(leads, _LEAD_INTERVAL).tolist()
    return low, high


@dataclass(frozen=True)
class People:
    """Agreement among the raters of the validation split on one dimension; None = it cannot be measured."""

    one_rater: float | None  # Spearman of a rater with the mean of the others
    noise_ceiling: float | None  # Spearman that a perfect judge would have with the panel mean

    @property
    def reached(self) -> dict[str, float]:
        """Those that can be measured."""
        return {name: value for name, value in vars(self).items() if value is not None}


def people_of(data: PairDataModule) -> dict[str, People]:
    """What the raters of the validation split reach, by dimension."""
    groups = {pair.pair_id: pair.group_id for pair in data.validation.pairs}
    ratings = data.dataset.ratings
    ratings = ratings.loc[ratings["pair_id"].isin(list(groups))]
    found: dict[str, People] = {}
    for dimension in data.dimensions:
        if dimension.name not in set(ratings["dimension"]):
            continue
        panel = measure(*rated_items(ratings, dimension.name, groups, _DRAWS, 0), 0)
        found[dimension.name] = People(panel.leave_one_rater_out.value, panel.panel_mean.value)
    return found
