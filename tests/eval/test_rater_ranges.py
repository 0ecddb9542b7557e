"""Raters who used another scale are named; strict ones are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.ratings import RatingTable
from empathy_judge.eval.rater_ranges import rater_ranges

from ..conftest import output_of


def panel(scores: dict[str, np.ndarray]) -> RatingTable:
    rows = [(f"i{n}", name, "d", score) for name, own in scores.items() for n, score in enumerate(own)]
    frame = pd.DataFrame(rows, columns=["pair_id", "rater_id", "dimension", "score"])
    return RatingTable.of(frame, "d", [f"i{n}" for n in range(40)])


def test_two_scales(tmp_path, capsys):
    rng = np.random.default_rng(0)
    truth = rng.random(40)
    noise = rng.normal(0, 0.08, (4, 40))
    seven = [np.rint(1 + 6 * np.clip(truth + noise[n], 0, 1)) for n in range(2)]
    five = [np.rint(1 + 4 * np.clip(truth + noise[n], 0, 1)) for n in range(2, 4)]
    given = {"ann": seven[0], "ben": seven[1], "cy": five[0], "dee": five[1], "few": np.array([9.0])}
    found = rater_ranges(panel(given))
    assert found is not None
    assert [(own.raters, own.low, own.high) for own in found.ranges] == [(("ann", "ben"), 1, 7), (("cy", "dee"), 1, 5)]
    assert found.alpha_mapped > found.alpha + 0.05
    assert found.text.startswith("ann, ben use 1 to 7, cy, dee use 1 to 5: alpha 0.")
    rows = [f"i{n},{name},{score}" for name, own in given.items() for n, score in enumerate(own)]
    (tmp_path / "t.csv").write_text("\n".join(["item,annotator,score", *rows]))
    for command in ("agreement", "plan"):
        said = output_of(capsys, command, tmp_path / "t.csv", "--resamples", 20)
        assert f"score: {found.text}" in " ".join(said.split())
    mapped = rater_ranges(panel({"ann": seven[0], "ben": seven[1], "cy": 1 + (five[0] - 1) * 1.5}))
    assert mapped is None
    everybody = panel({"ann": seven[0], "ben": seven[1], "cy": 1 + (five[0] - 1) * 1.5})
    assert everybody.scores.max() == pytest.approx(7)


def test_a_strict_rater_is_no_scale():
    rng = np.random.default_rng(1)
    scores = rng.integers(1, 8, 40).astype(float)
    assert rater_ranges(panel({"ann": scores, "ben": scores, "strict": np.minimum(scores, 5)})) is None
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = rng.normal(3, 1, 40)
        given = np.clip(np.rint(truth + rng.normal(0, 0.5, (3, 40)) - [[0], [0], [1.5]]), 1, 5)
        assert rater_ranges(panel(dict(zip(("ann", "ben", "strict"), given, strict=True)))) is None
