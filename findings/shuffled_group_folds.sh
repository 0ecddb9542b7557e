#!/usr/bin/env bash
# scikit-learn's GroupKFold(shuffle=True) makes folds of 26 to 508 samples where without shuffle they have 176 to 200.
#
# One would guess: shuffled folds are as even as those without, and its documentation says so: "the number of samples is approximately
#   the same in each test fold when `shuffle` is True".
# What happens: it is the other way round. With shuffle the groups are dealt out in equal numbers, whatever their sizes: a group of 100
#   and three single samples give folds of 2 and 101. Without shuffle the largest group goes to the smallest fold, as one hopes, and one
#   gets the same folds with every seed.
# Who meets it: cross-validation by speaker or by video, where some have hundreds of clips and many have one: most of the data is
#   missing from the training of one fold.
# Versions: scikit-learn 1.9.1, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import sklearn
from sklearn.model_selection import GroupKFold

print("scikit-learn", sklearn.__version__)


def sizes(groups, folds, seed):
    splitter = GroupKFold(folds) if seed is None else GroupKFold(folds, shuffle=True, random_state=seed)
    return sorted(len(test) for _, test in splitter.split(groups, groups=groups))


small = np.array([0] * 100 + [1, 2, 3])
print("100 and three single samples, plain:", sizes(small, 2, None), "shuffled:", sizes(small, 2, 0))
assert sizes(small, 2, None) == [3, 100] and all(sizes(small, 2, seed) == [2, 101] for seed in range(10))
random = np.random.default_rng(0)
many = np.repeat(np.arange(40), random.zipf(1.5, 40).clip(1, 200))
plain, shuffled = sizes(many, 5, None), [sizes(many, 5, seed) for seed in range(20)]
print(f"{len(many)} samples of 40 speakers, plain: {plain}; shuffled, five seeds:", *shuffled[:5])
print("largest fold over smallest, shuffled, median of 20 seeds:", round(np.median([fold[-1] / fold[0] for fold in shuffled]), 1))
assert plain[-1] / plain[0] < 1.2, "plain folds are uneven now"
assert np.median([fold[-1] / fold[0] for fold in shuffled]) > 5, "shuffled folds are even now"
print("as found")
PYTHON
