"""What some hundred ratings of real speech teach: closed-form regressions on the features of the frozen nano backbone,
and adapters that are trained from there on.

Each seed has five folds that keep speakers apart. A method trains on three folds, on four (train and validation), or on
a random part of the four, and is measured by Spearman on the fifth. The same is done for four of five folds that are
drawn at random. Training sets a quarter of the speakers aside, to choose the epoch by. Each fit is kept in the working
folder: a killed command goes on, and `--minutes` ends it early.
Run: `python benchmarks/small_data.py DATA --work FOLDER`, where DATA has the folders `emodb`, `speechocean_prosody` and
`mushra_codec`; `--methods` fits some methods alone, or adapters with other settings; `--report` writes the fits there
are into table and picture.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import empathy_judge
import numpy as np
import pandas as pd
from empathy_judge import PairDataset
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.core.errors import AudioError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.writing import write_splits
from empathy_judge.eval.statistics.agreement import Statistic, spearman
from empathy_judge.eval.statistics.bootstrap import Resamples, estimate
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import BuiltHeadInput, HeadInputSettings, JudgeSettings
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor, placed
from frozen import Method, Study, activations_of
from materials import load_set
from matplotlib.figure import Figure
from sklearn.model_selection import GroupKFold

SETS = ("emodb", "speechocean_prosody", "mushra_codec")
SIZES = (50, 100, 200, 400)
COMPARED = "200"
DRAWN = "all, drawn folds"
FOLDS, SEEDS, RESAMPLES = 5, 5, 2_000
METHODS: Mapping[str, Method] = {
    "language model, ridge": (True, BuiltHeadInput(), True),
    "audio encoder, ridge": (False, BuiltHeadInput("all_layers"), True),
    "measures of the signal": (False, BuiltHeadInput("none", functionals=True), False),
    "probe": (True, BuiltHeadInput("all_layers", functionals=True), False),
}
QUIET = {"logger": False, "enable_progress_bar": False}
ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "adapters": {},
    "adapters, rank 16": {"judge": {"lora": {"rank": 16, "alpha": 32}}},
    "adapters, rank 16, tower too": {
        "judge": {"lora": {"parts": ["language_model", "audio_tower"], "rank": 16, "alpha": 32}}
    },
    "adapters, rate 0.0003": {"optimizer": {"learning_rate": 3e-4, "head_learning_rate": 3e-4}},
    "adapters, rate 0.003": {"optimizer": {"learning_rate": 3e-3, "head_learning_rate": 3e-3}},
    "adapters, dropout 0.2": {"judge": {"lora": {"dropout": 0.2}}},
    "adapters, weight decay 0.3": {"optimizer": {"weight_decay": 0.3}},
    "adapters, 30 epochs": {"trainer": {**QUIET, "max_epochs": 30}},
    "adapters, refit": {"refit": True},
}
"""Changes of the recipe `small` with method lora. The first is fitted to all sizes, the others to size `COMPARED`, or
to drawn folds where there are not so many pairs."""
EVERY = (*METHODS, "adapters")


def train_and_predict(
    changes: Mapping[str, Any], train: Sequence[Pair], test: Sequence[Pair], seed: int, folder: Path
) -> np.ndarray:
    """Scores of the test pairs `(pairs, dimensions)` by adapters that `empathy-judge train` made.

    Args:
        changes: Changed settings of the recipe.
        train: Training pairs; the speakers of a quarter choose the epoch.
        test: Pairs to score.
        seed: Seed of that quarter and of training.
        folder: Holds the data set as `data`; its splits are overwritten.
    """
    data = PairDataset.load(folder / "data")
    quarters = GroupKFold(4, shuffle=True, random_state=seed)
    _, choosing = next(quarters.split(train, groups=[str(pair.response_speaker) for pair in train]))
    splits = dict.fromkeys((pair.pair_id for pair in train), "train")
    splits |= {train[row].pair_id: "validation" for row in choosing}
    splits |= dict.fromkeys((pair.pair_id for pair in test), "test")
    write_splits(folder / "data", [splits.get(pair.pair_id) for pair in data.pairs])
    run, cache = folder / "run", folder / "cache"
    settings = {
        "config": "small",
        "method": "lora",
        "seed": seed,
        "cache": {"what": "auto", "folder": str(cache)},
        "trainer": QUIET,
        **changes,
    }
    shutil.rmtree(run, ignore_errors=True)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        done = empathy_judge.train(settings, folder / "data", run)
    assert done is not None
    predicted = Predictor(placed(load_any(run), "cpu"), 64, store=DiskStore(cache)).predict(test)
    scores = {pair.pair_id: result.score.numpy() for pair, result in predicted if not isinstance(result, AudioError)}
    return np.stack([scores[pair.pair_id] for pair in test])


def plans(dataset: PairDataset, folder: Path, seeds: int) -> Iterator[dict[str, Any]]:
    """What is to be fitted, seed by seed, so that a killed run leaves whole seeds."""
    for seed in range(seeds):
        split_dataset(folder, folds=FOLDS, by=["response_speaker"], seed=seed, overwrite=True)
        pairs = PairDataset.load(folder).pairs
        for fold in range(FOLDS):
            parts = [[pair for pair in pairs if pair.split == f"fold{(fold + n) % FOLDS + 1}"] for n in range(FOLDS)]
            both = [pair for part in parts[1:] for pair in part]
            order = np.random.default_rng(seed).permutation(len(both))
            sizes = {str(size): [both[row] for row in order[:size]] for size in SIZES if size < len(both)}
            for size, train in {
                "all": both,
                "train alone": [pair for part in parts[2:] for pair in part],
                **sizes,
            }.items():
                yield {"seed": seed, "fold": fold, "size": size, "train": train, "test": parts[0]}
        # `split` makes folds of even size, for which ten speakers leave hardly two ways; these differ by seed
        pairs = dataset.pairs
        drawn = GroupKFold(FOLDS, shuffle=True, random_state=seed)
        speakers = [str(pair.response_speaker) for pair in pairs]
        for fold, (train, test) in enumerate(drawn.split(speakers, groups=speakers)):
            chosen = [[pairs[row] for row in rows] for rows in (train, test)]
            yield {"seed": seed, "fold": fold, "size": DRAWN, "train": chosen[0], "test": chosen[1]}
    official = [
        [pair for pair in dataset.pairs if dict(pair.tags).get("official") == part] for part in ("train", "test")
    ]
    if all(official):
        yield {"seed": 0, "fold": 0, "size": "official split", "train": official[0], "test": official[1]}


def run(name: str, options: argparse.Namespace, until: float) -> None:
    """Fit what is missing of a set, and append each fit to the file."""
    dataset = load_set(name, options.data, options.work)
    settings = JudgeSettings(
        backbone="nano", pooling="response_mean", head_input=HeadInputSettings("all_layers", functionals=True)
    )
    judge = EmpathyJudge(
        replace(settings, lora=replace(settings.lora, parts=[], full_parts=[])), dataset.card.dimensions
    )
    judge.eval().requires_grad_(False)
    study = Study(dataset, judge, activations_of(dataset, judge, options.work / name / "activations.npz"))
    load_set(name, options.data, options.work / "trained")  # a second copy of the set, with other splits
    file = options.work / name / "fits.jsonl"
    done = {(row["seed"], row["fold"], row["size"], row["method"]) for row in fits_of(file)}
    first = ["official split", "all", DRAWN]
    wanted = sorted(
        plans(dataset, options.work / name / "data", options.seeds),
        key=lambda plan: first.index(plan["size"]) if plan["size"] in first else len(first),
    )
    compared = COMPARED if COMPARED in {plan["size"] for plan in wanted} else DRAWN
    with file.open("a") as out:
        for plan in wanted:
            for method in options.methods:
                key = plan["seed"], plan["fold"], plan["size"], method
                adapters = method in ADAPTERS
                redundant = adapters and plan["size"] == "train alone"  # training sets pairs aside by itself
                variant = method not in EVERY and plan["size"] != compared
                if key in done or redundant or variant or time.monotonic() > until:
                    continue
                start, block_scale = time.perf_counter(), None
                if adapters:
                    folder = options.work / "trained" / name
                    scores = train_and_predict(ADAPTERS[method], plan["train"], plan["test"], plan["seed"], folder)
                else:
                    with_reach = method == "probe" and plan["size"] == "all" and plan["seed"] == 0
                    scores, block_scale = study.predict(
                        METHODS[method], plan["train"], plan["test"], plan["seed"], with_reach
                    )
                row = {
                    **dict(zip(("seed", "fold", "size", "method"), key, strict=True)),
                    "pairs": len(plan["train"]),
                    "seconds": round(time.perf_counter() - start, 2),
                    "test": [pair.pair_id for pair in plan["test"]],
                    "scores": np.round(scores, 5).tolist(),
                    "reach": None if block_scale is None else block_scale.tolist(),
                }
                out.write(json.dumps(row) + "\n")
                out.flush()


def fits_of(file: Path) -> list[dict[str, Any]]:
    """Those that were made before."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Agreement(NamedTuple):
    """Of fits on one dimension."""

    of_folds: list[float]  # Spearman in each test fold
    ids: list[str]  # of the pairs of the first seed's folds, each once
    people: np.ndarray  # their mean ratings
    draws: Resamples  # of their speakers
    pooled: Statistic  # Spearman of their scores

    @classmethod
    def of(cls, dataset: PairDataset, fits: Sequence[Mapping[str, Any]], column: int, resamples: int) -> Agreement:
        """Of scores in a column of each fit."""
        human = dataset.mean_scores()[dataset.card.dimensions[column].name]
        speaker = {pair.pair_id: str(pair.response_speaker) for pair in dataset.pairs}
        folds = [spearman(scores_of([fit], column), human.loc[fit["test"]].to_numpy(float)) for fit in fits]
        first = first_seed(fits)
        ids = [pair for fit in first for pair in fit["test"]]
        people = human.loc[ids].to_numpy(float)
        draws = Resamples.sample([speaker[pair] for pair in ids], resamples, 0)
        return cls(folds, ids, people, draws, estimate(spearman, scores_of(first, column), people, resamples=draws))


