"""What an inspection says, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...data_modules.inspection import Inspection, Problem
from ..numerals import counted, number
from ..pages.wording import CheckView
from ..report_schema import StatisticReport
from .facts import DisputedCouple, InspectionFacts, PreferenceFacts, RatingFacts

CROSSING_TITLES = {
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

_RATERS_NAMED = 5
_PAIRS_NAMED = 3
_DIMENSIONS_NAMED = 3

PROBLEM_TITLES = {
    "unreadable": "unreadable",
    "changed": "changed since the import",
    "silent": "silent",
    "clipped": "clipped",
    "too_long": "too long",
}


def panel_sentences(name: str, found: Inspection, facts: RatingFacts, panel: Mapping[str, Any]) -> str:
    """How many rated what, what one rater reaches, and what the best judge could reach.

    Args:
        name: The dimension.
        found: From `inspect_dataset`.
        facts: The ratings of the dimension.
        panel: What `reliability` says of it.
    """
    if not panel["n_ratings"]:
        return f"Nobody rated {name}. The scale goes from {found.scores[name]['scale']}."
    who = "simulated rater" if found.synthetic else "rater"
    each = found.raters_per_pair[name]
    spans = f"{each.minimum:g} each" if each.minimum == each.maximum else f"{each.minimum:g} to {each.maximum:g} each"
    sentences = [
        f"{counted(panel['n_raters'], who)} gave {counted(panel['n_ratings'], 'rating')} to "
        f"{counted(panel['n_items'], 'pair')}, {spans}."
    ]
    single, top = panel["spearman"], panel["panel_mean"]
    if single["value"] is None:
        sentences.append(f"How far one rater agrees with the others is unknown: {single['reason']}.")
    else:
        sentences.append(
            "One rater orders the items as the mean of the others does with a Spearman correlation of "
            f"{number(single['value'])}{_interval(single)}; 1 = same order, 0 = chance."
        )
    if top["value"] is None:
        sentences.append(f"How high a judge could reach is unknown: {top['reason']}.")
    else:
        sentences.append(
            "Because they disagree among themselves, even a perfect judge can expect no more than "
            f"{number(top['value'])}{_interval(top)} with the mean of this panel."
        )
    if unrated := facts.pairs_by_raters.get(0, 0):
        sentences.append(f"{counted(unrated, 'pair')} {'has' if unrated == 1 else 'have'} no rating.")
    return " ".join(sentences)


def preference_sentences(facts: PreferenceFacts) -> str:
    """How many compared what, and how often they agreed."""
    text = (
        f"{counted(facts.raters, 'rater')} made {counted(facts.comparisons, 'comparison')} of "
        f"{counted(facts.couples, 'couple')} of responses; {counted(facts.ties, 'tie')}."
    )
    if not facts.shared_couples:
        return text + " No couple was compared more than once, so how far they agree is unknown."
    share = f"{100 * facts.unanimous_couples / facts.shared_couples:.0f} %"
    return text + (
        f" {counted(facts.shared_couples, 'couple')} had more than one comparison; {facts.unanimous_couples} of them "
        f"({share}) were always decided alike."
    )


def votes(couple: DisputedCouple) -> str:
    """How often the first, none, or the second was preferred."""
    first, tie, second = couple.votes
    return f"{first} preferred the first, {second} the second, {tie} neither"


def verdicts(found: Inspection, facts: InspectionFacts) -> Iterator[CheckView]:
    """What deserves a look before training, each with its verdict."""
    yield _leaks(found)
    yield _clips(found)
    yield _coverage(found, facts)
    if any(own.raters for own in facts.ratings.values()):
        yield _raters(facts)
    if facts.skipped:
        text = (
            f"The import left out {counted(len(facts.skipped), 'pair')} that it could not use; they are listed below."
        )
        yield CheckView("Skipped by the import", "to look at", "warn", text)
    else:
        yield CheckView("Skipped by the import", "none", "good", "No pair of the source is listed as skipped.")


def crossing_title(column: str) -> str:
    """What may not be in several splits, as people call it."""
    return CROSSING_TITLES.get(column, column.replace("_", " ").capitalize())


def clip_name(sha256: str, pair_ids: Sequence[str]) -> str:
    """A clip that several pairs have, by the first digits of its hash and the first of these pairs."""
    named = ", ".join(pair_ids[:_PAIRS_NAMED])
    more = f" and {len(pair_ids) - _PAIRS_NAMED:,} more" if len(pair_ids) > _PAIRS_NAMED else ""
    return f"clip {sha256[:12]} of {named}{more}"


def problem_title(problem: Problem) -> str:
    """What is wrong with a clip."""
    return PROBLEM_TITLES.get(problem.kind, problem.kind.replace("_", " "))


def _leaks(found: Inspection) -> CheckView:
    title = "Leaks between splits"
    if not found.split_by:
        text = "The pairs are not split yet. Make splits with empathy-judge split, then look here again."
        return CheckView(title, "not split", "none", text)
    leaks = [
        f"{crossing_title(kind).lower()} ({len(found.crossings[kind]):,})"
        for kind in found.refused
        if found.crossings[kind]
    ]
    if leaks:
        text = f"In several splits: {', '.join(leaks)}. What a judge learned in one split is asked in another."
        return CheckView(title, "leak", "warn", text)
    audited = ", ".join(crossing_title(kind).lower() for kind in found.refused)
    return CheckView(title, "none", "good", f"In one split each: {audited}.")


def _clips(found: Inspection) -> CheckView:
    total = sum(summary.count for summary in found.seconds.values())
    if not found.problems:
        longest = f"{found.max_seconds:g}\N{NO-BREAK SPACE}s"
        text = f"All {total:,} clips decode, and none is silent, clipped or longer than {longest}."
        return CheckView("Clips", "in order", "good", text)
    kinds: dict[str, int] = {}
    for problem in found.problems:
        kinds[problem_title(problem)] = kinds.get(problem_title(problem), 0) + 1
    pairs = len({problem.pair_id for problem in found.problems})
    text = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    return CheckView("Clips", "to look at", "warn", f"In {counted(pairs, 'pair')}: {text}.")


def _coverage(found: Inspection, facts: InspectionFacts) -> CheckView:
    counts = found.counts["all"]
    if not counts["ratings"]:
        text = "Nobody gave scores." + (" There are preferences." if facts.preferences else "")
        return CheckView("Ratings", "none", "none", text)
    if found.unrated:
        text = f"{len(found.unrated):,} of {counts['pairs']:,} pairs have no rating on any dimension."
        return CheckView("Ratings", "gaps", "warn", text)
    return CheckView("Ratings", "complete", "good", "Every pair has a rating.")


def _raters(facts: InspectionFacts) -> CheckView:
    flagged: dict[str, dict[str, list[str]]] = {}  # rater -> kind -> dimensions
    for name, own in facts.ratings.items():
        for rater in own.raters:
            for kind in dict.fromkeys(flag.kind for flag in rater.flags):
                flagged.setdefault(rater.rater_id, {}).setdefault(kind, []).append(name)
    if not flagged:
        timed = any(rater.median_seconds is not None for own in facts.ratings.values() for rater in own.raters)
        haste = ", far faster than the others" if timed else ""
        return CheckView("Raters", "in order", "good", f"None looks constant, random{haste} or like a copy of another.")
    shown = [
        f"{rater_id} ({'; '.join(f'{kind} on {_enumerated(names)}' for kind, names in kinds.items())})"
        for rater_id, kinds in list(flagged.items())[:_RATERS_NAMED]
    ]
    more = f", and {len(flagged) - len(shown)} more" if len(flagged) > len(shown) else ""
    return CheckView("Raters", "to ask about", "warn", f"{', '.join(shown)}{more}; the evidence is below.")


def _enumerated(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _DIMENSIONS_NAMED else f"{len(names)} dimensions"


def _interval(statistic: StatisticReport) -> str:
    if statistic["low"] is None:
        return f" (no interval: {statistic['reason']})" if statistic["reason"] else ""
    return f" (95 % interval {number(statistic['low'])} to {number(statistic['high'])})"
