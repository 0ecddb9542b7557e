"""Which head: a number (regression), a number and its deviation (gaussian), or the shares of raters (histogram).

Each seed splits a data set by group (60 % training, 20 % validation, 20 % test) and trains the nano backbone with each
head from the same start. On the test split: Spearman, the ranked probability score of the expected shares of raters,
and how many 90 % intervals hold the mean rating. Heads without shares get a bell around the score, as wide as the
ratings of the validation split lie around theirs; so does the histogram head, beside its own shares.
Run: `python benchmarks/heads.py DATA --work FOLDER`, where DATA is a pair dataset, or the folder of the sets
`speechocean_prosody` and `mushra_codec` with `--set NAME`. Each run is a row of `FOLDER/heads.jsonl`, and is not done
again; `--report` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import empathy_judge
import numpy as np
import pandas as pd
from empathy_judge import PairDataset
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.writing import write_splits
from empathy_judge.eval.evaluate import Results, evaluate
from empathy_judge.eval.statistics.distributions import penalties
from materials import load_set
from scipy.stats import norm

HEADS = ("regression", "gaussian", "histogram")
QUIET = {"logger": False, "enable_progress_bar": False}
_MEASURES = ("spearman", "rps", "rps_bell", "rps_constant", "rps_one_rater", "rps_panel", "covered", "width", "seconds")


def bell(scores: np.ndarray, spread: float, dimension: Dimension) -> np.ndarray:
    """Shares at the steps of a scale of normal ratings around scores `(items,)`: `(items, steps)`. The ends take what
    is beyond them."""
    edges = dimension.minimum + (dimension.step or 1) * (np.arange(1, dimension.steps) - 0.5)
    below = norm.cdf((edges - scores[:, None]) / spread)
    return np.diff(below, prepend=0, append=1)


def counts_of(dataset: PairDataset, dimension: Dimension, pair_ids: Sequence[str]) -> np.ndarray:
    """How many raters gave each step, the lowest first `(pairs, steps)`."""
    own = dataset.ratings.loc[dataset.ratings["dimension"] == dimension.name]
    steps = np.rint((own["score"] - dimension.minimum) / (dimension.step or 1)).astype(int)
    table = pd.crosstab(own["pair_id"], steps).reindex(index=pair_ids, columns=range(dimension.steps), fill_value=0)
    return table.to_numpy(float)


def measured(test: Results, validation: Results) -> dict[str, Any]:
    """The figures of a judge on its first dimension."""
    dataset, (dimension, *_) = test.dataset, test.dataset.card.dimensions
    report = test.report.dimensions[dimension.name]
    items = [
        own.items.loc[own.items["dimension"] == dimension.name].dropna(subset="score") for own in (validation, test)
    ]
    known, seen = (counts_of(dataset, dimension, own["pair_id"].tolist()) for own in items)
    points = dimension.minimum + (dimension.step or 1) * np.arange(dimension.steps)
    errors = points - items[0]["score"].to_numpy()[:, None]
    spread = float(np.sqrt((known * errors**2).sum() / known.sum()))
    found: dict[str, Any] = {
        "spearman": report.spearman.value,
        "rps_bell": float(penalties(bell(items[1]["score"].to_numpy(), spread, dimension), seen).rps.mean()),
        "pairs": len(items[1]),
    }
    if (shares := report.rating_distribution) is not None:
        others = {f"rps_{name}": getattr(shares.rps, name).value for name in ("constant", "one_rater", "panel")}
        found |= {"rps": shares.rps.judge.value, **others}
    if report.uncertainty is not None:
        interval = report.uncertainty.intervals["90"]
        found |= {"covered": interval.covered.value, "width": interval.width.value}
    return found


def run(folder: Path, config: str, seed: int, head: str, groups: int | None, epochs: int | None) -> dict[str, Any]:
    """Train a head on `folder/data`, whose splits are overwritten, and measure it."""
    data = folder / "data"
    split_dataset(data, fractions={"train": 0.6, "validation": 0.2, "test": 0.2}, seed=seed, overwrite=True)
    pairs = PairDataset.load(data).pairs
    names = sorted({str(pair.group_id) for pair in pairs})
    kept = set(np.random.default_rng(0).permutation(names)[:groups].tolist())
    write_splits(data, [pair.split if pair.group_id in kept else None for pair in pairs])
    shutil.rmtree(folder / "run", ignore_errors=True)
    settings = {
        "config": config,
        "method": "lora",
        "seed": seed,
        "judge": {"head": head},
        "cache": {"what": "auto", "folder": str(folder / "cache")},
        "trainer": QUIET if epochs is None else {**QUIET, "max_epochs": epochs},
    }
    start = time.process_time()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        empathy_judge.train(settings, data, folder / "run")
        seconds = time.process_time() - start
        how: Any = {"checks": (), "resamples": 200, "cache": folder / "cache"}
        test, validation = (evaluate(folder / "run", data, split=part, **how) for part in ("test", "validation"))
    return {"seed": seed, "head": head, "seconds": round(seconds, 1), **measured(test, validation)}


def table(rows: pd.DataFrame) -> str:
    """Mean and standard deviation over seeds, as Markdown."""
    lines = ["| set | head | runs | pairs | " + " | ".join(_MEASURES) + " |", "|---" * (4 + len(_MEASURES)) + "|"]
    for (name, head), own in rows.groupby(["set", "head"], sort=False):
        cells = []
        for measure in _MEASURES:
            values = own[measure].dropna() if measure in own else pd.Series(dtype=float)
            cells.append(f"{values.mean():.4g} ± {values.std(ddof=1):.2g}" if len(values) else "")
        lines.append(f"| {name} | {head} | {len(own)} | {own['pairs'].mean():.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--set", help="a set of DATA (default: DATA is a pair dataset)")
    parser.add_argument("--config", default="small", help="recipe (default: small)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, help="groups that count, drawn once (default: all)")
    parser.add_argument("--epochs", type=int, help="default: those of the recipe")
    parser.add_argument("--report", action="store_true", help="print the table of the runs there are")
    options = parser.parse_args(words)
    file, name = options.work / "heads.jsonl", options.set or options.data.resolve().parent.name
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.report:
        folder = options.work / name
        if options.set is None and not (folder / "data").exists():
            shutil.copytree(options.data, folder / "data")
        elif options.set is not None:
            load_set(name, options.data, options.work)
        done = {(row["set"], row["seed"], row["head"]) for row in _rows(file)}
        for seed in range(options.seeds):
            for head in HEADS:
                if (name, seed, head) not in done:
                    row = {"set": name, **run(folder, options.config, seed, head, options.groups, options.epochs)}
                    with file.open("a") as out:
                        out.write(json.dumps(row) + "\n")
    print(table(pd.DataFrame(_rows(file))))


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
