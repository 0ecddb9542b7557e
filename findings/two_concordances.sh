#!/usr/bin/env bash
# Lin's concordance correlation is 0.25 in audmetric and 0.33 in torchmetrics, of the same three pairs.
#
# One would guess: one coefficient with one definition, equal to rounding, since both name the same coefficient.
# What happens: audmetric divides variances and covariance by n, as Lin does; torchmetrics divides them by n - 1, but the squared
#   difference of the means, which stands beside them, has no such factor. Where a judge is off by a constant, torchmetrics is higher.
#   The gap is 0.083 for three pairs off by two points, 0.009 for 10, 0.003 for 30, 0.0001 for 1,000.
# Who meets it: CCC per speaker, per session or per batch of a few pairs, and tables that compare with challenges scored by the other.
# Versions: audmetric 1.4.2, torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchmetrics==1.9.0 audmetric==1.4.2 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import audmetric
import numpy as np
import torch
from torchmetrics.functional.regression import concordance_corrcoef

print("audmetric", version("audmetric"), "torchmetrics", version("torchmetrics"), "torch", torch.__version__)


def both(judge, ratings):
    lightning = concordance_corrcoef(torch.tensor(judge, dtype=torch.float64), torch.tensor(ratings, dtype=torch.float64)).item()
    judge, ratings = np.asarray(judge, float), np.asarray(ratings, float)
    lin = 2 * np.cov(judge, ratings, ddof=0)[0, 1] / (judge.var() + ratings.var() + (judge.mean() - ratings.mean()) ** 2)
    return audmetric.concordance_cc(ratings, judge), lightning, lin


three = both([3, 4, 5], [1, 2, 3])
print("three pairs off by two points: audmetric {:.3f}, torchmetrics {:.3f}, Lin's formula {:.3f}".format(*three))
random, gaps = np.random.default_rng(0), {}
for pairs in (10, 30, 100, 1000):
    each = []
    for _ in range(200):
        ratings = random.normal(size=pairs)
        each.append(both(0.7 * ratings + 0.5 + 0.5 * random.normal(size=pairs), ratings))
    gaps[pairs] = np.mean(np.array(each)[:, 1] - np.array(each)[:, 0])
    assert np.allclose(np.array(each)[:, 0], np.array(each)[:, 2])
print("mean of torchmetrics less audmetric, a judge off by half a deviation, 200 draws:", {n: round(float(gap), 5) for n, gap in gaps.items()})
assert np.allclose(three, (0.25, 1 / 3, 0.25), atol=1e-6), "other values now"
assert 0.004 < gaps[10] < 0.02 and gaps[1000] < 0.0002
print("as found")
PYTHON
