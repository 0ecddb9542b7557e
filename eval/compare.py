"""Several judges on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ..data_modules.schema import PairDataset
from . import wording
from .evaluate import evaluate
from .judges import Judge
from .report_schema import AgreementReport


def compare(
    judges: Sequence[Judge], dataset: PairDataset, *, split: str | None, resamples: int = 1000, seed: int = 0
) -> list[AgreementReport]:
    """Agreement report of each judge, listening checks included, on the same pairs with the same seed."""
    return [evaluate(judge, dataset, split=split, resamples=resamples, seed=seed).report for judge in judges]


def comparison_table(reports: Sequence[AgreementReport]) -> Table:
    """One row per judge and dimension; the last rows are the human ceiling."""
    table = Table("judge", "dimension", "items", "Spearman (95 %)", "share of ceiling", "context swapped")
    for report in reports:
        for name, found in report["dimensions"].items():
            swapped = report["checks"].get("context_swapped", {}).get(name)
            table.add_row(
                Text(report["judge"]),
                Text(name),
                str(found["n_items"]),
                wording.ranged(found["spearman"]),
                wording.percent(found["share_of_ceiling"]["value"]),
                "-" if swapped is None else wording.number(swapped["spearman"]["value"]),
            )
    for name, found in reports[0]["dimensions"].items():
        ceiling = wording.ranged(found["ceiling"]["spearman"])
        table.add_row(
            "one rater against the others",
            Text(name),
            str(found["n_items"]),
            ceiling,
            "100 %",
            "-",
            style="bold",
        )
    return table
