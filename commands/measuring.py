"""Commands that measure judges against people. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..data_modules.errors import UserError
from . import DONE, FAILED_CHECKS

if TYPE_CHECKING:
    from ..data_modules.schema import PairDataset
    from ..eval.judges import Judge
    from ..eval.judges.prompted.judges import PromptedJudge


def evaluate(options: argparse.Namespace) -> int:
    """Measure one judge against the raters of a split."""
    from rich.console import Console

    from ..eval.evaluate import evaluate as measure
    from ..eval.pages.report import write_report
    from ..eval.views import evaluation_views

    dataset, [(judge, provenance)] = _open_judges([options.judge], options)
    if options.dry_run:
        return DONE
    measured = measure(judge, dataset, **_how_to_measure(options), provenance=provenance)
    out = Path(options.out)
    write_report(measured.report, measured.items, out, dataset)
    if options.json:
        print(json.dumps(measured.report, indent=2, allow_nan=False))
    else:
        for view in evaluation_views(measured.report):
            Console().print(view, markup=False)
        print(f"report: {out / 'index.html'}")
    scored = sum(own["n_items"] for own in measured.report["dimensions"].values())
    return DONE if scored else FAILED_CHECKS


def compare(options: argparse.Namespace) -> int:
    """Measure several judges on the same pairs, or with --table on the scores of a table.

    A table has one row per score, as `agreement` takes it; it answers which judge agrees best with the people over all
    dimensions, whether that is certain, and how far each is from the ceilings.
    """
    from rich.console import Console

    if options.table is not None:
        return _compare_table(options)

    from ..eval.compare import compare as measure
    from ..eval.pages.compare_page import comparison_json, write_comparison
    from ..eval.views import comparison_views

    dataset, opened = _open_judges(options.judges, options)
    if options.dry_run:
        return DONE
    judges, provenances = zip(*opened, strict=True)
    found = measure(judges, dataset, **_how_to_measure(options), provenances=provenances)
    for spec, report in zip(options.judges, found.reports, strict=True):
        _warn_of_other_measurement(spec, report["signature"])
    if options.out is not None:
        write_comparison(found.reports, found.rankings, Path(options.out))
    if options.json:
        print(comparison_json(found.reports, found.rankings))
    else:
        for view in comparison_views(found.reports, found.rankings):
            Console().print(view, markup=False)
        if options.out is not None:
            print(f"report: {Path(options.out) / 'index.html'}")
    return DONE


def challenge(options: argparse.Namespace) -> int:
    """Measure a judge by the rules of a public challenge.

    aeq-bench: which of several responses to a context is the right one (AEQ-Bench, HumOmni track 1)? The score is
    (right questions + groups with all questions right) / (questions + groups). echomind: is the response to a voice
    scored above the response to another voice of the same script, in the same context?
    """
    from rich.console import Console

    from ..eval.challenges import aeq_bench, aeq_bench_views, echomind, echomind_view

    dataset, [(judge, _)] = _open_judges([options.judge], options)
    if options.dry_run:
        return DONE
    chosen = {"split": _split_name(options.split), "resamples": options.resamples, "seed": options.seed}
    found: Mapping[str, Any]
    if options.name == "aeq-bench":
        found = aeq_bench(judge, dataset, **chosen)
        views = list(aeq_bench_views(found))
    else:
        found = echomind(judge, dataset, **chosen)
        views = [echomind_view(found)]
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        for view in views:
            Console().print(view)
    return DONE


def agreement(options: argparse.Namespace) -> int:
    """Measure people and judges on a table of scores, without audio.

    The table has one row per score: item, annotator, dimension, score, and where there are, dataset, group (items that
    are not independent: intervals draw whole groups) and system. Empty scores are missing ones.
    """
    found = _measure_table(options, options.cluster, pairs=options.pairs, kappa_weights=options.kappa_weights)
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from ..eval.views import agreement_views

        for view in agreement_views(found, options.alpha):
            Console().print(view, markup=False)
    return DONE


def _compare_table(options: argparse.Namespace) -> int:
    """`compare` without audio."""
    unused = {
        "--out": options.out,
        "--probes": options.probes,
        "--slices": options.slices,
        "--dry-run": options.dry_run,
    }
    for name, value in unused.items():
        if value:
            raise UserError(f"{name} with --table; expected with --data")
    clusters: dict[str, Literal["group", "system"]] = {"group_id": "group", "system_id": "system"}
    if options.cluster not in clusters:
        raise UserError(f"--cluster {options.cluster} with --table; expected {', '.join(clusters)}")
    found = _measure_table(options, clusters[options.cluster])
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from ..eval.views import table_comparison_views

        for view in table_comparison_views(found):
            Console().print(view, markup=False)
    return DONE


def _measure_table(options: argparse.Namespace, cluster: Literal["group", "system"], **chosen: Any) -> dict[str, Any]:
    """What `agreement_table.measure_agreement` finds in the table of the options."""
    from ..data_modules.tables import parse_mapping
    from ..eval.agreement_table import measure_agreement
    from ..eval.frame import read_frame

    table = read_frame(options.table, parse_mapping(options.column, "--column"))
    kept = table.select(options.annotators, options.exclude)
    return measure_agreement(
        kept,
        options.judges,
        cluster=cluster,
        interval=options.interval,
        resamples=options.resamples,
        seed=options.seed,
        command=options.command,
        left_out=[name for name in table.annotators if name not in kept.annotators],
        **chosen,
    )


_Opened = tuple["Judge", Mapping[str, Any] | None]
"""A judge, and what it says of itself."""


def _open_judges(specs: Sequence[str], options: argparse.Namespace) -> tuple[PairDataset, list[_Opened]]:
    """The dataset that the judges are compared with, and the judges.

    Where raters of the dataset are judges, their ratings are in it for none of the judges: all meet the same people.
    """
    from ..data_modules.schema import PairDataset
    from ..eval.judges.baselines.simple import PREFIX, HumanJudge, without_raters

    dataset = PairDataset.load(options.data)
    raters = [spec.removeprefix(PREFIX) for spec in specs if spec.startswith(PREFIX)]
    if not raters:
        return dataset, [load_spec(spec, dataset, options) for spec in specs]
    people = {PREFIX + rater: HumanJudge(dataset, rater) for rater in raters}
    others = without_raters(dataset, raters)
    print(f"judges are compared with the other raters: without {', '.join(people)}", file=sys.stderr)
    opened: list[_Opened] = []
    for spec in specs:
        judge, said = (people[spec], people[spec].record) if spec in people else load_spec(spec, others, options)
        opened.append((judge, {**(said or {}), "raters_left_out": raters}))
    return others, opened


def load_spec(spec: str, dataset: PairDataset, options: argparse.Namespace) -> _Opened:
    """The judge that a spec names, ``human:RATER`` excepted, and what it says of itself.

    Raises:
        UserError: If the spec names none.
    """
    from ..eval.judges.baselines import BASELINES, open_baseline

    if spec in BASELINES:
        learn_from = _other_splits(dataset, options.split)
        baseline = open_baseline(spec, dataset, learn_from, _split_name(options.split), options.seed)
        return baseline, baseline.record
    if spec.startswith("scores:"):
        from ..eval.judges.scores_file import ScoresFile

        return ScoresFile(Path(spec.removeprefix("scores:"))), None
    from ..eval.judges.prompted.factory import is_prompted

    if is_prompted(spec):
        return _open_prompted(spec, dataset, options), None
    from ..eval.judges.trained import TrainedJudge

    if not Path(spec).exists():
        raise UserError(
            f"judge {spec!r}: expected a judge folder, a run folder, openai:MODEL, gemini:MODEL, local:BACKBONE, "
            f"scores:FILE, human:RATER, {', '.join(BASELINES)}"
        )
    cache = options.cache and Path(options.cache)
    judge = TrainedJudge.load(
        Path(spec), options.backbone, options.device, options.quantization, cache, options.windows
    )
    judge.check_scales(dataset.card)
    _warn_of_known_pairs(judge.description, dataset, options.split)
    return judge, judge.description


def _open_prompted(spec: str, dataset: PairDataset, options: argparse.Namespace) -> PromptedJudge:
    """Says what would leave the machine and what it would cost, before anything does; with ``--dry-run`` only that."""
    from ..eval.judges.prompted.cache import AnswerCache, default_path
    from ..eval.judges.prompted.costs import check_budget, disclosure, example_request
    from ..eval.judges.prompted.factory import open_prompted
    from ..eval.probes import choose

    answers = AnswerCache(Path(options.answers) if options.answers else default_path())
    learn_from = _other_splits(dataset, options.split)
    named = "probes" in options and options.probes is not None
    judge = open_prompted(
        spec, dataset, learn_from, answers, options.budget, named, options.device, options.quantization
    )
    plan = judge.session.plan(judge.tasks(dataset.subset(_split_name(options.split)).pairs))
    passes = 1 + (len(choose(_probes(options.probes))) if named else 0)
    print(disclosure(judge, plan, passes), file=sys.stderr)
    if options.dry_run:
        print(example_request(judge, plan))
    else:
        check_budget(judge, plan)
    return judge


def _other_splits(dataset: PairDataset, split: str) -> list[str]:
    """What a baseline may learn from: train, or where there are folds, all but the one that is measured."""
    names = sorted({pair.split for pair in dataset.pairs if pair.split is not None} - {split})
    return names if names and "train" not in names else ["train"]


def _warn_of_known_pairs(description: Mapping[str, Any], dataset: PairDataset, split: str) -> None:
    """Says on standard error where a judge is measured on pairs that it was trained or chosen on."""
    here = (dataset.card.content_hash, dataset.split_hash())
    warnings: dict[str, None] = {}
    for origin in description.get("member_provenance", [description["provenance"]]):
        if (origin["content_hash"], origin["split_hash"]) == here:
            for done, splits in (("trained", origin.get("train_splits")), ("chosen", origin.get("validation_splits"))):
                if splits and split in ("all", *splits):
                    warnings[f"warning: split {split}: this judge was {done} on {', '.join(splits)}"] = None
    for warning in warnings:
        print(warning, file=sys.stderr)


def _warn_of_other_measurement(spec: str, signature: str) -> None:
    """Says on standard error where the items of a report (``scores:DIR/items.csv``) were measured otherwise there."""
    from ..eval.pages.report import ITEMS_FILE, REPORT_FILE
    from ..eval.results import measured_apart

    items = Path(spec.removeprefix("scores:"))
    stored = items.with_name(REPORT_FILE)
    if not spec.startswith("scores:") or items.name != ITEMS_FILE or not stored.is_file():
        return
    before = json.loads(stored.read_text(encoding="utf-8")).get("signature")
    if before and (apart := measured_apart(before, signature)):
        print(f"warning: {spec}: measured there on {', '.join(apart)}; here it is {signature}", file=sys.stderr)


def _how_to_measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the options of `evaluate` and `compare` say in common."""
    return {
        "split": _split_name(options.split),
        "slices": options.slices,
        "probes": _probes(options.probes),
        "cluster": options.cluster,
        "interval": options.interval,
        "resamples": options.resamples,
        "seed": options.seed,
        "command": options.command,
    }


def _probes(names: Sequence[str] | None) -> Sequence[str] | Literal["all"]:
    """What ``--probes`` says."""
    from ..eval.probes import DEFAULT_PROBES

    if names is None:
        return DEFAULT_PROBES
    return "all" if names == ["all"] else () if names == ["none"] else names


def _split_name(name: str) -> str | None:
    return None if name == "all" else name
