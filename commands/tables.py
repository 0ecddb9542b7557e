"""Commands that need no audio: people and judges on a table of scores, and plans. Heavy imports stand inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..data_modules.errors import UserError
from ..data_modules.option_values import NO_OPTION, AnyNumber, Dollars, OutputFolder, Whole
from ..data_modules.written import writing
from ..eval.measurement import Draws, Intervals
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
        self, path: str, judges: Sequence[str], cluster: Literal["group", "system"], **more: Any
    ) -> TableReport:
        """What `agreement_table.measure_agreement` finds in a table."""
        from ..eval.agreement_table import measure_agreement

        table, selected = self.read_table(path)
        return measure_agreement(
            selected, judges, cluster=cluster, interval=self.interval, resamples=self.resamples, seed=self.seed,
            command=self.command, left_out=[name for name in table.annotators if name not in selected.annotators],
            **more,
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement(Printing, TableOptions):
    """Measure people and judges on a table of scores, without audio.

    The table has one row per score: item, annotator, dimension, score, and where there are, dataset, group (items that
    are not independent: intervals draw whole groups) and system. Empty scores are missing ones.

    Attributes:
        table: CSV, TSV, JSONL or Parquet
        json: print JSON (fields: docs/reference/report-fields.md)
        judges (NAME): annotators that are judges; the others are people, whose mean the judges are compared with
        pairs: also compare every two annotators
        kappa_weights: weighted kappa's distances: between scores, or ranks of the categories that occur
            (scikit-learn's)
        cluster: column whose values the bootstrap and the tests keep whole
    """

    EXAMPLE: ClassVar[str] = "ratings.csv --column item=clip annotator=who --judges gpt_4o gemini --pairs"

    table: str
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

    From a pilot: a table with one row per score, as `agreement` takes it, or the folder of a pair dataset; both with
    ratings per rater. Or from assumed variances. For every number of items and raters: noise ceiling, leave-one-out
    agreement, standard error of a judge's Spearman, power to tell two judges apart, and cost. With --learning also what
    a judge learns from so many pairs.

    Attributes:
        pilot: table (CSV, TSV, JSONL or Parquet) or folder of a pair dataset
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
        out (DIR): folder for plan.csv, plan.json and plan.png
    """

    EXAMPLE: ClassVar[str] = "pilot.csv --judges gpt --difference 0.05 --price 0.2"

    pilot: str | None = None
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
    out: OutputFolder | None = None

    def run(self) -> int:
        from ..eval.other_views import plan_views
        from ..eval.plan import assumed_pilot, make_plan, pilot_from

        if (self.pilot is None) == (not self.variance):
            raise UserError("expected either a pilot (a table or the folder of a pair dataset) or --variance")
        of_pilot = ("judges", "column", "annotators", "exclude", "dimension")
        if unused := first_given(self, *(of_pilot if self.pilot is None else ["group_size"])):
            raise UserError(f"{unused} with {'--variance' if self.pilot is None else 'a pilot'}; expected one of them")
        with writing("plan", self.out):
            if self.pilot is None:
                pilot = assumed_pilot(_variances(self.variance), self.group_size or 1)
            else:
                pilot = pilot_from(_pilot_frame(self, self.pilot), self.dimension, self.resamples, self.seed)
            report = make_plan(
                pilot, items=self.items, raters=self.raters, agreement=self.agreement, difference=self.difference,
                power=self.power, between=self.between, price=self.price,
            )  # fmt: skip
            if self.learning is not None:
                report = report.model_copy(update={"learning": self._learning_curve(self.learning)})
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


def _variances(texts: Sequence[str]) -> dict[str, float]:
    """What ``--variance`` says."""
    from ..data_modules.numerals import parse_number
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
    from dataclasses import replace

    from ..eval.frame import Frame

    if not Path(pilot).is_dir():
        _, selected = options.read_table(pilot)
        selected.check(options.judges, "--judges")
        return replace(selected, rows=selected.rows.assign(is_judge=selected.rows["rater_id"].isin(options.judges)))
    from ..data_modules.schema import PairDataset

    if options.judges or options.column:
        raise UserError("--judges and --column with a dataset; expected with a table")
    dataset = PairDataset.load(pilot)
    clusters = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    return Frame.of_dataset(dataset, {}, clusters).select(options.annotators, options.exclude)