def first_seed(fits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Fits that predict each pair once."""
    return [fit for fit in fits if fit["seed"] == min(fit["seed"] for fit in fits)]


def scores_of(fits: Sequence[Mapping[str, Any]], column: int) -> np.ndarray:
    """What they predict on one dimension, one after the other."""
    return np.concatenate([np.array(fit["scores"])[:, column] for fit in fits])


def summary(name: str, work: Path) -> list[dict[str, Any]]:
    """For each size, method and dimension: agreement in test folds, its interval over speakers, and coverage."""
    dataset = PairDataset.load(work / name / "data")
    human, summaries = dataset.mean_scores(), []
    fits = pd.DataFrame(fits_of(work / name / "fits.jsonl"))
    for _, rows in fits.groupby(["size", "method"], sort=False):
        size, method = rows["size"].iloc[0], rows["method"].iloc[0]
        folds_of = 1 if size == "official split" else FOLDS
        whole = [part.sort_values("fold") for _, part in rows.groupby("seed") if len(part) == folds_of]
        if not whole:
            continue
        used = pd.concat(whole)
        for column, dimension in enumerate(dimension.name for dimension in dataset.card.dimensions):
            found, covered = Agreement.of(dataset, used.to_dict("records"), column, RESAMPLES), []
            for row in used.to_dict("records"):
                if row["reach"] is not None:
                    people = human.loc[row["test"], dimension].to_numpy(float)
                    covered.append(np.abs(scores_of([row], column) - people) <= row["reach"][column] + 1e-9)
            summaries.append(
                {
                    "set": name,
                    "dimension": dimension,
                    "size": size,
                    "method": method,
                    "training_pairs": round(float(np.mean(used["pairs"].to_numpy()))),
                    "seeds": len(whole),
                    "folds": len(found.of_folds),
                    "spearman": float(np.mean(found.of_folds)),
                    "of_folds": [round(value, 4) for value in found.of_folds],
                    "pooled": [found.pooled.value, found.pooled.low, found.pooled.high],
                    "speakers": found.draws.n_groups,
                    "coverage": float(np.concatenate(covered).mean()) if covered else None,
                    "seconds": float(np.median(used["seconds"].to_numpy())),
                }
            )
    return summaries


def report(work: Path, out: Path) -> None:
    """Write `small_data.json`, `.md` and `.png` into `out`; earlier rows that were not fitted anew stay."""
    new_rows = [row for name in SETS if (work / name / "fits.jsonl").exists() for row in summary(name, work)]
    out.mkdir(parents=True, exist_ok=True)
    file, key = out / "small_data.json", operator.itemgetter("set", "dimension", "size", "method")
    before = json.loads(file.read_text()) if file.exists() else []
    by_key = {key(row): row for row in [*before, *new_rows]}
    rows = sorted(by_key.values(), key=lambda row: SETS.index(row["set"]))
    file.write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "| set, dimension | trained on | pairs | method | Spearman, mean of test folds "
        "| pooled, 95 % interval over speakers | seeds x folds | 90 % intervals cover |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        value, low, high = (math.nan if number is None else number for number in row["pooled"])
        covered = "" if row["coverage"] is None else f"{100 * row['coverage']:.0f} %"
        lines.append(
            f"| `{row['set']}` {row['dimension']} | {row['size']} | {row['training_pairs']} | {row['method']} "
            f"| {row['spearman']:.3f} | {value:.3f} ({low:.3f} to {high:.3f}) "
            f"| {row['seeds']} x {row['folds'] // row['seeds']} | {covered} |"
        )
    lines += ["", "Every fold of the probe that is fitted to train and validation, five for each seed:", ""]
    for row in rows:
        if row["size"] in ("all", DRAWN) and row["method"] == "probe":
            by_seed = np.reshape([f"{value:.3f}" for value in row["of_folds"]], (-1, FOLDS))
            lines.append(
                f"- `{row['set']}` {row['dimension']}, {row['size']}: {'; '.join(' '.join(seed) for seed in by_seed)}"
            )
    page = out / "small_data.md"
    before = page.read_text().partition("<!-- figures -->")[0] if page.exists() else "# Small data\n\n"
    page.write_text(f"{before}<!-- figures -->\n\n" + "\n".join(lines) + "\n")
    picture(rows, out / "small_data.png")


def picture(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """A learning curve for each method; one panel for each dimension with two sizes or more."""
    sizes: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["size"] in ("all", *map(str, SIZES)):
            sizes.setdefault((row["set"], row["dimension"]), set()).add(row["size"])
    panels = [panel for panel, present in sizes.items() if len(present) > 1]
    if not panels:
        return
    figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel_rows = [
            row for row in rows if (row["set"], row["dimension"]) == panel and row["size"] in ("all", *map(str, SIZES))
        ]
        for method in EVERY:
            points = sorted((row["training_pairs"], row["spearman"]) for row in panel_rows if row["method"] == method)
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=method)
        counts = sorted({row["training_pairs"] for row in panel_rows})
        # the largest, and what is far enough from the next for its label to be read
        ticks = [count for count, above in zip(counts, [*counts[1:], math.inf], strict=True) if above > 1.15 * count]
        axes.set(xscale="log", xlabel="training pairs", title=" ".join(panel))
        axes.set_xticks(ticks, [str(tick) for tick in ticks], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("Spearman, mean of test folds")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(file, dpi=110)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for activations and fits")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    methods = (*METHODS, *ADAPTERS)
    help_text = f"of {', '.join(f'{method!r}' for method in methods)}; by default up to 'adapters'"
    parser.add_argument("--methods", nargs="+", choices=methods, default=EVERY, metavar="METHOD", help=help_text)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no fit after so many")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="fit nothing; write table and picture there")
    options = parser.parse_args()
    if options.report is not None:
        report(options.work, options.report)
        return
    until = time.monotonic() + 60 * options.minutes
    for name in options.sets:
        run(name, options, until)
        print(f"{name}: {len(fits_of(options.work / name / 'fits.jsonl'))} fits", flush=True)


if __name__ == "__main__":
    main()
