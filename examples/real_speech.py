"""From a table of clips and ratings to a judge, a report and a learning curve, on a CPU and in minutes.

    python examples/real_speech.py speechocean/metadata.csv --clip clip --speaker speaker --rating prosodic=0:10:1 \
        --raters _r* --out real

The table has one row for each clip, and for each dimension one column, or with `--raters` one for each rater: then the
report has a noise ceiling, and one rater beside the judge. Speakers are kept apart: the judge is measured on voices
that it has never heard. The judge is a probe (`method: probe`), a regression on what the frozen encoder hears: Whisper
base, or `--recipe small` for nano, which needs no hub. `--method auto` also tries adapters. The learning curve says
whether more ratings are worth their price.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from empathy_judge import PairDataset, compare, dataset_from_frames, train
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.tables import check_file
from empathy_judge.eval.judges.baselines.probe import open_probe
from empathy_judge.eval.measurement import Loading
from empathy_judge.eval.statistics.agreement import spearman
from matplotlib.figure import Figure

SIZES = (50, 100, 200, 400, 800, 1_600)
"""Numbers of training pairs of the learning curve; after them, all pairs."""
DRAWS = 5
"""Random training sets of each size."""


def load(table: Path, clip: str, speaker: str, ratings: list[str], raters: str, out: Path) -> PairDataset:
    """The table as a pair dataset of responses without a context, split by speaker."""
    check_file(table)
    rows = pd.read_csv(table)
    columns = {
        name: fnmatch.filter(rows, name + raters) or [name + raters]
        for name in (scale.partition("=")[0] for scale in ratings)
    }
    for column in (clip, speaker, *itertools.chain(*columns.values())):
        if column not in rows:
            raise DataError(f"{table}: no column {column!r}; it has {', '.join(rows)}")
    ids = [f"clip{number:05}" for number in range(len(rows))]
    pairs = pd.DataFrame(
        {
            "pair_id": ids,
            "response_audio": [str(table.parent / name) for name in rows[clip]],
            "response_speaker": rows[speaker].astype(str),
            "group_id": rows[speaker].astype(str),
        }
    )
    scores = pd.concat(
        pd.DataFrame({"pair_id": ids, "dimension": name, "rater_id": column.removeprefix(name) or "table"}).assign(
            score=rows[column]
        )
        for name, found in columns.items()
        for column in found
    )
    dataset_from_frames(pairs, scores.dropna(), dimensions=ratings, folder=out / "data")
    split_dataset(out / "data", by=["response_speaker"])
    return PairDataset.load(out / "data")


def learning_curve(dataset: PairDataset, run: Path, cache: Path) -> pd.DataFrame:
    """Agreement by number of training pairs: ``pairs, draw, dimension, spearman`` on the test split, of probes that
    read what the judge of a run reads."""
    training, test = dataset.subset(["train", "validation"]), dataset.subset("test")
    human, ids = test.mean_scores(), np.array([pair.pair_id for pair in training.pairs])
    rows = []
    for size in [*(size for size in SIZES if size < 0.8 * len(ids)), len(ids)]:
        for draw in range(DRAWS if size < len(ids) else 1):
            chosen = np.random.default_rng(draw).permutation(ids)[:size]
            some = training.only(set(chosen.tolist()))
            judge = open_probe(f"probe:{run}", some, draw, Loading(device="cpu", cache=cache))
            scores = judge.score(test.pairs).pivot(index="pair_id", columns="dimension", values="score")
            for name in scores.columns:
                agreement = spearman(scores.loc[human.index, name].to_numpy(float), human[name].to_numpy(float))
                rows.append({"pairs": size, "draw": draw, "dimension": name, "spearman": agreement})
            print(f"learning curve: {size} pairs, draw {draw + 1}", flush=True)
    return pd.DataFrame(rows)


def picture(curve: pd.DataFrame, speakers: int, file: Path) -> None:
    """The curve with the range of its draws."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    sizes = sorted(set(curve["pairs"]))
    for name in sorted(set(curve["dimension"])):
        rows = curve[curve["dimension"] == name]
        draws = [rows.loc[rows["pairs"] == size, "spearman"].to_numpy(float) for size in sizes]
        axes.plot(sizes, [values.mean() for values in draws], marker="o", label=name)
        axes.fill_between(sizes, [values.min() for values in draws], [values.max() for values in draws], alpha=0.15)
    axes.set(xscale="log", xlabel="training pairs", ylabel=f"Spearman on clips of {speakers} unseen speakers")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(top=1.0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="CSV; paths of clips count from its folder")
    parser.add_argument("--clip", required=True, metavar="COLUMN", help="path of the clip")
    parser.add_argument("--speaker", required=True, metavar="COLUMN", help="who speaks")
    parser.add_argument(
        "--rating", required=True, action="append", metavar="COLUMN=LOW:HIGH:STEP", help="and its scale"
    )
    parser.add_argument(
        "--raters", default="", metavar="PATTERN", help="what follows COLUMN in the names of the columns of raters: _r*"
    )
    parser.add_argument("--recipe", default="whisper_base", help="small needs no hub")
    parser.add_argument("--backbone", help="another encoder of the recipe's family: a hub id, or a folder")
    parser.add_argument("--method", default="probe", choices=("probe", "auto"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    out, cache = options.out, options.out / "cache"

    dataset = load(options.table, options.clip, options.speaker, options.rating, options.raters, out)
    recipe = {"config": options.recipe, "method": options.method, "refit": True, "cache": {"folder": str(cache)}}
    if options.backbone is not None:
        recipe["judge"] = {"backbone": options.backbone}
    train(recipe, dataset, run=out / "run")
    comparison = compare([out / "run", "probe:nano", "acoustic", "constant"], dataset, cache=cache)
    comparison.save(out / "report")
    print(comparison)

    curve = learning_curve(dataset, out / "run", cache)
    curve.to_csv(out / "learning_curve.csv", index=False)
    speakers = {pair.response_speaker for pair in dataset.subset("test").pairs}
    picture(curve, len(speakers), out / "learning_curve.png")
    print(f"judge: {out / 'run'}   report: {out / 'report' / 'index.html'}   {out / 'learning_curve.png'}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
