"""What is measured of two forms of a judge, and what is too much."""

from __future__ import annotations

import json

import numpy as np
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.scoring.export.check import COUNT, Bounds, CheckSet, compare, synthetic_pairs

SCALES = (Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10))
BEFORE = np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]])
WIDE = Bounds(1.0, 1.0, 1.0)


def test_differences_and_correlations():
    after = BEFORE + np.array([[0.1, 0.0], [0.0, 0.0], [0.0, 0.0], [-0.3, -3.0]])
    ratings = np.array([[1.0, np.nan], [3.0, np.nan], [2.0, np.nan], [4.0, np.nan]])
    found = compare(BEFORE, after, CheckSet("four", [], ratings), SCALES, WIDE)
    empathy, warmth = found.dimensions["empathy"], found.dimensions["warmth"]
    assert empathy.largest == pytest.approx(0.3)
    assert empathy.mean == pytest.approx(0.1)
    assert (empathy.between, empathy.before, empathy.after) == pytest.approx((1.0, 0.8, 0.8))
    assert warmth.largest == pytest.approx(3.0)
    assert warmth.between == pytest.approx(0.8)  # ranks 1 2 4 3
    assert (warmth.before, warmth.after) == (None, None)  # nobody rated it
    assert (found.pairs, found.beyond) == (4, [])
    line, other = found.lines()
    assert line == (
        "empathy: scores changed by 0.3 at most, 0.1 on average; Spearman between them 1.0000, with people 0.8000 "
        "before and 0.8000 after (4 pairs: four)"
    )
    assert "with people" not in other
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["bounds"]["largest"] == 1.0


def test_bounds_are_shares_of_the_scale():
    """0.1 points are 2.5 % of 1 to 5 and 1 % of 0 to 10."""
    found = compare(BEFORE, BEFORE + 0.1, CheckSet("four", []), SCALES, Bounds(0.02, 0.02, 0.0))
    assert found.beyond == [
        "empathy: largest difference 0.1 rating points, allowed 0.08",
        "empathy: mean difference 0.1 rating points, allowed 0.08",
    ]


def test_agreement_that_moved_is_beyond_in_both_directions():
    ratings = np.column_stack([[1.0, 2.0, 3.0, 4.0]] * 2)
    swapped = BEFORE[[1, 0, 2, 3]]
    for before, after in ((BEFORE, swapped), (swapped, BEFORE)):
        found = compare(before, after, CheckSet("four", [], ratings), SCALES, Bounds(1.0, 1.0, 0.02))
        assert len(found.beyond) == 2
        assert "Spearman with people" in found.beyond[0]
    found = compare(BEFORE, np.full_like(BEFORE, 3.0), CheckSet("four", [], ratings), SCALES, WIDE)
    assert found.beyond == ["empathy: all scores became equal", "warmth: all scores became equal"]
    assert found.dimensions["empathy"].between is None


def test_pairs_without_scores():
    gap = np.where(np.arange(4)[:, None] == 2, np.nan, BEFORE)
    found = compare(gap, gap, CheckSet("four", []), SCALES, WIDE)
    assert (found.pairs, found.beyond) == (3, [])
    assert compare(BEFORE, gap, CheckSet("four", []), SCALES, WIDE).beyond == ["other pairs have scores than before"]
    with pytest.raises(UserError, match="four: no pair has audio that can be used"):
        compare(np.full((2, 2), np.nan), BEFORE[:2], CheckSet("four", []), SCALES, WIDE)
    with pytest.raises(UserError, match="four: no pair has a finite score after the export"):  # float16 has a limit
        compare(BEFORE, np.full_like(BEFORE, np.nan), CheckSet("four", []), SCALES, WIDE)


def test_made_sounds_fit_every_backbone():
    for rate, longest in ((16_000, 2.0), (24_000, 1_800.0)):
        pairs = synthetic_pairs(rate, longest)
        assert len(pairs) == COUNT
        clips = [pair.response for pair in pairs] + [turn.audio for pair in pairs for turn in pair.context]
        assert max(clip.seconds for clip in clips) == pytest.approx(min(6.0, 0.9 * longest), abs=0.001)
        assert min(clip.seconds for clip in clips) == pytest.approx(0.5, abs=0.001)
        assert all(0.01 < np.abs(clip.samples).max() <= 1 for clip in clips)
    again = synthetic_pairs(16_000, 2.0)
    for one, other in zip(synthetic_pairs(16_000, 2.0), again, strict=True):
        assert np.array_equal(one.response.samples, other.response.samples)
    assert sum(not pair.context for pair in pairs) == 4
    assert sum(pair.situation is not None for pair in pairs) == 4
