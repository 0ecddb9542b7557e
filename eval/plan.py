"""How many ratings a measurement needs, from a pilot with ratings per rater, from published means with deviation and
number of their ratings, or from assumed variances.

Everything is a formula; nothing is simulated. The pilot gives the reliability of a single rating, the design effect of
groups and systems, and variance components for the reader. The reliability comes from splits of the raters in two, so
that it includes rounding to the steps of the scale and, where they count, raters' severities. With k ratings per item:

- **noise ceiling**: sqrt(rel_k), rel_k by Spearman-Brown; **leave-one-out agreement**: sqrt(own rel_(k-1)), with
  the reliability `own` of one rater's ratings, whose severity does not count there;
- **judge**: its agreement with the true scores times the ceiling, with its standard error (`statistics.planning`);
- **power**: of a two-sided test at 5 % for two judges whose agreement with the true scores differs by a given amount,
  by the normal distribution.

Where there are several dimensions the plan is for an average one. How many contexts tell two systems apart is planned
for each dimension (`plan_systems`). How a judge gets better with more training pairs is another question
(`judges.baselines.probe.learning_curve`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from ..core.errors import UserError, counted
from ..data_modules.ratings import ratings_behind
from .frame import Frame, Panel
from .rater_ranges import rater_ranges
from .rendering import percent
from .report.base import SCHEMA_VERSION
from .report.others import Needed, PilotFacts, PlanReport, PlanRow, Range, RaterRanges, SystemPlan, Variances
from .statistics.agreement import Statistic, spearman
from .statistics.bootstrap import MIN_GROUPS
from .statistics.planning import (
    Components,
    components,
    design_effect,
    paired_contexts,
    standard_error,
    standard_error_of_difference,
)
from .statistics.probabilities import normal_below, normal_quantile
from .statistics.reliability import MIN_RATER_ITEMS, average_single_reliability, of_mean

DEFAULT_AGREEMENT = 0.6
"""Agreement of a judge with the true scores, where nothing is known of it."""

_SIDES = 0.975  # quantile of the normal distribution for a two-sided test at 5 %


@dataclass(frozen=True)
class Pilot:
    """What is known before the ratings are paid for."""

    source: str  # where it comes from
    n_items: int  # items that were rated, of an average dimension; 0 = the variances are assumed
    ratings_per_item: float  # harmonic mean; 0 = assumed
    reliability: Statistic  # of a single rating
    own_reliability: float  # of a single rating among those of its rater, whose severity does not count there
    design_effect: float  # of groups and systems on the variance of a judge's Spearman
    effect_from: str  # whose scores it was estimated from: judges, raters, or variances
    components: Mapping[str, Components]  # dimension -> its variance components
    # judge -> its agreement with the true scores, mean over dimensions
    agreement: Mapping[str, float] = field(default_factory=dict)
    between: float | None = None  # mean Spearman between two of the judges; None with fewer than two
    ranges: Mapping[str, RaterRanges] = field(default_factory=dict)  # dimension -> raters who seem to use two scales


def pilot_from(frame: Frame, dimensions: Sequence[str] = (), resamples: int = 1000, seed: int = 0) -> Pilot:
    """Estimate what a pilot study says of raters and judges.

    Args:
        frame: Ratings of the pilot, and scores of judges where there are any.
        dimensions: Dimensions that count; empty = all.
        resamples: Bootstrap resamples of groups, for the intervals.
        seed: Seed of the resamples and of the halvings of the panel.

    Raises:
        UserError: If a dimension is unknown, or nothing can be learned about the raters' agreement.
    """
    names = frame.rows["dimension"].unique()
    for name in dimensions:
        if name not in names:
            raise UserError(f"--dimension {name!r}: not in {frame.source}; it has {', '.join(names)}")
    panels = [panel for panel in frame.panels(resamples, seed, dimensions=dimensions) if len(panel.items)]
    if not panels:
        raise UserError(f"{frame.source}: no item has a rating by a person; expected a pilot with ratings per rater")
    if len({panel.table.of_means is None for panel in panels}) > 1:
        of_means = next(panel.dimension for panel in panels if panel.table.of_means is not None)
        raise UserError(f"{frame.source}: {of_means} has published means, others have ratings; expected --dimension")
    reliability = average_single_reliability([(panel.reliability, panel.table) for panel in panels])
    single = reliability.value
    if single is None:
        raise UserError(f"{frame.source}: nothing can be planned from it: {reliability.reason}")
    counts = np.concatenate([panel.table.numbers for panel in panels])
    k = float(1 / (1 / counts).mean())
    leave_one_out = _mean([panel.reliability.leave_one_rater_out.value for panel in panels])
    # Leave-one-out agreement compares within a rater: its severity does not count there
    own_reliability = (
        single if k <= 1 or leave_one_out is None else max(0.0, leave_one_out) ** 2 / of_mean(single, 1 / (k - 1))
    )
    agreement = {}
    for judge in dict.fromkeys(name for panel in panels for name in panel.scores):
        pairs = [(panel.judged(judge).spearman.value, panel.reliability.panel_mean.value) for panel in panels]
        share = _mean([value / top for value, top in pairs if value is not None and top])
        # By chance a judge may agree better than the ceiling allows; formulas need an agreement below 1
        agreement |= {} if share is None else {judge: min(share, 0.99)}
    named = {f"{panel.dataset}/{panel.dimension}" if panel.dataset else panel.dimension: panel for panel in panels}
    return Pilot(
        frame.source,
        round(len(counts) / len(panels)),
        k,
        reliability,
        min(own_reliability, 1.0),
        *_effects(panels),
        {name: components(panel.table, panel.items["cluster"].tolist()) for name, panel in named.items()},
        agreement,
        _mean([_between(panel, *judges) for panel in panels for judges in combinations(panel.scores, 2)]),
        {name: found for name, panel in named.items() if (found := rater_ranges(panel.table)) is not None},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are not None or NaN; None without any."""
    defined = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(defined)) if defined else None


