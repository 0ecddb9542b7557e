"""Cluster bootstrap of Spearman for several judges against a loop over SciPy: ratio and memory, in one run.

The loop does what one would write: draw groups, repeat their items, `scipy.stats.spearmanr` for each judge. Only a few
of its resamples are run; both sides get the same draws, and their values are compared. One process; ours has as many
threads as there are cores. Run: `python benchmarks/bootstrap.py`
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.rank_draws import spearman_draws
from scipy import stats

ITEMS, JUDGES, RESAMPLES = 100_000, 8, 10_000
PER_GROUP, LOOP = 8, 5  # items of a group; resamples of the loop
LIKE = 1e-9
"""Largest difference between the two that passes."""


def main() -> None:
    """Print the table; exit with 1 if the values differ."""
    # judges without ties, means of five raters on a scale of five, and groups of `PER_GROUP` items
    rng = np.random.default_rng(0)
    truth = rng.normal(3, 1, ITEMS)
    human = np.clip(np.round(truth[:, None] + rng.normal(0, 1, (ITEMS, 5))), 1, 5).mean(axis=1)
    scores = truth + rng.normal(0, 1, (JUDGES, ITEMS))
    groups = (np.arange(ITEMS) // PER_GROUP).astype(str)

    start = time.perf_counter()
    resamples = Resamples.draw(groups, RESAMPLES, seed=0)
    draws = spearman_draws(scores, human, resamples.codes, resamples.counts)
    ours = time.perf_counter() - start
    start = time.perf_counter()
    expected = []
    for row in resamples.counts[:LOOP]:
        items = np.repeat(np.arange(len(human)), row[resamples.codes].astype(int))
        expected.append([stats.spearmanr(score[items], human[items])[0] for score in scores])
    loop = (time.perf_counter() - start) * RESAMPLES / LOOP

    apart = float(np.abs(draws[:, :LOOP] - np.transpose(expected)).max())
    print(f"{RESAMPLES} resamples of {ITEMS} items in {len(set(groups))} groups, {JUDGES} judges")
    print(f"ours: {ours:.1f} s; loop over SciPy: {loop:.0f} s (from {LOOP} resamples); {loop / ours:.0f} times")
    # not by `timing`, which loads torch: half a gigabyte that the bootstrap does not take
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"largest difference of a value: {apart:.1e}; peak memory of the process: {peak:.0f} MB")
    sys.exit(0 if apart <= LIKE else 1)


if __name__ == "__main__":
    main()
