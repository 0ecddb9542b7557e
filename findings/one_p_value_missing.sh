#!/usr/bin/env bash
# statsmodels corrects p-values beside a NaN in three ways at once: no corrected value, but verdicts, and a family that counts the NaN.
#
# One would guess: a test that could not be made is left out, as pingouin does, or multipletests raises.
# What happens: (.001, .01, NaN, .03, .9). Benjamini-Hochberg and Simes-Hochberg give NaN for all five corrected values, and still True
#   for some of the verdicts. Hommel rejects none of them. Holm and Bonferroni multiply by five, not by four, so that .01 becomes .04
#   where the four alone give .03: with more NaN, true effects are lost. No warning in any case.
# Who meets it: one correlation per dimension, of which one is constant and so without a p-value. Drop NaN before the correction.
# Versions: statsmodels 0.15.0, pingouin 0.7.0, numpy 2.4.6, pandas 3.1.1; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet statsmodels==0.15.0 pingouin==0.7.0 numpy==2.4.6 pandas==3.1.1 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
import pingouin
from statsmodels.stats.multitest import multipletests

print("statsmodels", version("statsmodels"), "pingouin", version("pingouin"))
warnings.simplefilter("error", RuntimeWarning)
p = np.array([0.001, 0.01, np.nan, 0.03, 0.9])
there, found = ~np.isnan(p), {}
for method in ("bonferroni", "holm", "simes-hochberg", "hommel", "fdr_bh"):
    reject, corrected, *_ = multipletests(p, method=method)
    alone_reject, alone, *_ = multipletests(p[there], method=method)
    found[method] = reject, corrected, alone
    print(f"{method:14} with NaN: {corrected.round(3)} rejects {reject.sum()} | the four alone: {alone.round(3)} rejects {alone_reject.sum()}")
theirs = pingouin.multicomp(p, method="fdr_bh")[1]
print("pingouin, fdr_bh, with NaN:", theirs.round(3))
assert np.allclose(theirs[there], found["fdr_bh"][2]), "pingouin counts the NaN now"
for method in ("fdr_bh", "simes-hochberg"):
    assert np.isnan(found[method][1]).all() and found[method][0].any(), f"{method} does it otherwise now"
assert not found["hommel"][0].any() and multipletests(p[there], method="hommel")[0].any(), "hommel does it otherwise now"
assert np.isclose(found["holm"][1][1], 0.04) and np.isclose(found["holm"][2][1], 0.03), "holm leaves the NaN out now"
print("as found")
PYTHON
