"""What a dataset adds to the report of a judge on a dimension: coverage, uncertainty, length, checks and slices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..audio.decode import AudioSource
from ..audio.decode import probe as read_header
from ..core.errors import AudioError
from ..core.processes import map_threads
from ..data_modules.ratings import Dimension
from ..data_modules.schema import Pair, PairDataset
from ..scoring.score_table import ABSTAINED
from ..scoring.three_way import (
    MAX_ERRORS,
    PreferenceModel,
    against_one_rater,
    comparisons,
    probabilities,
    quality,
    verdict_of,
)
from .checks import Check
from .frame import Judged
from .judge_report import distribution, judge_report
from .judges import INTERVAL_COLUMNS
from .report.dimension import (
    CheckReport,
    Coverage,
    DimensionReport,
    Length,
    LengthBias,
    MeanOfRaters,
    MostConfidentHalf,
    RiskBound,
    RiskPoint,
    Scale,
    SliceCheck,
    SliceReport,
    StatedInterval,
    Uncertainty,
    Usage,
    Verdicts,
    VsSingleRater,
)
from .report.distribution import RatingDistribution
from .report.people import Ceiling
from .statistics.agreement import MIN_ITEMS, Statistic, bias, is_constant, mae, spearman
from .statistics.bootstrap import Resamples, difference, estimate, estimate_share, estimates, spearmans
from .statistics.calibration import coverage, error_ratio, mean_width
from .statistics.reliability import raters_ceiling

MISSING = "missing"
"""The status of a pair for which the judge returned no row."""

_QUALITY = ("accuracy", "brier", "ece")
# Points of the risk-coverage curve: a page shows no more
_COVERAGES = 20
# Resamples x verdicts of an interval, which bounds its time
_DRAWN_VERDICTS = 20_000_000
# Raters whose mean is compared with the mean of the others, as far as the panel allows
_MEANS_OF = (1, 2, 3, 5)

# Chinese and Japanese are written without spaces: each of their characters counts as a word
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")

Lengths = Mapping[str, tuple[float, float]]
"""Pair id -> seconds and words of its response; NaN = its clip cannot be read, or there is no transcript."""


def dimension_report(
    dimension: Dimension,
    judged: Judged,
    items: pd.DataFrame,
    lengths: Lengths,
    usage: Usage | None,
    part: PairDataset,
    three_way: PreferenceModel | None,
    rating_distribution: RatingDistribution | None,
) -> DimensionReport:
    """Everything about a dimension except checks and slices.

    `items` are the rows of `evaluate.Results.items` of the dimension, for all pairs; `usage` is None where the judge is
    not prompted; `three_way` says how differences of its scores become verdicts of people, where it has such a model.
    """
    panel, reliability = judged.panel, judged.panel.reliability.panel_reliability
    ceilings = [(k, raters_ceiling(panel.table, reliability, panel.draws, k, panel.seed)) for k in _MEANS_OF]
    scale = dimension.minimum, dimension.maximum
    return DimensionReport(
        scale=Scale(minimum=scale[0], maximum=scale[1], higher_is_better=dimension.higher_is_better),
        n_groups=judged.panel.draws.n_groups,
        n_raters=panel.table.n_raters,
        n_ratings=len(panel.table.scores),
        coverage=_coverage(dimension, judged, items),
        ceiling=Ceiling.of(panel.reliability),
        mean_of_k_raters=tuple(
            MeanOfRaters(k=k, **ceiling) for k, ceiling in ceilings if ceiling["measured"].value is not None
        ),
        uncertainty=_uncertainty(judged, items),
        verdicts=None if three_way is None else _verdicts(dimension, judged, items, part, three_way),
        length=_length_bias(judged, lengths),
        usage=usage,
        rating_distribution=rating_distribution,
        **dict(judge_report(judged, scale, dimension.higher_is_better)),
    )


def judged_rows(items: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of items that have a score and a rating."""
    return items.loc[items["score"].notna() & items["human_mean"].notna()]


def status_counts(statuses: Iterable[object]) -> dict[str, int]:
    """How often each status occurs, the most frequent first."""
    return dict(Counter(map(str, statuses)).most_common())


