"""Commands that measure judges against people. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..data_modules.errors import UserError
from ..data_modules.written import writing
from . import DONE, FAILED_CHECKS, chosen, first_given, tell
from .judges import open_scorer

if TYPE_CHECKING:
    from ..eval.frame import Frame
    from ..eval.judges.opening import Opened
    from ..eval.report.others import LearningPoint, TableReport

_LOADING = ("device", "backbone", "quantization", "cache", "windows", "budget", "answers")


def evaluate(options: argparse.Namespace) -> int:
    """Measure one judge against the raters of a split."""
    from ..eval.judge_names import require_judges

    if options.dry_run:
        _open([options.judge], options)
        return DONE
    require_judges([options.judge], options.backbone)
    if options.explain and not Path(options.judge).is_dir():
        raise UserError(f"--explain with judge {options.judge}; expected the folder of a judge or of a run")
    with writing("evaluate", options.out):  # the imports take seconds
        from ..eval.evaluate import evaluate as measure
        from ..eval.views import evaluation_views

        judge = open_scorer(options) if options.explain else options.judge  # one load for both
        measured = measure(judge, options.data, **_how_to_measure(options))
        if options.explain:
            from ..eval.pages.explanation import explain_worst

            explain_worst(measured, judge, options.out)
        measured.save(options.out)
    where = f"report: {options.out / 'index.html'}"
    tell(options, measured.report.as_json(), lambda _: [*evaluation_views(measured.report), where])
    scored = sum(dimension.n_items for dimension in measured.report.dimensions.values())
    return DONE if scored else FAILED_CHECKS


def compare(options: argparse.Namespace) -> int:
    """Measure several judges on the same pairs, or with --table on the scores of a table.

    A table has one row per score, as `agreement` takes it; it answers which judge agrees best with the people over all
    dimensions, whether that is certain, and how far each is from the ceilings.
    """
    if options.table is not None:
        return _compare_table(options)

    from ..eval.judge_names import require_judges

    if options.dry_run:
        _open(options.judges, options)
        return DONE
    require_judges(options.judges, options.backbone)
    with writing("compare", options.out):
        from ..eval.compare import compare as measure
        from ..eval.views import comparison_views

        comparison = measure(options.judges, options.data, **_how_to_measure(options))
        for line in comparison.warnings:
            print(f"warning: {line}", file=sys.stderr)
        where = []
        if options.out is not None:
            comparison.save(options.out)
            where.append(f"report: {options.out / 'index.html'}")
    found = comparison.report
    tell(options, found.as_json(), lambda _: [*comparison_views(found.reports, found.rankings), *where])
    without = [
        report.judge
        for report in comparison.reports
        if not any(dimension.n_items for dimension in report.dimensions.values())
    ]
    for judge in without:
        print(f"{judge}: no pair has a score", file=sys.stderr)
    return FAILED_CHECKS if without else DONE


def challenge(options: argparse.Namespace) -> int:
    """Measure a judge by the rules of a public challenge.

    aeq-bench: which of several responses to a context is the right one (AEQ-Bench, HumOmni track 1)? The score is
    (right questions + groups with all questions right) / (questions + groups). echomind: is the response to a voice
    scored above the response to another voice of the same script, in the same context?
    """
    opened = _open([options.judge], options)
    if options.dry_run:
        return DONE
    from ..eval.challenges import challenge as measured
    from ..eval.other_views import challenge_views

    settings = chosen(options, "split", "resamples", "seed")
    report = measured(options.name, opened.judges[0], opened.dataset, **settings, provenance=opened.provenances[0])
    return tell(options, report.as_json(), lambda _: challenge_views(report))


def stress(options: argparse.Namespace) -> int:
    """Look for what raises a judge's score and should not, as a policy that is trained on it would.

    The responses of a split are changed so that nobody would rate them higher: silence after it, said twice, louder,
    breaths, a constant tone, a copy of the context, noise that is sought against the judge, and others. A change fails
    the check if the mean score rises by more than a quarter of a standard error of the judge and the interval is above
    0, over pairs that a reward is still given for. Exit code: 0 = nothing raises the score, 1 = something does.
    """
    with writing("stress", options.out):
        scorer = open_scorer(options)
        from ..data_modules.schema import PairDataset
        from ..eval.other_views import stress_views
        from ..eval.results import write_results
        from ..eval.stress import stress as look
        from ..eval.stress import stress_frame

        settings = chosen(options, "split", "checks", "pairs", "resamples", "seed")
        report = look(scorer, PairDataset.load(options.data), **settings)
        if options.out is not None:
            write_results("stress", options.out, {"results.csv": stress_frame(report), "stress.json": report})
    tell(options, report.as_json(), lambda _: stress_views(report))
    return FAILED_CHECKS if report.raised else DONE


def agreement(options: argparse.Namespace) -> int:
    """Measure people and judges on a table of scores, without audio.

    The table has one row per score: item, annotator, dimension, score, and where there are, dataset, group (items that
    are not independent: intervals draw whole groups) and system. Empty scores are missing ones.
    """
    report = _measure_table(options, options.cluster, pairs=options.pairs, kappa_weights=options.kappa_weights)
    from ..eval.views import agreement_views

    return tell(options, report.as_json(), lambda _: agreement_views(report))


def plan(options: argparse.Namespace) -> int:
    """Say how many items and ratings a measurement of judges needs.

    From a pilot: a table with one row per score, as `agreement` takes it, or the folder of a pair dataset; both with
    ratings per rater. Or from assumed variances. For every number of items and raters: noise ceiling, leave-one-out
    agreement, standard error of a judge's Spearman, power to tell two judges apart, and cost. With --learning also what
    a judge learns from so many pairs.
    """
    from ..eval.other_views import plan_views
    from ..eval.plan import assumed_pilot, make_plan, pilot_from, save_plan

    if (options.pilot is None) == (not options.variance):
        raise UserError("expected either a pilot (a table or the folder of a pair dataset) or --variance")
    pilot_only = ("judges", "column", "annotators", "exclude", "dimension")
    if unused := first_given(options, *(("group_size",) if options.pilot is not None else pilot_only)):
        raise UserError(f"{unused} with {'--variance' if options.pilot is None else 'a pilot'}; expected one of them")
    with writing("plan", options.out):
        if options.pilot is None:
            pilot = assumed_pilot(_variances(options.variance), options.group_size or 1)
        else:
            pilot = pilot_from(_pilot_frame(options), options.dimension, options.resamples, options.seed)
        assumed = chosen(options, "items", "raters", "agreement", "difference", "power", "between", "price")
        report = make_plan(pilot, **assumed)
        if options.learning is not None:
            report = report.model_copy(update={"learning": _learning_curve(options)})
        where = []
        if options.out is not None:
            save_plan(report, options.out)
            where.append(f"picture: {options.out / 'plan.png'}")
    return tell(options, report.as_json(), lambda _: [*plan_views(report), *where])


def _learning_curve(options: argparse.Namespace) -> tuple[LearningPoint, ...]:
    """What ``--learning`` adds to a plan."""
    from ..data_modules.schema import PairDataset
    from ..eval.judges.baselines.probe import learning_curve

    if options.pilot is None or not Path(options.pilot).is_dir():
        raise UserError("--learning without clips; expected the folder of a pair dataset as pilot")
    dataset = PairDataset.load(options.pilot)
    return learning_curve(options.learning, dataset, resamples=options.resamples, seed=options.seed)


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


def _pilot_frame(options: argparse.Namespace) -> Frame:
    """The ratings of a pilot, from a dataset or a table."""
    from dataclasses import replace

    from ..data_modules.tables import parse_mapping
    from ..eval.frame import Frame, read_frame

    if not Path(options.pilot).is_dir():
        table = read_frame(options.pilot, parse_mapping(options.column, "--column"))
        selected = table.select(options.annotators, options.exclude)
        selected.check(options.judges, "--judges")
        return replace(selected, rows=selected.rows.assign(is_judge=selected.rows["rater_id"].isin(options.judges)))
    from ..data_modules.schema import PairDataset

    if options.judges or options.column:
        raise UserError("--judges and --column with a dataset; expected with a table")
    dataset = PairDataset.load(options.pilot)
    clusters = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    return Frame.of_dataset(dataset, {}, clusters).select(options.annotators, options.exclude)


def _compare_table(options: argparse.Namespace) -> int:
    """`compare` without audio."""
    if unused := first_given(options, "out", "probes", "slices", "dry_run"):
        raise UserError(f"{unused} with --table; expected with --data")
    clusters: dict[str, Literal["group", "system"]] = {"group_id": "group", "system_id": "system"}
    if options.cluster not in clusters:
        raise UserError(f"--cluster {options.cluster} with --table; expected {', '.join(clusters)}")
    report = _measure_table(options, clusters[options.cluster])
    from ..eval.views import table_comparison_views

    return tell(options, report.as_json(), lambda _: table_comparison_views(report))


def _measure_table(options: argparse.Namespace, cluster: Literal["group", "system"], **more: Any) -> TableReport:
    """What `agreement_table.measure_agreement` finds in the table of the options."""
    from ..data_modules.tables import parse_mapping
    from ..eval.agreement_table import measure_agreement
    from ..eval.frame import read_frame

    table = read_frame(options.table, parse_mapping(options.column, "--column"))
    selected = table.select(options.annotators, options.exclude)
    return measure_agreement(
        selected,
        options.judges,
        cluster=cluster,
        left_out=[name for name in table.annotators if name not in selected.annotators],
        **chosen(options, "interval", "resamples", "seed", "command"),
        **more,
    )


def _open(judges: Sequence[str], options: argparse.Namespace) -> Opened:
    """The judges of the options, and what they are measured on."""
    from ..eval.judge_names import require_judges

    require_judges(judges, options.backbone)
    from ..eval.judges.opening import open_judges

    probes = _probes(options.probes) if "probes" in options else None
    loading: Any = chosen(options, *_LOADING)
    return open_judges(judges, options.data, options.split, options.seed, probes, loading, options.dry_run)


def _how_to_measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the options of `evaluate` and `compare` say in common."""
    names = ("split", "slices", "cluster", "interval", "resamples", "seed", "command", *_LOADING)
    return chosen(options, *names) | {"probes": _probes(options.probes)}


def _probes(names: Sequence[str] | None) -> Sequence[str] | Literal["all"] | None:
    """What ``--probes`` says."""
    return "all" if names == ["all"] else () if names == ["none"] else names
