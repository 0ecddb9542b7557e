"""What each layer of the nano backbone hears on real voices, before any judge is trained.

Ridge on the mean and the deviation over time of each layer of the frozen audio encoder, on the mean of each layer of
the language model, on the measures of the signal, and the same of a backbone of this shape with random weights. Folds
keep speakers apart and are drawn at random; the penalty is chosen inside the training folds, by speaker.
Run: `python benchmarks/nano.py DATA --work FOLDER`, where DATA has the folders `emodb` and `speechocean_prosody`;
`--page checkpoints/nano/README.md` also writes the table behind the mark in that page. `--backbone` takes another copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from empathy_judge import PairDataset
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.eval.statistics.reliability import measure as reliability
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.head_input import ResponseMean
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.probe import ClipReader, without_adapters
from empathy_judge.models.settings import HeadInputSettings, JudgeSettings
from empathy_judge.train.nano.architecture import build_model
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_data import load
from transformers import AutoProcessor

SETS = ("emodb", "speechocean_prosody")
FOLDS, SEEDS, RESAMPLES = 5, 3, 2_000
PENALTIES = np.logspace(0, 4, 9)
MARK = "<!-- real voices -->"


def random_backbone(folder: Path) -> str:
    """A backbone of nano's shape and processor whose weights were never trained."""
    processor = AutoProcessor.from_pretrained(NANO_FOLDER)
    torch.manual_seed(0)
    build_model(processor).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@torch.inference_mode()
def hear(backbone: str, dataset: PairDataset) -> dict[str, np.ndarray]:
    """Name of a layer -> features `(pairs, size)`, in the order of the data set."""
    settings = without_adapters(
        JudgeSettings(
            backbone=backbone, pooling="layer_mix", head_input=HeadInputSettings("all_layers", functionals=True)
        )
    )
    judge = EmpathyJudge(settings, dataset.card.dimensions).eval()
    pool, parts = ResponseMean(), []
    for _, inputs in ClipReader(judge).inputs(dataset.pairs):
        heard = judge.heard(inputs)
        layers, functionals = judge.head_input.raw(heard)
        assert layers is not None
        assert functionals is not None
        assert heard.window_weights is None, "a clip is too long"
        states = pool(judge.backbone.hidden_states(heard), heard.attention_mask, heard.response_mask)
        own = {f"audio encoder, layer {n}": layers[:, 0, n].flatten(1) for n in range(layers.shape[2])}
        of_model = states.chunk(len(judge.backbone.layers), -1)
        own |= {f"language model, layer {n}": of_layer for n, of_layer in enumerate(of_model, 1)}
        parts.append(own | {"measures of the signal": functionals[:, 0]})
    return {name: torch.cat([own[name] for own in parts]).double().nan_to_num().numpy() for name in parts[0]}


def agreement(features: np.ndarray, human: np.ndarray, speakers: np.ndarray) -> dict[str, float | None]:
    """Spearman of out-of-fold predictions: the mean of all test folds, and that of the first seed's pooled predictions
    with its 95 % interval over speakers."""
    folds, first = [], np.empty(len(human))
    for seed in range(SEEDS):
        drawn = GroupKFold(FOLDS, shuffle=True, random_state=seed)
        for train, test in drawn.split(features, groups=speakers):
            inner = list(GroupKFold(4).split(train, groups=speakers[train]))
            search = GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": PENALTIES}, cv=inner)
            predicted = search.fit(features[train], human[train]).predict(features[test])
            folds.append(spearman(predicted, human[test]))
            if seed == 0:
                first[test] = predicted
    pooled = estimate(spearman, first, human, resamples=Resamples.draw(speakers, RESAMPLES, 0))
    return {"spearman": float(np.mean(folds)), "pooled": pooled.value, "low": pooled.low, "high": pooled.high}


def measure(dataset: PairDataset, heard: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Rows `dimension`, `layer`, and those of `agreement`."""
    human = dataset.mean_scores().loc[[pair.pair_id for pair in dataset.pairs]]
    speakers = np.array([str(pair.response_speaker) for pair in dataset.pairs])
    return pd.DataFrame(
        {"dimension": own.name, "layer": name, **agreement(features, human[own.name].to_numpy(float), speakers)}
        for own in dataset.card.dimensions
        for name, features in heard.items()
    )


def ceilings(dataset: PairDataset) -> list[str]:
    """One line for each dimension with several raters: what a judge could reach on their mean."""
    ids, lines = [pair.pair_id for pair in dataset.pairs], []
    draws = Resamples.draw(np.array([str(pair.response_speaker) for pair in dataset.pairs]), RESAMPLES, 0)
    for own in dataset.card.dimensions:
        ratings = RatingTable.of(dataset.ratings, own.name, ids)
        if len(ratings.rater_ids) > 1:
            found = reliability(ratings, draws, 0).panel_mean
            lines.append(f"Noise ceiling of {own.name}: {found.value:.2f} ({found.low:.2f} to {found.high:.2f}).")
    return lines


def table(rows: pd.DataFrame) -> str:
    """Markdown: one line for each layer, one column for each dimension."""
    figures = rows[["spearman", "pooled", "low", "high"]].to_numpy()
    rows = rows.assign(cell=["{:.3f} ({:.3f}, {:.3f} to {:.3f})".format(*own) for own in figures])
    wide = rows.pivot(index="layer", columns="dimension", values="cell").reindex(rows["layer"].unique())[
        rows["dimension"].unique()
    ]
    head = ["", *wide.columns]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in wide.T.items())]) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for data sets and random weights")
    parser.add_argument("--backbone", default="nano")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--page", type=Path, help="page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    untrained = random_backbone(options.work / "untrained")
    rows, told = [], []
    for name in options.sets:
        dataset = load(name, options.data, options.work)
        heard = hear(options.backbone, dataset)
        never = hear(untrained, dataset)
        heard |= {f"{own}, random weights": never[own] for own in ("audio encoder, layer 4", "language model, layer 4")}
        rows.append(measure(dataset, heard))
        told += ceilings(dataset)
    made = "\n".join([table(pd.concat(rows)), *told, ""])
    print(made)
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8").partition(MARK)[0]
        options.page.write_text(f"{text}{MARK}\n\n{made}", encoding="utf-8")


if __name__ == "__main__":
    main()
