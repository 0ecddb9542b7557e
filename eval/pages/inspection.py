"""Writes what `empathy-judge inspect` found as a page with text, charts and audio players.

The text and the layout are in ``pages/templates/inspection.html.j2``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import counted
from ...core.written import write_files
from ...data_modules.overview import Inspection
from ...data_modules.ratings import Dimension
from ...data_modules.schema import Pair, PairDataset
from ..inspection import DISPUTED_ITEMS, MAX_STEPS, InspectionReport, RatingFacts, scale_steps
from ..rendering import read, render
from . import charts
from .report import PAGE_FILE
from .sound import RULE, AudioCopies, dot_strip, pair_view

LISTED = 20
"""Rows of a table of problems or skipped pairs."""
_EXAMPLES = 5
_PAIRS_NAMED = 3
_TITLES = {
    "group_id": "Groups",
    "context_speaker": "Speakers of contexts",
    "response_speaker": "Speakers of responses",
    "system_id": "Systems",
    "response_clip": "Response clips",
    "context_clip": "Context clips",
    "near_identical_response_clip": "Near-identical response clips",
    "near_identical_context_clip": "Near-identical context clips",
    "near_identical_response_clip_in_one_group": "Near-identical response clips of one group",
}


def write_inspection_page(dataset: PairDataset, found: Inspection, facts: InspectionReport, out: Path) -> Path:
    """Writes ``index.html`` into a folder, replaces an existing one, and returns its path; its clips go to ``audio/``.

    Raises:
        UserError: If a file of somebody else would be replaced.
        OSError: If it cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    copies = AudioCopies(out)
    page = _render(dataset, found, facts, copies)  # writes the clips, so that a page never lacks one
    write_files("inspect", out, {PAGE_FILE: page.encode()})
    copies.remove_others()  # last, since the old page played them
    return out / PAGE_FILE


def _render(dataset: PairDataset, found: Inspection, facts: InspectionReport, copies: AudioCopies) -> str:
    ratings, preferences = facts.ratings, facts.preferences
    ids = {item.pair_id for rating_facts in ratings.values() for item in rating_facts.disputed}
    ids |= {pair_id for prefs in preferences.values() for couple in prefs.disputed for pair_id in couple.pair_ids}
    pairs = {pair.pair_id: pair for pair in dataset.pairs if pair.pair_id in ids}
    dimensions = [_dimension(dimension, pairs, found, facts, copies) for dimension in dataset.card.dimensions]
    card = dataset.card
    origin = {
        "ratings": "synthetic: not given by people" if card.synthetic else "given by people",
        "source": card.source or "not stated",
        "licence": card.licence or "not stated",
        "description": card.description,
        "content hash": found.content_hash,
        "split hash": dataset.split_hash() if found.split_by else "",
    }
    return render(
        "inspection",
        read("sound.css") + read("inspection.css"),
        found=found,
        facts=facts,
        minutes=sum(summary.total for summary in found.seconds.values()) / 60,
        refused=[(_title(kind).lower(), len(found.crossings[kind])) for kind in found.refused],
        kinds=Counter(_words(problem.kind) for problem in found.problems),
        flagged=_flagged(ratings),
        origin=[(name, value) for name, value in origin.items() if value],
        splits=[split for split in found.counts if split == "all" or found.split_by],
        dimensions=dimensions,
        clips=list(_clips(found)),
        problems=[(_words(p.kind), p.pair_id, p.clip, p.detail) for p in found.problems],
        audit=list(_audit(dataset, found)),
        listed=LISTED,
        disputed_items=DISPUTED_ITEMS,
        audio_rule=RULE if any(d["disputed"] or d["couples"] for d in dimensions) else "",
    )


def _dimension(
    dimension: Dimension, pairs: Mapping[str, Pair], found: Inspection, facts: InspectionReport, copies: AudioCopies
) -> dict[str, Any]:
    name = dimension.name
    rating_facts, panel = facts.ratings[name], facts.reliability[name]
    preferences = facts.preferences.get(name)
    scale, ticks = (dimension.minimum, dimension.maximum), scale_steps(dimension)
    if ticks is None or len(ticks) > charts.MAX_LABELLED_BARS:
        ticks = np.linspace(*scale, 5).tolist()
    return {
        "name": name,
        "panel": panel,
        "own": rating_facts,
        "scores": found.scores[name],
        "each": found.raters_per_pair[name],
        "is_timed": any(rater.median_seconds is not None for rater in rating_facts.raters),
        "preferences": preferences,
        "disputed": [
            (item, dot_strip(item.ratings, scale, ticks), pair_view(pairs[item.pair_id], copies.add))
            for item in rating_facts.disputed
        ],
        "couples": [
            (couple.votes, [pair_view(pairs[pair_id], copies.add) for pair_id in couple.pair_ids])
            for couple in (preferences.disputed if preferences else ())
        ],
        **(
            _rating_charts(dimension, found.scores[name]["mean"], rating_facts)
            if panel.n_ratings
            else {"histogram": ""}
        ),
    }


