"""Compares the scores of a judge before and after an export, and how well both agree with people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ...audio.decode import Clip
from ...core.errors import AudioError, UserError, counted
from ...core.processes import progress
from ...data_modules.schema import Dimension, Pair, PairDataset, Turn
from ...data_modules.unchanged import check_unchanged
from ...models.settings import WeightForm
from ..artifact import LoadedJudge
from ..predictor import Predictor, check_scales, placed


@dataclass(frozen=True)
class Bounds:
    """Most that an export may change: the largest and the mean absolute difference of two scores of one pair, as
    fractions of the range of the scale, and Spearman with the mean ratings of people, up or down."""

    largest: float
    mean: float
    agreement: float


# float32 must be equal up to rounding; bfloat16 rounds each weight once more
_BOUNDS: Mapping[str, Bounds] = {
    "float32": Bounds(1e-5, 1e-5, 0.001),
    "bfloat16": Bounds(0.05, 0.01, 0.005),
    "float16": Bounds(0.05, 0.01, 0.005),
    "int8": Bounds(0.05, 0.01, 0.02),
    "nf4": Bounds(0.25, 0.05, 0.02),
}
COUNT = 16  # synthetic pairs
_SHORTEST, _LONGEST = 0.5, 6.0  # seconds


def bounds_of(dtype: str, quantization: WeightForm) -> Bounds:
    """The bounds for weights of this dtype and form."""
    return _BOUNDS[dtype if quantization == "none" else quantization]


@dataclass(frozen=True)
class CheckSet:
    """Distinct pairs to compare scores on, with a name for the card and mean ratings `(pairs, dimensions)`, rating
    points, NaN = not rated; None where nobody rated them."""

    name: str
    pairs: Sequence[Pair]
    ratings: np.ndarray | None = None


def synthetic_set(loaded: LoadedJudge) -> CheckSet:
    """Synthetic signals, for a judge whose data is not there."""
    backbone = loaded.judge.backbone
    return CheckSet("synthetic signals", synthetic_pairs(backbone.sampling_rate, backbone.max_seconds))


def rated_set(loaded: LoadedJudge, dataset: PairDataset, split: str) -> CheckSet:
    """The pairs of a split with their mean ratings.

    Raises:
        UserError: If the scales are not those of the judge.
        DataError: If there is no such split, or audio is not what was imported.
    """
    dimensions = loaded.judge.dimensions
    check_scales("to export", dimensions, dataset.card)
    check_unchanged(dataset)
    part = dataset.subset(None if split == "all" else split)
    means = part.mean_scores().reindex(columns=[dimension.name for dimension in dimensions]).to_numpy(np.float64)
    return CheckSet(f"{dataset.card.name}, {split}", part.pairs, means)


def score_all(loaded: LoadedJudge, chosen: CheckSet, device: str | None) -> np.ndarray:
    """Scores of the head for each pair `(pairs, dimensions)`, before calibration; NaN = its audio cannot be used."""
    scored = Predictor(placed(loaded, device)).predict(chosen.pairs)
    shown = progress(scored, "checking", len(chosen.pairs))
    nothing = np.full(len(loaded.judge.dimensions), np.nan)
    return np.stack(
        [nothing if isinstance(outcome, AudioError) else outcome.score.double().numpy() for _, outcome in shown]
    )


@dataclass(frozen=True)
class Change:
    """What became of the scores on one dimension: largest and mean absolute difference (rating points), and Spearman
    between the scores before and after, of those before with mean ratings, and of those after; None where it is
    undefined or there are no ratings."""

    largest: float
    mean: float
    between: float | None
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class ExportCheck:
    """What was measured of an export."""

    data: str  # name of the pairs
    pairs: int  # how many of them had scores
    bounds: Bounds  # what is allowed
    dimensions: dict[str, Change]
    beyond: list[str]  # what is not within the bounds, in words

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `judge.json`."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For people, one line for each dimension."""
        for name, change in self.dimensions.items():
            text = f"{name}: scores changed by {change.largest:.2g} at most, {change.mean:.2g} on average"
            if change.between is not None:
                text += f"; Spearman between them {change.between:.4f}"
            if change.before is not None and change.after is not None:
                text += f", with people {change.before:.4f} before and {change.after:.4f} after"
            yield f"{text} ({counted(self.pairs, 'pair')}: {self.data})"


