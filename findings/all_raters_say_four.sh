#!/usr/bin/env bash
# Where all raters give all clips the same rating, five packages give three answers: an error, 1, and NaN.
#
# One would guess: agreement is not defined without variance, so each gives NaN, or each raises.
# What happens: krippendorff raises ValueError, statsmodels (Fleiss) and scikit-learn (Cohen) give NaN, nltk (alpha) gives 1, and
#   irrCAC gives 1.0 for Gwet's AC1 and a ZeroDivisionError for Fleiss' kappa. Its Krippendorff's alpha is either of the two, as
#   n times 1/n happens to add up: on one CPU 1.0 for 14, 17 and 21 clips and an error for all other numbers from 2 to 23, on
#   another 1.0 for 10. Packages with the same coefficient by name, alpha, disagree on "perfect" against "no answer".
# Who meets it: agreement per dimension or per batch, where a rare dimension is "1" throughout; a bootstrap of few clips draws such
#   samples, and its interval then depends on the package.
# Versions: krippendorff 0.9.0, nltk 3.10.4, irrCAC 0.4.4, statsmodels 0.15.0, scikit-learn 1.9.1; found in a run, 2026-11-28 and 29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet krippendorff==0.9.0 nltk==3.10.4 irrCAC==0.4.4 statsmodels==0.15.0 scikit-learn==1.9.1 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import krippendorff
import numpy as np
import pandas
from irrCAC.raw import CAC
from nltk.metrics.agreement import AnnotationTask
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

warnings.simplefilter("ignore")
print({name: version(name) for name in ("krippendorff", "nltk", "irrCAC", "statsmodels", "scikit-learn")})
ratings = np.full((10, 3), 4)  # ten clips, three raters
table = CAC(pandas.DataFrame(ratings))
ways = {
    "krippendorff, alpha": lambda: krippendorff.alpha(ratings.T, level_of_measurement="nominal"),
    "nltk, alpha": lambda: AnnotationTask([(rater, clip, 4) for rater in "abc" for clip in range(10)]).alpha(),
    "irrCAC, alpha": lambda: table.krippendorff()["est"]["coefficient_value"],
    "irrCAC, AC1": lambda: table.gwet()["est"]["coefficient_value"],
    "irrCAC, Fleiss": lambda: table.fleiss()["est"]["coefficient_value"],
    "statsmodels, Fleiss": lambda: fleiss_kappa(aggregate_raters(ratings)[0]),
    "scikit-learn, Cohen": lambda: cohen_kappa_score(ratings[:, 0], ratings[:, 1]),
}
found = {}
for name, way in ways.items():
    try:
        found[name] = str(float(way()))
    except Exception as error:
        found[name] = type(error).__name__
    print(f"{name}: {found[name]}")
by_rounding = found.pop("irrCAC, alpha")
assert by_rounding in ("1.0", "ZeroDivisionError"), "another answer now"
assert list(found.values()) == ["ValueError", "1.0", "1.0", "ZeroDivisionError", "nan", "nan"], "other answers now"
print("as found")
PYTHON
