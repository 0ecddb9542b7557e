"""How many contexts, and ratings of each system, tell two systems apart by a given difference (``plan --systems``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..core.errors import UserError
from ..data_modules.ratings import ratings_behind
from .frame import Frame
from .report.others import SystemPlan
from .statistics.bootstrap import MIN_GROUPS
from .statistics.planning import paired_contexts


def plan_systems(
    frame: Frame, difference: float, power: float, dimensions: Sequence[str] = ()
) -> tuple[SystemPlan, ...]:
    """Plan ratings of systems that answer the same contexts, from a pilot in which people rated some of them.

    Args:
        frame: Ratings of the pilot; judges in it do not count.
        difference: Between the means of two systems, rating points.
        power: Of a two-sided paired t test at 5 % over contexts.
        dimensions: Dimensions that count; empty = all.

    Raises:
        UserError: If the difference is not above 0, the pilot names no systems, or no two of them share enough contexts
            on a dimension.
    """
    if not difference > 0:
        raise UserError(f"--systems {difference:g}: expected rating points above 0")
    if not frame.has_systems:
        expected = "system_id in a pair dataset, or in a table a column 'system' (--column system=NAME)"
        raise UserError(f"{frame.source}: names no systems; expected {expected}")
    people = frame.rows.loc[~frame.rows["is_judge"] & frame.rows["score"].notna()]
    plans = []
    for name, rows in people.groupby("dimension", sort=False):
        if dimensions and name not in dimensions:
            continue
        by_item = rows.assign(ratings=ratings_behind(rows)).groupby(["group_id", "system_id", "pair_id"])
        items = by_item.agg(mean=("score", "mean"), count=("ratings", "sum")).reset_index()
        cells = items.groupby(["group_id", "system_id"])
        means = cells["mean"].mean().unstack()
        squares = freedom = 0.0
        for first, second in combinations(means.columns, 2):
            apart = (means[first] - means[second]).dropna()
            if len(apart) >= MIN_GROUPS:
                squares += float(((apart - apart.mean()) ** 2).sum())
                freedom += len(apart) - 1
        if not freedom:
            raise UserError(
                f"{frame.source}: no two systems share {MIN_GROUPS} rated groups on {name}; "
                "expected a pilot in which systems answer the same contexts"
            )
        spread = float(np.sqrt(squares / freedom))
        per_context = float(cells["count"].sum().mean())
        contexts = paired_contexts(spread, difference, power)
        plans.append(
            SystemPlan(
                dimension=str(name),
                n_systems=len(means.columns),
                difference=difference,
                spread=spread,
                contexts=contexts,
                ratings_per_context=per_context,
                ratings_per_system=round(contexts * per_context),
            )
        )
    return tuple(plans)
