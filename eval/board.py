"""The board of one dimension: means, differences, clusters and wins of systems; `leaderboard` makes one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import UserError, names_shown, shown
from ..data_modules.ratings import N_RATINGS, SD, ratings_behind, spread_within
from ..scoring.score_table import cells_of
from ..scoring.three_way import PreferenceModel, probabilities
from .board_words import sentences_of
from .report.leaderboard import AgainstBaseline, Board, BoardDifference, BoardSystem, Figure, Measured, Verdict
from .statistics.significance import ALPHA, holm, significance_clusters
from .statistics.system_means import SystemEstimate, SystemMeans, SystemSums, system_means
from .system_scores import GROUP, Answers, Ratings


def board_of(
    answers: Answers,
    dimension: str,
    people: Ratings | None,
    baseline: str | None,
    measured: Measured | None,
    raised_by: tuple[str, ...],
) -> Board:
    """The board of a dimension; `baseline` and `measured` as in `leaderboard`, `raised_by` as in `Board`.

    Raises:
        UserError: If fewer than two systems have scores on it, or the baseline has none.
    """
    scored = answers.rows.loc[answers.rows[dimension].notna()]
    mine = None if people is None else people.rows.loc[people.rows["dimension"] == dimension]
    # People may have rated other dimensions only: this one is then the judge's
    rated = None if mine is None or mine.empty else mine
    human = pd.Series(dtype=float) if rated is None else rated.groupby("pair_id")["score"].mean()
    sums = SystemSums.of(
        scored["system"].tolist(),
        scored[GROUP].tolist(),
        scored[dimension].to_numpy(float),
        human.reindex(scored["pair_id"]).to_numpy(float),
        scored[cells_of(dimension).uncertainty].to_numpy(float),
    )
    if len(sums.systems) < 2:
        raise UserError(f"{dimension}: {len(sums.systems)} of the systems have scores; expected two or more")
    alone = system_means(sums, "judge")
    by_people = None if rated is None else system_means(sums, "ratings")
    found = alone if rated is None else system_means(sums, "both")
    scale = answers.scales[dimension] or (people and people.scales.get(dimension))
    sign = 1 if scale is None or scale.higher_is_better else -1
    # With ratings the means are those of people, and hold however bad the judge is
    refused = _refused(measured) if rated is None else None
    three_way = answers.facts.three_way.get(dimension)
    wins, noise = _wins(scored, dimension, sums.systems, sign, three_way), _rater_noise(rated)
    # A system without a mean stands last
    values = [-np.inf if mean.value is None else sign * mean.value for mean in found.means]
    order = sorted(range(len(values)), key=lambda k: -values[k])
    differences = _differences(found, sums.systems, order, sign, refused is not None)
    names = [sums.systems[k] for k in order]
    lengths = _by_length(scored, dimension)
    rows = [
        BoardDifference(
            **row,
            in_rater_noise=_over(row["difference"].value, noise),
            wins=_share(wins[sums.systems.index(row["first"]), sums.systems.index(row["second"])]),
            losses=_share(wins[sums.systems.index(row["second"]), sums.systems.index(row["first"])]),
            by_length=None if lengths is None else lengths[row["first"]] - lengths[row["second"]],
        )
        for row in differences
    ]
    clusters = (None,) * len(names) if refused else _clusters(rows, names)
    present = (sums.pairs > 0).astype(int)
    if baseline is not None and baseline not in names:
        raise UserError(f"{dimension}: baseline {shown(baseline)} has no score; expected one of {names_shown(names)}")
    reference = baseline or names[0]
    board = Board(
        dimension=dimension,
        higher_is_better=sign > 0,
        source="judge" if rated is None else "judge and ratings",
        n_contexts=len(sums.pairs),
        # Contexts that two systems share; the diagonal, which is all of one system, is never the least
        n_shared=int((present.T @ present).min()),
        n_ratings=0 if rated is None else int(ratings_behind(rated)[rated["pair_id"].isin(scored["pair_id"])].sum()),
        weight=None if rated is None else found.weight,
        ratings_worth=None if rated is None or np.isnan(found.ratings_worth) else found.ratings_worth,
        rater_noise=noise,
        ties=three_way is not None,
        measured=measured,
        raised_by=raised_by,
        refused=refused,
        baseline=reference,
        systems=tuple(
            _system(sums, k, cluster, (found, alone, by_people), wins, scored)
            for k, cluster in zip(order, clusters, strict=True)
        ),
        against=_against(found, sums.systems, names, reference, sign, refused is not None),
        differences=tuple(rows),
        text=(),
    )
    return board.model_copy(update={"text": tuple(sentences_of(board, answers, people, scale is not None))})


def _refused(measured: Measured | None) -> str | None:
    """Why the judge cannot carry an order of systems, by what was measured."""
    if measured is None:
        return None
    spearman = measured.spearman
    if spearman.value is None:
        return f"its agreement with people on {measured.dataset} is undefined ({spearman.reason})"
    if spearman.low is None or spearman.low <= 0:
        return f"on {measured.dataset} it does not agree with people more than chance (Spearman {spearman.value:.2f})"
    return None


def _system(
    sums: SystemSums,
    k: int,
    cluster: int | None,
    sources: tuple[SystemMeans, SystemMeans, SystemMeans | None],
    wins: np.ndarray,
    scored: pd.DataFrame,
) -> BoardSystem:
    found, alone, people = sources
    rows = scored.loc[scored["system"] == sums.systems[k]]
    # (wins - losses + 1) / 2 counts a tie as half a win; the system itself is taken out
    others = np.delete((wins[k] - wins[:, k] + 1) / 2, k)
    return BoardSystem(
        system=sums.systems[k],
        cluster=cluster,
        n_pairs=len(rows),
        n_rated=int(sums.rated[:, k].sum()),
        mean=_figure(found.means[k]),
        judge=_figure(alone.means[k]),
        ratings=None if people is None else _figure(people.means[k]),
        win_rate=None if np.isnan(others).all() else float(np.nanmean(others)),
        unlike_training=float(rows["warnings"].str.contains("unlike_training", na=False).mean()),
    )


def _figure(found: SystemEstimate, sign: int = 1) -> Figure:
    """The estimate, or with `sign` -1 its opposite."""
    # Turned round, the low end becomes the high one
    ends = sorted(sign * end for end in (found.low, found.high) if end is not None)
    return Figure(
        value=None if found.value is None else sign * found.value,
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        standard_error=found.standard_error,
        n_groups=found.groups,
        reason=found.reason,
    )


def _over(value: float | None, noise: float | None) -> float | None:
    return None if value is None or noise is None else value / noise


def _share(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _wins(
    scored: pd.DataFrame, dimension: str, names: Sequence[str], sign: int, three_way: PreferenceModel | None
) -> np.ndarray:
    """Share of the contexts that both answer in which the row's system is preferred to the column's; NaN = none."""
    # `names` are those of `SystemSums`, which are sorted
    column = np.searchsorted(names, scored["system"].to_numpy(str))
    contexts, row = np.unique(scored[GROUP].to_numpy(str), return_inverse=True)
    shape = (len(contexts), len(names))

    def cells(values: np.ndarray | None) -> np.ndarray:
        return np.bincount(row * shape[1] + column, values, shape[0] * shape[1]).reshape(shape)

    with np.errstate(invalid="ignore"):  # a system without a response to a context has NaN
        means = sign * cells(scored[dimension].to_numpy(float)) / cells(None)
        errors = np.sqrt(cells(scored[cells_of(dimension).uncertainty].to_numpy(float) ** 2)) / cells(None)
    shares = np.full((len(names), len(names)), np.nan)
    for i, j in zip(*np.triu_indices(len(names), 1), strict=True):
        lead = means[:, i] - means[:, j]
        both = ~np.isnan(lead)
        if not both.any():
            continue
        if three_way is None:
            first, second = lead[both] > 0, lead[both] < 0
        else:
            noise = np.hypot(errors[both, i], errors[both, j]) if three_way.uses_error else np.ones(both.sum())
            first, second, _ = probabilities(lead[both], noise, three_way.factor, three_way.tie_width).T
        shares[i, j], shares[j, i] = first.mean(), second.mean()
    return shares


def _rater_noise(rated: pd.DataFrame | None) -> float | None:
    """Standard deviation of the ratings of one response around their mean, over responses with two or more."""
    if rated is None:
        return None
    # A table of published means holds no single ratings: the spread has to be in it
    if SD in rated and not np.isnan(rated[SD].to_numpy(float)).any():
        within = spread_within(rated[SD].to_numpy(float), rated[N_RATINGS].to_numpy(float))
    else:
        of_pair = rated.groupby("pair_id")["score"].agg(["std", "count"]).query("count > 1")
        within = spread_within(of_pair["std"].to_numpy(float), of_pair["count"].to_numpy(float))
    return float(np.sqrt(within)) if within > 0 else None


def _by_length(scored: pd.DataFrame, dimension: str) -> dict[str, float] | None:
    """System -> what its mean length makes of its score, by the slope of scores on seconds within systems; None where
    nothing is said of seconds."""
    seconds, score = (scored[name].to_numpy(float) for name in ("seconds", dimension))
    if np.isnan(seconds).any():
        return None
    names, codes, counts = np.unique(scored["system"].to_numpy(str), return_inverse=True, return_counts=True)
    means = np.bincount(codes, seconds) / counts
    # Within systems: across them the slope would take a good system's length for the reason of its score
    longer, higher = seconds - means[codes], score - (np.bincount(codes, score) / counts)[codes]
    square = float(longer @ longer)
    slope = float(longer @ higher) / square if square > 0 else 0.0
    return {str(name): slope * mean for name, mean in zip(names, means.tolist(), strict=True)}


def _differences(
    found: SystemMeans, names: Sequence[str], order: Sequence[int], sign: int, refused: bool
) -> list[dict[str, Any]]:
    """All pairs in the order of the board; the first of a pair is the one that does better."""
    adjusted = _adjusted(found, list(found.differences))
    rows: list[dict[str, Any]] = []
    for above, first in enumerate(order):
        for second in order[above + 1 :]:
            pair = (min(first, second), max(first, second))
            own, turn = found.differences[pair], 1 if first < second else -1
            here = (first, second)
            if own.value is not None and sign * turn * own.value < 0:  # over shared contexts it is the other way round
                here, turn = (second, first), -turn
            p = adjusted.get(pair)
            # A difference of exactly 0 has no direction, whatever its p value
            better = p is not None and p < ALPHA and bool(own.value) and not refused
            rows.append({"first": names[here[0]], "second": names[here[1]], "difference": _figure(own, turn),
                         "p": p, "better": better})  # fmt: skip
    return rows


def _adjusted(found: SystemMeans, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """P values of these differences, corrected for all of them; without an interval there is none."""
    p = {pair: own for pair in pairs if (own := found.differences[pair].p) is not None}
    return dict(zip(p, holm(np.array(list(p.values()))).tolist(), strict=True))


def _against(
    found: SystemMeans, names: Sequence[str], order: Sequence[str], baseline: str, sign: int, refused: bool
) -> tuple[AgainstBaseline, ...]:
    place = names.index(baseline)
    pairs = {name: (min(k, place), max(k, place)) for k, name in enumerate(names) if k != place}
    # Corrected for these comparisons alone: they are fewer than all pairs, and each is easier to tell
    adjusted = _adjusted(found, list(pairs.values()))
    rows = []
    for name in order:
        if name == baseline:
            continue
        pair = pairs[name]
        difference = _figure(found.differences[pair], 1 if pair[1] == place else -1)
        p, lead = adjusted.get(pair), sign * (difference.value or 0.0)
        verdict: Verdict = "not told apart"
        if refused or p is None:
            verdict = "cannot be told"
        elif p < ALPHA and lead:
            verdict = "better" if lead > 0 else "worse"
        rows.append(AgainstBaseline(system=name, difference=difference, p=p, verdict=verdict))
    return tuple(rows)


def _clusters(differences: Sequence[BoardDifference], names: Sequence[str]) -> tuple[int | None, ...]:
    """Cluster of each system, best first; None where no difference has an interval."""
    if all(row.p is None for row in differences):
        return (None,) * len(names)
    better = np.zeros((len(names), len(names)), dtype=bool)
    for row in differences:
        better[names.index(row.first), names.index(row.second)] = row.better
    return significance_clusters(better)
