"""Agreement of people and judges on a plain long table (`frame.read_frame`), without audio.

People are the annotators that are not named as judges. `measure_agreement` returns what ``empathy-judge agreement
--json`` prints. Intervals (95 %) come from the bootstrap over clusters, except those of ICC on complete panels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import UserError
from ..core.processes import progress
from .frame import Frame, Panel, clusters_by
from .judge_report import judge_report, with_draws
from .overall import overall_report
from .ranking import ranking_report
from .rater_ranges import rater_ranges
from .report.base import SCHEMA_VERSION
from .report.others import AnnotatorPair, TableCluster, TableDimension, TableJudge, TableReport
from .report.people import PeopleReport
from .results import identified, signature
from .statistics.agreement import MIN_ITEMS, KappaDistance, is_constant, weighted_kappa
from .statistics.bootstrap import Interval, Resamples, estimate
from .statistics.reliability import affordable_draws


def measure_agreement(
    frame: Frame,
    judges: Sequence[str],
    *,
    pairs: bool = False,
    kappa_weights: KappaDistance = "scores",
    cluster: TableCluster = "group",
    interval: Interval = "percentile",
    resamples: int = 1000,
    seed: int = 0,
    command: str = "",
    left_out: Sequence[str] = (),
) -> TableReport:
    """The report of a table.

    Args:
        frame: The table, of the annotators that count.
        judges: Which of them are judges.
        pairs: Compare every two annotators, too.
        kappa_weights: The distances of weighted kappa.
        cluster: The column whose values intervals draw, and permutations exchange, whole.
        interval: The kind of bootstrap intervals.
        resamples: Bootstrap resamples; fewer where there are very many groups (`reliability.affordable_draws`).
        seed: Seed of the resamples and of the halvings of the panel.
        command: The command line, as it was typed.
        left_out: Annotators that the caller took out of the table.

    Raises:
        UserError: If a judge is not in the table, everybody is a judge, or a number is negative.
    """
    for option, value in (("--resamples", resamples), ("--seed", seed)):
        if value < 0:
            raise UserError(f"{option} {value}: expected 0 or more")
    judges = list(dict.fromkeys(judges))
    frame = frame.with_judges(judges)
    people = [name for name in frame.annotators if name not in judges]
    has_systems = frame.has_systems
    if cluster == "system" and not has_systems:
        raise UserError(f"--cluster system: {frame.source} has no column 'system'; expected group")
    if cluster == "system":
        rows = frame.rows
        frame = replace(frame, rows=rows.assign(cluster=clusters_by(rows["system_id"], rows["pair_id"])))
    panels = [
        replace(panel, scores={name: panel.scores[name] for name in judges if name in panel.scores})
        for panel in frame.panels(resamples, seed, interval)
    ]
    dimensions = []
    for panel in progress(panels, "dimensions", len(panels)):
        panel_rows = panel.rows
        compared = None
        if pairs:
            names = [name for name in (*people, *judges) if name in set(panel_rows["rater_id"])]
            kappa = partial(weighted_kappa, distance=kappa_weights)
            # Every two annotators share other items, so that each pair has draws of its own
            draw = partial(affordable_draws, resamples=resamples, seed=seed, interval=interval)
            compared = tuple(_pairs(panel_rows, names, kappa, draw))
        dimensions.append(
            TableDimension(
                dataset=panel.dataset,
                dimension=panel.dimension,
                missing_scores=panel_rows.loc[panel_rows["score"].isna(), "rater_id"]
                .value_counts(sort=False)
                .to_dict(),
                people=PeopleReport.measured(panel.table, panel.draws, panel.reliability, seed),
                ranges=rater_ranges(panel.table),
                judges={judge: _judge(panel, judge, has_systems) for judge in judges if judge in panel.scores},
                ranking=ranking_report(panel) if len(panel.scores) > 1 else None,
                pairs=compared,
            )
        )
    content = hashlib.sha256(b"".join(file.read_bytes() for file in frame.files)).hexdigest()
    without = {"without": "+".join(left_out)} if left_out else {}
    return TableReport(
        schema_version=SCHEMA_VERSION,
        signature=signature(
            "+".join(identified(judge, None) for judge in judges) or "none",
            identified("+".join(file.name for file in frame.files), content, **without),
            "all",
            cluster,
            interval,
            resamples,
            seed,
        ),
        table=frame.source,
        sha256=content,
        command=command,
        people=tuple(people),
        judges=tuple(judges),
        left_out=tuple(left_out),
        kappa_weights=kappa_weights,
        cluster=cluster,
        interval=interval,
        resamples=resamples,
        seed=seed,
        overall=overall_report(panels, judges, resamples, seed, interval),
        dimensions=tuple(dimensions),
    )


def _judge(panel: Panel, judge: str, has_systems: bool) -> TableJudge:
    judged, scores = panel.judged(judge), panel.table.scores
    # A table states no scale: the lowest and the highest score by people stand for its ends
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    report: dict[str, Any] = dict(judge_report(judged, (low, high if high > low else low + 1)))
    people = judged.panel.reliability
    return TableJudge(
        n_unscored=len(panel.items) - len(judged.score),
        ceiling=people.leave_one_rater_out,
        panel_ceiling=people.panel_mean,
        **(report if has_systems else {**report, "system_level": None}),
    )


def _pairs(
    rows: pd.DataFrame, names: Sequence[str], kappa: Callable[..., float], draw: Callable[..., Resamples]
) -> Iterator[AnnotatorPair]:
    """Agreement of every two annotators, over the items that both scored."""
    wide = rows.pivot(index="pair_id", columns="rater_id", values="score").reindex(rows["pair_id"].unique())
    clusters = rows.drop_duplicates("pair_id").set_index("pair_id")["cluster"]
    for first, second in combinations(names, 2):
        both = wide[[first, second]].dropna()
        x, y = both.to_numpy(np.float64).T
        draws = draw(clusters.loc[both.index].tolist())
        statistics = {
            **{name: with_draws(name, x, y, draws) for name in ("spearman", "pearson", "kendall")},
            "linear_kappa": estimate(partial(kappa, weights="linear"), x, y, resamples=draws),
            "quadratic_kappa": estimate(partial(kappa, weights="quadratic"), x, y, resamples=draws),
        }
        constant = [
            name for name, values in ((first, x), (second, y)) if len(values) >= MIN_ITEMS and is_constant(values)
        ]
        if constant:  # the statistics call the sides judge and human
            reason = f"the scores by {' and '.join(constant)} are constant"
            statistics = {name: replace(statistic, reason=reason) for name, statistic in statistics.items()}
        yield AnnotatorPair(first=first, second=second, n_items=len(both), **statistics)
