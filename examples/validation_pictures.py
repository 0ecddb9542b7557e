"""Train with pictures: after each validation, TensorBoard shows predictions against ratings and the worst items.

    python examples/validation_pictures.py demo/data --config nano --run runs/pictures
    tensorboard --logdir runs/pictures/logs

`ValidationPictures` is a callback of Lightning, which `train` takes as it takes any other (`watching`). It plays the
clips of the worst items, so that recordings of people lie in TensorBoard's files. Other loggers get nothing.
"""

from __future__ import annotations

import argparse

import lightning as L
import numpy as np
from empathy_judge import train
from empathy_judge.audio.decode import decode
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.validation import Validation
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

WORST = 8
RATE, SECONDS = 16_000, 10  # sampling rate (Hz) of logged clips, and where they are cut


class ValidationPictures(Callback):
    """A scatter plot of each dimension and the items with the largest errors, after each validation."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what the first process has gathered of all to TensorBoard."""
        writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not writers or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, JudgeModule)
        validation, dimensions = pl_module.validation, pl_module.judge.dimensions
        step = max(0, trainer.global_step - 1)  # that of the metrics of this validation
        worst = worst_items(validation, dimensions)
        for writer in writers:
            for column, dimension in enumerate(dimensions):
                picture = scatter(dimension, validation.scores[:, column], validation.targets[:, column])
                writer.add_figure(f"validation/{dimension.name}", picture, step)
            writer.add_text("validation/worst", table(validation, dimensions, worst), step)
            for number, (item, _) in enumerate(worst, start=1):
                pair = validation.pairs.pairs[item]
                clips = {"response": pair.response, **({"context": pair.context[-1].audio} if pair.context else {})}
                for name, clip in clips.items():
                    samples = decode(clip, RATE)[: RATE * SECONDS]
                    writer.add_audio(f"validation_worst/{number}_{name}", samples.clip(-1, 1)[None], step, RATE)


def scatter(dimension: Dimension, scores: np.ndarray, ratings: np.ndarray) -> Figure:
    """Predicted against rated, on the scale of the dimension."""
    figure = Figure(figsize=(4, 4))
    axes = figure.add_subplot(xlabel="predicted", ylabel="rated", title=dimension.name, aspect="equal")
    scale = (dimension.minimum, dimension.maximum)
    axes.plot(scale, scale, color="lightgrey")
    axes.scatter(scores, ratings, s=14, alpha=0.5)  # matplotlib leaves out NaN, which stands for not rated
    return figure


def worst_items(validation: Validation, dimensions: tuple[Dimension, ...], count: int = WORST) -> list[tuple[int, int]]:
    """Item and dimension of the largest errors, as shares of the scale; each item once."""
    spans = np.array([dimension.maximum - dimension.minimum for dimension in dimensions])
    errors = np.nan_to_num(np.abs(validation.scores - validation.targets) / spans, nan=-1.0)
    columns = errors.argmax(1)
    largest = errors[np.arange(len(errors)), columns]
    return [(int(item), int(columns[item])) for item in np.argsort(-largest)[:count] if largest[item] >= 0]


def table(validation: Validation, dimensions: tuple[Dimension, ...], worst: list[tuple[int, int]]) -> str:
    """These items as a table in Markdown, which TensorBoard renders."""
    lines = ["| | pair | dimension | prediction | rating |", "|---|---|---|---|---|"]
    for number, (item, column) in enumerate(worst, start=1):
        score, rating = validation.scores[item, column], validation.targets[item, column]
        # An id must not open another column
        name = validation.pairs.pairs[item].pair_id.replace("|", "\\|")
        lines.append(f"| {number} | {name} | {dimensions[column].name} | {score:.2f} | {rating:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Train a recipe with the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of a pair dataset")
    parser.add_argument("--config", default="nano", help="name of a recipe, or a YAML file")
    parser.add_argument("--run", default="runs/pictures", help="folder of the run")
    options = parser.parse_args()
    train(options.config, options.data, options.run, watching=[ValidationPictures()])


if __name__ == "__main__":
    main()
