#!/usr/bin/env bash
# mord's OrdinalRidge and LAD predict levels that nobody used: 0 on a scale from 1 to 5, and 2 and 4 where ratings are 1, 3 or 5.
#
# One would guess: an ordinal regressor predicts the levels that it was fitted to, as scikit-learn's classifiers do.
# What happens: LogisticAT and LogisticIT do. OrdinalRidge and LAD round a line and clip it, but to 0 below and to the highest level that
#   they saw above: 0 and -0.0 on a scale from 1 to 5. There is no message. `score` is the share of right answers in LogisticIT, minus
#   the squared error in OrdinalRidge and minus the absolute error in the others: a search over models prefers LogisticIT whatever it predicts.
# Who meets it: ordinal models of ratings. Clip predictions to your scale, and compare models by a score of your own.
# Versions: mord 0.7, scikit-learn 1.9.1, numpy 2.4.6; source: mord/regression_based.py and a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mord==0.7 scikit-learn==1.9.1 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import mord
import numpy as np

print("mord", version("mord"))
random = np.random.default_rng(0)
features = random.normal(size=(300, 2))
heard = features[:, 0] + random.normal(0, 0.4, 300)
models = ("OrdinalRidge", "LAD", "LogisticAT", "LogisticIT")
found = {}
for levels in ((1, 2, 3, 4, 5), (2, 3, 4), (1, 3, 5)):
    edges = np.linspace(-1.5, 1.5, len(levels) - 1)
    ratings = np.array(levels)[np.digitize(heard, edges)]
    assert set(ratings.tolist()) == set(levels)
    for name in models if levels != (1, 3, 5) else models[:2]:  # the others refuse levels with gaps by an error
        model = getattr(mord, name)().fit(features, ratings)
        predicted = sorted(set(model.predict(2 * features).tolist()))
        found[levels, name] = predicted, model.score(features, ratings)
        print(f"ratings of {levels}: {name:12} predicts {predicted}, score {model.score(features, ratings):.2f}")
assert found[(1, 2, 3, 4, 5), "OrdinalRidge"][0][0] == 0 and found[(1, 2, 3, 4, 5), "LAD"][0][0] == 0, "only levels of the scale now"
assert 1.0 in found[(2, 3, 4), "OrdinalRidge"][0] and 2.0 in found[(1, 3, 5), "OrdinalRidge"][0]
for name in models[2:]:
    assert found[(1, 2, 3, 4, 5), name][0] == [1, 2, 3, 4, 5]
assert found[(1, 2, 3, 4, 5), "LogisticIT"][1] > 0 > found[(1, 2, 3, 4, 5), "LogisticAT"][1], "one score for all now"
print("as found")
PYTHON