def compare(
    before: np.ndarray, after: np.ndarray, chosen: CheckSet, dimensions: Sequence[Dimension], bounds: Bounds
) -> ExportCheck:
    """Compare scores of the same pairs before and after, `(pairs, dimensions)` in rating points; NaN = no score."""
    # Pairs that had no score before say nothing about the export
    scored = np.isfinite(before).all(1)
    if not scored.any():
        raise UserError(f"{chosen.name}: no pair has audio that can be used; check on other pairs")
    changes, beyond = {}, []
    if (np.isfinite(after).all(1) != scored).any():
        # Such as NaN, where a dtype overflows: the others are compared all the same
        beyond.append("other pairs have scores than before")
        scored &= np.isfinite(after).all(1)
        if not scored.any():
            raise UserError(f"{chosen.name}: no pair has a finite score after the export; expected another dtype")
    for column, dimension in enumerate(dimensions):
        old, new = before[scored, column], after[scored, column]
        with_people: tuple[float | None, ...] = (None, None)
        if chosen.ratings is not None:
            ratings = chosen.ratings[scored, column]
            rated = np.isfinite(ratings)
            with_people = tuple(_spearman(scores[rated], ratings[rated]) for scores in (old, new))
        differences = np.abs(new - old)
        change = Change(float(differences.max()), float(differences.mean()), _spearman(old, new), *with_people)
        changes[dimension.name] = change
        beyond += _beyond(dimension, change, bounds)
    return ExportCheck(chosen.name, int(scored.sum()), bounds, changes, beyond)


def _spearman(one: np.ndarray, other: np.ndarray) -> float | None:
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    result: Any = spearmanr(one, other)
    return float(result.statistic)


def _beyond(own: Dimension, change: Change, bounds: Bounds) -> Iterator[str]:
    width = own.maximum - own.minimum
    for name in ("largest", "mean"):
        value, allowed = getattr(change, name), getattr(bounds, name)
        if value > allowed * width:
            yield f"{own.name}: {name} difference {value:.2g} rating points, allowed {allowed * width:.2g}"
    # Without ratings the bounds on scores alone decide
    if change.before is None:
        return
    if change.after is None:
        yield f"{own.name}: all scores became equal"
    elif abs(change.after - change.before) > bounds.agreement:
        moved = f"{change.before:.4f} to {change.after:.4f}"
        yield f"{own.name}: Spearman with people {moved}, allowed a change of {bounds.agreement:g}"


def synthetic_pairs(rate: int, longest: float) -> list[Pair]:
    """Sixteen pairs of signals with the rhythm and resonances of speech, 0.5 to 6 s long (and shorter than `longest`),
    the same in every call. A quarter has no context, a quarter a situation.
    """
    # The same signals in every export, so that two exports are compared on the same pairs
    random = np.random.default_rng(0)
    ends = np.linspace(_SHORTEST, min(_LONGEST, 0.9 * longest), COUNT)
    pairs = []
    for number, seconds in enumerate(ends):
        context = () if number % 4 == 3 else (Turn("user", _speech(ends[-number - 1], rate, random)),)
        situation = "Someone tells of a hard day." if number % 4 == 1 else None
        pairs.append(Pair(f"synthetic {number}", _speech(seconds, rate, random), context, situation=situation))
    return pairs


def _speech(seconds: float, rate: int, random: np.random.Generator) -> Clip:
    """Harmonics of a moving pitch under three resonances, four syllables in a second."""
    times = np.arange(round(seconds * rate)) / rate
    pitch = random.uniform(90, 240) * (1 + 0.2 * np.sin(2 * np.pi * random.uniform(0.2, 1) * times))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    resonances = random.uniform([300, 900, 2_200], [800, 2_000, 3_200])
    harmonics = np.arange(1, 16)
    levels = (1 / (1 + ((harmonics[:, None] * pitch.mean() - resonances) / 150) ** 2)).sum(1)
    sound = sum(level * np.sin(harmonic * phase) for harmonic, level in zip(harmonics, levels, strict=True))
    syllables = np.clip(np.sin(2 * np.pi * 2 * times + random.uniform(0, np.pi)) ** 2, 0.05, None)
    voiced = sound * syllables + 0.01 * random.normal(size=len(times))
    return Clip(random.uniform(0.1, 0.5) * voiced / np.abs(voiced).max(), rate)