def _coverage(dimension: Dimension, judged: Judged, items: pd.DataFrame) -> Coverage:
    rated = items.loc[items["human_mean"].notna()]
    failed = status_counts(rated.loc[rated["score"].isna(), "status"])
    missing = failed.pop(MISSING, 0)
    outside = (judged.score < dimension.minimum) | (judged.score > dimension.maximum)
    return Coverage(
        pairs=len(items),
        rated=len(rated),
        scored=len(judged.score),
        missing=missing,
        failed=failed,
        out_of_scale=int(outside.sum()),
    )


# ---------------------------------------------------------------- checks and slices


def check_reports(
    judged: Judged, items: pd.DataFrame, checks: Sequence[Check], refused: Mapping[str, str | None]
) -> dict[str, CheckReport]:
    """Listening checks: what is left of the Spearman of the judged items (rows of `evaluate.Results.items`) that were
    scored in both runs. `refused` says of each check why it was not possible; None = it was run."""
    possible = [check for check in checks if refused[check.name] is None]
    _, spearmen = _after(possible, items, judged.score, judged.panel.human, judged.panel.draws)
    reports = {}
    for check in checks:
        changes = score = np.empty(0)
        failed = {}
        if check in possible:
            changed = items[f"{check.name}_score"].to_numpy(np.float64)
            # Only items scored in both runs: a check may make clips unreadable, and those left could be the easy ones
            both = np.isfinite(changed)
            score = judged.score[both]
            changes = np.abs(changed[both] - score)
            failed = status_counts(items.loc[~both, f"{check.name}_status"])
        not_possible = Statistic(None, reason=refused[check.name])
        remaining, drop = spearmen.get(check.name, (not_possible, not_possible))
        reports[check.name] = CheckReport(
            expects=check.expects,
            tolerance=check.tolerance,
            spearman=remaining,
            drop=drop,
            mean_change=float(changes.mean()) if len(changes) else None,
            p95_change=float(np.percentile(changes, 95)) if len(changes) else None,
            judge_sd=float(score.std()) if len(score) and not is_constant(score) else None,
            n=len(changes),
            failed=failed,
        )
    return reports


def _after(
    checks: Sequence[Check], items: pd.DataFrame, score: np.ndarray, human: np.ndarray, draws: Resamples
) -> tuple[Statistic, dict[str, tuple[Statistic, Statistic]]]:
    """Spearman, and after each check what is left of it and its drop, over the items scored in both runs."""
    changed = {check.name: items[f"{check.name}_score"].to_numpy(np.float64) for check in checks}
    complete = [name for name, scores in changed.items() if np.isfinite(scores).all()]
    full, *remaining_statistics = spearmans([score, *(changed[name] for name in complete)], human, draws)
    # The usual case: the checks that scored every item share one pass over the draws
    results = {
        name: (remaining, difference(full, remaining, draws))
        for name, remaining in zip(complete, remaining_statistics, strict=True)
    }
    for name in changed.keys() - results.keys():
        both = np.isfinite(changed[name])
        before, remaining = spearmans([score[both], changed[name][both]], human[both], draws.select(both))
        results[name] = remaining, difference(before, remaining, draws.select(both))
    return full, results


def slice_report(judged: Judged, items: pd.DataFrame, chosen: np.ndarray, checks: Sequence[Check]) -> SliceReport:
    """Agreement on the judged items of a mask, also after `checks` that were run, with draws of their own groups."""
    score, human, items = judged.score[chosen], judged.panel.human[chosen], items.loc[chosen]
    drawn = Resamples.sample(
        judged.panel.draws.codes[chosen].astype(str), judged.panel.draws.resamples, judged.panel.seed
    )
    # Draws of the slice's own groups: in those of the whole a small slice would often be missing
    correlation, spearmen = _after(checks, items, score, human, drawn)
    results = {}
    for check in checks:
        remaining, drop = spearmen[check.name]
        results[check.name] = SliceCheck(expects=check.expects, n=remaining.n, spearman=remaining, drop=drop)
    return SliceReport(
        n_items=int(chosen.sum()),
        n_groups=drawn.n_groups,
        spearman=correlation,
        mae=estimate(mae, score, human, resamples=drawn),
        bias=estimate(bias, score, human, resamples=drawn),
        checks=results,
        intervals=_intervals(items, human, drawn),
    )


