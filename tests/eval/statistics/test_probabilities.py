"""The functions equal those of `scipy.stats` (1.17, which calls the same functions of `scipy.special`)."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.eval.statistics import probabilities as own
from scipy import stats


@pytest.mark.parametrize("freedom", [1, 2.5, 9, 179, 9999])
def test_t_and_f(freedom):
    for p in (0.001, 0.025, 0.5, 0.975):
        assert own.t_quantile(p, freedom) == stats.t.ppf(p, freedom)
        assert own.f_quantile(p, 3, freedom) == stats.f.ppf(p, 3, freedom)
    for value in (0.0, 0.3, 2.0, 40.0):
        assert own.t_two_sided(-value, freedom) == 2 * stats.t.sf(value, freedom)
        assert own.f_above(value, 3, freedom) == stats.f.sf(value, 3, freedom)


def test_normal():
    values = np.array([-9.0, -1.5, 0.0, 0.3, 8.0])
    assert own.normal_below(values).tolist() == stats.norm.cdf(values).tolist()
    p = np.array([0.0, 1e-9, 0.025, 0.5, 1.0])
    assert own.normal_quantile(p).tolist() == stats.norm.ppf(p).tolist()


@pytest.mark.parametrize(("n", "share"), [(10, 0.3), (500, 0.02), (2000, 0.9)])
def test_binomial(n, share):
    for hits in (0, 1, n // 2, n):
        assert own.binomial_from(float(hits), float(n), share) == pytest.approx(
            stats.binom.sf(hits - 1, n, share), rel=1e-10, abs=1e-300
        )


def test_noncentral_t():
    for freedom, shift in ((1, 0.1), (9, 1.0), (49, 3.0), (9999, 8.0)):
        limit = own.t_quantile(0.975, freedom)
        expected = stats.nct.sf(limit, freedom, shift) + stats.nct.cdf(-limit, freedom, shift)
        assert own.noncentral_t_beyond(limit, freedom, shift) == pytest.approx(expected, abs=1e-12)


def test_mean_ranks():
    rng = np.random.default_rng(0)
    for values in (np.array([2.0, 1.0, 2.0, 3.0]), np.round(rng.normal(size=500), 1), np.empty(0)):
        assert own.mean_ranks(values).tolist() == stats.rankdata(values).tolist()
