"""How many ratings a measurement needs, from a pilot with ratings per rater or from assumed variances.

Everything is a formula; nothing is simulated. From the pilot come the reliability of a single rating (splits of the
raters in two, so that rounding to the steps of the scale, and raters' severities where they count, are in it as they
are in the data), the design effect of groups and systems, and variance components for the reader. With k ratings per
item:

- **noise ceiling**: sqrt(rel_k), rel_k by Spearman-Brown; **leave-one-out agreement**: sqrt(own rel_(k-1)), with
  the reliability `own` of one rater's ratings, whose severity does not count there;
- **judge**: its agreement with the true scores times the ceiling, with its standard error (`statistics.planning`);
- **power**: of a two-sided test at 5 % for two judges whose agreement with the true scores differs by so much, by the
  normal distribution.

Where there are several dimensions the plan is for an average one. How a judge gets better with more training pairs is
another question (`judges.baselines.probe.learning_curve`).

`make_plan` returns what ``empathy-judge plan --json`` prints; `rows` of it is the table ``plan.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

from ..data_modules.errors import UserError
from .frame import Frame, Panel
from .pages.charts import INK, LIGHT, LIGHT_STYLE, png
from .rendering import filled_table, number, percent, ranged, signed
from .results import Report, write_files
from .statistics.agreement import Statistic, spearman
from .statistics.planning import (
    Components,
    components,
    design_effect,
    standard_error,
    standard_error_of_difference,
)
from .statistics.reliability import MIN_RATER_ITEMS, average_single_reliability, of_mean

DEFAULT_AGREEMENT = 0.6
"""Of a judge with the true scores, where nothing is known of it."""

_SIDES = 0.975  # of the normal distribution: a two-sided test at 5 %


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


def pilot_from(frame: Frame, dimensions: Sequence[str] = (), resamples: int = 1000, seed: int = 0) -> Pilot:
    """What a pilot shows.

    Args:
        frame: Its ratings, and scores of judges where there are any.
        dimensions: These count; none named = all.
        resamples: Bootstrap resamples of groups, for the intervals.
        seed: Of the resamples and of the halvings of the panel.

    Raises:
        UserError: If a dimension is unknown, or nothing can be learned about the raters' agreement.
    """
    known = frame.rows["dimension"].unique()
    for name in dimensions:
        if name not in known:
            raise UserError(f"--dimension {name!r}: not in {frame.source}; it has {', '.join(known)}")
    panels = [panel for panel in frame.panels(resamples, seed, dimensions=dimensions) if len(panel.items)]
    if not panels:
        raise UserError(f"{frame.source}: no item has a rating by a person; expected a pilot with ratings per rater")
    reliability = average_single_reliability([(panel.reliability, panel.table) for panel in panels])
    single = reliability.value
    if single is None:
        raise UserError(f"{frame.source}: nothing can be planned from it: {reliability.reason}")
    counts = np.concatenate([panel.table.counts for panel in panels])
    k = float(1 / (1 / counts).mean())
    alone = _mean([panel.reliability.leave_one_rater_out.value for panel in panels])
    own = single if k <= 1 or alone is None else max(0.0, alone) ** 2 / of_mean(single, 1 / (k - 1))
    agreement = {}
    for judge in dict.fromkeys(name for panel in panels for name in panel.scores):
        pairs = [(panel.judged(judge).spearman.value, panel.reliability.panel_mean.value) for panel in panels]
        share = _mean([value / top for value, top in pairs if value is not None and top])
        agreement |= {} if share is None else {judge: min(share, 0.99)}
    named = {f"{panel.dataset}/{panel.dimension}" if panel.dataset else panel.dimension: panel for panel in panels}
    return Pilot(
        frame.source,
        round(len(counts) / len(panels)),
        k,
        reliability,
        min(own, 1.0),
        *_effects(panels),
        {name: components(panel.table, panel.items["cluster"].tolist()) for name, panel in named.items()},
        agreement,
        _mean([_between(panel, *two) for panel in panels for two in combinations(panel.scores, 2)]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _between(panel: Panel, *judges: str) -> float:
    kept = panel.scored(*judges)
    return spearman(*(panel.scores[judge][kept] for judge in judges))


def _effects(panels: Sequence[Panel]) -> tuple[float, str]:
    """Mean design effect over dimensions and judges, or raters in their place; 1 where there is none to be seen."""
    effects: dict[str, list[float]] = {"judges": [], "raters": []}
    for panel in panels:
        groups, systems = np.asarray(panel.items["cluster"], dtype=str), _shared_systems(panel)
        table, others = panel.table, panel.table.others_mean()
        scored = [(score, np.flatnonzero(panel.scored(name))) for name, score in panel.scores.items()]
        sides = [("judges", items, score[items], panel.human[items]) for score, items in scored]
        shared = (own[~np.isnan(others[own])] for own in table.by_rater())
        rated = [own for own in shared if len(own) >= MIN_RATER_ITEMS]
        sides += [("raters", table.items[own], table.scores[own], others[own]) for own in rated]
        for who, items, scores, human in sides:
            own = None if systems is None else systems[items]
            effects[who].append(design_effect(scores, human, groups[items], own))
    means = ((_mean(own), who) for who, own in effects.items())
    return next(((mean, who) for mean, who in means if mean is not None), (1.0, "raters"))


def _shared_systems(panel: Panel) -> np.ndarray | None:
    """The system of each item where all name one and most systems stand in several groups."""
    items = panel.items
    if bool(items["system_id"].isna().any()):
        return None
    groups = items.groupby("system_id")["cluster"].nunique().to_numpy()
    return np.asarray(items["system_id"], dtype=str) if len(groups) > 1 and np.mean(groups > 1) > 0.5 else None


def assumed_pilot(variances: Mapping[str, float], per_group: float = 1.0) -> Pilot:
    """A pilot that nobody made, from variances in squared rating points: of ``item`` and ``residual``, where there are
    of ``rater`` (severities count as noise: items have different raters; leave it out where all rate everything) and
    ``group``. Raises UserError if one is unknown, missing or negative."""
    known = Components._fields
    for name, value in variances.items():
        if name not in known or not (math.isfinite(value) and value >= 0):
            raise UserError(f"--variance {name}={value:g}: expected {', '.join(known)}, each 0 or more")
    own = Components(*(variances.get(name, 0.0) for name in known))
    between = own.group + own.item
    if between <= 0 or "residual" not in variances:
        raise UserError("--variance: expected item=... above 0 and residual=..., such as item=0.6 residual=0.5")
    reliability = Statistic(between / (between + own.rater + own.residual))
    effect = 1 + (per_group - 1) * (own.group / between) ** 2  # a judge's errors have as much of groups as items have
    alone = between / (between + own.residual)
    return Pilot("assumed variances", 0, 0.0, reliability, alone, effect, "variances", {"": own})


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
) -> Report:
    """What can be expected of every number of items and raters, and what telling two judges apart takes.

    Args:
        pilot: What is known.
        items: Numbers of items, each above 3; none = the pilot's (or 100), 4, 16 and 64 times as many.
        raters: Ratings per item; none = 1, 2, 3, 5 and 8, and the pilot's.
        agreement: Of the better judge with the true scores; None = of the best judge of the pilot, else
            `DEFAULT_AGREEMENT`.
        difference: Between the two judges' agreement with the true scores.
        power: Wanted.
        between: Spearman between the two judges; None = that of the pilot's judges, else as if their errors were
            independent, which needs the most items.
        price: Of a rating; None = costs are not computed.

    Raises:
        UserError: If a number is out of its range.
    """
    if agreement is None:
        agreement = max([own for own in pilot.agreement.values() if own > difference], default=DEFAULT_AGREEMENT)
    for option, value in (("--agreement", agreement), ("--difference", difference), ("--power", power)):
        if not 0 < value < 1:
            raise UserError(f"{option} {value:g}: expected a number between 0 and 1")
    if difference >= agreement:
        raise UserError(f"--difference {difference:g}: expected less than the agreement, {agreement:.2f}")
    if between is not None and not -1 <= between <= 1:
        raise UserError(f"--between {between:g}: expected a correlation, from -1 to 1")
    items = sorted(set(items)) or [factor * (pilot.n_items or 100) for factor in (1, 4, 16, 64)]
    if items[0] < 4:
        raise UserError(f"--items {items[0]}: expected 4 or more")
    raters = sorted(set(raters) or {1, 2, 3, 5, 8, *([round(pilot.ratings_per_item)] if pilot.n_items else [])})
    judges = (agreement, agreement - difference)
    between = pilot.between if between is None else between
    between = judges[0] * judges[1] if between is None else between
    single, rows, needed = pilot.reliability, [], []
    for k in raters:
        ceiling, low, high = (
            None if own is None else math.sqrt(max(0.0, of_mean(own, 1 / k)))
            for own in (single.value, single.low, single.high)
        )
        first, second = (own * (ceiling or 0.0) for own in judges)
        alone = None if k < 2 else math.sqrt(pilot.own_reliability * of_mean(single.value or 0.0, 1 / (k - 1)))
        error_of = partial(standard_error_of_difference, first, second, between, effect=pilot.design_effect)
        for n in items:
            rows.append(
                {
                    "raters": k,
                    "items": n,
                    "ratings": n * k,
                    "ceiling": ceiling,
                    "ceiling_low": low,
                    "ceiling_high": high,
                    "leave_one_out": alone,
                    "judge_spearman": first,
                    "standard_error": standard_error(first, n, pilot.design_effect),
                    "difference": first - second,
                    "power": float(stats.norm.cdf((first - second) / error_of(n) - stats.norm.ppf(_SIDES))),
                    "cost": None if price is None else price * n * k,
                }
            )
        # variances fall with 1 / (items - 3): those of four items are of one more than the formula leaves out
        wanted = (first - second) / (stats.norm.ppf(_SIDES) + stats.norm.ppf(power))
        n = max(4, math.ceil(3 + (error_of(4) / wanted) ** 2))
        needed.append({"raters": k, "items": n, "ratings": n * k, "cost": None if price is None else price * n * k})
    report = {
        "source": pilot.source,
        "pilot": {
            "n_items": pilot.n_items,
            "ratings_per_item": pilot.ratings_per_item,
            "single_reliability": {end: getattr(single, end) for end in ("value", "low", "high")},
            "design_effect": pilot.design_effect,
            "design_effect_from": pilot.effect_from,
            "judges": dict(pilot.agreement),
        },
        "components": {
            name: {part: None if math.isnan(value) else value for part, value in own._asdict().items()}
            for name, own in pilot.components.items()
        },
        "agreement": agreement,
        "difference": difference,
        "between": between,
        "power": power,
        "price": price,
        "rows": rows,
        "needed": needed,
    }
    return {**report, "sentence": _sentence(report)}


def _sentence(report: Report) -> str:
    best = min(report["needed"], key=lambda own: (own["ratings"], own["items"]))
    pilot, n, k = report["pilot"], best["items"], best["raters"]
    more = n - pilot["n_items"]
    what = f"judges apart that differ by {report['difference']:g} with {percent(report['power'])} power"
    each = "1 rater" if k == 1 else f"{k} raters"
    price = "" if best["cost"] is None else f", for {best['cost']:,.2f}"
    if pilot["n_items"] and round(pilot["ratings_per_item"]) >= k:  # the pilot's own items count
        if more <= 0:
            return f"The {pilot['n_items']} items of the pilot tell {what}."
        price = "" if report["price"] is None else f", for {report['price'] * more * k:,.2f}"
        return f"{more} more items with {each} ({more * k} ratings{price}) tell {what}."
    return f"{n} items with {each} ({n * k} ratings{price}) tell {what}."


def plan_views(report: Report) -> Iterator[Table | str]:
    """What ``plan`` prints."""
    pilot, parts = report["pilot"], ("item", "group", "rater", "residual")
    variances = [
        (name or "assumed", *(number(own[part]) for part in parts)) for name, own in report["components"].items()
    ]
    yield filled_table(report["source"], ("variance", *parts), [("", variances)])
    effect = f"design effect {number(pilot['design_effect'])} (from {pilot['design_effect_from']})"
    yield f"reliability of a single rating {number(pilot['single_reliability']['value'])}, {effect}"
    cells: dict[int, list[tuple[str, ...]]] = {}
    for own in report["rows"]:
        values = (number(own[name]) for name in ("ceiling", "leave_one_out", "judge_spearman"))
        rest = number(own["standard_error"], 3), percent(own["power"]), number(own["cost"])
        cells.setdefault(own["raters"], []).append((str(own["raters"]), str(own["items"]), *values, *rest))
    of_judge = f"a judge that agrees with the true scores by {report['agreement']:.2f}"
    head = ("items", "noise\nceiling", "leave-\none-out", "judge", "standard\nerror", "power", "cost")
    less = f"{of_judge}, another by {report['difference']:g} less"
    yield filled_table(less, ("raters\nper item", *head), [("", rows) for rows in cells.values()])
    needed = [
        (*(str(own[name]) for name in ("raters", "items", "ratings")), number(own["cost"])) for own in report["needed"]
    ]
    title = f"for {percent(report['power'])} power"
    yield filled_table(title, ("raters\nper item", "items", "ratings", "cost"), [("", needed)])
    curves: dict[str, list[tuple[str, ...]]] = {}
    for own in report.get("learning", ()):
        more = "" if own["behind"] is None else ranged(own["behind"], signed)
        row = str(own["pairs"]), ranged(own["spearman"]), more
        curves.setdefault(own["dimension"], []).append(row)
    if curves:
        head = ("training\npairs", "Spearman of groups\nleft out (95 %)", "all pairs:\nmore by (95 %)")
        yield filled_table("what a probe on the frozen backbone learns", head, curves.items())
    yield report["sentence"]


def save_plan(report: Report, folder: Path) -> None:
    """Writes ``plan.csv``, ``plan.json`` and ``plan.png``."""
    with matplotlib.rc_context(LIGHT_STYLE):
        figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw(left, report, "standard_error", "standard error of a judge's Spearman")
        _draw(right, report, "power", f"power for a difference of {report['difference']:g}")
        right.axhline(report["power"], color=LIGHT[INK], linewidth=0.8, linestyle=":")
        right.set_ylim(0, 1.02)
        figure.suptitle(report["sentence"], fontsize=10, color=LIGHT[INK])
        drawn = png(figure, facecolor="white")
    write_files(folder, {"plan.csv": pd.DataFrame(report["rows"]), "plan.json": report, "plan.png": drawn})


def _draw(axes: Axes, report: Report, column: str, label: str) -> None:
    rows = pd.DataFrame(report["rows"])
    colours = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.1, len(report["needed"])))
    for colour, (k, own) in zip(colours, rows.groupby("raters"), strict=True):
        axes.plot(
            own["items"],
            own[column],
            marker="o",
            markersize=3,
            color=colour,
            label=f"{k} per item, ceiling {own['ceiling'].iloc[0]:.2f}",
        )
    ticks: Any = sorted(rows["items"].unique())
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("items")
    axes.set_ylabel(label)
    axes.grid(visible=True)
    if column == "standard_error":
        axes.legend(fontsize=8, frameon=False, title="ratings", loc="upper right")