# ---------------------------------------------------------------- uncertainty


def _uncertainty(judged: Judged, items: pd.DataFrame) -> Uncertainty | None:
    """None where the judge states no uncertainty of any judged item."""
    items = judged_rows(items)
    error = items["uncertainty"].to_numpy(np.float64)
    known = np.isfinite(error)
    if not known.any():
        return None
    return Uncertainty(
        standard_error=distribution(error[known]),
        error_ratio=error_ratio(judged.score, error, judged.panel.human, judged.panel.draws),
        intervals=_intervals(items, judged.panel.human, judged.panel.draws),
        most_confident_half=_most_confident_half(judged, error),
        abstained=int(items[ABSTAINED].to_numpy(bool).sum()) if ABSTAINED in items else 0,
    )


def _intervals(items: pd.DataFrame, human: np.ndarray, draws: Resamples) -> dict[str, StatedInterval]:
    """Coverage and width of the intervals of each level, by the level in percent; none where the judge gives none."""
    reports: dict[str, StatedInterval] = {}
    for level, columns in INTERVAL_COLUMNS.items():
        if set(columns) <= set(items):
            low, high = (items[column].to_numpy(np.float64) for column in columns)
            reports[f"{100 * level:g}"] = StatedInterval(
                level=level,
                covered=coverage(low, high, human, draws),
                width=mean_width(low, high, human, draws),
            )
    return reports


