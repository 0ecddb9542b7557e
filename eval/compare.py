"""Several judges on the same pairs: a report of each, and who is better than whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import UserError, shown
from ..data_modules.schema import PairDataset
from .dimension_report import response_lengths
from .evaluate import Results, clusters_of, measure
from .frame import Frame
from .judges import Judge
from .judges.opening import AnyJudge, open_judges
from .judges.scores_file import ScoresFile
from .measurement import Measurement, takes
from .ranking import ranking_report
from .report.base import SCHEMA_VERSION
from .report.dataset import ComparisonReport, Ranking, Report
from .results import measured_apart, results_frame, summary, summary_html, write_results


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several judges; a notebook shows them as a short table.

    Attributes:
        evaluations: Results of each judge, in the order given.
        rankings: Dimension -> the judges that score it against each other; only where there are at least two.
        warnings: A line for each judge whose scores are the items of a report (``scores:REPORT/items.csv``) that was
            made on other data, another split, or with another bootstrap: figures in that report differ from these.
    """

    evaluations: list[Results]
    rankings: dict[str, Ranking]
    warnings: list[str]

    @property
    def reports(self) -> list[Report]:
        """The report of each judge, in the order given."""
        return [evaluation.report for evaluation in self.evaluations]

    @property
    def report(self) -> ComparisonReport:
        """All figures, as they stand in ``comparison.json``."""
        return ComparisonReport(schema_version=SCHEMA_VERSION, reports=tuple(self.reports), rankings=self.rankings)

    def to_frame(self) -> pd.DataFrame:
        """Every statistic of the reports and of the rankings, one row each: see `results.results_frame`."""
        return results_frame(self.reports, self.rankings)

    def save(self, folder: str | Path) -> None:
        """Write what `empathy-judge compare` writes: page, JSON, table of statistics, Markdown.

        All or none.

        Args:
            folder: Made if it does not exist. What an earlier call wrote is replaced.

        Raises:
            UserError: If a file of somebody else would be replaced.
            ValueError: If a report holds NaN or infinity.
        """
        from .pages import report as pages

        reports = self.reports
        files: dict[str, Any] = {
            "comparison.json": self.report,
            "results.csv": self.to_frame(),
            "comparison.md": pages.markdown_comparison(reports, self.rankings),
            pages.PAGE_FILE: pages.render_comparison(reports, self.rankings),
        }
        write_results("compare", Path(folder), files)

    def __repr__(self) -> str:
        return summary(self.reports).to_string(index=False)

    def _repr_html_(self) -> str:
        return summary_html(self.reports)


@takes(Measurement)
def compare(judges: Sequence[AnyJudge], data: str | Path | PairDataset, **how: Any) -> Comparison:
    """Evaluates each judge on the same pairs with the same seed, then compares every two on the items both scored.

    Args:
        judges: Whatever `evaluate` takes, each with a name of its own. Where raters are judges (``human:RATER``), all
            are compared with the other raters.
        data: Pairs and ratings: a folder, its address, or a dataset.
        how: Any of the fields of `Measurement`, by name. Permutations, too, exchange whole clusters.

    Raises:
        UserError: If two judges have one name, or one cannot be loaded.
    """
    plan = Measurement(**how)
    opened = open_judges(judges, data, plan, plan.named_checks())
    dataset, names = opened.dataset, [judge.name for judge in opened.judges]
    # Names are the keys of scores and rankings: of two equal ones, one judge would vanish
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UserError(f"two judges are called {shown(duplicate)}; expected each judge once")
    part = dataset.subset(plan.split)
    # Once for all judges: this reads the header of every response
    lengths = response_lengths(part.pairs)
    evaluations = [
        measure(judge, dataset, plan, provenance, lengths)
        for judge, provenance in zip(opened.judges, opened.provenances, strict=True)
    ]
    scores = {name: evaluation.items for name, evaluation in zip(names, evaluations, strict=True)}
    frame = Frame.of_dataset(part, scores, clusters_of(part.pairs, plan.cluster))
    panels = {panel.dimension: panel for panel in frame.panels(plan.resamples, plan.seed, plan.interval)}
    # A judge need not score every dimension, and one alone cannot be ranked
    shared = [d.name for d in dataset.card.dimensions if d.name in panels and len(panels[d.name].scores) > 1]
    rankings = {name: ranking_report(panels[name]) for name in shared}
    return Comparison(evaluations, rankings, list(_measured_otherwise(opened.judges, evaluations)))


def _measured_otherwise(judges: Sequence[Judge], evaluations: Sequence[Results]) -> Iterator[str]:
    for judge, evaluation in zip(judges, evaluations, strict=True):
        earlier = judge.signature if isinstance(judge, ScoresFile) else None
        if earlier is not None and (there := measured_apart(earlier, evaluation.report.signature)):
            here = measured_apart(evaluation.report.signature, earlier)
            yield f"{judge.name}: its report was measured on {', '.join(there)}; here: {', '.join(here)}"
