"""How long responses are, and whether a judge's scores follow that more than people's ratings do.

Judges that are language models often have a length bias (Saito et al., 2023, "Verbosity Bias in Preference Labeling by
Large Language Models"). People may like longer responses too, so that only the difference speaks of the judge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..data_modules.audio import AudioSource, probe
from ..data_modules.errors import AudioError
from ..data_modules.parallel import map_threads
from ..data_modules.schema import Pair
from .judge_report import Judged
from .statistics.agreement import MIN_ITEMS, Statistic, is_constant, spearman
from .statistics.bootstrap import Resamples, difference, estimate

# Chinese and Japanese are written without spaces: each of their characters counts as a word
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class ResponseLength:
    """Of one response; NaN = its clip cannot be read, or there is no transcript."""

    seconds: float
    words: float


def response_lengths(pairs: Sequence[Pair]) -> dict[str, ResponseLength]:
    """Pair id -> length of its response. Each distinct clip is opened once and not decoded."""
    clips = dict.fromkeys(pair.response for pair in pairs)
    seconds = dict(zip(clips, map_threads(_seconds, clips, "Measuring responses", len(clips)), strict=True))
    return {pair.pair_id: ResponseLength(seconds[pair.response], count_words(pair.response_text)) for pair in pairs}


def _seconds(source: AudioSource) -> float:
    try:
        return probe(source).seconds
    except AudioError:
        return math.nan


def count_words(text: str | None) -> float:
    """Words between spaces, and each Chinese or Japanese character; NaN without a text."""
    return float(len(_WORD.findall(text))) if text else math.nan


def length_report(judged: Judged, lengths: Mapping[str, ResponseLength]) -> dict[str, dict[str, Statistic]]:
    """Of one dimension, over its judged items, from the draws of its other statistics."""
    own = [lengths[pair_id] for pair_id in judged.items["pair_id"]]
    return {
        "seconds": _bias(judged, np.array([one.seconds for one in own])),
        "words": _bias(judged, np.array([one.words for one in own])),
    }


def _bias(judged: Judged, length: np.ndarray) -> dict[str, Statistic]:
    known = np.isfinite(length)
    seen, length = judged.resamples.select(known), length[known]
    if not known.any():
        none = Statistic(None, dropped=len(known), reason="no length is known")
        return {"judge": none, "human": none, "difference": none}
    judge = _correlated("judge", judged.score[known], length, seen)
    human = _correlated("human", judged.human[known], length, seen)
    return {"judge": judge, "human": human, "difference": difference(judge, human, seen)}


def _correlated(who: str, scores: np.ndarray, length: np.ndarray, seen: Resamples) -> Statistic:
    reason = None
    if len(length) >= MIN_ITEMS:
        reason = "all responses are equally long" if is_constant(length) else f"the {who} scores are constant"
    return estimate(spearman, scores, length, resamples=seen, undefined=reason)
