"""Every head with every loss, five seeds each: held-out agreement, coverage of intervals, and cost.

On the synthetic sample and, where real recordings are at hand (`--mushra FOLDER`), on their ratings. `--confirm` runs
on a fresh sample of the demo's size what was chosen by the others: the best of many recipes looks better than it is.
A seed draws the split by script or sentence, the weights and the order. Each run is the `train` command with its
recipe; its best checkpoint is calibrated on the validation split and scored on the test split. Rows are appended to a
file as they come, and what is there already is not run again: a killed study goes on, and two processes share it
(`--part 0/2`, `--part 1/2`).

    python benchmarks/heads_losses.py --out benchmarks/results/heads_losses.jsonl --work FOLDER
    python benchmarks/heads_losses.py --out benchmarks/results/heads_losses.jsonl --page
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
from empathy_judge.cli import main as command
from empathy_judge.data_modules.errors import UserError
from empathy_judge.data_modules.sample import make_sample
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.eval.statistics.agreement import ccc, spearman
from empathy_judge.models.artifact import load_run
from empathy_judge.models.heads import HeadName
from empathy_judge.models.scoring import PairScorer, Scored
from empathy_judge.train.objective import OWN_LOSS
from empathy_judge.train.run import train
from rich.console import Console
from rows import append_row, rows_of, spread

SEEDS = range(5)
FRACTIONS = {"train": 0.6, "validation": 0.15, "test": 0.25}
SCRIPTS = {"sample": 80, "fresh sample": 200}
# Differences of the small sample from its recipe, to make many runs affordable and leave room for differences
SMALLER = ["--data.batch_size", "16", "--trainer.max_epochs", "2"]
CONFIGS = Path(__file__).parents[1] / "configs"
# Losses beside the head's own, with their weights; "" = the own loss alone
BESIDE = {"": 0.0, "mse": 1.0, "ccc": 0.5, "logistic_ranking": 0.3, "soft_spearman": 0.3}
OF_SCORES = ("huber", "ccc", "logistic_ranking", "margin_ranking", "soft_spearman")
OVER_STEPS = ("coral", "corn", "histogram")


@dataclass(frozen=True)
class Cell:
    """One recipe: a head and the weights of its losses."""

    head: str
    losses: tuple[tuple[str, float], ...]

    @property
    def name(self) -> str:
        """As the page calls it."""
        return " + ".join(loss if weight == 1 else f"{weight:g} {loss}" for loss, weight in self.losses)


def cells() -> list[Cell]:
    """The plain recipe of each head first, then what is added to it, then other losses by themselves.

    Losses of the score alone are run with the regression head: they leave what the other heads know beside the score
    untrained.
    """
    heads = get_args(HeadName)
    found = [
        Cell(head, ((OWN_LOSS[head], 1.0), *(((beside, weight),) if beside else ())))
        for beside, weight in BESIDE.items()
        for head in heads
        if beside != OWN_LOSS[head] and (head, beside) != ("gaussian", "mse")  # which is in its own loss
    ]
    found += [Cell(head, (("squared_emd", 1.0),)) for head in OVER_STEPS]
    return found + [Cell("regression", ((loss, 1.0),)) for loss in OF_SCORES]


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="rows, one JSON object a line")
    parser.add_argument("--work", type=Path, help="folder for data and runs")
    parser.add_argument("--mushra", type=Path, help="folder of the MUSHRA recordings, instead of the sample")
    parser.add_argument("--confirm", action="store_true", help="a fresh sample of the demo's size instead")
    parser.add_argument("--part", default="0/1", help="which of how many processes this is")
    parser.add_argument("--heads", nargs="+", help="only these")
    parser.add_argument("--losses", nargs="+", help="only recipes of these names, such as mse or 'mse + 0.5 ccc'")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="only these")
    parser.add_argument("--page", action="store_true", help="print tables of the rows and run nothing")
    given = parser.parse_args()
    if given.page:
        print(page(rows_of(given.out)))
        return
    if given.work is None:
        parser.error("--work is needed")
    data = "mushra" if given.mushra else "fresh sample" if given.confirm else "sample"
    part, parts = map(int, given.part.split("/"))
    wanted = [
        (cell, seed)
        for cell in cells()
        if (not given.heads or cell.head in given.heads) and (not given.losses or cell.name in given.losses)
        for seed in given.seeds
    ]
    for number, (cell, seed) in enumerate(wanted):
        done = {(row["data"], row["head"], row["losses"], row["seed"]) for row in rows_of(given.out)}
        if number % parts != part or (data, cell.head, cell.name, seed) in done:
            continue
        folder = prepared(data, given.work, given.mushra, seed)
        row = {"data": data, **asdict(cell), "losses": cell.name, "seed": seed}
        with TemporaryDirectory(prefix="run-", dir=given.work) as run:
            row |= measured(cell, seed, data, folder, Path(run))
        append_row(given.out, row)
        Console().print(row)


def prepared(data: str, work: Path, mushra: Path | None, seed: int) -> Path:
    """The dataset with the split of this seed, made once."""
    name = data.replace(" ", "-")
    folder = work / f"{name}-{seed}"
    if folder.is_dir():
        return folder
    unfinished = work / f".{name}-{seed}-{time.time_ns()}"
    if mushra is None:
        make_sample(unfinished, groups=SCRIPTS[data], seed=list(SCRIPTS).index(data))
    else:
        _import(unfinished, mushra)
    split_dataset(unfinished, fractions=FRACTIONS, seed=seed)
    try:
        unfinished.rename(folder)
    except OSError:  # made by another process meanwhile
        shutil.rmtree(unfinished)
    return folder


def _import(folder: Path, mushra: Path) -> None:
    tables = [str(mushra / "pairs.csv"), "--ratings", str(mushra / "ratings.csv"), "--dimension", "fidelity=0:100:1"]
    words = ["import", "table", *tables, "--column", "response_speaker=speaker_id", "--name", "mushra"]
    if command([*words, "--out", str(folder)]):
        raise UserError(f"{mushra}: not imported")


def measured(cell: Cell, seed: int, data: str, folder: Path, run: Path) -> dict[str, Any]:
    """Train, calibrate, score the test split."""
    losses = json.dumps(dict(cell.losses))
    words = ["--config", str(CONFIGS / ("mushra.yaml" if data == "mushra" else "nano.yaml"))]
    words += ["--data.path", str(folder), "--run", str(run), "--seed", str(seed), "--trainer.logger", "false"]
    words += ["--model.head", cell.head, "--model.losses", losses]
    words += SMALLER if data == "sample" else []
    start = time.process_time()
    try:
        train(words)
    except UserError as error:
        return {"failed": str(error), "cpu_seconds": time.process_time() - start}
    seconds = time.process_time() - start
    part = PairDataset.load(folder).subset("test")
    (means,) = part.mean_scores().to_numpy().T
    loaded = load_run(run)
    scorer = PairScorer(loaded.judge, calibration=loaded.calibration)
    scored = [found for _, found in scorer.score(part.pairs) if isinstance(found, Scored)]
    score, error, low, high = (
        np.array([float(getattr(found, name)[0]) for found in scored])
        for name in ("score", "standard_error", "low", "high")
    )
    return {
        "n": len(means),
        "groups": len({pair.group_id for pair in part.pairs}),
        "spearman": spearman(score, means).value,
        "ccc": ccc(score, means).value,
        "coverage": float(np.mean((low <= means) & (means <= high))),
        "width": float(np.mean(high - low)),
        "standard_error": float(np.mean(error)),
        "rmse": float(np.sqrt(np.mean((score - means) ** 2))),
        "cpu_seconds": round(seconds, 1),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """Tables in Markdown: mean and standard deviation over seeds, and the paired difference to plain MSE."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        plain = {row["seed"]: row for row in mine if (row["head"], row["losses"]) == ("regression", "mse")}
        recipes = dict.fromkeys((row["head"], row["losses"]) for row in mine)
        table = [_line([row for row in mine if (row["head"], row["losses"]) == recipe], plain) for recipe in recipes]
        lines += [
            f"### {data}",
            "",
            "| head | losses | runs | Spearman | to plain MSE | CCC | 90 % intervals cover | width | cost |",
            "|---|---|---|---|---|---|---|---|---|",
            *(line for _, line in sorted(table, reverse=True)),
            "",
        ]
    return "\n".join(lines)


