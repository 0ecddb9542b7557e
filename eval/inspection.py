"""Facts about the ratings, preferences and skipped pairs of a dataset, without any judge: distributions and disputes.
Also the tables that `empathy-judge inspect` prints."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Column, Table
from rich.text import Text

from ..data_modules.folders import DataPath
from ..data_modules.importers.assemble import SKIPPED_FILE
from ..data_modules.inspection import Inspection
from ..data_modules.ratings import Dimension
from ..data_modules.schema import PairDataset
from .rendering import number, percent, ranged, signed
from .statistics.agreement import as_report
from .statistics.icc import FORMS
from .statistics.krippendorff import DISTANCES
from .statistics.raters import rater_report
from .statistics.reliability import measure, rated_items, reliability_report

DISPUTED_ITEMS = 20
RESAMPLES = 1000
MAX_STEPS = 21
"""A scale with at most this many steps has one bin per step; any other has `MAX_STEPS` - 1 bins of equal width."""
_ROUNDING = 9  # decimals of a spread; beyond, two spreads differ only by the order of a sum
_SHOWN = 10  # problems of one kind
_RATERS_SHOWN = 25

Facts = Mapping[str, Any]
"""The result of `inspection_facts` or a part of it."""


def inspection_facts(dataset: PairDataset) -> dict[str, Any]:
    """What `inspect` reports about ratings, preferences and the pairs that the import skipped, ready for JSON.

    Args:
        dataset: Not a subset.

    Returns:
        - ``ratings``: of every dimension ``scores`` (``edges`` of `rating_bins` in rating points, ``counts``),
          ``scores_by_rater`` (such counts by rater, in the order of names), ``pairs_by_raters`` (number of raters ->
          pairs with that many raters, 0 = unrated), ``disputed`` (`most_disputed`), ``raters`` (`raters.RaterFacts`,
          flagged raters first)
        - ``preferences``: for every dimension that has some: ``comparisons`` (one rater, two items), ``raters``,
          ``ties`` (of strength 0), ``couples`` (of items, in either order), ``shared_couples`` (compared more than
          once), ``unanimous_couples`` (of these, always decided alike), ``disputed``: for the `DISPUTED_ITEMS` couples
          with the highest dissent, ``pair_ids`` in sorted order and ``votes`` (for the first, ties, for the second)
        - ``skipped``: rows of ``skipped.csv``
        - ``reliability``: for every dimension the result of `reliability_report`
    """
    groups = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    compared = [] if dataset.preferences is None else list(dataset.preferences.groupby("dimension", sort=False))
    path: DataPath = dataset.root / SKIPPED_FILE
    text = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
    skipped = list(csv.reader(io.StringIO(text, newline="")))
    ratings, panels = {}, {}
    for dimension in dataset.card.dimensions:
        ratings[dimension.name], panels[dimension.name] = _rating_facts(dataset, dimension, groups)
    return {
        "ratings": ratings,
        "preferences": {str(name): _preference_facts(rows) for name, rows in compared},
        "skipped": [dict(zip(skipped[0], row, strict=False)) for row in skipped[1:]],
        "reliability": panels,
    }


def scale_steps(dimension: Dimension) -> list[float] | None:
    """The possible ratings, ascending; None where not every one has a bin of its own, see `MAX_STEPS`."""
    if dimension.step is None or dimension.steps > MAX_STEPS:
        return None
    return [dimension.minimum + position * dimension.step for position in range(dimension.steps)]


def rating_bins(dimension: Dimension) -> np.ndarray:
    """Edges of the bins of a scale, ascending (rating points): around each step, or of equal width."""
    if (steps := scale_steps(dimension)) is not None and dimension.step is not None:
        return dimension.minimum + dimension.step * (np.arange(len(steps) + 1) - 0.5)
    return np.linspace(dimension.minimum, dimension.maximum, MAX_STEPS)


def most_disputed(ratings: pd.DataFrame) -> list[dict[str, Any]]:
    """The `DISPUTED_ITEMS` items whose ratings spread most, the most disputed first.

    An item needs two raters who differ. Items of equal spread are sorted by number of raters, most first, then by id.

    Args:
        ratings: Those of one dimension: columns ``pair_id, rater_id, score``.

    Returns:
        One dict per item: ``pair_id``, ``spread`` (standard deviation over n - 1, rating points), ``ratings``: rater
        and score, in rising order of scores, then of raters.
    """
    by_pair = ratings.groupby("pair_id")["score"]
    items = pd.DataFrame({"spread": by_pair.std().round(_ROUNDING), "n": by_pair.count()})  # NaN for a single rating
    items = items.loc[items["spread"] > 0].reset_index()
    top = items.sort_values(by=["spread", "n", "pair_id"], ascending=[False, False, True]).iloc[:DISPUTED_ITEMS]
    shown = ratings.loc[ratings["pair_id"].isin(top["pair_id"])].sort_values(["score", "rater_id"])
    ratings_of = {pair_id: rows[["rater_id", "score"]].values.tolist() for pair_id, rows in shown.groupby("pair_id")}
    return [
        {"pair_id": pair_id, "spread": float(spread), "ratings": ratings_of[pair_id]}
        for pair_id, spread in zip(top["pair_id"], top["spread"], strict=True)
    ]


def _rating_facts(
    dataset: PairDataset, dimension: Dimension, groups: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of one dimension under ``ratings`` and ``reliability``."""
    ratings = dataset.ratings.loc[dataset.ratings["dimension"] == dimension.name]
    edges = rating_bins(dimension)
    # Scores may be off the scale by rounding (float32); they belong to the bin at its end.
    scores = np.clip(ratings["score"].to_numpy(np.float64), edges[0], edges[-1])
    raters, rater_ids = pd.factorize(ratings["rater_id"], sort=True)
    raters_of_pair = Counter(ratings["pair_id"])
    pairs = Counter(raters_of_pair[pair_id] for pair_id in groups)

    def binned(own: np.ndarray) -> list[int]:
        return np.histogram(own, edges)[0].tolist()

    table, draws = rated_items(ratings, dimension.name, groups, RESAMPLES, seed=0)
    panel = measure(table, draws, seed=0)
    report = rater_report(table, draws, panel.leave_one_rater_out, panel.raters, dimension)
    return {
        "scores": {"edges": edges.tolist(), "counts": binned(scores)},
        "scores_by_rater": {str(rater): binned(scores[raters == number]) for number, rater in enumerate(rater_ids)},
        "pairs_by_raters": dict(sorted(pairs.items())),
        "disputed": most_disputed(ratings),
        "raters": as_report(report),
    }, reliability_report(table, draws, panel, seed=0)


