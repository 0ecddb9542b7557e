"""Agreement of system means against means taken by hand, resample by resample."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from empathy_judge.eval.statistics.agreement import CORRELATIONS, STATISTICS
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.eval.statistics.systems import SYSTEM_STATISTICS, system_agreement, system_means
from scipy import stats


@pytest.fixture
def table() -> pd.DataFrame:
    """60 items of 5 systems of unequal sizes, in 12 groups."""
    rng = np.random.default_rng(0)
    system = rng.choice(list("abcde"), size=60, p=[0.4, 0.25, 0.15, 0.1, 0.1])
    human = np.array([ord(name) for name in system]) / 4 + rng.normal(size=60)
    return pd.DataFrame(
        {
            "system": system,
            "human": human,
            "score": human + rng.normal(size=60),
            "group": [str(item % 12) for item in range(60)],
        }
    )


def by_system(table: pd.DataFrame) -> pd.DataFrame:
    return pd.pivot_table(table, index="system", values=["human", "score"], aggfunc="mean")


@pytest.mark.parametrize("name", SYSTEM_STATISTICS)
def test_values_and_intervals_are_those_of_the_means(name: str, table: pd.DataFrame) -> None:
    resamples = Resamples.draw(table["group"].to_numpy(), 100, seed=0)
    systems, score, human = table["system"].tolist(), table["score"].to_numpy(), table["human"].to_numpy()
    found = system_agreement(systems, score, human, resamples)[name]
    means = by_system(table)
    point = STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy())
    assert (found.value, found.n) == (pytest.approx(point.value), 5)
    draws = []
    for counts in resamples.counts:
        drawn = table.iloc[np.repeat(np.arange(60), counts[resamples.codes].astype(int))]
        means = by_system(drawn)
        if len(means) == 5:
            draws.append(STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy()).value)
    assert found.undefined_resamples == 100 - len(draws)
    low, high = np.percentile(np.array(draws, dtype=float), [2.5, 97.5])
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("name", SYSTEM_STATISTICS)
def test_intervals_draw_systems_where_these_are_the_groups(name: str, table: pd.DataFrame) -> None:
    resamples = Resamples.draw(table["system"].to_numpy(), 100, seed=0)
    score, human = table["score"].to_numpy(), table["human"].to_numpy()
    found = system_agreement(table["system"].tolist(), score, human, resamples)[name]
    means = by_system(table)
    draws = []
    for counts in resamples.counts:
        drawn = means.iloc[np.repeat(np.arange(5), counts.astype(int))]
        draws.append(STATISTICS[name](drawn["score"].to_numpy(), drawn["human"].to_numpy()).value)
    defined = [own for own in draws if own is not None]
    low, high = np.percentile(defined, [2.5, 97.5])
    if name in CORRELATIONS:
        value = STATISTICS[name](means["score"].to_numpy(), means["human"].to_numpy()).value
        assert value is not None
        error = np.sqrt(5 / 4) * np.std(defined, ddof=1) / (1 - value**2)  # of artanh
        low, high = np.tanh(np.arctanh(value) + stats.t.ppf(0.975, 4) * error * np.array([-1, 1]))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_means_by_system() -> None:
    assert system_means(["b", "a", "b"], np.array([1.0, 5.0, 2.0])) == {"a": 5.0, "b": 1.5}
