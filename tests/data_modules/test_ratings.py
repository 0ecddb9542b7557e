"""Scales as people write them, and what is no scale."""

from __future__ import annotations

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.ratings import Dimension, parse_dimension

HUGE = 10**400


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("vocal_empathy=1:5:1", Dimension("vocal_empathy", 1, 5, 1)),
        ("x=0:100", Dimension("x", 0, 100)),
        ("x=0:100:lower", Dimension("x", 0, 100, None, False)),
        ("x=-3:3:0.5:lower", Dimension("x", -3, 3, 0.5, False)),
    ],
)
def test_parse_dimension(text, wanted):
    assert parse_dimension(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "x", "x=", "x=1", "x=1:a", "x=5:1", "x=1:1", "x=0:inf", "x=1:5:0", "x=1:5:3", "x=1:5:-1", "=1:5", "a b=1:5",
        "x=1:5:1:1", "x=1:5:higher", "x=nan:5", "x=lower", "x=1:1_0", "x=1:5:0_1",
        "x=1:5:1e-320", "x=-1e308:1e308", "x=0:1e308",
    ],
)  # fmt: skip
def test_parse_dimension_refuses(text):
    with pytest.raises(DataError, match=r"expected|does not divide"):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ((1, 5, HUGE), r"step 10+\.\.\. does not divide 1 to 5$"),
        ((HUGE, HUGE + 4), r"scale 10+\.\.\. to 10+\.\.\.; expected low:high, at most 1e\+50 apart and from 0$"),
        ((-HUGE, 5), r"scale -10+\.\.\. to 5; expected low:high"),
    ],
)
def test_a_whole_number_that_no_float_can_hold_is_refused(scale, message):
    """JSON and YAML have such numbers."""
    with pytest.raises(DataError, match=message):
        Dimension("x", *scale)


def test_names_are_bounded(source):
    source.ratings[0]["rater_id"] = "r" * 10_001
    source.refuses(r"ratings\.csv, row 1 \(line 2\), column 'rater_id': value 'rrr")