def _rating_charts(dimension: Dimension, mean: float, facts: RatingFacts) -> dict[str, Any]:
    name, edges, counts, ticks = dimension.name, facts.scores.edges, facts.scores.counts, scale_steps(dimension)
    labels = [f"{step:g}" for step in ticks or ()]
    labels = labels or [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    shares = "; ".join(
        f"{label}: {100 * count / sum(counts):.0f} %" for label, count in zip(labels, counts, strict=True)
    )
    shown = sorted(facts.raters, key=lambda rater: (-rater.n_ratings, rater.rater_id))[: charts.MAX_STRIPS]
    rows = [
        (rater.rater_id, [count / rater.n_ratings for count in facts.scores_by_rater[rater.rater_id]],
         rater.mean, rater.sd)
        for rater in sorted(shown, key=lambda rater: (rater.mean, rater.rater_id))
    ]  # fmt: skip
    strips = ""
    if rows:  # no rater is known of published means
        (lowest, _, low_mean, _), (highest, _, high_mean, _) = rows[0], rows[-1]
        ends = f"from {lowest} with the lowest mean, {low_mean:.2f}, to {highest} with the highest, {high_mean:.2f}"
        strips = charts.rater_strips(rows, edges, mean, f"Ratings of {name} by rater, {ends}", ticks=ticks)
    return {
        "histogram": charts.histogram(edges, counts, "rating", f"Ratings of {name}. {shares}", ticks=ticks),
        "coverage": _coverage(name, facts.pairs_by_raters),
        "strips": strips,
        "n_strips": len(rows),
    }


def _coverage(name: str, pairs_by_raters: Mapping[int, int]) -> str:
    """Chart of the number of raters per pair; empty where all pairs have the same number."""
    if len(pairs_by_raters) == 1:
        return ""
    low, high = min(pairs_by_raters), max(pairs_by_raters)
    width = int(np.ceil((high - low + 1) / MAX_STEPS))
    edges = np.arange(low, high + width + 1, width) - 0.5
    counts, _ = np.histogram(list(pairs_by_raters), edges, weights=list(pairs_by_raters.values()))
    ticks = [float(value) for value in range(low, high + 1)] if width == 1 else None
    words = "; ".join(f"{counted(count, 'pair')} with {raters}" for raters, count in pairs_by_raters.items())
    alt = f"Raters per pair for {name}: {words}"
    return charts.histogram(edges.tolist(), counts.astype(int).tolist(), "raters of a pair", alt, ticks=ticks)


def _clips(found: Inspection) -> Iterator[tuple[str, str, str]]:
    """Yields title, chart and text of the context clips and of the response clips."""
    for name, summary in found.seconds.items():
        if summary.minimum is None or summary.median is None or summary.maximum is None:
            continue
        text = (
            f"{counted(summary.count, 'different clip')}, {summary.total / 60:.1f} minutes together: "
            f"shortest {summary.minimum:.2f} s, median {summary.median:.2f} s, longest {summary.maximum:.2f} s."
        )
        bins, chart = found.durations[name], ""
        if len(bins.counts) > 1:
            widths = np.diff(bins.edges)
            alt = f"Durations of {name} clips. {text}"
            growing = bool(widths[-1] > 2 * widths[0])
            chart = charts.histogram(bins.edges, bins.counts, "duration (s)", alt, logarithmic=growing)
        yield f"{name.capitalize()} clips", chart, text


def _audit(dataset: PairDataset, found: Inspection) -> Iterator[dict[str, Any]]:
    """Yields, for each kind of value that may not be in several splits, the values that are."""
    examples = {kind: sorted(values)[:_EXAMPLES] for kind, values in found.crossings.items()}
    shown = {value for values in examples.values() for value in values}
    pairs_with: dict[str, list[str]] = {}
    for pair in dataset.pairs:
        for clip in set(dataset.fingerprints[pair.pair_id]) & shown:
            pairs_with.setdefault(clip, []).append(pair.pair_id)

    def named(value: str) -> str:
        """A clip as the first digits of its hash and the first pairs that use it; any other value unchanged."""
        pair_ids = pairs_with.get(value)
        if pair_ids is None:
            return value
        rest = f" and {len(pair_ids) - _PAIRS_NAMED:,} more" if len(pair_ids) > _PAIRS_NAMED else ""
        return f"clip {value[:12]} of {', '.join(pair_ids[:_PAIRS_NAMED])}{rest}"

    for kind, values in found.crossings.items():
        tone, mark = ("none", "not refused") if values else ("good", "none")
        if kind in found.refused and values:
            tone, mark = "warn", "leak"
        yield {
            "title": _title(kind),
            "tone": tone,
            "mark": mark,
            "count": len(values),
            "examples": [(named(value), ", ".join(values[value])) for value in examples[kind]],
        }


def _words(problem: str) -> str:
    """The kind of a problem with a clip, in words."""
    return "changed since the import" if problem == "changed" else problem.replace("_", " ")


def _title(kind: str) -> str:
    """Readable title of a kind of value that may not be in several splits."""
    return _TITLES.get(kind, kind.replace("_", " ").capitalize())


def _flagged(ratings: Mapping[str, RatingFacts]) -> dict[str, dict[str, list[str]]]:
    """Maps rater -> kind of flag -> dimensions on which the rater is flagged."""
    flagged: dict[str, dict[str, list[str]]] = {}
    for name, rating_facts in ratings.items():
        for rater in rating_facts.raters:
            for kind in dict.fromkeys(flag.kind for flag in rater.flags):
                flagged.setdefault(rater.rater_id, {}).setdefault(kind, []).append(name)
    return flagged