def _preference_facts(rows: pd.DataFrame) -> dict[str, Any]:
    votes: dict[tuple[str, str], list[int]] = {}
    for chosen, rejected, strength in zip(rows["chosen_id"], rows["rejected_id"], rows["strength"], strict=True):
        first, second = sorted((chosen, rejected))
        votes.setdefault((first, second), [0, 0, 0])[1 if strength == 0 else 0 if chosen == first else 2] += 1
    shared = [(ids, tally) for ids, tally in votes.items() if sum(tally) > 1]
    disputed = [(max(tally) / sum(tally), -sum(tally), ids, tally) for ids, tally in shared if max(tally) < sum(tally)]
    return {
        "comparisons": len(rows),
        "raters": len(set(rows["rater_id"])),
        "ties": sum(tally[1] for tally in votes.values()),
        "couples": len(votes),
        "shared_couples": len(shared),
        "unanimous_couples": len(shared) - len(disputed),
        "disputed": [{"pair_ids": list(ids), "votes": tally} for _, _, ids, tally in sorted(disputed)[:DISPUTED_ITEMS]],
    }


# ---------------------------------------------------------------- for the terminal


def inspection_tables(found: Inspection, facts: Facts) -> Iterator[Table]:
    """Tables of counts, durations, ratings, comparisons, raters and problems, from `inspect_dataset` and
    `inspection_facts`.

    Names come from the data: print them without markup.
    """
    title = f"{found.name} ({'synthetic' if found.synthetic else 'human'} ratings)"
    counts = Table("counts", *found.counts, title=Text(title), title_justify="left")
    for fact in next(iter(found.counts.values())):
        counts.add_row(fact.replace("_", " "), *(str(numbers[fact]) for numbers in found.counts.values()))
    yield counts
    table = Table("clips", "number", "shortest (s)", "median (s)", "longest (s)", "together (min)")
    for name, s in found.seconds.items():
        spans = ("-" if value is None else f"{value:.2f}" for value in (s.minimum, s.median, s.maximum))
        table.add_row(name, str(s.count), *spans, f"{s.total / 60:.1f}")
    yield table
    columns = [_ratings(found, name, facts["reliability"][name]) for name in found.scores]
    table = Table("ratings", *found.scores)
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    yield table
    if facts["preferences"]:
        table = Table("comparisons", *facts["preferences"])
        for fact in ("comparisons", "raters", "ties", "couples", "shared_couples", "unanimous_couples"):
            counts_of = (str(compared[fact]) for compared in facts["preferences"].values())
            table.add_row(fact.replace("_", " "), *counts_of)
        yield table
    for dimension, rating_facts in facts["ratings"].items():
        if rating_facts["raters"]:
            yield from _raters(dimension, rating_facts["raters"])
    yield _problems(found)


