"""Commands that need no audio: people and judges on a table of scores, and plans. Heavy imports stand inside them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..core.errors import UserError
from ..core.option_values import NO_OPTION, AnyNumber, Dollars, OutputFolder, Whole
from ..core.written import writing
from ..eval.measurement import Draws, Intervals
from . import FAILED_CHECKS
from .options import first_given
from .shared import Columns, Printing

if TYPE_CHECKING:
    from ..eval.frame import Frame
    from ..eval.report.others import LearningPoint, TableReport


@dataclass(frozen=True, kw_only=True)
class TableOptions(Intervals, Columns):
    """How a table of scores is measured."""

    command: str = field(default="", metadata=NO_OPTION)

    def measure_table(
        self, paths: Sequence[str], judges: Sequence[str], cluster: Literal["group", "system"], **more: Any
    ) -> TableReport:
        """What `agreement_table.measure_agreement` finds in a table, of one file or several."""
        table, selected = self.read_table(*paths)
        # A wrong table is told before what measures is imported
        from ..eval.agreement_table import measure_agreement

        return measure_agreement(
            selected, judges, cluster=cluster, interval=self.interval, resamples=self.resamples, seed=self.seed,
            command=self.command, left_out=[name for name in table.annotators if name not in selected.annotators],
            **more,
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement(Printing, TableOptions):
    """Measure people and judges on a table of scores, without audio.

    The table has one row per score (item, annotator, dimension, score), or columns of scores: of dimensions beside
    item and annotator, of annotators beside item, of items beside annotator; --scores names them. Columns dataset,
    group (items that are not independent: intervals draw whole groups) and system count, too. item, annotator, group
    and system may be called pair_id, rater_id, group_id and system_id. Scores are numbers or words of a usual scale;
    empty, NA and the like are missing. Where only means of people were published, the columns are item, mean, sd and n;
    judges stand in files of their own.

    Attributes:
        table ([ANNOTATOR=]FILE): CSV with any separator, TSV, JSONL, Parquet, Excel (.xlsx), or an export of Label
            Studio; of several files all rows count
        json: print JSON (fields: docs/reference/reports.md)
        judges (NAME): annotators that are judges; the others are people, whose mean the judges are compared with
        pairs: also compare every two annotators
        kappa_weights: weighted kappa's distances: between scores, or ranks of the categories that occur
            (scikit-learn's)
        cluster: column whose values the bootstrap and the tests keep whole
    """

    EXAMPLE: ClassVar[str] = "ratings.csv --column item=clip annotator=who --judges gpt_4o gemini --pairs"

    table: Sequence[str]
    _: KW_ONLY
    judges: Sequence[str] = ()
    pairs: bool = False
    kappa_weights: Literal["scores", "ranks"] = "scores"
    cluster: Literal["group", "system"] = "group"

    def run(self) -> int:
        more = {"pairs": self.pairs, "kappa_weights": self.kappa_weights}
        report = self.measure_table(self.table, self.judges, self.cluster, **more)
        from ..eval.views import agreement_views

        return self.tell(report, agreement_views)


@dataclass(frozen=True)
class Plan(Printing, Draws, Columns):
    """Say how many items and ratings a measurement of judges needs.

    From a pilot: a table, of one file or several as `agreement` takes it, or the folder of a pair dataset; both with
    ratings per rater, or with their mean, sd and n. Or from assumed variances. For every number of items and raters:
    noise ceiling, leave-one-out agreement, standard error of a judge's Spearman, power to tell two judges apart, and
    cost. With --learning also what a judge learns from so many pairs.

    Attributes:
        pilot: table or folder of a pair dataset
        more ([ANNOTATOR=]FILE): further files of the table, such as scores of a judge
        variance (NAME=NUMBER): instead of a pilot: variances of item, residual, rater and group in squared rating
            points
        group_size: items per group, with --variance (default: 1)
        judges (NAME): annotators of the table that are judges, not people
        dimension (NAME): plan for these (default: for an average dimension of all)
        items (N): numbers of items
        raters (K): ratings per item
        agreement: the better judge's Spearman over the noise ceiling (default: of the best judge of the pilot, else
            0.6)
        difference: how much less the other judge agrees, in Spearman: the difference to be detected
        power: statistical power to detect it
        between (R): Spearman between the judges (default: that of the pilot, else as if their errors were independent)
        price: price of one rating
        learning (JUDGE_OR_BACKBONE): with a pair dataset: also Spearman of a probe on this frozen backbone by the
            number of training pairs
        systems (POINTS): also say how many ratings of each system tell two of them apart that differ by so much, from a
            pilot that names systems
        out (DIR): folder for plan.csv, plan.json and plan.png
    """

    EXAMPLE: ClassVar[str] = "pilot.csv --judges gpt --difference 0.05 --price 0.2"

    pilot: str | None = None
    more: Sequence[str] = ()
    _: KW_ONLY
    variance: Sequence[str] = ()
    group_size: Whole | None = None
    judges: Sequence[str] = ()
    dimension: Sequence[str] = ()
    items: Sequence[Whole] = ()
    raters: Sequence[Whole] = ()
    agreement: AnyNumber | None = None
    difference: AnyNumber = 0.05
    power: AnyNumber = 0.8
    between: AnyNumber | None = None
    price: Dollars | None = None
    learning: str | None = None
    systems: AnyNumber | None = None
    out: OutputFolder | None = None

    def run(self) -> int:
        from ..eval.other_views import plan_views
        from ..eval.plan import assumed_pilot, make_plan, pilot_from, plan_systems

        if (self.pilot is None) == (not self.variance):
            raise UserError("expected either a pilot (a table or the folder of a pair dataset) or --variance")
        # Options of the other way would be ignored without a word
        of_pilot = ("judges", "column", "scores", "choice", "annotators", "exclude", "dimension", "systems")
        if unused := first_given(self, *(of_pilot if self.pilot is None else ["group_size"])):
            raise UserError(f"{unused} with {'--variance' if self.pilot is None else 'a pilot'}; expected one of them")
        with writing("plan", self.out):
            frame = None if self.pilot is None else _pilot_frame(self, self.pilot)
            if frame is None:
                pilot = assumed_pilot(_variances(self.variance), self.group_size or 1)
            else:
                pilot = pilot_from(frame, self.dimension, self.resamples, self.seed)
            report = make_plan(
                pilot, items=self.items, raters=self.raters, agreement=self.agreement, difference=self.difference,
                power=self.power, between=self.between, price=self.price,
            )  # fmt: skip
            if self.learning is not None:
                report = report.model_copy(update={"learning": self._learning_curve(self.learning)})
            if self.systems is not None and frame is not None:
                systems = plan_systems(frame, self.systems, self.power, self.dimension)
                report = report.model_copy(update={"systems": systems})
            where = []
            if self.out is not None:
                from ..eval.pages.plan import save_plan

                save_plan(report, self.out)
                where.append(f"picture: {self.out / 'plan.png'}")
        return self.tell(report, lambda report: [*plan_views(report), *where])

    def _learning_curve(self, backbone: str) -> tuple[LearningPoint, ...]:
        """What ``--learning`` adds."""
        from ..data_modules.schema import PairDataset
        from ..eval.judges.baselines.probe import learning_curve

        if self.pilot is None or not Path(self.pilot).is_dir():
            raise UserError("--learning without clips; expected the folder of a pair dataset as pilot")
        dataset = PairDataset.load(self.pilot)
        return learning_curve(backbone, dataset, resamples=self.resamples, seed=self.seed)


@dataclass(frozen=True)
class Leaderboard(Printing):
    """Say which of several systems sounds better, from scores and, if there are some, ratings by people.

    Files are what `score --manifest` wrote for a manifest with group_id (which context) and system_id (who answered);
    any table with these, pair_id and a column for each --dimension will do. NAME=FILE says that a whole file is of one
    system. From scores alone it is the judge's opinion. With ratings of some of the responses, drawn at random, means
    and differences are those of people, however bad the judge is, and a good judge makes their intervals narrower.

    Exit code: 0 = done, 1 = with --fail-if-worse: a system is worse than the baseline at the 5 % level, by more than
    that in the estimate, or this cannot be told.

    Attributes:
        scores (SCORES): files of scores, see above
        json: print JSON (fields: docs/reference/reports.md)
        by (COLUMN): column that names the system
        ratings: pair dataset, or table with pair_id, rater_id, dimension and score, or wide or of means, as
            `agreement` takes it
        dimension (NAME): compare on these (default: all)
        baseline (SYSTEM): compare the others with this one (default: the best)
        fail_if_worse (POINTS): end with code 1, see above; needs --baseline
        report (DIR): what `evaluate` wrote about this judge, to say what its order is worth
        stress (DIR): what `stress` wrote about this judge, to say what raises its scores and should not
        manifest: the manifest that was scored, or a pair dataset: the page then plays responses
        out (DIR): folder for index.html, leaderboard.json, systems.csv and differences.csv
    """

    EXAMPLE: ClassVar[str] = "scores.csv --ratings ratings.csv --baseline v1 --out board"

    scores: Sequence[str]
    _: KW_ONLY
    by: str = "system_id"
    ratings: str | None = None
    dimension: Sequence[str] = ()
    baseline: str | None = None
    fail_if_worse: AnyNumber | None = None
    report: str | None = None
    stress: str | None = None
    manifest: str | None = None
    out: OutputFolder | None = None

    def run(self) -> int:
        from ..eval.leaderboard import failures, leaderboard
        from ..eval.other_views import board_views

        if self.fail_if_worse is not None and (self.baseline is None or self.fail_if_worse < 0):
            raise UserError("--fail-if-worse; expected rating points, 0 or more, and --baseline SYSTEM")
        if self.manifest is not None and self.out is None:
            raise UserError("--manifest without --out; the clips are for the page")
        with writing("leaderboard", self.out):
            found = leaderboard(
                self.scores, by=self.by, ratings=self.ratings, dimensions=self.dimension, baseline=self.baseline,
                report=self.report, stress=self.stress,
            )  # fmt: skip
            where = []
            if self.out is not None:
                found.save(self.out, self.manifest)
                where.append(f"page: {self.out / 'index.html'}")
        done = self.tell(found.report, lambda report: [*board_views(report), *where])
        failed = [] if self.fail_if_worse is None else failures(found.report, self.fail_if_worse)
        # Standard output is a table or JSON, which programs read
        for line in failed:
            print(line, file=sys.stderr)
        return FAILED_CHECKS if failed else done


def _variances(texts: Sequence[str]) -> dict[str, float]:
    """What ``--variance`` says."""
    from ..core.numerals import parse_number
    from ..data_modules.tables import set_once

    variances: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            variance = parse_number(value)
        except ValueError:
            raise UserError(f"--variance {text!r}: expected NAME=NUMBER, such as item=0.6") from None
        set_once(variances, name, variance, f"--variance {text!r}")
    return variances


def _pilot_frame(options: Plan, pilot: str) -> Frame:
    """The ratings of a pilot, from a dataset or a table."""
    from ..eval.frame import Frame

    if not Path(pilot).is_dir():
        _, selected = options.read_table(pilot, *options.more)
        return selected.with_judges(options.judges)
    from ..data_modules.schema import PairDataset

    if unused := "further files" if options.more else first_given(options, "judges", "column", "scores", "choice"):
        raise UserError(f"{unused} with a dataset; expected with a table")
    dataset = PairDataset.load(pilot)
    clusters = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    return Frame.of_dataset(dataset, {}, clusters).select(options.annotators, options.exclude)
