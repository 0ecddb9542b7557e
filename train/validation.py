"""Agreement on the whole validation split, gathered from all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data_modules.datamodule import PairDataModule
from ..data_modules.folds import even_folds
from ..data_modules.schema import Dimension
from ..data_modules.training_items import ComparedPair, RatedPairs, directions
from ..eval.statistics.agreement import spearman
from ..eval.statistics.bootstrap import MIN_GROUPS, Resamples, estimate
from ..eval.statistics.probabilities import t_quantile
from ..eval.statistics.reliability import measure, rated_items
from ..models.heads import Prediction
from .features import all_gather_object

_LEAD_END = 0.95  # quantile at the upper end of the interval of the lead of a trained judge over the probe
START_RESAMPLES = 500
_FOLDS = 5  # of groups, each of which takes what the others choose
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
        history: Optimizer step -> what a validation after it gave, all ranks together and the same on every rank
            `(items, dimensions, 2)`, float64: the score, NaN = not scored, and what the head says of its error
            (`Prediction.deviation`), NaN where it says nothing.
    """

    def __init__(self, pairs: RatedPairs, preferences: Sequence[ComparedPair], dimensions: Sequence[Dimension]) -> None:
        """Collect for the pairs of a split and the preferences between them."""
        self.pairs = pairs
        self.targets = pairs.scores.double().numpy()
        self.history: dict[int, np.ndarray] = {}
        self._dimensions = tuple(dimensions)
        positions = {pair.pair_id: position for position, pair in enumerate(pairs.pairs)}
        self._chosen = np.array([positions[item.chosen.pair_id] for item in preferences], dtype=np.int64)
        self._rejected = np.array([positions[item.rejected.pair_id] for item in preferences], dtype=np.int64)
        strengths = [item.strength.numpy() for item in preferences]
        self._strengths = np.reshape(strengths, (len(preferences), len(self._dimensions)))
        self._parts: list[tuple[Tensor, Tensor]] = []

    @property
    def scores(self) -> np.ndarray:
        """Those of the last validation `(items, dimensions)`, float64; NaN = not scored."""
        return next(reversed(self.history.values()))[..., 0]

    def clear(self) -> None:
        """Forget what was collected."""
        self._parts.clear()

    def add(self, indices: Tensor, prediction: Prediction) -> None:
        """Keep what was predicted for pairs at `indices` `(batch,)`: agreement is of the whole split, not a batch."""
        sigma = torch.full_like(prediction.score, torch.nan) if prediction.deviation is None else prediction.deviation
        self._parts.append((indices, torch.stack([prediction.score, sigma], -1)))

    def agreement(self, step: int) -> list[Agreement]:
        """Agreement of each dimension, the same on every rank; what was collected becomes the validation of `step`."""
        self.history[step] = self._gathered()
        return self._agreement(self.history[step], np.ones(len(self.targets), bool))

    def left_out(self, groups: np.ndarray) -> np.ndarray:
        """What each item is given by the validation that the items of other groups choose `(items, dimensions, 2)`.

        The best of several validations agrees too well on the items that chose it. So each fifth of the groups takes
        the one that agrees best on the other four (cross-fitting, as Chernozhukov et al., 2018).

        Args:
            groups: What is kept together `(items,)`.
        """
        steps, count = list(self.history), len(np.unique(groups))
        everything = [(np.arange(len(groups)),) * 2]  # a single group can only choose for itself
        folds = even_folds(groups, min(_FOLDS, count), 0).split() if count > 1 else everything
        chosen = np.full((*self.targets.shape, 2), np.nan)
        for others, items in folds:
            rows = np.isin(np.arange(len(groups)), others)
            values = [overall(self._agreement(self.history[step], rows)) for step in steps]
            # as the best checkpoint: the first of equals; one without any agreement is never it
            chosen[items] = self.history[steps[int(np.argmax(np.nan_to_num(values, nan=-np.inf)))]][items]
        return chosen

    def added(self, groups: np.ndarray) -> dict[str, dict[str, float | None]]:
        """By how much the validations since the first, of the start, agree better than it, see `Provenance.start`.

        Args:
            groups: What is kept together, and drawn as a whole for the interval `(items,)`.
        """
        start, trained = next(iter(self.history.values())), self.left_out(groups)
        results: dict[str, dict[str, float | None]] = {}
        for column, dimension in enumerate(self._dimensions):
            parts = np.stack([start[:, column, 0], trained[:, column, 0], self.targets[:, column]])
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
                result |= dict(zip(("low", "high"), lead_interval(draws, leads, lead), strict=True))
            results[dimension.name] = result
        return results

    def _agreement(self, values: np.ndarray, rows: np.ndarray) -> list[Agreement]:
        """Agreement of a validation on some of the items `(items,)`, and on the preferences between these."""
        results = []
        for column, direction in enumerate(directions(self._dimensions).tolist()):
            scores = values[:, column, 0]
            result = estimate(spearman, scores[rows], self.targets[rows, column])
            decided = (self._strengths[:, column] > 0) & rows[self._chosen] & rows[self._rejected]
            # Where the low end of a scale is the good one, the preferred response has the lower score
            leads = (scores[self._chosen[decided]] - scores[self._rejected[decided]]) * direction
            met = float(np.mean(0.5 * (np.sign(leads) + 1))) if decided.any() and np.isfinite(leads).all() else None
            results.append(Agreement(result.value, result.reason, met))
        return results

    def _gathered(self) -> np.ndarray:
        """Scores and deviations in the order of the split `(items, dimensions, 2)`, float64, each once."""
        indices = torch.cat([part[0] for part in self._parts]).cpu()
        values = torch.cat([part[1] for part in self._parts]).cpu().double()
        # Written by position, so that neither the order of ranks nor a pair that filled up a last batch matters
        whole = torch.full((*self.targets.shape, 2), torch.nan, dtype=torch.float64)
        for part_indices, part_values in all_gather_object((indices, values)):
            whole[part_indices] = part_values
        return whole.numpy()


def overall(agreements: Sequence[Agreement]) -> float:
    """The mean over dimensions, by which a checkpoint is chosen; NaN where one is undefined."""
    return sum(agreement.value for agreement in agreements) / len(agreements)


def lead_interval(draws: Resamples, leads: np.ndarray, lead: float) -> tuple[float, float] | tuple[None, None]:
    """The 90 % t interval of a gain: `lead` +- t * sd of `leads` * sqrt(g / (g - 1)), with g groups (Hesterberg, 2015).

    With quantiles of the draws, 10 % of gains that are none would begin above 0 with 5 groups, and 7 % with 10.

    Args:
        draws: Of groups.
        leads: The gain in each of the draws; NaN = undefined there.
        lead: The gain on all items.

    Returns:
        None where draws of fewer than `MIN_GROUPS` groups hardly differ, whoever leads, or fewer than two have a gain.
    """
    groups = draws.n_groups
    if groups < MIN_GROUPS or np.isfinite(leads).sum() < 2:
        return None, None
    error = float(np.nanstd(leads, ddof=1)) * math.sqrt(groups / (groups - 1))
    half = t_quantile(_LEAD_END, groups - 1) * error
    return lead - half, lead + half


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
