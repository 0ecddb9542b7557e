#!/usr/bin/env bash
# evalica's Bradley-Terry gives all systems one equal score as soon as one of them won, or lost, all its games.
#
# One would guess: a system that was never beaten has no finite strength, so the fit ends in an error, or it gets a very large one (choix
#   with its penalty of 1e-6 gives 8 to 12 logits) and the others keep their order.
# What happens: the strengths are scaled by their sum in each step; the one without a defeat takes it all, and the others sink to the
#   tolerance. Each of the six is 1e-06 in the end: no order at all, no error, no warning. The other five, which beat each other often
#   enough, lose their order, too. It ends so after 2 steps for an unbeaten system, so that the number of steps tells nothing.
# Who meets it: arenas with few games, and judges compared in pairs with a reference recording that always wins.
#   average_win_rate and elo have no such case.
# Versions: evalica 0.4.2, choix 0.4.1, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet evalica==0.4.2 choix==0.4.1 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import choix
import evalica
import numpy as np

print("evalica", version("evalica"), "choix", version("choix"))
names = ["A", "B", "C", "D", "E", "F"]


def fitted(strengths):
    random, games = np.random.default_rng(0), []
    for i in range(6):
        for j in range(i):
            for _ in range(40):
                games.append((i, j) if random.random() < 1 / (1 + np.exp(strengths[j] - strengths[i])) else (j, i))
    winners, losers = zip(*games, strict=True)
    arena = [[names[k] for k in winners], [names[k] for k in losers], [evalica.Winner.X] * len(games)]
    theirs = choix.opt_pairwise(6, games, alpha=1e-6)
    return evalica.bradley_terry(*arena), "".join(names[k] for k in np.argsort(-theirs))


for title, first, distinct in (("A is best", 3.0, 6), ("A is never beaten", 99.0, 1), ("A never wins", -99.0, 1)):
    plain, order = fitted([first, 2, 1, 0, -1, -2])
    values = plain.scores.sort_index()
    print(f"{title}: Bradley-Terry after {plain.iterations} steps", values.round(6).to_dict(), "| choix orders them", order)
    assert values.round(9).nunique() == distinct, "other strengths now"
    if distinct == 1:
        assert np.allclose(values, 1e-6)
        assert order.replace("A", "") == "BCDEF", "choix orders them otherwise now"
print("as found")
PYTHON
