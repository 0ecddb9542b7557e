"""How often boards of systems are right: `python benchmarks/boards.py --out FILE`.

Simulated, so that the truth is known: systems answer the same contexts, a judge scores every response, people rate a
few. The judge is of a given Spearman with the mean ratings and has a bias of its own for each system, as judges have.
Held are 95 % intervals of means and of differences; width is that of the board with judge and ratings over that of the
same ratings alone, mean over intervals, and beside it the least that a lambda can do. A wrong "better" is one where the
other system is better, or none. Then, on the same data, what other boards say that trust the judge: the paired t test
and bootstrap of `comet-compare`, Bradley-Terry strengths with bootstrap intervals (Chatbot Arena), and the permutation
test of pairs of systems (WMT metrics task).

With `--data`, the folder of real ratings: each time people rate another random fifth of the items, and the truth is the
mean of all ratings. These items are then all there are, so intervals for items like these are too wide on purpose.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from empathy_judge.eval.statistics.significance import ALPHA, holm
from empathy_judge.eval.statistics.system_means import SystemMeans, SystemSums, system_means
from scipy import stats

SPEARMAN = (0.0, 0.3, 0.6, 0.9)
PLANS = ((2, 10, 20), (2, 30, 40), (2, 60, 40), (2, 60, 120), (5, 30, 50), (5, 60, 100), (5, 60, 200), (30, 60, 400))
"""Systems, contexts, ratings."""
SPREAD, CONTEXT, OWN, NOISE = 0.3, 0.4, 0.5, 0.1
"""Standard deviation of the systems' true means; variances of contexts, of responses within them, of mean ratings."""
BIAS = 0.3
"""Standard deviation of what the judge adds to each system."""
DRAWS = 200


class World(NamedTuple):
    """A simulated test, arrays of shape (contexts, systems)."""

    truth: np.ndarray  # shape (systems,), means over all contexts that there are
    judge: np.ndarray
    human: np.ndarray  # NaN = not rated