def _ratings(found: Inspection, dimension: str, panel: Facts) -> dict[str, str]:
    """The column of a dimension."""
    scores, raters = found.scores[dimension], found.raters_per_pair[dimension]
    spread = "-" if raters.median is None else f"{raters.minimum:g} to {raters.maximum:g}, median {raters.median:g}"
    return {
        "scale": str(scores["scale"]),
        "mean score": "-" if scores["mean"] is None else f"{scores['mean']:.2f}",
        "raters per pair": spread,
        "leave-one-out human agreement (Spearman)": ranged(panel["spearman"]),
        "noise ceiling of the panel mean": ranged(panel["panel_mean"]),
        "reliability of the panel mean (split-half)": ranged(panel["panel_reliability"]),
        **{form: ranged(panel["icc"][form]) for form in FORMS},
        **{f"Krippendorff's alpha ({distance})": ranged(panel["alpha"][distance]) for distance in DISTANCES},
    }


def _raters(dimension: str, facts: Sequence[Facts]) -> Iterator[Table]:
    """One line per rater, those with a flag first; then the flags."""
    table = Table(title=Text(f"raters of {dimension}"), title_justify="left")
    table.add_column("rater", overflow="fold", min_width=10)
    for header in ("ratings", "mean", "below\nothers", "spread", "Spearman\nwith others", "scale\nused"):
        table.add_column(header, no_wrap=True)
    for row in facts[:_RATERS_SHOWN]:
        cells = (
            number(row["mean"]),
            signed(row["severity"]["value"]),
            number(row["spread"]),
            ranged(row["agreement"]),
        )
        table.add_row(row["rater_id"], str(row["n_ratings"]), *cells, percent(row["scale_share"]))
    if len(facts) > _RATERS_SHOWN:
        table.add_row(f"and {len(facts) - _RATERS_SHOWN} more (--json lists all)")
    yield table
    flags = [(rater["rater_id"], flag) for rater in facts for flag in rater["flags"]]
    if flags:
        table = Table(f"to ask raters of {dimension} about", Column("rater", overflow="fold"), "evidence")
        for rater_id, flag in flags[:_RATERS_SHOWN]:
            table.add_row(flag["kind"], rater_id, flag["evidence"])
        if len(flags) > _RATERS_SHOWN:
            table.add_row(f"and {len(flags) - _RATERS_SHOWN} more", "", "(--json lists all)")
        yield table


def _problems(found: Inspection) -> Table:
    table = Table("to look at", "where", "what")
    kinds: dict[str, list[tuple[str, str]]] = {}
    for problem in found.problems:
        kinds.setdefault(problem.kind, []).append((f"{problem.pair_id}, {problem.clip}", problem.detail))
    for column, values in found.crossings.items():
        kinds[f"{column} in several splits"] = [(value, ", ".join(splits)) for value, splits in values.items()]
    kinds["without rating"] = [(pair_id, "") for pair_id in found.unrated]
    for kind, details in kinds.items():
        for where, what in details[:_SHOWN]:
            table.add_row(kind, where, what)
        if len(details) > _SHOWN:
            table.add_row(kind, f"and {len(details) - _SHOWN} more", "")
    if table.row_count == 0:
        table.add_row("nothing", "", "")
    return table
