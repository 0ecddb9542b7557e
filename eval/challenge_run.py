"""Two public challenges, run: AEQ-Bench's choice of the right response, EchoMind's matched against crossed voices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from ..data_modules.errors import DataError
from ..data_modules.schema import PairDataset
from . import numerals
from .challenges import challenge_scores
from .judges import Judge, check_score_table
from .matched_ranking import matched_against_crossed
from .statistics.agreement import as_report


def aeq_bench(
    judge: Judge, dataset: PairDataset, *, split: str | None, resamples: int, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Dimension -> source (setting, and all together) -> the fields of `challenges.ChallengeScore`.

    Args:
        judge: What chooses: the response that it scores highest.
        dataset: Such as `import empathy-eval` makes: ratings say which response is right.
        split: Which pairs; None = all.
        resamples: Of whole groups, for the intervals.
        seed: Of the resamples.

    Raises:
        DataError: If judge and dataset share no dimension, or there is no question.
        ValueError: If the judge breaks the protocol.
    """
    part = dataset.subset(split)
    shared = [dimension.name for dimension in dataset.card.dimensions if dimension.name in judge.dimensions]
    if not shared:
        rated = ", ".join(dimension.name for dimension in dataset.card.dimensions)
        raise DataError(f"judge {judge.name} scores {', '.join(judge.dimensions)}; dataset has ratings of {rated}")
    table = judge.score(part.pairs)
    check_score_table(table, judge, part.pairs)
    means = part.mean_scores().rename_axis("pair_id").reset_index().melt("pair_id", var_name="dimension")
    items = pd.merge(means.rename(columns={"value": "human_mean"}), table, on=["pair_id", "dimension"], how="left")
    return {
        name: {
            source: as_report(found)
            for source, found in challenge_scores(part.pairs, items, name, resamples=resamples, seed=seed).items()
        }
        for name in shared
    }


def echomind(
    judge: Judge, dataset: PairDataset, *, split: str | None, resamples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Dimension -> how often the response to the voice that is heard is scored above one to another voice.

    Args:
        judge: Scores every pair, and every crossing.
        dataset: Such as `import echomind` makes; it needs no ratings.
        split: Which pairs; None = all.
        resamples: Of scripts, for the intervals.
        seed: Of the resamples.

    Raises:
        DataError: If nothing can be crossed.
        ValueError: If the judge breaks the protocol.
    """
    found = matched_against_crossed(judge, dataset.subset(split).pairs, resamples, seed)
    return {name: as_report(statistic) for name, statistic in found.items()}


def aeq_bench_views(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[Table]:
    """One table per dimension; `found` from `aeq_bench`."""
    for name, sources in found.items():
        table = Table(title=Text(name), title_justify="left")
        for column in ("source", "questions", "score (95 %)", "right questions", "groups all right", "chance"):
            table.add_column(column, justify="left" if column == "source" else "right")
        for source, own in sources.items():
            table.add_row(
                Text(source),
                str(own["score"]["n"]),
                *(numerals.ranged(own[part]) for part in ("score", "accuracy", "group_accuracy")),
                numerals.number(own["chance"]),
            )
        yield table


def echomind_view(found: Mapping[str, Any]) -> Table:
    """`found` from `echomind`."""
    table = Table("dimension", "comparisons", "matched above crossed (95 %)", "chance")
    for name, own in found.items():
        table.add_row(Text(name), str(own["n"]), numerals.ranged(own), "0.50")
    return table