def _between(panel: Panel, *judges: str) -> float:
    scored = panel.scored(*judges)
    return spearman(*(panel.scores[judge][scored] for judge in judges))


def _effects(panels: Sequence[Panel]) -> tuple[float, str]:
    """Mean design effect over dimensions and judges, and its source; raters stand in for judges, 1 without either."""
    effects: dict[str, list[float]] = {"judges": [], "raters": []}
    for panel in panels:
        groups, systems = np.asarray(panel.items["cluster"], dtype=str), _shared_systems(panel)
        table, others_means = panel.table, panel.table.others_mean()
        scored = [(score, np.flatnonzero(panel.scored(name))) for name, score in panel.scores.items()]
        sides = [("judges", items, score[items], panel.human[items]) for score, items in scored]
        shared = (positions[~np.isnan(others_means[positions])] for positions in table.by_rater())
        rated = [positions for positions in shared if len(positions) >= MIN_RATER_ITEMS]
        sides += [
            ("raters", table.items[positions], table.scores[positions], others_means[positions]) for positions in rated
        ]
        for source, items, scores, human in sides:
            item_systems = None if systems is None else systems[items]
            effects[source].append(design_effect(scores, human, groups[items], item_systems))
    means = ((_mean(values), source) for source, values in effects.items())
    return next(((mean, source) for mean, source in means if mean is not None), (1.0, "raters"))


def _shared_systems(panel: Panel) -> np.ndarray | None:
    """The system of each item; None unless every item names one and most systems occur in several groups."""
    items = panel.items
    if bool(items["system_id"].isna().any()):
        return None
    groups = items.groupby("system_id")["cluster"].nunique().to_numpy()
    return np.asarray(items["system_id"], dtype=str) if len(groups) > 1 and np.mean(groups > 1) > 0.5 else None


