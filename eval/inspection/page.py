"""Writes what `empathy-judge inspect` found as a page on which a person can read, look and listen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data_modules.errors import UserError
from ...data_modules.folders import CARD_FILE, replace_file
from ...data_modules.inspection import Histogram, Inspection
from ...data_modules.ratings import Dimension
from ...data_modules.schema import Pair, PairDataset
from ..numerals import counted
from ..pages.page import render
from ..pages.report import PAGE_FILE, REPORT_FILE
from ..pages.sound import RULE, AudioCopies, dot_strip, heard
from . import charts, wording
from .facts import DISPUTED_ITEMS, MAX_STEPS, InspectionFacts, RatingFacts
from .template import STYLES, TEMPLATE

LISTED = 20
"""Rows of a table of problems or skipped pairs."""
_EXAMPLES = 5


def check_page_folder(out: Path) -> None:
    """Refuses a folder that holds something else, before the long work.

    Raises:
        UserError: If `out` is a pair dataset, holds an agreement report, or is no folder.
    """
    accepted = "accepted: a folder of its own"
    if out.exists() and not out.is_dir():
        raise UserError(f"--page {out}: is a file; {accepted}")
    for name, what in ((CARD_FILE, "a pair dataset"), (REPORT_FILE, "an agreement report")):
        if (out / name).exists():
            raise UserError(f"--page {out}: holds {what} ({name}); {accepted}")


def write_inspection_page(
    dataset: PairDataset,
    found: Inspection,
    panels: Mapping[str, Mapping[str, Any]],
    facts: InspectionFacts,
    out: Path,
) -> Path:
    """Writes ``index.html`` and beside it the clips that it plays, in ``audio/``.

    A page that was there before is replaced, the page after its clips; clips that only the old page played go last.

    Args:
        dataset: All pairs.
        found: From `inspect_dataset`.
        panels: Dimension -> what `reliability` says.
        facts: From `inspection_facts`.
        out: Folder; made if it does not exist.

    Returns:
        The path of the page.

    Raises:
        UserError: As `check_page_folder`, or if the folder cannot be written.
    """
    check_page_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        copies = AudioCopies(out)
        page = _render(dataset, found, panels, facts, copies)
        replace_file(out / PAGE_FILE, lambda path: path.write_text(page, encoding="utf-8"))
        copies.remove_others()
    except OSError as error:
        raise UserError(f"--page {out}: cannot be written ({error.strerror}: {error.filename})") from None
    return out / PAGE_FILE


def _render(
    dataset: PairDataset,
    found: Inspection,
    panels: Mapping[str, Mapping[str, Any]],
    facts: InspectionFacts,
    copies: AudioCopies,
) -> str:
    wanted = {item.pair_id for own in facts.ratings.values() for item in own.disputed}
    wanted |= {pair_id for own in facts.preferences.values() for couple in own.disputed for pair_id in couple.pair_ids}
    pairs = {pair.pair_id: pair for pair in dataset.pairs if pair.pair_id in wanted}
    dimensions = [
        _dimension_section(dimension, pairs, found, panels[dimension.name], facts, copies)
        for dimension in dataset.card.dimensions
    ]
    problems = [(wording.problem_title(p), p.pair_id, p.clip, p.detail) for p in found.problems]
    return render(
        TEMPLATE,
        STYLES,
        found=found,
        subtitle=_subtitle(found, facts),
        verdicts=list(wording.verdicts(found, facts)),
        origin=_origin(dataset, found),
        counts=_counts(found),
        dimensions=dimensions,
        clips=list(_clip_sections(found)),
        without_clips=[name for name, summary in found.seconds.items() if not summary.count],
        problems={"rows": problems[:LISTED], "more": max(0, len(problems) - LISTED)},
        audit=list(_audit(dataset, found)),
        skipped=_skipped(facts),
        disputed_items=DISPUTED_ITEMS,
        audio_rule=RULE if any(d["disputed"] or d["couples"] for d in dimensions) else "",
    )


def _subtitle(found: Inspection, facts: InspectionFacts) -> str:
    counts, compared = found.counts["all"], facts.preferences.values()
    minutes = sum(summary.total for summary in found.seconds.values()) / 60
    length = f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} minutes"
    who = "simulated rater" if found.synthetic else "rater"
    parts = [counted(counts["pairs"], "pair")]
    if counts["ratings"] or not compared:
        ratings, raters = counted(counts["ratings"], "rating"), counted(counts["raters"], who)
        parts.append(f"{ratings} by {raters}" if counts["ratings"] else ratings)
    if compared:
        parts.append(counted(sum(own.comparisons for own in compared), "comparison"))
    return ", ".join([*parts, f"{length} of audio"])


def _origin(dataset: PairDataset, found: Inspection) -> list[tuple[str, str]]:
    card = dataset.card
    rows = {
        "ratings": "synthetic: not given by people" if card.synthetic else "given by people",
        "source": card.source,
        "licence": card.licence,
        "description": card.description,
        "content hash": found.content_hash,
        "split hash": dataset.split_hash() if found.split_by else "",
    }
    return [(name, value or "not stated") for name, value in rows.items() if value or name in ("source", "licence")]


def _counts(found: Inspection) -> dict[str, Any]:
    """The table of counts; a single row where nothing is split."""
    facts = list(found.counts["all"])
    return {
        "facts": [fact.replace("_", " ") for fact in facts],
        "rows": [
            (split, [counts[fact] for fact in facts])
            for split, counts in found.counts.items()
            if split == "all" or found.split_by
        ],
    }


def _dimension_section(
    dimension: Dimension,
    pairs: Mapping[str, Pair],
    found: Inspection,
    panel: Mapping[str, Any],
    facts: InspectionFacts,
    copies: AudioCopies,
) -> dict[str, Any]:
    name, own = dimension.name, facts.ratings[dimension.name]
    preferences = facts.preferences.get(name)
    return {
        "name": name,
        "sentences": wording.panel_sentences(name, found, own, panel),
        "panel": panel,
        "scores": found.scores[name],
        "raters": own.raters,
        "is_timed": any(rater.median_seconds is not None for rater in own.raters),
        "preferences": "" if preferences is None else wording.preference_sentences(preferences),
        "disputed": [
            {
                "spread": item.spread,
                "scores": item.ratings,
                "strip": dot_strip(item.ratings, (dimension.minimum, dimension.maximum), _ticks(dimension)),
                "heard": heard(pairs[item.pair_id], copies),
            }
            for item in own.disputed
        ],
        "couples": [
            {
                "votes": wording.votes(couple),
                "same_context": pairs[couple.pair_ids[0]].context == pairs[couple.pair_ids[1]].context,
                "heard": [heard(pairs[pair_id], copies) for pair_id in couple.pair_ids],
            }
            for couple in (preferences.disputed if preferences else ())
        ],
        **(_rating_charts(dimension, found.scores[name]["mean"], own) if panel["n_ratings"] else {"histogram": ""}),
    }


def _rating_charts(dimension: Dimension, mean: float, facts: RatingFacts) -> dict[str, Any]:
    name, bins = dimension.name, facts.scores
    ticks = _steps(dimension)
    shares = "; ".join(
        f"{_bin_name(bins, ticks, position)}: {100 * count / sum(bins.counts):.0f} %"
        for position, count in enumerate(bins.counts)
    )
    rows, of_all = _strips(facts)
    return {
        "histogram": charts.histogram(bins, "rating", f"Ratings of {name}. {shares}", ticks=ticks),
        **_coverage(name, facts.pairs_by_raters),
        "strips": charts.rater_strips(
            rows,
            bins.edges,
            mean,
            "rating",
            f"Ratings of {name} by rater, from {rows[0].rater_id} with the lowest mean, {rows[0].mean:.2f}, to "
            f"{rows[-1].rater_id} with the highest, {rows[-1].mean:.2f}",
            ticks=ticks,
        ),
        "strips_of": of_all,
    }


def _coverage(name: str, pairs_by_raters: Mapping[int, int]) -> dict[str, Any]:
    """How many raters pairs have: as a chart, or in words where all have the same number."""
    if len(pairs_by_raters) == 1:
        return {
            "coverage": "",
            "coverage_text": f"Every pair has {counted(next(iter(pairs_by_raters)), 'rater')}.",
        }
    low, high = min(pairs_by_raters), max(pairs_by_raters)
    values = np.repeat(list(pairs_by_raters), list(pairs_by_raters.values()))
    width = int(np.ceil((high - low + 1) / MAX_STEPS))
    edges = np.arange(low, high + width + 1, width) - 0.5
    counts, _ = np.histogram(values, edges)
    ticks = [float(value) for value in range(low, high + 1)] if width == 1 else None
    words = "; ".join(f"{count} pairs with {raters}" for raters, count in pairs_by_raters.items())
    bins = Histogram(tuple(map(float, edges)), tuple(map(int, counts)))
    return {"coverage": charts.histogram(bins, "raters of a pair", f"Raters per pair for {name}: {words}", ticks=ticks)}


def _strips(facts: RatingFacts) -> tuple[list[charts.RaterStrip], str]:
    """Strips in the order of means, and which raters are shown where not all are."""
    shown = sorted(facts.raters, key=lambda rater: (-rater.n_ratings, rater.rater_id))[: charts.MAX_STRIPS]
    rows = [
        charts.RaterStrip(rater.rater_id, _shares(facts.scores_by_rater[rater.rater_id]), rater.mean, rater.sd)
        for rater in sorted(shown, key=lambda rater: (rater.mean, rater.rater_id))
    ]
    of_all = f" (the {len(rows)} of {len(facts.raters)} with most ratings)" if len(rows) < len(facts.raters) else ""
    return rows, of_all


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / sum(counts) for count in counts]


def _clip_sections(found: Inspection) -> Iterator[dict[str, Any]]:
    for name, summary in found.seconds.items():
        if summary.minimum is None or summary.median is None or summary.maximum is None:
            continue
        text = (
            f"{counted(summary.count, 'different clip')}, {summary.total / 60:.1f} minutes together: "
            f"shortest {summary.minimum:.2f} s, median {summary.median:.2f} s, longest {summary.maximum:.2f} s."
        )
        bins = found.durations[name]
        chart = ""
        if len(bins.counts) > 1:
            widths = np.diff(bins.edges)
            chart = charts.histogram(
                bins,
                "duration (s)",
                f"Durations of {name} clips. {text}",
                logarithmic=bool(widths[-1] > 2 * widths[0]),
            )
        yield {"title": f"{name.capitalize()} clips", "chart": chart, "text": text}


def _audit(dataset: PairDataset, found: Inspection) -> Iterator[dict[str, Any]]:
    examples = {kind: sorted(values)[:_EXAMPLES] for kind, values in found.crossings.items()}
    wanted = {value for values in examples.values() for value in values}
    pairs_with: dict[str, list[str]] = {}
    for pair in dataset.pairs:
        for clip in set(dataset.fingerprints[pair.pair_id]) & wanted:
            pairs_with.setdefault(clip, []).append(pair.pair_id)
    for kind, values in found.crossings.items():
        tone, mark = ("none", "not refused") if values else ("good", "none")
        if kind in found.refused and values:
            tone, mark = "warn", "leak"
        yield {
            "title": wording.crossing_title(kind),
            "tone": tone,
            "mark": mark,
            "count": len(values),
            "examples": [
                (
                    wording.clip_name(value, pairs_with[value]) if value in pairs_with else value,
                    ", ".join(values[value]),
                )
                for value in examples[kind]
            ],
        }


def _skipped(facts: InspectionFacts) -> dict[str, Any]:
    rows = facts.skipped
    return {"columns": list(rows[0]) if rows else [], "rows": rows[:LISTED], "more": max(0, len(rows) - LISTED)}


def _steps(dimension: Dimension) -> list[float] | None:
    """The ratings that can be given, where each has a bin of its own."""
    if dimension.step is None or (dimension.maximum - dimension.minimum) / dimension.step > MAX_STEPS - 0.5:
        return None
    count = round((dimension.maximum - dimension.minimum) / dimension.step) + 1
    return [dimension.minimum + position * dimension.step for position in range(count)]


def _ticks(dimension: Dimension) -> Sequence[float]:
    steps = _steps(dimension)
    if steps is not None and len(steps) <= charts.MAX_LABELLED_BARS:
        return steps
    return tuple(map(float, np.linspace(dimension.minimum, dimension.maximum, 5)))


def _bin_name(bins: Histogram, steps: Sequence[float] | None, position: int) -> str:
    if steps is not None:
        return f"{steps[position]:g}"
    return f"{bins.edges[position]:g} to {bins.edges[position + 1]:g}"
