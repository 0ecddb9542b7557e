"""What each layer of the nano backbone hears on real voices, before any judge is trained.

The command `layers` on two data sets, for this backbone and for one of its shape with random weights; beside them the
same ridge on the measures of the signal that the baseline `acoustic` has, and the noise ceiling.
Run: `python benchmarks/nano.py DATA --work FOLDER`, where DATA has the folders `emodb` and `speechocean_prosody`;
`--page checkpoints/nano/README.md` also writes the table behind the mark in that page.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from empathy_judge import PairDataset
from empathy_judge.checkpoints.nano.make.architecture import build_model
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.data_modules.splits import kept_together
from empathy_judge.eval.judges.baselines.acoustic import OURS, ClipFeatures
from empathy_judge.eval.layers import left_out, measure_layers
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.reliability import measure as reliability
from empathy_judge.models.backbones import NANO_FOLDER
from materials import load_set
from transformers import AutoProcessor

SETS = ("emodb", "speechocean_prosody")
RESAMPLES = 2_000
MARK = "<!-- real voices -->"


def random_backbone(folder: Path) -> str:
    """A backbone of nano's shape and processor whose weights were never trained."""
    processor = AutoProcessor.from_pretrained(NANO_FOLDER)
    torch.manual_seed(0)
    build_model(processor).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def of_layers(backbone: str, dataset: PairDataset, of_weights: str = "") -> list[dict[str, Any]]:
    """Rows `what, dimension, spearman, low, high`, one for each layer and dimension."""
    rows = measure_layers(backbone, dataset, ("train",), resamples=RESAMPLES)["rows"]
    return [row | {"what": f"{row['part']}, layer {row['depth']}{of_weights}"} for row in rows]


def of_signal(dataset: PairDataset) -> list[dict[str, Any]]:
    """The same rows for the measures of the signal, and for the noise ceiling where there are several raters."""
    pairs, means = dataset.pairs, dataset.mean_scores()
    groups = kept_together(pairs, pairs)
    features, _ = ClipFeatures(OURS).of(pairs)
    human = means.loc[[pair.pair_id for pair in pairs]].to_numpy(np.float64)
    predicted = left_out(features, human, groups, 0)
    draws, rows = Resamples.draw(groups, RESAMPLES, 0), []
    for column, name in enumerate(means):
        values = {"measures of the signal": estimate(spearman, predicted[:, column], human[:, column], resamples=draws)}
        ratings = RatingTable.of(dataset.ratings, str(name), [pair.pair_id for pair in pairs])
        if len(ratings.rater_ids) > 1:
            values["noise ceiling"] = reliability(ratings, draws, 0).panel_mean
        rows += [
            {"what": what, "dimension": name, "spearman": result.value, "low": result.low, "high": result.high}
            for what, result in values.items()
        ]
    return rows


def table(rows: pd.DataFrame) -> str:
    """Markdown: one line for each layer, one column for each dimension."""
    figures = rows[["spearman", "low", "high"]].to_numpy(float)
    rows = rows.assign(cell=["{:.3f} ({:.3f} to {:.3f})".format(*figure) for figure in figures])
    wide = rows.pivot(index="what", columns="dimension", values="cell").fillna("")
    wide = wide.loc[rows["what"].unique(), rows["dimension"].unique()]
    lines = [f"| {' | '.join(['', *wide.columns])} |", "|---" * (1 + len(wide.columns)) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in wide.T.items())]) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for data sets and random weights")
    parser.add_argument("--page", type=Path, help="page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    untrained = random_backbone(options.work / "untrained")
    rows: list[dict[str, Any]] = []
    for name in SETS:
        dataset = load_set(name, options.data, options.work)
        dataset = replace(dataset, pairs=tuple(replace(pair, split="train") for pair in dataset.pairs))
        untrained_rows = of_layers(untrained, dataset, ", random weights")
        deepest = max(row["depth"] for row in untrained_rows)
        rows += of_layers("nano", dataset)
        rows += [row for row in untrained_rows if row["depth"] == deepest]
        rows += of_signal(dataset)
    markdown = table(pd.DataFrame(rows))
    print(markdown)
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8").partition(MARK)[0]
        options.page.write_text(f"{text}{MARK}\n\n{markdown}", encoding="utf-8")


if __name__ == "__main__":
    main()
