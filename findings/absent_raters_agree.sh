#!/usr/bin/env bash
# statsmodels' aggregate_raters makes a level of the scale out of missing ratings, and Fleiss' kappa then judges absence as a rating.
#
# One would guess: NaN is left out (a row has fewer ratings then, which Fleiss' kappa refuses), or aggregate_raters raises.
# What happens: NaN becomes the last category, with a column of counts like 1 to 5, and fleiss_kappa, which asks for equal row sums,
#   is content. Two raters agree on all 2,000 clips, two more heard none: kappa is 0.05 and not 1. The same with ratings at random:
#   -0.14 and not 0.
# Who meets it: panels in which not every rater hears every clip, the usual case. Krippendorff's alpha takes the gaps as gaps.
# Versions: statsmodels 0.15.0, krippendorff 0.9.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet statsmodels==0.15.0 krippendorff==0.9.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import krippendorff
import numpy as np
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

print("statsmodels", version("statsmodels"), "krippendorff", version("krippendorff"))
random, found = np.random.default_rng(0), {}
level = random.integers(1, 6, 2000)
for title, ratings in (
    ("all who heard a clip agree", np.repeat(level[:, None], 4, 1).astype(float)),
    ("ratings at random", random.integers(1, 6, (2000, 4)).astype(float)),
):
    full = fleiss_kappa(aggregate_raters(ratings)[0])
    ratings[:, 2:] = np.nan  # the last two never hear anything
    table, levels = aggregate_raters(ratings)
    kappa = fleiss_kappa(table)
    alpha = krippendorff.alpha(ratings.T, level_of_measurement="nominal")
    two = fleiss_kappa(aggregate_raters(ratings[:, :2])[0])
    found[title] = kappa
    print(f"{title}: four raters {full:.3f}; two of them absent {kappa:.3f}; without their columns {two:.3f}; alpha {alpha:.3f}")
    print("  levels", levels, "first row", table[0])
    assert np.isnan(levels[-1]) and table[:, -1].tolist() == [2] * 2000, "missing ratings are no level any more"
    assert np.isclose(alpha, two, atol=0.001)
assert np.allclose(list(found.values()), (0.047, -0.142), atol=0.001), "other values now"
print("as found")
PYTHON
