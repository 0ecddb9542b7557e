"""EchoMind's test of listening: does the response to a voice outrank, in its context, the response to another voice?

The same script is spoken in several voices, and a system answers each. Where a matched response is not scored above a
crossed one more often than half the time, the judge does not hear which voice is answered. A judge that reads words
alone is at 0.5 as far as the responses have the same words; where they differ, words help.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ..data_modules.errors import DataError
from ..data_modules.schema import Pair
from .judges import Judge, check_score_table
from .probes import group_of
from .statistics.agreement import Statistic
from .statistics.bootstrap import Resamples, estimate


def matched_accuracy(
    matched: np.ndarray, crossed: np.ndarray, groups: np.ndarray, resamples: int = 1000, seed: int = 0
) -> Statistic:
    """How often a matched response outranks a crossed one; ties count half, chance is 0.5.

    Args:
        matched: Shape (n,), score of the response to the voice that is heard, once per comparison.
        crossed: Shape (n,), score of a response to another voice of the script, in the same context.
        groups: Shape (n,), the script of each comparison; whole scripts are drawn for the interval.
        resamples: Of scripts.
        seed: Of the resamples.

    Returns:
        Accuracy over comparisons with both scores; the others are dropped and counted. Undefined without any.
    """
    kept = np.flatnonzero(~(np.isnan(matched) | np.isnan(crossed)))
    n, dropped = len(kept), len(matched) - len(kept)
    if n == 0:
        return Statistic(None, dropped=dropped, reason="0 comparisons" + (f", {dropped} dropped" if dropped else ""))
    wins = 0.5 * (1 + np.sign(matched[kept] - crossed[kept]))
    seen = Resamples.draw(np.asarray(groups)[kept], resamples, seed)
    return dataclasses.replace(estimate(np.mean, wins, resamples=seen), dropped=dropped)


@dataclass(frozen=True)
class Crossing:
    """Two responses of a system to different voices of a script, in the context of the first.

    Attributes:
        matched: Id of the pair as it is.
        crossed: The pair with the other response.
    """

    matched: str
    crossed: Pair


def crossings(pairs: Sequence[Pair]) -> list[Crossing]:
    """Every pair with each response of its system to the other voices of its group.

    Args:
        pairs: Such as `import echomind` makes: the group is the script, the setting names the voice, and there is one
            pair per voice, system and recording.

    Returns:
        Crossings in order; none where no system answers two voices of a group.
    """
    answers: dict[tuple[str, str | None], list[Pair]] = defaultdict(list)
    for pair in pairs:
        answers[group_of(pair), pair.system_id].append(pair)
    return [
        Crossing(
            own.pair_id,
            dataclasses.replace(
                own,
                pair_id=f"{own.pair_id} x {other.pair_id}",
                response=other.response,
                response_text=other.response_text,
                response_speaker=other.response_speaker,
            ),
        )
        for members in answers.values()
        for own, other in permutations(members, 2)
        if own.setting != other.setting
    ]


def matched_against_crossed(
    judge: Judge, pairs: Sequence[Pair], resamples: int = 1000, seed: int = 0
) -> Mapping[str, Statistic]:
    """EchoMind's ranking: does a judge score responses to the voice that is heard above those to another voice?

    Args:
        judge: Scores all pairs, and all crossings of them.
        pairs: Such as `import echomind` makes; no ratings are needed.
        resamples: Of scripts.
        seed: Of the resamples.

    Returns:
        Dimension of the judge -> `matched_accuracy`.

    Raises:
        DataError: If nothing can be crossed.
        ValueError: If the judge breaks the protocol.
    """
    found = crossings(pairs)
    if not found:
        raise DataError(
            f"of {len(pairs)} pairs none can be crossed: no system answers two voices (settings) of a group"
        )
    asked = [*pairs, *(one.crossed for one in found)]
    table = judge.score(asked)
    check_score_table(table, judge, asked)
    scores = table.pivot(index="pair_id", columns="dimension", values="score")
    groups = np.array([group_of(one.crossed) for one in found])
    return {
        name: matched_accuracy(
            scores[name].reindex([one.matched for one in found]).to_numpy(np.float64),
            scores[name].reindex([one.crossed.pair_id for one in found]).to_numpy(np.float64),
            groups,
            resamples,
            seed,
        )
        for name in judge.dimensions
    }