def assumed_pilot(variances: Mapping[str, float], per_group: float = 1.0) -> Pilot:
    """A pilot from assumed variances in squared rating points: ``item`` and ``residual``, optionally ``rater`` (then
    severities count as noise, as items have different raters; leave it out where all rate everything) and ``group``.
    Raises UserError if one is unknown, missing or negative."""
    names = Components._fields
    for name, value in variances.items():
        if name not in names or not (math.isfinite(value) and value >= 0):
            raise UserError(f"--variance {name}={value:g}: expected {', '.join(names)}, each 0 or more")
    assumed = Components(*(variances.get(name, 0.0) for name in names))
    between_items = assumed.group + assumed.item
    if between_items <= 0 or "residual" not in variances:
        raise UserError("--variance: expected item=... above 0 and residual=..., such as item=0.6 residual=0.5")
    reliability = Statistic(between_items / (between_items + assumed.rater + assumed.residual))
    effect = 1 + (per_group - 1) * (assumed.group / between_items) ** 2  # a judge's errors vary by group as items do
    own_reliability = between_items / (between_items + assumed.residual)
    return Pilot("assumed variances", 0, 0.0, reliability, own_reliability, effect, "variances", {"": assumed})


def make_plan(
    pilot: Pilot,
    *,
    items: Sequence[int] = (),
    raters: Sequence[float] = (),
    agreement: float | None = None,
    difference: float = 0.05,
    power: float = 0.8,
    between: float | None = None,
    price: float | None = None,
) -> PlanReport:
    """Expected results for each number of items and raters, and the number needed to tell two judges apart.

    Args:
        pilot: What is known.
        items: Numbers of items, each above 3; none = the pilot's (or 100), 4, 16 and 64 times as many.
        raters: Ratings per item; none = 1, 2, 3, 5 and 8, and the pilot's.
        agreement: Of the better judge with the true scores; None = of the best judge of the pilot, else
            `DEFAULT_AGREEMENT`.
        difference: Between the two judges' agreement with the true scores.
        power: Power that is wanted.
        between: Spearman between the two judges; None = that of the pilot's judges, else as if their errors were
            independent, which needs the most items.
        price: Of a rating; None = costs are not computed.

    Raises:
        UserError: If a number is out of its range.
    """
    origin = "as given" if agreement is not None else "not measured; --agreement changes it"
    if agreement is None:
        if any(value > difference for value in pilot.agreement.values()):
            origin = "as the best judge of the pilot does"
        agreement = max([value for value in pilot.agreement.values() if value > difference], default=DEFAULT_AGREEMENT)
    for option, value in (("--agreement", agreement), ("--difference", difference), ("--power", power)):
        if not 0 < value < 1:
            raise UserError(f"{option} {value:g}: expected a number between 0 and 1")
    if difference >= agreement:
        raise UserError(f"--difference {difference:g}: expected less than the agreement, {agreement:.2f}")
    if between is not None and not -1 <= between <= 1:
        raise UserError(f"--between {between:g}: expected a correlation, from -1 to 1")
    if not items and 0 < pilot.n_items < 4:
        raise UserError(f"the pilot has {counted(pilot.n_items, 'item')}; expected 4 or more, or --items")
    items = sorted(set(items)) or [factor * (pilot.n_items or 100) for factor in (1, 4, 16, 64)]
    if items[0] < 4:
        raise UserError(f"--items {items[0]}: expected 4 or more")
    raters = sorted(set(raters) or {1, 2, 3, 5, 8, *([round(pilot.ratings_per_item)] if pilot.n_items else [])})
    judges = (agreement, agreement - difference)
    if between is not None:
        errors = f"the two judges correlate by {between:.2f}, as given"
    elif pilot.between is not None:
        errors = f"the two judges correlate by {pilot.between:.2f}, as those of the pilot do"
    else:
        errors = "the errors of the two judges are independent, which needs the most items (--between changes it)"
    between = pilot.between if between is None else between
    # Two judges whose errors are independent correlate through the true scores alone
    between = judges[0] * judges[1] if between is None else between
    single, rows, needed = pilot.reliability, [], []
    for k in raters:
        ceiling, low, high = (
            None if reliability is None else math.sqrt(max(0.0, of_mean(reliability, 1 / k)))
            for reliability in (single.value, single.low, single.high)
        )
        first, second = (value * (ceiling or 0.0) for value in judges)
        leave_one_out = None if k < 2 else math.sqrt(pilot.own_reliability * of_mean(single.value or 0.0, 1 / (k - 1)))
        error_of = partial(standard_error_of_difference, first, second, between, effect=pilot.design_effect)
        for n in items:
            rows.append(
                PlanRow(
                    raters=k,
                    items=n,
                    ratings=n * k,
                    ceiling=ceiling,
                    ceiling_low=low,
                    ceiling_high=high,
                    leave_one_out=leave_one_out,
                    judge_spearman=first,
                    standard_error=standard_error(first, n, pilot.design_effect),
                    difference=first - second,
                    power=float(normal_below((first - second) / error_of(n) - normal_quantile(_SIDES))),
                    cost=None if price is None else price * n * k,
                )
            )
        # variances fall with 1 / (items - 3), so the error of four items, where that is 1, gives the scale
        wanted_error = (first - second) / (normal_quantile(_SIDES) + normal_quantile(power))
        n = max(4, math.ceil(3 + (error_of(4) / wanted_error) ** 2))
        needed.append(Needed(raters=k, items=n, ratings=n * k, cost=None if price is None else price * n * k))
    return PlanReport(
        schema_version=SCHEMA_VERSION,
        source=pilot.source,
        pilot=PilotFacts(
            n_items=pilot.n_items,
            ratings_per_item=pilot.ratings_per_item,
            single_reliability=Range(value=single.value, low=single.low, high=single.high),
            design_effect=pilot.design_effect,
            design_effect_from=pilot.effect_from,
            judges=dict(pilot.agreement),
        ),
        components={
            name: Variances(
                **{part: None if math.isnan(value) else value for part, value in variances._asdict().items()}
            )
            for name, variances in pilot.components.items()
        },
        agreement=agreement,
        difference=difference,
        between=between,
        power=power,
        price=price,
        rows=tuple(rows),
        needed=tuple(needed),
        sentence=_sentence(pilot, needed, difference, power, price),
        assumption=f"This assumes that the better judge agrees with the true scores by {agreement:.2f} ({origin}), "
        f"and that {errors}.",
        ranges=dict(pilot.ranges) or None,
    )


def _sentence(pilot: Pilot, needed: Sequence[Needed], difference: float, power: float, price: float | None) -> str:
    best = min(needed, key=lambda row: (row.ratings, row.items))
    n = best.items
    k: Any = best.raters  # mostly whole
    missing_items = n - pilot.n_items

    def enough(count: int, what: str, more: str = "") -> str:
        verb = "tells" if count == 1 else "tell"
        task = f"judges apart that differ by {difference:g} with {percent(power)} power"
        return f"{counted(count, what)}{more} {verb} {task}."

    each = counted(k, "rater")
    cost = "" if best.cost is None else f", for {best.cost:,.2f}"
    if pilot.n_items and round(pilot.ratings_per_item) >= k:  # the pilot's own items count
        if missing_items <= 0:
            return f"The {enough(pilot.n_items, 'item', ' of the pilot')}"
        cost = "" if price is None else f", for {price * missing_items * k:,.2f}"
        return enough(missing_items, "more item", f" with {each} ({counted(missing_items * k, 'rating')}{cost})")
    return enough(n, "item", f" with {each} ({counted(n * k, 'rating')}{cost})")


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
