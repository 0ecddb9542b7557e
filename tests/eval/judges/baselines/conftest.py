"""Clips of known delivery, and a dataset whose ratings follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset, Turn

from ...conftest import dataset_of

RATE = 16_000
EMPATHY, WARMTH = Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)


@pytest.fixture(scope="session")
def delivered(make_buzz) -> PairDataset:
    """72 pairs in 24 groups, 48 of them in split train. Three raters.

    Empathy falls with the pitch of the response and rises with the level of the context, with no noise but the
    severity of the raters; warmth is rated for every other pair. Transcripts are about nothing.
    """
    rng = np.random.default_rng(0)
    pairs, ratings = [], []
    for group in range(24):
        loud = rng.uniform(-1, 1)
        context = Clip(make_buzz(140 + group, level=0.05 * 4**loud), RATE)
        for member in range(3):
            name, high = f"p{3 * group + member}", rng.uniform(-1, 1)
            pairs.append(
                Pair(
                    name, Clip(make_buzz(180 * 2 ** (high / 2)), RATE), (Turn("user", context),),
                    group_id=f"g{group}", split="train" if group < 16 else "test", context_text="The parcel came.",
                    response_text=f"Number {3 * group + member}.",
                )
            )  # fmt: skip
            for rater in range(3):
                ratings.append((name, f"rater-{rater}", "empathy", 3 + loud - high + 0.2 * (rater - 1)))
                if member != 1:
                    ratings.append((name, f"rater-{rater}", "warmth", 5 + 2 * high))
    return dataset_of(pairs, ratings, EMPATHY, WARMTH)
