"""Writes what `empathy-judge inspect` found as a page on which a person can read, look and listen.

The prose and the frame lie in ``pages/templates/inspection.html.j2``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...data_modules.errors import UserError
from ...data_modules.folders import CARD_FILE, replace_text
from ...data_modules.inspection import Inspection
from ...data_modules.ratings import Dimension
from ...data_modules.schema import Pair, PairDataset
from ..pages import charts
from ..pages.report import PAGE_FILE
from ..pages.sound import RULE, AudioCopies, dot_strip, heard
from ..rendering import counted, read, render
from ..results import REPORT_FILE
from .facts import DISPUTED_ITEMS, MAX_STEPS, Facts, scale_steps

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


def check_page_folder(out: Path) -> None:
    """Refuses a folder that holds something else, before the long work.

    Raises:
        UserError: If `out` is a pair dataset or holds an agreement report.
    """
    for name, what in ((CARD_FILE, "a pair dataset"), (REPORT_FILE, "an agreement report")):
        if (out / name).exists():
            raise UserError(f"--page {out}: holds {what} ({name}); name a folder of its own")


def write_inspection_page(dataset: PairDataset, found: Inspection, facts: Facts, out: Path) -> Path:
    """Writes ``index.html``, whose path it returns, and beside it the clips that it plays, in ``audio/``.

    A page that was there before is replaced, the page after its clips; clips that only the old page played go last.

    Args:
        dataset: All pairs.
        found: From `inspect_dataset`.
        facts: From `inspection_facts`.
        out: Folder that passed `check_page_folder`; made if it does not exist.

    Raises:
        OSError: If it cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    copies = AudioCopies(out)
    page = _render(dataset, found, facts, copies)
    replace_text(out / PAGE_FILE, page)
    copies.remove_others()
    return out / PAGE_FILE


def _render(dataset: PairDataset, found: Inspection, facts: Facts, copies: AudioCopies) -> str:
    ratings, preferences = facts["ratings"], facts["preferences"]
    wanted = {item["pair_id"] for own in ratings.values() for item in own["disputed"]}
    wanted |= {pair_id for own in preferences.values() for couple in own["disputed"] for pair_id in couple["pair_ids"]}
    pairs = {pair.pair_id: pair for pair in dataset.pairs if pair.pair_id in wanted}
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
    dimension: Dimension, pairs: Mapping[str, Pair], found: Inspection, facts: Facts, copies: AudioCopies
) -> dict[str, Any]:
    name = dimension.name
    own, panel = facts["ratings"][name], facts["reliability"][name]
    preferences = facts["preferences"].get(name)
    scale, ticks = (dimension.minimum, dimension.maximum), scale_steps(dimension)
    if ticks is None or len(ticks) > charts.MAX_LABELLED_BARS:
        ticks = np.linspace(*scale, 5).tolist()
    return {
        "name": name,
        "panel": panel,
        "own": own,
        "scores": found.scores[name],
        "each": found.raters_per_pair[name],
        "is_timed": any(rater["median_seconds"] is not None for rater in own["raters"]),
        "preferences": preferences,
        "disputed": [
            (item, dot_strip(item["ratings"], scale, ticks), heard(pairs[item["pair_id"]], copies.add))
            for item in own["disputed"]
        ],
        "couples": [
            (couple["votes"], [heard(pairs[pair_id], copies.add) for pair_id in couple["pair_ids"]])
            for couple in (preferences["disputed"] if preferences else ())
        ],
        **(_rating_charts(dimension, found.scores[name]["mean"], own) if panel["n_ratings"] else {"histogram": ""}),
    }


def _rating_charts(dimension: Dimension, mean: float, facts: Facts) -> dict[str, Any]:
    name, edges, counts, ticks = dimension.name, *facts["scores"].values(), scale_steps(dimension)
    labels = [f"{step:g}" for step in ticks or ()]
    labels = labels or [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    shares = "; ".join(
        f"{label}: {100 * count / sum(counts):.0f} %" for label, count in zip(labels, counts, strict=True)
    )
    shown = sorted(facts["raters"], key=lambda own: (-own["n_ratings"], own["rater_id"]))[: charts.MAX_STRIPS]
    rows = [
        (own["rater_id"], [count / own["n_ratings"] for count in facts["scores_by_rater"][own["rater_id"]]],
         own["mean"], own["sd"])
        for own in sorted(shown, key=lambda own: (own["mean"], own["rater_id"]))
    ]  # fmt: skip
    (lowest, _, least, _), (highest, _, most, _) = rows[0], rows[-1]
    alt = f"Ratings of {name} by rater, from {lowest} with the lowest mean, {least:.2f}, to {highest} with the highest"
    return {
        "histogram": charts.histogram(edges, counts, "rating", f"Ratings of {name}. {shares}", ticks=ticks),
        "coverage": _coverage(name, facts["pairs_by_raters"]),
        "strips": charts.rater_strips(rows, edges, mean, f"{alt}, {most:.2f}", ticks=ticks),
        "n_strips": len(rows),
    }


def _coverage(name: str, pairs_by_raters: Mapping[int, int]) -> str:
    """How many raters pairs have; no chart where all have the same number."""
    if len(pairs_by_raters) == 1:
        return ""
    low, high = min(pairs_by_raters), max(pairs_by_raters)
    width = int(np.ceil((high - low + 1) / MAX_STEPS))
    edges = np.arange(low, high + width + 1, width) - 0.5
    counts, _ = np.histogram(list(pairs_by_raters), edges, weights=list(pairs_by_raters.values()))
    ticks = [float(value) for value in range(low, high + 1)] if width == 1 else None
    words = "; ".join(f"{count} pairs with {raters}" for raters, count in pairs_by_raters.items())
    alt = f"Raters per pair for {name}: {words}"
    return charts.histogram(edges.tolist(), counts.astype(int).tolist(), "raters of a pair", alt, ticks=ticks)


def _clips(found: Inspection) -> Iterator[tuple[str, str, str]]:
    """Title, chart and text of each side."""
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
    """What is in several splits."""
    examples = {kind: sorted(values)[:_EXAMPLES] for kind, values in found.crossings.items()}
    wanted = {value for values in examples.values() for value in values}
    pairs_with: dict[str, list[str]] = {}
    for pair in dataset.pairs:
        for clip in set(dataset.fingerprints[pair.pair_id]) & wanted:
            pairs_with.setdefault(clip, []).append(pair.pair_id)

    def named(value: str) -> str:
        """A clip by the first digits of its hash and the first of the pairs that have it."""
        pair_ids = pairs_with.get(value)
        if pair_ids is None:
            return value
        more = f" and {len(pair_ids) - _PAIRS_NAMED:,} more" if len(pair_ids) > _PAIRS_NAMED else ""
        return f"clip {value[:12]} of {', '.join(pair_ids[:_PAIRS_NAMED])}{more}"

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
    """What is wrong with a clip."""
    return "changed since the import" if problem == "changed" else problem.replace("_", " ")


def _title(kind: str) -> str:
    """What may not be in several splits, as people call it."""
    return _TITLES.get(kind, kind.replace("_", " ").capitalize())


def _flagged(ratings: Facts) -> dict[str, dict[str, list[str]]]:
    """Rater -> kind of flag -> dimensions."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, own in ratings.items():
        for rater in own["raters"]:
            for kind in dict.fromkeys(flag["kind"] for flag in rater["flags"]):
                found.setdefault(rater["rater_id"], {}).setdefault(kind, []).append(name)
    return found
