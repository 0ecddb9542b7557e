"""What `benchmarks/heads.py` counts with; the programs import their neighbours from their folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import Dimension

SCALE = Dimension("warmth", 1, 5, 1)


@pytest.fixture
def heads(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return __import__("heads")


def test_a_bell_over_the_steps_has_the_score_as_mean_and_its_spread(heads):
    shares = heads.bell(np.array([3.0, 2.5, 1.0]), 0.6, SCALE)
    np.testing.assert_allclose(shares.sum(1), 1)
    means = shares @ np.arange(1, 6)
    np.testing.assert_allclose(means[:2], [3, 2.5], atol=0.01)
    variance = shares[0] @ np.square(np.arange(1, 6) - 3)
    assert variance == pytest.approx(0.36 + 1 / 12, abs=0.01)  # a step is a rounded number
    assert shares[2, 0] == pytest.approx(0.7977, abs=1e-3)  # all below 1.5, which is 5/6 of a deviation above


def test_a_table_has_the_mean_and_deviation_over_seeds(heads):
    ratings = pd.DataFrame(
        [("a", "r1", "warmth", 1.0), ("a", "r2", "warmth", 5.0), ("b", "r1", "warmth", 2.0), ("b", "r1", "calm", 3.0)],
        columns=pd.Index(["pair_id", "rater_id", "dimension", "score"]),
    )
    counts = heads.counts_of(SimpleNamespace(ratings=ratings), SCALE, ["b", "a"])
    assert counts.tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1]]
    own = {"set": "s", "head": "histogram", "pairs": 20}
    rows = [{**own, "seed": seed, "spearman": 0.5 + 0.2 * seed} for seed in (0, 1)]
    *_, line = heads.table(pd.DataFrame(rows)).splitlines()
    assert line.startswith("| s | histogram | 2 | 20 | 0.6 ± 0.14 |  |")