def _most_confident_half(judged: Judged, error: np.ndarray) -> MostConfidentHalf:
    """Agreement on the half of the items with the smallest standard errors, and its gain over that on all items."""
    known = np.isfinite(error)
    if not known.all() or is_constant(error):
        reason = "the standard error is the same for all items" if known.all() else "items without a standard error"
        undefined = Statistic(None, reason=reason)
        return MostConfidentHalf(spearman=undefined, gain=undefined)
    # In the order of the items, which is that of the draws
    surest = np.sort(np.argsort(error, kind="stable")[: len(error) // 2])
    draws = judged.panel.draws.select(surest)
    correlation = estimate(spearman, judged.score[surest], judged.panel.human[surest], resamples=draws)
    return MostConfidentHalf(spearman=correlation, gain=difference(correlation, judged.spearman, draws))


# ---------------------------------------------------------------- verdicts on two responses


def _verdicts(
    dimension: Dimension, judged: Judged, items: pd.DataFrame, part: PairDataset, model: PreferenceModel
) -> Verdicts | None:
    """How good the judge's probabilities of people's verdicts are; None where nobody compared two responses.

    A verdict is drawn with the first of its responses.
    """
    by_id, items = {pair.pair_id: pair for pair in part.pairs}, judged_rows(items)
    first, second, counts = comparisons(part, [by_id[pair_id] for pair_id in items["pair_id"]], dimension)
    # Without standard errors every pair of responses has the error 1, and the model's factor is the whole error
    error = items["uncertainty"].to_numpy(np.float64) if model.uses_error else np.full(len(items), math.sqrt(0.5))
    pair_errors = np.hypot(error[first], error[second])
    usable = np.isfinite(pair_errors)
    if not usable.any():
        return None
    first, second, counts = first[usable], second[usable], counts[usable]
    sign, verdict = 1.0 if dimension.higher_is_better else -1.0, verdict_of(counts)
    differences = sign * (judged.score[first] - judged.score[second])
    predicted = probabilities(differences, pair_errors[usable], model.factor, model.tie_width)
    draws = judged.panel.draws.select(first)
    draws = draws.percentile(max(100, _DRAWN_VERDICTS // len(first)))
    wrong, confidence = (predicted.argmax(axis=1) != verdict).astype(np.float64), predicted.max(axis=1)

    def measured(*columns: np.ndarray) -> list[float]:
        measures = quality(np.stack(columns[:3], axis=1), columns[3].astype(np.intp))
        return [measures[name] for name in _QUALITY]

    no_raters = "no two raters compared the same responses"
    judge, rater = (
        estimate(np.mean, verdicts, resamples=draws) for verdicts in against_one_rater(predicted.argmax(axis=1), counts)
    )
    judge, rater = (
        statistic if statistic.value is not None else Statistic(None, reason=no_raters) for statistic in (judge, rater)
    )
    risk_bounds = {}
    for max_error, bound in zip(MAX_ERRORS, model.decided_above, strict=True):
        decided = confidence >= (math.inf if bound is None else bound)
        given = decided.astype(np.float64)
        undefined = Statistic(None, reason="no verdict is given")
        risk_bounds[f"{100 * max_error:g}"] = RiskBound(
            max_error=max_error,
            # without a bound none is given, whatever the items
            given=estimate(np.mean, given, resamples=draws) if bound is None else estimate_share(given, draws),
            wrong=estimate_share(wrong[decided], draws.select(decided)) if decided.any() else undefined,
        )
    # The surest first, so that the curve is that of a judge that abstains from the rest
    order = np.argsort(-confidence, kind="stable")
    ends = np.unique(np.ceil(np.linspace(0, 1, _COVERAGES + 1)[1:] * len(order)).astype(np.intp))
    risks = np.cumsum(wrong[order])[ends - 1] / ends
    return Verdicts(
        n=len(verdict),
        n_groups=draws.n_groups,
        ties=float((verdict == 2).mean()),
        most_frequent=float(np.bincount(verdict).max() / len(verdict)),
        **estimates(measured, *predicted.T, verdict, resamples=draws, reasons=dict.fromkeys(_QUALITY, "undefined")),
        vs_single_rater=VsSingleRater(judge=judge, rater=rater, difference=difference(judge, rater, draws)),
        risk_bounds=risk_bounds,
        curve=tuple(
            RiskPoint(coverage=float(end / len(order)), risk=float(risk)) for end, risk in zip(ends, risks, strict=True)
        ),
    )


# ---------------------------------------------------------------- length


def response_lengths(pairs: Sequence[Pair]) -> Lengths:
    """How long responses are. Each distinct clip is opened once and not decoded."""
    clips = dict.fromkeys(pair.response for pair in pairs)
    seconds = dict(zip(clips, map_threads(_seconds, clips, "Measuring responses", len(clips)), strict=True))
    return {pair.pair_id: (seconds[pair.response], count_words(pair.response_text)) for pair in pairs}


def _seconds(source: AudioSource) -> float:
    try:
        return read_header(source).seconds
    except AudioError:
        return math.nan


def count_words(text: str | None) -> float:
    """Words between spaces, and each Chinese or Japanese character; NaN without a text."""
    return float(len(_WORD.findall(text))) if text else math.nan


def _length_bias(judged: Judged, lengths: Lengths) -> Length:
    """Whether the scores follow the length of responses more than people's ratings do, in seconds and in words.

    Judges that are language models often do (Saito et al., 2023, "Verbosity Bias in Preference Labeling by Large
    Language Models"). People may like longer responses too, so only the difference says something about the judge.
    """
    seconds_and_words = np.array([lengths[pair_id] for pair_id in judged.panel.items["pair_id"]]).reshape(-1, 2)
    results: dict[str, LengthBias] = {}
    for unit, length in zip(("seconds", "words"), seconds_and_words.T, strict=True):
        known = np.isfinite(length)
        if not known.any():
            undefined = Statistic(None, dropped=len(known), reason="no length is known")
            results[unit] = LengthBias(judge=undefined, human=undefined, difference=undefined)
            continue
        correlations, length, draws = {}, length[known], judged.panel.draws.select(known)
        for side, scores in (("judge", judged.score), ("human", judged.panel.human)):
            reason = "all responses are equally long" if is_constant(length) else f"the {side} scores are constant"
            reason = reason if len(length) >= MIN_ITEMS else None
            correlations[side] = estimate(spearman, scores[known], length, resamples=draws, undefined=reason)
        results[unit] = LengthBias(
            **correlations, difference=difference(correlations["judge"], correlations["human"], draws)
        )
    return Length(**results)
