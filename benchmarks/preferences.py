"""What comparisons teach on the synthetic sample: preferences alone, with a few ratings, and counterfactual pairs.

Every way sees the same scripts and is scored on the same held-out scripts, all of whose pairs were rated and whose
responses were compared by the simulated panel.

    python benchmarks/preferences.py --out benchmarks/results/preferences.jsonl --work FOLDER
    python benchmarks/preferences.py --out benchmarks/results/preferences.jsonl --page
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from empathy_judge.data_modules.comparisons import human_comparisons
from empathy_judge.data_modules.sample import make_sample
from empathy_judge.data_modules.schema import PairDataset, write_dataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.artifact import load_run
from empathy_judge.models.scoring import PairScorer, Scored
from empathy_judge.train.run import train
from rich.console import Console
from rows import append_row, rows_of, spread

SCRIPTS, SEEDS, FEW = 100, range(3), 0.1
APART, CLEAR = 0.25, 0.5  # rating points between the panel's means of two responses to one context
FRACTIONS = {"train": 0.7, "validation": 0.1, "test": 0.2}
CONFIGS = Path(__file__).parents[1] / "configs"


@dataclass(frozen=True)
class Way:
    """How a judge is trained.

    Attributes:
        name: As the table calls it.
        ratings: Which training pairs keep their ratings: all, a few, or of each context its own response.
        options: Of the train command.
        epochs: So that every way sees about as many pairs.
    """

    name: str
    ratings: str
    options: tuple[str, ...]
    epochs: int


WAYS = (
    Way("preferences alone", "none", ("--config", str(CONFIGS / "preferences.yaml")), 3),
    Way("few ratings", "few", (), 30),
    Way("few ratings and preferences", "few", ("--data.preference_share", "0.8"), 8),
    Way("all ratings", "all", (), 3),
    Way("own responses", "own", (), 12),
    Way("own responses and counterfactual pairs", "own", ("--data.counterfactual_share", "0.7"), 4),
)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="rows, one JSON object a line")
    parser.add_argument("--work", type=Path, help="folder for data and runs")
    parser.add_argument("--ways", nargs="+", help="only these, such as 'few ratings'")
    parser.add_argument("--page", action="store_true", help="print a table of the rows and run nothing")
    given = parser.parse_args()
    if given.page:
        print(page(rows_of(given.out)))
        return
    if given.work is None:
        parser.error("--work is needed")
    for seed in SEEDS:
        for way in WAYS:
            done = {(row["way"], row["seed"]) for row in rows_of(given.out)}
            if (way.name, seed) in done or (given.ways and way.name not in given.ways):
                continue
            folder = thinned(given.work, seed, way.ratings)
            with TemporaryDirectory(prefix="run-", dir=given.work) as run:
                row = {"way": way.name, "seed": seed, **measured(way, seed, given.work, folder, Path(run))}
            append_row(given.out, row)
            Console().print(row)


def page(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown: mean and standard deviation over seeds."""
    lines = [
        "| trained on | runs | Spearman | clear pairs ranked right | nearer pairs too | preferences met | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        runs = [row for row in rows if row["way"] == way.name]
        if runs:
            figures = ("spearman", "clear_pairs_met", "apart_pairs_met", "preferences_met")
            cells = [spread([run[figure] for run in runs]) for figure in figures]
            seconds = f"{np.mean([run['cpu_seconds'] for run in runs]):.0f}"
            lines.append(f"| {' | '.join([way.name, str(len(runs)), *cells, seconds])} |")
    return "\n".join(lines)


def whole_sample(work: Path, seed: int) -> Path:
    """All ratings and preferences of the panel, split by scripts."""
    folder = work / f"whole-{seed}"
    if not folder.is_dir():
        make_sample(folder, groups=SCRIPTS, seed=seed, preferences=1)
        split_dataset(folder, fractions=FRACTIONS, seed=seed)
    return folder


def thinned(work: Path, seed: int, ratings: str) -> Path:
    """The sample with fewer ratings of its training pairs; validation and test keep all."""
    folder = work / f"{ratings}-{seed}"
    if folder.is_dir():
        return folder
    whole = PairDataset.load(whole_sample(work, seed))
    training = whole.subset("train")
    kept = {pair.pair_id for pair in whole.pairs if pair.split != "train"}
    kept |= {"all": _all, "few": _few, "none": lambda *_: set(), "own": _own}[ratings](training, seed)
    unfinished = work / f".{folder.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(whole_sample(work, seed), unfinished)
    rows = pd.DataFrame([
        {
            "pair_id": pair.pair_id, "group_id": pair.group_id, "system_id": pair.system_id, "split": pair.split,
            "context_audio": f"audio/{Path(str(pair.context[0].audio)).name}",
            "response_audio": f"audio/{Path(str(pair.response)).name}",
        }
        for pair in whole.pairs
    ])  # fmt: skip
    rated = whole.ratings.loc[whole.ratings["pair_id"].isin(list(kept)), :]
    # where responses are compared, people have judged what a counterfactual pair would guess
    write_dataset(unfinished, whole.card, rows, rated, None if ratings == "own" else whole.preferences)
    unfinished.rename(folder)
    return folder


def _all(training: PairDataset, _: int) -> set[str]:
    return {pair.pair_id for pair in training.pairs}


def _few(training: PairDataset, seed: int) -> set[str]:
    ids = [pair.pair_id for pair in training.pairs]
    return set(np.random.default_rng([seed, 7]).choice(ids, round(FEW * len(ids)), replace=False))


def _own(training: PairDataset, _: int) -> set[str]:
    """Of each context the pair with the response that the panel likes best, as if it had been made for it."""
    means = training.mean_scores().iloc[:, 0]
    contexts: dict[tuple[str, str], list[str]] = {}
    for pair in training.pairs:
        contexts.setdefault((pair.group_id, str(pair.context[0].audio)), []).append(pair.pair_id)
    return {max(pair_ids, key=lambda pair_id: means[pair_id]) for pair_ids in contexts.values()}


def measured(way: Way, seed: int, work: Path, folder: Path, run: Path) -> dict[str, Any]:
    """Train, and score the held-out scripts."""
    words = ["--config", str(CONFIGS / "nano.yaml"), "--data.path", str(folder), "--run", str(run), "--seed", str(seed)]
    words += ["--trainer.logger", "false", "--data.batch_size", "16", "--patience", "100"]
    words += ["--trainer.max_epochs", str(way.epochs), "--trainer.check_val_every_n_epoch", str(-(-way.epochs // 6))]
    start = time.process_time()
    train([*words, *way.options])
    seconds = time.process_time() - start
    test = PairDataset.load(whole_sample(work, seed)).subset("test")
    found = PairScorer(load_run(run).judge).score(test.pairs)
    scores = {pair.pair_id: float(one.score[0]) for pair, one in found if isinstance(one, Scored)}
    decided = [item for item in human_comparisons(test) if item.strength[0] > 0]
    leads = np.array([scores[item.chosen.pair_id] - scores[item.rejected.pair_id] for item in decided])
    means = test.mean_scores().iloc[:, 0]
    panel = np.array([means[item.chosen.pair_id] - means[item.rejected.pair_id] for item in decided])
    apart, clear = np.abs(panel) >= APART, np.abs(panel) >= CLEAR
    met = np.sign(leads) == np.sign(panel)
    return {
        "n": len(scores),
        "comparisons": len(decided),
        "spearman": spearman(np.array([scores[pair.pair_id] for pair in test.pairs]), means.to_numpy()).value,
        "preferences_met": float(np.mean(leads > 0)),
        "clear_pairs": int(clear.sum()),
        "clear_pairs_met": float(np.mean(met[clear])),
        "apart_pairs": int(apart.sum()),
        "apart_pairs_met": float(np.mean(met[apart])),
        "panel_meets_preferences": float(np.mean(panel > 0) + np.mean(panel == 0) / 2),
        "cpu_seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    main()