def simulate(
    rng: np.random.Generator, systems: int, contexts: int, ratings: int, spearman: float, spread: float
) -> World:
    """Draw systems, contexts, responses, and the contexts whose responses are all rated."""
    truth = rng.normal(0, spread, systems)
    quality = rng.normal(0, CONTEXT**0.5, (contexts, 1)) + rng.normal(0, OWN**0.5, (contexts, systems))
    rating = quality + rng.normal(0, NOISE**0.5, quality.shape)
    pearson = 2 * np.sin(np.pi / 6 * spearman)  # of normal variables (Pearson, 1907)
    # With the mean ratings, of which only the quality can be known
    known = pearson / (1 - NOISE) ** 0.5
    judge = known * quality / (1 - NOISE) ** 0.5 + rng.normal(0, max(0.0, 1 - known**2) ** 0.5, quality.shape)
    judge = judge + truth * (spearman > 0) + rng.normal(0, BIAS, systems)
    rated = rng.permutation(contexts)[: max(1, ratings // systems)]
    human = np.full(quality.shape, np.nan)
    human[rated] = (rating + truth)[rated]
    return World(truth, judge, human)


def sums_of(judge: np.ndarray, human: np.ndarray) -> SystemSums:
    """The sums of a rectangular test, arrays of shape (contexts, systems)."""
    contexts, systems = judge.shape
    names = [f"{number:03}" for number in range(max(contexts, systems))]
    return SystemSums.of(
        names[:systems] * contexts, np.repeat(names[:contexts], systems).tolist(), judge.ravel(), human.ravel()
    )


class Tally:
    """Shares and means over simulations."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self._values.setdefault(name, []).append(value)

    def mean(self, name: str) -> float:
        found = self._values.get(name)
        return float(np.nanmean(found)) if found and not np.isnan(found).all() else np.nan


def compare(tally: Tally, sums: SystemSums, truth: np.ndarray) -> SystemMeans:
    """Add what intervals with the judge, and by ratings alone, hold and how wide they are; return those with it."""
    powered, alone = system_means(sums, "both"), system_means(sums, "ratings")
    apart = [truth[i] - truth[j] for i, j in powered.differences]
    for what, with_judge, without, true in (
        ("means", powered.means, alone.means, truth),
        ("differences", powered.differences.values(), alone.differences.values(), apart),
    ):
        for name, rows in ((f"{what} held, %", with_judge), (f"{what} held by ratings, %", without)):
            # No interval is neither right nor wrong
            inside = [
                row.low <= value <= row.high for row, value in zip(rows, true, strict=True) if None not in row[2:4]
            ]
            tally.add(name, 100 * float(np.mean(inside)) if inside else np.nan)
        pairs = zip(with_judge, without, strict=True)
        ratios = [a.standard_error / b.standard_error for a, b in pairs if a.standard_error and b.standard_error]
        tally.add(f"width of {what}", float(np.mean(ratios)) if ratios else np.nan)
    return powered


HELD = tuple(f"{what} held{by}, %" for what in ("means", "differences") for by in ("", " by ratings"))
WIDTH = ("width of means", "width of differences")


def better(board: SystemMeans) -> dict[tuple[int, int], float]:
    """Pairs of systems that are told apart after Holm's correction -> the difference."""
    tested = {pair: found for pair, found in board.differences.items() if found.p is not None}
    adjusted = holm(np.array([found.p for found in tested.values()]))
    told = zip(tested.items(), adjusted, strict=True)
    return {pair: float(found.value or 0) for (pair, found), p in told if p < ALPHA}


# ---------------------------------------------------------------- boards of others, from the judge alone


def comet_compare(judge: np.ndarray, rng: np.random.Generator) -> dict[tuple[int, int], float]:
    """Pairs that a paired t test tells apart at 5 %, each for itself."""
    found = {}
    for i, j in pairs_of(judge):
        apart = judge[:, i] - judge[:, j]
        if 2 * stats.t.sf(abs(apart.mean() / stats.sem(apart)), len(apart) - 1) < ALPHA:
            found[i, j] = float(apart.mean())
    return found


def bradley_terry(judge: np.ndarray, rng: np.random.Generator) -> dict[tuple[int, int], float]:
    """Pairs whose strengths have 95 % bootstrap intervals that do not overlap; a win is a higher score."""
    contexts = len(judge)
    wins = (judge[:, :, None] > judge[:, None, :]).astype(float)
    counts = rng.multinomial(contexts, np.full(contexts, 1 / contexts), DRAWS)  # how often each context is drawn
    low, high = np.percentile(strengths(np.tensordot(counts, wins, 1)), (2.5, 97.5), axis=0)
    point = strengths(wins.sum(0))
    return {(i, j): float(point[i] - point[j]) for i, j in pairs_of(judge) if low[i] > high[j] or low[j] > high[i]}


def strengths(wins: np.ndarray) -> np.ndarray:
    """Bradley-Terry strengths, shape (..., systems), mean 0, of wins (..., systems, systems), with half a win added to
    each side."""
    wins = wins + 0.5 * (1 - np.eye(wins.shape[-1]))
    strength, games = np.ones(wins.shape[:-1]), wins + wins.swapaxes(-1, -2)
    for _ in range(50):  # Hunter (2004), whose steps only rise
        strength = wins.sum(-1) / (games / (strength[..., :, None] + strength[..., None, :])).sum(-1)
        strength /= np.exp(np.log(strength).mean(-1, keepdims=True))
    return np.log(strength)


def metrics_task(judge: np.ndarray, rng: np.random.Generator) -> dict[tuple[int, int], float]:
    """Pairs that a permutation test of paired scores tells apart at 5 %, each for itself."""
    found = {}
    signs = rng.choice((-1.0, 1.0), (DRAWS * 5, len(judge)))
    for i, j in pairs_of(judge):
        apart = judge[:, i] - judge[:, j]
        if (np.abs(signs @ apart) >= abs(apart.sum())).mean() < ALPHA:
            found[i, j] = float(apart.mean())
    return found


def pairs_of(judge: np.ndarray) -> Iterator[tuple[int, int]]:
    """Positions (i, j), i < j, of all pairs of systems."""
    first, second = np.triu_indices(judge.shape[1], 1)
    return zip(first.tolist(), second.tolist(), strict=True)


OTHERS: Mapping[str, Callable[[np.ndarray, np.random.Generator], dict[tuple[int, int], float]]] = {
    "comet-compare": comet_compare,
    "Bradley-Terry": bradley_terry,
    "permutation": metrics_task,
}

# ---------------------------------------------------------------- tables


def least(plan: tuple[int, int, int], spearman: float) -> tuple[float, float]:
    """Width of means and of differences over that by ratings alone, were all variances known: no lambda does better.

    With n of N contexts rated it is sqrt(1 - r^2 (1 - n / N)), r = Pearson correlation of scores and mean ratings, or
    of their differences: what is common to a context leaves those, so that noise has a larger share.
    """
    systems, contexts, ratings = plan
    pearson, unrated = 2 * np.sin(np.pi / 6 * spearman), 1 - min(1.0, ratings // systems / contexts)
    square = pearson**2 / (1 - NOISE)  # the part of the judge's variance that is quality
    own = square / (1 - NOISE) * OWN
    apart = own * OWN / ((OWN + NOISE) * (own + 1 - square))
    return (1 - pearson**2 * unrated) ** 0.5, (1 - apart * unrated) ** 0.5


def coverage_row(plan: tuple[int, int, int], spearman: float, simulations: int, seed: int) -> list[str]:
    """A row of the first table."""
    rng, tally = np.random.default_rng([seed, *plan, round(100 * spearman)]), Tally()
    for _ in range(simulations // 5 if plan[0] > 5 else simulations):  # many systems are many intervals
        world = simulate(rng, *plan, spearman, SPREAD)
        tally.add("worth", compare(tally, sums_of(world.judge, world.human), world.truth).ratings_worth)
    widths = [f"{tally.mean(name):.2f} ({bound:.2f})" for name, bound in zip(WIDTH, least(plan, spearman), strict=True)]
    shares = [f"{tally.mean(name):.1f}" for name in HELD]
    return [*map(str, plan), f"{spearman:.1f}", *shares, *widths, f"{tally.mean('worth'):.2f}"]


def error_row(plan: tuple[int, int, int], spearman: float, spread: float, simulations: int, seed: int) -> list[str]:
    """A row of the second table: share of boards with a wrong "better", and pairs told apart."""
    rng, tally = np.random.default_rng([seed, *plan, round(100 * spearman), round(100 * spread)]), Tally()
    for _ in range(simulations):
        world = simulate(rng, *plan, spearman, spread)
        sums = sums_of(world.judge, world.human)
        boards = {source: better(system_means(sums, source)) for source in ("both", "ratings", "judge")}
        boards |= {name: board(world.judge, rng) for name, board in OTHERS.items()}
        for name, found in boards.items():
            # Equal systems have no true order: whichever is called better is wrong
            wrong = [value * (world.truth[i] - world.truth[j]) <= 0 for (i, j), value in found.items()]
            tally.add(f"wrong {name}", float(any(wrong)))
            tally.add(f"found {name}", len(found) / len(list(pairs_of(world.judge))))
    cells = [
        f"{100 * tally.mean(f'wrong {name}'):.1f} ({100 * tally.mean(f'found {name}'):.0f})"
        for name in ("both", "ratings", "judge", *OTHERS)
    ]
    return [*map(str, plan), f"{spearman:.1f}", "none" if spread == 0 else f"{spread:.1f}", *cells]


def real_rows(folder: Path, draws: int, seed: int) -> Iterator[list[str]]:
    """Rows of the third table: ratings that were given, a fifth of them shown each time."""
    clips = pd.read_csv(folder / "mushra_codec" / "pairs.csv")
    means = pd.read_csv(folder / "mushra_codec" / "ratings.csv").pivot_table(index="pair_id", values="score")
    human = clips.join(means, on="pair_id").pivot(index="group_id", columns="system_id", values="score").dropna(axis=1)
    # A judge that is independent of the truth's noise: some of the listeners of a clip are the judge, the others people
    ratings = pd.read_csv(folder / "mushra_codec" / "ratings.csv").merge(clips[["pair_id", "group_id", "system_id"]])
    number = ratings.groupby("pair_id")["rater_id"].rank()
    for judges in (1, 4):
        judge, people = (
            rows.pivot_table(index="group_id", columns="system_id", values="score").loc[human.index, human.columns]
            for rows in (ratings[number <= judges], ratings[number > judges])
        )
        label = f"mushra_codec, judge: {judges} of 8 to 11 listeners"
        yield from _fifths(label, judge.to_numpy(), people.to_numpy(), draws, seed)
    table = pd.read_csv(folder / "empathic_communication" / "ratings_long.csv", dtype={"conversation_id": str})
    experts = table[table["annotator"].isin(["expert1", "expert2", "expert3"])]
    for name in ("perceived_empathy", "lend_an_ear"):
        wide = {
            who: rows.pivot_table(index="row", columns="dimension", values="score")
            for who, rows in (
                ("people", experts.loc[experts["dataset"] == name]),
                *(
                    (judge, table.loc[(table["dataset"] == name) & (table["annotator"] == judge)])
                    for judge in ("gpt_4o", "crowd")
                ),
            )
        }
        for judge in ("gpt_4o", "crowd"):
            label = f"Kumar et al., {name}, judge: {judge}"
            yield from _fifths(label, wide[judge].to_numpy(), wide["people"].to_numpy(), draws, seed)


def _fifths(label: str, judge: np.ndarray, human: np.ndarray, draws: int, seed: int) -> Iterator[list[str]]:
    rng, tally, truth = np.random.default_rng(seed), Tally(), human.mean(axis=0)
    for _ in range(draws):
        shown = np.full(human.shape, np.nan)
        rated = rng.permutation(len(human))[: max(5, round(0.2 * len(human)))]
        shown[rated] = human[rated]
        compare(tally, sums_of(judge, shown), truth)
    shares = [f"{tally.mean(name):.1f}" for name in HELD]
    yield [label, str(human.shape[1]), str(len(human)), *shares, *[f"{tally.mean(name):.2f}" for name in WIDTH]]


def ppi_rows(simulations: int, seed: int) -> Iterator[list[str]]:
    """Rows of the last table: a mean of single pairs, 60 of 200 rated, where `ppi-python` does the same."""
    ppi = importlib.import_module("ppi_py")
    rng, found = np.random.default_rng(seed), {"ppi-python": [], "ours": []}
    for _ in range(simulations):
        quality = rng.normal(3, 1, 200)
        judge, human = quality + rng.normal(0, 0.5, 200), (quality + rng.normal(0, 0.5, 200))[:60]
        ends = ppi.ppi_mean_ci(human, judge[:60], judge[60:], alpha=ALPHA)
        point = ppi.ppi_mean_pointestimate(human, judge[:60], judge[60:])
        found["ppi-python"].append([float(np.squeeze(value)) for value in (point, *ends)])
        shown = np.full((200, 1), np.nan)
        shown[:60, 0] = human
        own = system_means(sums_of(judge[:, None], shown), "both").means[0]
        found["ours"].append([own.value, own.low, own.high])
    for name, rows in found.items():
        value, low, high = np.array(rows, float).T
        held = f"{100 * ((low <= 3) & (high >= 3)).mean():.1f}"
        yield [name, held, f"{(high - low).mean():.3f}", f"{np.sqrt(((value - 3) ** 2).mean()):.4f}"]


def table_of(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="folder with mushra_codec and empathic_communication")
    parser.add_argument("--ppi", action="store_true", help="also compare with ppi-python, which must be installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = ["systems", "contexts", "ratings", "Spearman"]
    parts = [
        "# Boards of systems",
        f"`python benchmarks/boards.py --simulations {options.simulations}`; see the program.",
    ]
    rows = [coverage_row(plan, r, options.simulations, options.seed) for plan in PLANS for r in SPEARMAN]
    head = [*plan, *HELD, *(f"{name} (least)" for name in WIDTH), "ratings worth"]
    parts += ["## Judge and ratings together", table_of(head, rows)]
    some = max(50, options.simulations // 4)
    rows = [
        error_row(plan, r, spread, some, options.seed)
        for plan in PLANS[2:6]
        for spread in (0.0, SPREAD)
        for r in SPEARMAN
    ]
    head = [*plan, "spread", "judge and ratings", "ratings", "judge alone", *OTHERS]
    parts += [f'## Boards with a wrong "better", % (pairs told apart, %); {some} simulations', table_of(head, rows)]
    if options.data:
        head = ["ratings", "systems", "contexts", *HELD, *WIDTH]
        parts += [
            f"## Real ratings, a fifth shown, {DRAWS} draws",
            table_of(head, list(real_rows(options.data, DRAWS, options.seed))),
        ]
    if options.ppi:
        head = ["one mean, no groups", "held, %", "width", "root mean square error"]
        parts += ["## Beside ppi-python", table_of(head, list(ppi_rows(2 * options.simulations, options.seed)))]
    options.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
