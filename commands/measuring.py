"""Commands that measure judges against people. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ..core.errors import UserError
from ..core.option_values import OutputFolder, SplitName, Whole
from ..core.written import writing
from ..eval.measurement import Asking, Draws, Loading, Measurement, Split, chosen
from . import DONE, FAILED_CHECKS
from .options import first_given
from .shared import Data, DryRun, JudgeNames, Printing, open_scorer
from .tables import TableOptions

if TYPE_CHECKING:
    from ..eval.judges.opening import Opened
    from ..eval.report.dataset import Report


@dataclass(frozen=True)
class Evaluate(Printing, Data, DryRun, Measurement, JudgeNames):
    """Measure one judge against the raters of a split.

    Exit code: 0 = all rated pairs have scores, 1 = some have none, or a budget was too small, for listening checks,
    too. The same holds for compare; a rater as a judge need not have rated all.

    Attributes:
        json: print JSON (fields: docs/reference/reports.md)
        out: folder of the report
        explain: also explain the largest disagreements (judge folders), see explain
    """

    EXAMPLE: ClassVar[str] = "runs/first --data data --out report"

    judge: str
    _: KW_ONLY
    out: OutputFolder = Path("report")
    explain: bool = False

    def run(self) -> int:
        from ..eval.judge_names import require_judges

        if self.dry_run:
            _open([self.judge], self.data, self, self.named_checks(), dry_run=True)
            return DONE
        require_judges([self.judge], self.backbone)
        if self.explain and not Path(self.judge).is_dir():
            raise UserError(f"--explain with judge {self.judge}; expected the folder of a judge or of a run")
        # A folder that cannot be written is refused before the imports, which take seconds
        with writing("evaluate", self.out):
            from ..eval.evaluate import evaluate as measure
            from ..eval.views import evaluation_views

            # The judge is loaded once for both
            scorer = open_scorer(self.judge, self) if self.explain else None
            measured = measure(scorer or self.judge, self.data, **chosen(self, Measurement))
            if scorer:
                from ..eval.pages.explanation import explain_worst

                explain_worst(measured, scorer, self.out)
            measured.save(self.out)
        where = f"report: {self.out / 'index.html'}"
        self.tell(measured.report, lambda report: [*evaluation_views(report), where])
        return _all_scored([measured.report])


@dataclass(frozen=True)
class Compare(Printing, DryRun, Measurement, TableOptions, JudgeNames):
    """Measure several judges on the same pairs, or with --table on the scores of a table.

    A table has one row per score, as `agreement` takes it, and judges are names of annotators in it; the answer is
    which judge agrees best with the people over all dimensions, whether that is certain, and how far each is from the
    ceilings.

    Attributes:
        json: print JSON (fields: docs/reference/reports.md)
        data: folder of a pair dataset, or its address (hf://datasets/...)
        table: table of scores by people and judges instead, without audio: see agreement
        out: folder for index.html, comparison.json and comparison.md (with --data)
    """

    EXAMPLE: ClassVar[str] = "judge scores:gemini.csv constant --data data"

    judges: Sequence[str]
    _: KW_ONLY
    data: str | None = None
    table: str | None = None
    out: OutputFolder | None = None

    def run(self) -> int:
        if self.table is not None:
            if self.data is not None:
                raise UserError("argument --table: not allowed with argument --data; see empathy-judge compare --help")
            return self._compare_table(self.table)
        if self.data is None:
            raise UserError("one of the arguments --data --table is required; see empathy-judge compare --help")

        from ..eval.judge_names import require_judges

        if self.dry_run:
            _open(self.judges, self.data, self, self.named_checks(), dry_run=True)
            return DONE
        require_judges(self.judges, self.backbone)
        with writing("compare", self.out):
            from ..eval.compare import compare as measure
            from ..eval.views import comparison_views

            comparison = measure(self.judges, self.data, **chosen(self, Measurement))
            for line in comparison.warnings:
                print(f"warning: {line}", file=sys.stderr)
            where = []
            if self.out is not None:
                comparison.save(self.out)
                where.append(f"report: {self.out / 'index.html'}")
        found = comparison.report
        self.tell(found, lambda found: [*comparison_views(found.reports, found.rankings), *where])
        return _all_scored(comparison.reports)

    def _compare_table(self, table: str) -> int:
        """Compare without audio."""
        if unused := first_given(self, "out", "checks", "slices", "dry_run"):
            raise UserError(f"{unused} with --table; expected with --data")
        clusters: dict[str, Literal["group", "system"]] = {"group_id": "group", "system_id": "system"}
        if self.cluster not in clusters:
            raise UserError(f"--cluster {self.cluster} with --table; expected {', '.join(clusters)}")
        report = self.measure_table([table], self.judges, clusters[self.cluster])
        from ..eval.views import table_comparison_views

        return self.tell(report, table_comparison_views)


@dataclass(frozen=True)
class Challenge(Printing, Data, DryRun, Asking, JudgeNames):
    """Measure a judge by the rules of a public challenge.

    aeq-bench: which of several responses to a context is the right one (AEQ-Bench, HumOmni track 1)? The score is
    (right questions + groups with all questions right) / (questions + groups). echomind: is the response to a voice
    scored above the response to another voice of the same script, in the same context?

    Attributes:
        name: whose rules
        split: which pairs (default: all)
    """

    EXAMPLE: ClassVar[str] = "aeq-bench judge --data empathy-eval"

    name: Literal["aeq-bench", "echomind"]
    judge: str
    _: KW_ONLY
    split: SplitName = None

    def run(self) -> int:
        opened = _open([self.judge], self.data, self, None, self.dry_run)
        if self.dry_run:
            return DONE
        from ..eval.challenges import challenge as measured
        from ..eval.other_views import challenge_views
        from ..eval.views import over_budget

        report = measured(
            self.name, opened.judges[0], opened.dataset, split=self.split, resamples=self.resamples, seed=self.seed,
            provenance=opened.provenances[0],
        )  # fmt: skip
        self.tell(report, challenge_views)
        if short := over_budget(opened.judges[0].name, report.prompting):
            print(short, file=sys.stderr)
        return FAILED_CHECKS if report.without_score or short else DONE


@dataclass(frozen=True)
class Stress(Printing, Data, Split, Draws, Loading):
    """Look for what raises a judge's score and should not, as a policy that is trained on it would.

    The responses of a split are changed so that nobody would rate them higher: silence after it, said twice, louder,
    breaths, a constant tone, a copy of the context, noise that is sought against the judge, and others. A change fails
    the check if the mean score rises by more than a quarter of a standard error of the judge and the interval is above
    0, over pairs that a reward is still given for. Exit code: 0 = nothing raises the score, 1 = something does.

    Attributes:
        judge: judge folder or run folder
        checks (NAME): silence, twice, loop, louder, softer, breath, noise, hum, monotone, copy, adversarial (default:
            all)
        pairs: draw at most so many
        out (DIR): folder for stress.json and results.csv
    """

    EXAMPLE: ClassVar[str] = "demo/judge --data demo/data"

    judge: str
    _: KW_ONLY
    checks: Sequence[str] | None = None
    pairs: Whole = 100
    out: OutputFolder | None = None

    def run(self) -> int:
        with writing("stress", self.out):
            scorer = open_scorer(self.judge, self)
            from ..data_modules.schema import PairDataset
            from ..eval.other_views import stress_views
            from ..eval.results import stress_frame, write_results
            from ..eval.stress import stress as look

            report = look(
                scorer, PairDataset.load(self.data), split=self.split, checks=self.checks, pairs=self.pairs,
                resamples=self.resamples, seed=self.seed,
            )  # fmt: skip
            if self.out is not None:
                write_results("stress", self.out, {"results.csv": stress_frame(report), "stress.json": report})
        self.tell(report, stress_views)
        return FAILED_CHECKS if report.raised else DONE


def _all_scored(reports: Iterable[Report]) -> int:
    """Figures were printed and written for what has scores; the exit code and a line say that not all has, or that not
    all was asked."""
    from ..eval.views import over_budget, without_scores

    said = [line for own in reports for line in (without_scores(own), over_budget(own.judge, own.prompting))]
    lines = [line for line in said if line is not None]
    for line in lines:
        print(line, file=sys.stderr)
    return FAILED_CHECKS if lines else DONE


def _open(judges: Sequence[str], data: str, how: Asking, checks: Sequence[str] | None, dry_run: bool) -> Opened:
    """The judges of a command, and what they are measured on. A wrong name is reported before torch is loaded."""
    from ..eval.judge_names import require_judges

    require_judges(judges, how.backbone)
    from ..eval.judges.opening import open_judges

    return open_judges(judges, data, how, checks, dry_run)
