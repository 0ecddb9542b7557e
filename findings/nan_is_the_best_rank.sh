#!/usr/bin/env bash
# torchmetrics gives a judge that answers NaN to everything a rank correlation of 0.8.
#
# One would guess: a NaN prediction makes the rank correlation NaN, as it makes scipy's and torchmetrics' own Pearson, MAE and R2.
# What happens: NaN is ranked like a number above all others, and several NaN in the order in which they stand. One NaN prediction of
#   five gives Spearman 0.5 and Kendall 0.2; five of five give the correlation of the ratings with the row number, here 0.8. A NaN rating
#   is the best rating. Nothing is logged.
# Who meets it: checkpoints chosen by the highest Spearman correlation: a run that has diverged to NaN keeps an ordinary, even a high,
#   value where the data is sorted (by speaker, by condition), and is never stopped.
# Versions: torchmetrics 1.9.0, torch 2.13.0, scipy 1.17.1; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchmetrics==1.9.0 scipy==1.17.1 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import math
import warnings
from importlib.metadata import version

import scipy.stats
import torch
from torchmetrics.regression import KendallRankCorrCoef, MeanAbsoluteError, PearsonCorrCoef, R2Score, SpearmanCorrCoef

warnings.simplefilter("ignore")
print("torchmetrics", version("torchmetrics"), "torch", torch.__version__, "scipy", scipy.__version__)
nan, ratings, found = math.nan, torch.tensor([2.0, 1, 3, 5, 4]), {}
for title, judge in (("one NaN of five", torch.tensor([1.0, 2, nan, 4, 5])), ("NaN throughout", torch.full((5,), nan))):
    for metric in (SpearmanCorrCoef(), KendallRankCorrCoef(), PearsonCorrCoef(), MeanAbsoluteError(), R2Score()):
        metric.update(judge, ratings)
        found[title, type(metric).__name__] = round(metric.compute().item(), 3)
    print(title, {name: value for (case, name), value in found.items() if case == title})
    print("  scipy:", scipy.stats.spearmanr(judge, ratings).statistic, scipy.stats.kendalltau(judge, ratings).statistic)
    assert math.isnan(scipy.stats.spearmanr(judge, ratings).statistic)
    assert all(math.isnan(found[title, name]) for name in ("PearsonCorrCoef", "MeanAbsoluteError", "R2Score"))
rows = scipy.stats.spearmanr(range(5), ratings).statistic
print("Spearman of the ratings with the row number:", round(rows, 3))
assert found["one NaN of five", "SpearmanCorrCoef"] == 0.5 and found["one NaN of five", "KendallRankCorrCoef"] == 0.2
assert found["NaN throughout", "SpearmanCorrCoef"] == round(rows, 3) == 0.8, "NaN is no rank any more"
print("as found")
PYTHON
