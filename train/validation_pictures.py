"""After each validation: charts, and the items with the largest errors, for loggers that can show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import matplotlib
import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data_modules.audio import AudioSource, decode
from ..data_modules.errors import AudioError, counted
from ..data_modules.schema import Dimension, Pair
from ..eval.pages.charts import ACCENT, MUTED, PALE, STYLE, pixels, rating_axes, shortened
from ..eval.statistics.calibration import calibration_curve
from .module import JudgeModule
from .validation import Validation

MAX_POINTS = 3000
"""Most items in a scatter plot; of more, a sample is drawn, the same one each time."""
NAMED_LEVEL = 0.9
_LEVELS = np.linspace(0.1, 0.9, 9)
# Inches, of 100 pixels: a panel's square and the room around it. A layout that measures its texts takes twice as long.
_SIDE, _LEFT, _RIGHT, _BELOW, _ABOVE = 2.8, 0.65, 0.15, 0.55, 0.65


def draw(
    dimension: Dimension,
    scores: np.ndarray,
    ratings: np.ndarray,
    deviations: np.ndarray,
    groups: np.ndarray,
    *,
    title: str,
) -> np.ndarray:
    """Predicted against rated, the calibration curve and, where a head says how far it may be off, how often it is.

    Scores, mean ratings, standard deviations by the head (NaN = it has none) and names of groups are each `(items,)`,
    the first three in rating points; `title` stands above.

    Returns:
        Pixels `(height, width, 3)`, uint8.
    """
    with_coverage = bool(np.isfinite(deviations).all())
    panels = 3 if with_coverage else 2
    with matplotlib.rc_context(STYLE):
        width, height = panels * (_LEFT + _SIDE + _RIGHT), _BELOW + _SIDE + _ABOVE
        figure = Figure(figsize=(width, height), dpi=100)
        starts = [number * (_LEFT + _SIDE + _RIGHT) + _LEFT for number in range(panels)]
        squares = [(start / width, _BELOW / height, _SIDE / width, _SIDE / height) for start in starts]
        scatter, calibration, *rest = [figure.add_axes(square) for square in squares]
        scale = (dimension.minimum, dimension.maximum)
        _scatter(scatter, scores, ratings, scale)
        _calibration(calibration, scores, ratings, groups, scale)
        if with_coverage:
            _coverage(rest[0], np.abs(scores - ratings) / deviations)
        figure.suptitle(f"{shortened(dimension.name, 40)}: {title}", fontsize=11, y=0.98)
        return pixels(figure)


def coverage(distances: np.ndarray, level: float) -> float:
    """Share of items that lie inside their interval of this level (0 to 1), were errors normal; distances are absolute
    errors in standard deviations `(items,)`.
    """
    return float(np.mean(distances <= NormalDist().inv_cdf(0.5 + level / 2)))


def _scatter(axes: Axes, scores: np.ndarray, ratings: np.ndarray, scale: tuple[float, float]) -> None:
    count = len(scores)
    if count > MAX_POINTS:
        chosen = np.random.default_rng(0).choice(count, MAX_POINTS, replace=False)
        scores, ratings = scores[chosen], ratings[chosen]
    alpha = float(np.clip(6 / np.sqrt(len(scores)), 0.15, 0.75))
    axes.scatter(scores, ratings, s=14, color=ACCENT, alpha=alpha, linewidths=0, zorder=2)
    rating_axes(axes, scores, ratings, scale)
    shown = counted(count, "pair")
    axes.set_title(f"{len(scores):,} of {shown}" if count > len(scores) else shown, color=MUTED, fontsize=10, y=1.02)


def _calibration(
    axes: Axes, scores: np.ndarray, ratings: np.ndarray, groups: np.ndarray, scale: tuple[float, float]
) -> None:
    curve = calibration_curve(scores, ratings, groups)
    x, y = np.array([point.score for point in curve]), np.array([point.human for point in curve])
    errors = [0.0 if point.standard_error is None else 1.96 * point.standard_error for point in curve]
    axes.plot(x, y, color=PALE, linewidth=1.2, zorder=2)
    axes.errorbar(x, y, errors, fmt="o", color=ACCENT, markersize=5, elinewidth=1.6, zorder=3)
    rating_axes(axes, x, y, scale)
    axes.set_title("calibration, 95 % intervals", color=MUTED, fontsize=10, y=1.02)


def _coverage(axes: Axes, distances: np.ndarray) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    shares = [coverage(distances, level) for level in _LEVELS]
    axes.plot(_LEVELS, shares, "o-", color=ACCENT, markersize=5, linewidth=1.2, zorder=2)
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
    axes.set(xlabel="level of the interval", ylabel="share of ratings inside")
    axes.grid(True, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    inside = f"{NAMED_LEVEL:.0%} intervals hold {coverage(distances, NAMED_LEVEL):.0%}".replace("%", " %")
    axes.set_title(inside, color=MUTED, fontsize=10, y=1.02)


WORST = 8
RATE, SECONDS = 16_000, 10
"""Of logged audio: sampling rate (Hz), and seconds after which a clip is cut; 5 MB at most in one validation."""
_COLUMNS = ("pair", "dimension", "prediction", "rating", "error")
_CLIPS = ("context", "response")
PictureLogger = TensorBoardLogger | WandbLogger


@dataclass(frozen=True)
class Miss:
    """A pair with a large error: its audio is played, its transcript is not shown. With the dimension of its
    largest error, as a share of the scale, and prediction and mean human rating there, in rating points."""

    pair: Pair
    dimension: Dimension
    prediction: float
    rating: float

    def row(self) -> list[str | float]:
        """The values of `_COLUMNS`."""
        error = self.prediction - self.rating
        return [self.pair.pair_id, self.dimension.name, *(round(v, 2) for v in (self.prediction, self.rating, error))]

    def clips(self) -> list[np.ndarray | None]:
        """Samples `(samples,)` of what the speaker said last and of the response, cut; None where there is none."""
        context = self.pair.context[-1].audio if self.pair.context else None
        return [None if source is None else _cut(source) for source in (context, self.pair.response)]


Charts = list[tuple[str, np.ndarray]]
Items = list[tuple[Miss, list[np.ndarray | None]]]
"""With their clips; without any where they shall not be played."""


class ValidationPictures(Callback):
    """Scatter and calibration of each dimension and the worst items, to TensorBoard and Weights & Biases.

    Recordings of people go where they stay: into TensorBoard's files. Weights & Biases gets them if asked to, also
    offline, because `wandb sync` takes them along.
    """

    def __init__(self, log_audio: bool | None) -> None:
        """`log_audio` = whether clips can be played; None = in TensorBoard alone."""
        self._log_audio = log_audio

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what the module's validation has gathered, in the first process."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, PictureLogger)]
        if not loggers or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, JudgeModule)
        validation, dimensions = pl_module.validation, pl_module.judge.dimensions
        step = max(0, trainer.global_step - 1)  # the step of this validation's metrics
        charts = list(_charts(validation, dimensions, f"epoch {trainer.current_epoch}, step {step}"))
        worst = worst_items(validation, dimensions)
        heard = [(miss, miss.clips() if any(map(self._plays, loggers)) else []) for miss in worst]
        for logger in loggers:
            items = heard if self._plays(logger) else [(miss, []) for miss in worst]
            if isinstance(logger, TensorBoardLogger):
                _to_tensorboard(logger, charts, items, step)
            else:
                _to_wandb(logger, charts, items, step)

    def _plays(self, logger: PictureLogger) -> bool:
        return isinstance(logger, TensorBoardLogger) if self._log_audio is None else self._log_audio


def worst_items(validation: Validation, dimensions: tuple[Dimension, ...], count: int = WORST) -> list[Miss]:
    """Pairs with the largest errors as shares of their scale, the largest first; each pair once."""
    spans = np.array([dimension.maximum - dimension.minimum for dimension in dimensions])
    errors = np.nan_to_num(np.abs(validation.scores - validation.targets) / spans, nan=-1.0)
    columns = errors.argmax(1)
    largest = errors[np.arange(len(errors)), columns]
    order = np.argsort(-largest, kind="stable")[:count]
    return [
        Miss(
            validation.pairs.pairs[item],
            dimensions[columns[item]],
            float(validation.scores[item, columns[item]]),
            float(validation.targets[item, columns[item]]),
        )
        for item in order
        if largest[item] >= 0
    ]


def _charts(validation: Validation, dimensions: tuple[Dimension, ...], title: str) -> Iterator[tuple[str, np.ndarray]]:
    groups = np.array([pair.group_id or pair.pair_id for pair in validation.pairs.pairs])
    for column, dimension in enumerate(dimensions):
        scores, ratings = validation.scores[:, column], validation.targets[:, column]
        both = np.isfinite(scores) & np.isfinite(ratings)
        if both.any():
            deviations = validation.deviations[both, column]
            picture = draw(dimension, scores[both], ratings[both], deviations, groups[both], title=title)
            yield f"validation/{dimension.name}", picture


def _to_tensorboard(logger: TensorBoardLogger, charts: Charts, worst: Items, step: int) -> None:
    writer = logger.experiment
    for name, picture in charts:
        writer.add_image(name, picture, step, dataformats="HWC")
    lines = [["", *_COLUMNS], ["---"] * (len(_COLUMNS) + 1)]
    lines += [[str(number), *map(_cell, miss.row())] for number, (miss, _) in enumerate(worst, start=1)]
    writer.add_text("validation/worst", "\n".join(f"| {' | '.join(line)} |" for line in lines), step)
    for number, (_, clips) in enumerate(worst, start=1):
        for name, samples in zip(_CLIPS, clips, strict=False):
            if samples is not None:
                writer.add_audio(f"validation_worst/{number}_{name}", samples[None], step, RATE)


def _to_wandb(logger: WandbLogger, charts: Charts, worst: Items, step: int) -> None:
    import wandb

    for name, picture in charts:
        logger.log_image(name, [picture], step)
    rows = [
        [*miss.row(), *(None if samples is None else wandb.Audio(samples, sample_rate=RATE) for samples in clips)]
        for miss, clips in worst
    ]
    columns = [*_COLUMNS, *(_CLIPS if any(clips for _, clips in worst) else ())]
    logger.log_table("validation/worst", columns, rows, step=step)


def _cell(value: str | float) -> str:
    """A cell of a Markdown table; an id must not open another column."""
    return value.replace("|", "\\|") if isinstance(value, str) else f"{value:.2f}"


def _cut(source: AudioSource) -> np.ndarray | None:
    """The beginning of a clip, full scale 1.0; None where it cannot be read any more."""
    try:
        samples = decode(source, RATE)
    except AudioError:  # its states may be cached: not a reason to end training
        return None
    return np.clip(samples[: RATE * SECONDS], -1, 1)
