"""What folds keep together: the pairs of a speaker, where the splits keep speakers apart, else those of a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .schema import Pair

_LEAST_SPEAKERS = 3


def kept_together(pairs: Sequence[Pair], every: Sequence[Pair]) -> np.ndarray:
    """The speaker of each response or, where one is not known, is in two splits, or there are few of them, the group.

    Args:
        pairs: What folds are made of.
        every: All pairs of the dataset.

    Returns:
        Text `(pairs,)`.
    """
    splits: dict[str | None, set[str | None]] = {}
    for pair in every:
        splits.setdefault(pair.response_speaker, set()).add(pair.split)
    speakers = {pair.response_speaker for pair in pairs}
    apart = None not in speakers and len(speakers) >= _LEAST_SPEAKERS and all(len(splits[own]) == 1 for own in speakers)
    return np.array([pair.response_speaker if apart else pair.group_id for pair in pairs], dtype=object)