def _line(runs: list[dict[str, Any]], plain: dict[int, dict[str, Any]]) -> tuple[float, str]:
    """Mean Spearman, to sort by, and the line of a recipe."""
    done = [run for run in runs if run.get("spearman") is not None]
    failed = f" ({len(runs) - len(done)} without a result)" if len(done) < len(runs) else ""
    if not done:
        return -2.0, f"| {runs[0]['head']} | {runs[0]['losses']} | 0{failed} | | | | | | |"
    both = [(run, plain[run["seed"]]) for run in done if run["seed"] in plain]
    ahead = [run["spearman"] - other["spearman"] for run, other in both if other.get("spearman") is not None]
    cost = [run["cpu_seconds"] / other["cpu_seconds"] for run, other in both]
    cells = [
        done[0]["head"],
        done[0]["losses"],
        f"{len(done)}{failed}",
        spread([run["spearman"] for run in done]),
        spread(ahead, sign="+") if ahead else "",
        spread([run["ccc"] for run in done]),
        f"{100 * np.mean([run['coverage'] for run in done]):.0f} %",
        f"{np.mean([run['width'] for run in done]):.2f}",
        f"{np.mean(cost):.2f}" if cost else "",
    ]
    return float(np.mean([run["spearman"] for run in done])), f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
