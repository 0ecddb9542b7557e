"""The `empathy-judge` command: one function per command. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .cli_options import Command, build_parser, import_parser, source_parser
from .data_modules.errors import UserError

if TYPE_CHECKING:
    from .data_modules.schema import PairDataset
    from .eval.judges import Judge

DONE, FAILED_CHECKS, BAD_USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 = done, 1 = checks failed, 2 = bad usage or bad input (one line on standard error); as shells have it 130 =
        interrupted, 141 = nobody reads on.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough (`| head`); Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(words: list[str]) -> int:
    if words[:1] == ["train"]:  # its options are those of the configuration, known only once torch is loaded
        return train(words[1:])
    if words[:1] == ["import"]:  # each source has options of its own
        return import_(words[1:])
    parsed = build_parser(_COMMANDS).parse_args(words)
    parsed.command = shlex.join(["empathy-judge", *words])
    run: Command = parsed.run
    return run(parsed)


# ---------------------------------------------------------------- commands


def demo(options: argparse.Namespace) -> int:
    """Sample, train, evaluate, export, score."""
    from .demo import run_demo

    return run_demo(Path(options.out), groups=options.groups, epochs=options.epochs)


def import_(words: Sequence[str]) -> int:
    """Turn a source into a pair dataset."""
    from .data_modules import importers

    parser = import_parser(importers.names())
    if not words or words[0].startswith("-"):
        parser.parse_args(words)  # --help, or what is missing
    name = parser.parse_args(words[:1]).source
    importer = importers.load(name)
    options = source_parser(name, importer).parse_args(words[1:])

    from .data_modules.intake.assemble import SKIPPED_FILE, assemble

    imported = importer.read(Path(options.path), options)
    card = dataclasses.replace(
        imported.card,
        name=options.name or imported.card.name,
        source=options.origin or imported.card.source,
        licence=options.licence or imported.card.licence,
    )
    dataset = assemble(
        dataclasses.replace(imported, card=card),
        options.out,
        overwrite=options.overwrite,
        embed_audio=options.embed_audio,
        shard_rows=options.shard_rows,
        max_skipped=options.max_skipped,
    )
    skipped = dataset.root / SKIPPED_FILE
    facts = {**_dataset_facts(dataset), "skipped": str(skipped) if skipped.is_file() else None}
    _print_facts(facts, options.json)
    return DONE


def combine(options: argparse.Namespace) -> int:
    """Write one pair dataset from several, such as rating campaigns on scales of their own.

    Pairs, groups, raters, speakers and systems are called NAME/... after their dataset; the tag campaign is NAME, so
    that splits and reports can go by it. Dimensions are the same where their names are; scores come onto the scale of
    the first dataset that has the dimension, low end to low end, high end to high end, good to good. Splits stay where
    every dataset has some, made by the same columns. The description in dataset.yaml says what was done.
    """
    from .data_modules.combine import combine as write
    from .data_modules.combine import parse_renames
    from .data_modules.schema import PairDataset

    dataset = write(
        [PairDataset.load(folder) for folder in options.datasets],
        options.out,
        names=options.names,
        renames=parse_renames(options.rename),
        shared=options.shared,
        overwrite=options.overwrite,
        embed_audio=options.embed_audio,
        shard_rows=options.shard_rows,
    )
    _print_facts(_dataset_facts(dataset), options.json)
    return DONE


def inspect(options: argparse.Namespace) -> int:
    """Show what is in a dataset, how far its raters agree, and what is wrong with it."""
    from .data_modules.inspection import inspect_dataset
    from .data_modules.schema import PairDataset
    from .eval.inspection.facts import inspection_facts
    from .eval.statistics.reliability import reliability

    page = None if options.page is None else Path(options.page)
    if page is not None:
        from .eval.inspection.page import check_page_folder

        check_page_folder(page)
    dataset = PairDataset.load(options.data)
    found = inspect_dataset(dataset, max_seconds=options.max_seconds)
    groups = {pair.pair_id: pair.group_id for pair in dataset.pairs}
    agreement = {d.name: reliability(dataset.ratings, d.name, groups) for d in dataset.card.dimensions}
    facts = inspection_facts(dataset)
    if page is not None:
        from .eval.inspection.page import write_inspection_page

        page = write_inspection_page(dataset, found, agreement, facts, page)
    if options.json:
        everything = {**found.to_dict(), **facts.to_dict(), "reliability": agreement}
        print(json.dumps(everything, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from .eval.inspection.tables import inspection_tables

        raters = {name: own.raters for name, own in facts.ratings.items()}
        for table in inspection_tables(found, agreement, raters):
            Console().print(table)
        if page is not None:
            print(f"page: {page}")
    leaks = any(found.crossings[kind] for kind in found.refused)
    return FAILED_CHECKS if found.problems or leaks else DONE


def split(options: argparse.Namespace) -> int:
    """Assign every pair to train, validation or test, to a fold, or to a fold for each value of a column.

    What shares a value of a column of --by stays together. Audio is compared, too, the same or nearly the same:
    with group_id among the columns (the default), what shares a clip stays together; otherwise contexts may be shared,
    and pairs whose response is in two splits are set aside: they are in none (`unsplit`), split.yaml lists them.

    Cross-validation trains once for each fold, on all but two of them:
      empathy-judge split data --folds 5
      empathy-judge train --config configs/nano.yaml --data.path data --run runs/5 \\
          --data.train_split '[fold1, fold2, fold3]' --data.validation_split fold4
      empathy-judge evaluate runs/5 --data data --split fold5
    Leave-one-system-out has a fold for each system, called after it:
      empathy-judge split data --leave-out system_id
      empathy-judge train ... --data.train_split '[system_id=a, system_id=b]' --data.validation_split system_id=c
      empathy-judge evaluate runs/d --data data --split system_id=d
    """
    from .data_modules.splits import DEFAULT_FRACTIONS, fold_dataset, leave_one_out, split_dataset

    if options.leave_out is not None:
        _refuse(options, "--leave-out", ("by", "fractions", "hold_out", "no_stratify"))
        audit = leave_one_out(options.data, options.leave_out, overwrite=options.overwrite)
    elif options.folds is not None:
        _refuse(options, "--folds", ("fractions", "hold_out"))
        audit = fold_dataset(
            options.data,
            options.folds,
            by=options.by or ["group_id"],
            stratify=not options.no_stratify,
            seed=options.seed,
            overwrite=options.overwrite,
        )
    else:
        audit = split_dataset(
            options.data,
            by=options.by or ["group_id"],
            fractions=dict(zip(DEFAULT_FRACTIONS, options.fractions or DEFAULT_FRACTIONS.values(), strict=True)),
            hold_out=_hold_out(options.hold_out),
            stratify=not options.no_stratify,
            seed=options.seed,
            overwrite=options.overwrite,
        )
    _print_facts(audit.to_dict(), options.json)
    return DONE


def train(arguments: Sequence[str]) -> int:
    """Train a judge; options come from the configuration."""
    from .train.fit import train as run

    best = run(arguments)
    if best is not None:  # None after a dry run
        print(f"best checkpoint: {best}")
    return DONE


def sweep(options: argparse.Namespace) -> int:
    """Search the settings of a recipe that do best on the validation split.

    Every trial trains the recipe with other values, once for each seed; what counts is what the best checkpoints reach
    on the validation split, averaged over seeds (of the dimensions' Spearman, as in training). Optuna's TPE sampler
    chooses values. DIR gets sweep.csv, best.yaml (a recipe: train --config RECIPE --config DIR/best.yaml) and a run
    folder for each trial and seed. The same command goes on with a sweep that was killed, and with a larger number of
    trials adds to it; started several times at once, say on several GPUs, each process takes trials of its own.

    The best of many trials looks better than it is: measure it on a split that chose nothing.

    The file says:
      train: [configs/nano.yaml]            # recipes, relative to the working folder
      overrides: {data.path: data}          # what holds in every trial
      search:
        model.learning_rate: {low: 1e-4, high: 1e-2, log: true}
        model.lora_rank: {low: 8, high: 64, step: 8}
        model.head: {choices: [regression, histogram]}
      trials: 20
      seeds: [0, 1, 2]
      sampler_seed: 0
    """
    from rich.console import Console

    from .train.sweep import run_sweep
    from .train.sweep_results import BEST_FILE, best_of, results_table

    out = Path(options.out)
    found, results = run_sweep(Path(options.config), out)
    best = best_of(results)
    if options.json:
        facts = {"trials": [result.to_dict() for result in results], "best": None if best is None else best.number}
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        Console().print(results_table(found, results))
        if best is not None:
            print(f"best: trial {best.number}, {out / BEST_FILE}")
    return FAILED_CHECKS if best is None else DONE


def evaluate(options: argparse.Namespace) -> int:
    """Measure one judge against the raters of a split."""
    from rich.console import Console

    from .data_modules.schema import PairDataset
    from .eval.evaluate import evaluate as measure
    from .eval.pages.report import terminal_table, write_report

    dataset = PairDataset.load(options.data)
    judge, provenance = load_spec(options.judge, dataset, options)
    measured = measure(judge, dataset, **_how_to_measure(options), provenance=provenance)
    out = Path(options.out)
    write_report(measured.report, measured.items, out, dataset)
    if options.json:
        print(json.dumps(measured.report, indent=2, allow_nan=False))
    else:
        Console().print(terminal_table(measured.report))
        print(f"report: {out / 'index.html'}")
    scored = sum(own["n_items"] for own in measured.report["dimensions"].values())
    return DONE if scored else FAILED_CHECKS


def compare(options: argparse.Namespace) -> int:
    """Measure several judges on the same pairs."""
    from rich.console import Console

    from .data_modules.schema import PairDataset
    from .eval.compare import compare as measure
    from .eval.compare_view import comparison_views
    from .eval.pages.compare_page import comparison_json, write_comparison

    dataset = PairDataset.load(options.data)
    judges = [load_spec(spec, dataset, options)[0] for spec in options.judges]
    found = measure(judges, dataset, **_how_to_measure(options))
    if options.out is not None:
        write_comparison(found.reports, found.rankings, Path(options.out))
    if options.json:
        print(comparison_json(found.reports, found.rankings))
    else:
        for view in comparison_views(found):
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

    from .data_modules.schema import PairDataset
    from .eval.challenge_run import aeq_bench, aeq_bench_views, echomind, echomind_view

    dataset = PairDataset.load(options.data)
    judge, _ = load_spec(options.judge, dataset, options)
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
    from .data_modules.intake.options import parse_mapping
    from .eval.agreement_table import measure_agreement
    from .eval.annotations import read_annotations

    table = read_annotations(options.table, parse_mapping(options.column, "--column"))
    chosen = table.select(options.annotators, options.exclude)
    found = measure_agreement(
        chosen,
        options.judges,
        pairs=options.pairs,
        kappa_weights=options.kappa_weights,
        cluster=options.cluster,
        interval=options.interval,
        resamples=options.resamples,
        seed=options.seed,
        command=options.command,
        left_out=[name for name in table.annotators if name not in chosen.annotators],
    )
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from .eval.agreement_view import agreement_views

        for view in agreement_views(found, options.alpha):
            Console().print(view, markup=False)
    return DONE


def score(options: argparse.Namespace) -> int:
    """Score one pair of files, or all pairs of a manifest."""
    from .models.calibration import DEFAULT_LEVEL
    from .score_files import flat_scores, score_manifest, uncertain_columns
    from .scorer import Scorer

    clips = [clip for clip in (options.context, options.response) if clip is not None]
    if len(clips) != (2 if options.manifest is None else 0):
        raise UserError("score: accepted: JUDGE CONTEXT RESPONSE, or JUDGE --manifest FILE")
    scorer = Scorer.from_pretrained(
        options.judge, backbone=options.backbone, device=options.device, quantization=options.quantization
    )
    level = options.level or DEFAULT_LEVEL
    if options.level is not None:
        scorer.require_calibration()
    if options.manifest is not None:
        failed = score_manifest(scorer, Path(options.manifest), options.out and Path(options.out), level)
        return FAILED_CHECKS if failed else DONE
    context, response = clips
    pair = {"context": None if context in ("", "-") else context, "response": response, "situation": options.situation}
    uncertain = scorer.score_with_uncertainty(**pair, level=level) if scorer.calibration is not None else None
    scores = scorer.score(**pair) if uncertain is None else {name: own.score for name, own in uncertain.items()}
    if options.json:
        columns = uncertain_columns(list(scores), bool(scorer.calibration and scorer.calibration.abstains))
        print(json.dumps(scores if uncertain is None else {key: flat_scores(uncertain)[key] for key in columns}))
        return DONE
    for dimension in scorer.dimensions:
        scale = f"({dimension.minimum:g} to {dimension.maximum:g})"
        known = "" if uncertain is None else uncertain[dimension.name].in_words(level)
        print(f"{dimension.name} {scores[dimension.name]:.3f} {scale}{known}")
    return DONE


def calibrate(options: argparse.Namespace) -> int:
    """Fit standard errors and intervals to rated pairs that the judge was not trained on.

    Training does this on the validation split, which also chose the checkpoint: the errors there look a little too
    small. A split that nothing was chosen on is better. The calibration of a judge folder stands in its judge.json,
    that of a run in calibration.json; an earlier one is replaced. The model card stays as it was written.
    """
    from .data_modules.schema import PairDataset
    from .models.artifact import Placement, load_any
    from .models.calibration_files import to_json
    from .models.judge_calibration import calibrate_judge, store_calibration
    from .models.scoring import SPREAD
    from .models.weight_files import JUDGE_FILE

    folder = Path(options.judge)
    if not (folder / JUDGE_FILE).is_file() and not (folder / "checkpoints").is_dir():
        raise UserError(f"{folder}: accepted: a judge folder (with {JUDGE_FILE}) or a run folder")
    dataset = PairDataset.load(options.data)
    spread = options.device == SPREAD
    calibration = calibrate_judge(
        load_any(folder, Placement(options.backbone, options.quantization, spread)),
        dataset,
        None if options.split == "all" else [options.split],
        method=options.method,
        abstain=options.abstain,
        device=options.device,
    )
    stored = store_calibration(calibration, folder)
    if options.json:
        print(json.dumps(to_json(calibration), indent=2, allow_nan=False))
        return DONE
    for name, own in calibration.dimensions.items():
        print(f"{name}: {own.in_words()}")
    print(f"calibration: {stored}")
    return DONE


def export(options: argparse.Namespace) -> int:
    """Write the judge folder of a run."""
    from .models.artifact import Placement, load_run, save_judge
    from .models.card import render_card

    loaded = load_run(Path(options.checkpoint), Placement(options.backbone))
    report = None if options.report is None else _read_report(Path(options.report))
    save_judge(loaded, Path(options.out), render_card(loaded.description, report))
    print(f"judge: {options.out}")
    return DONE


def ensemble(options: argparse.Namespace) -> int:
    """Make one judge of several that share a frozen backbone.

    The judges must agree in backbone, dimensions and all settings that scores depend on: say, runs with several seeds
    or the folds of a cross-validation. Every command that takes a judge takes what is written. Its score is the mean of
    the members' scores; how far these lie apart goes into the standard error once the ensemble is calibrated. The
    backbone is loaded once, and clips are encoded once unless the audio tower was trained; the rest of the work is done
    for each member.

    --average writes a single judge with the mean of the trained weights instead, as fast as one (model soup). That
    means something only where all were trained from the same initial adapters: checkpoints of one run, or runs with the
    same --seed and other settings of the optimisation. Adapters of other seeds have no mean that makes sense.
    """
    from .models.ensemble import ALIKE, write_average, write_ensemble

    paths, out = [Path(path) for path in options.judges], Path(options.out)
    if options.average:
        likeness = write_average(paths, out, options.backbone)
        if likeness is not None and likeness < ALIKE:
            print(
                f"warning: the adapters hardly began alike (cosine {likeness:.2f}); a mean of weights means something "
                "only where all were trained from the same initial adapters, an ensemble has no such condition",
                file=sys.stderr,
            )
    else:
        write_ensemble(paths, out, options.backbone)
    print(f"judge: {out}")
    return DONE


# ---------------------------------------------------------------- shared by commands


def load_spec(spec: str, dataset: PairDataset, options: argparse.Namespace) -> tuple[Judge, Mapping[str, Any] | None]:
    """The judge that a spec names, and what it says of itself.

    Raises:
        UserError: If the spec names none.
    """
    if spec == "constant":
        from .eval.judges.constant import ConstantJudge

        return ConstantJudge.fitted_to(dataset.subset(_other_splits(dataset, options.split))), None
    if spec.startswith("scores:"):
        from .eval.judges.scores_file import ScoresFile

        return ScoresFile(Path(spec.removeprefix("scores:"))), None
    from .eval.judges.trained import TrainedJudge

    if not Path(spec).exists():
        raise UserError(f"judge {spec!r}: accepted: a judge folder, a run folder, scores:FILE or constant")
    judge = TrainedJudge.load(Path(spec), options.backbone, options.device, options.quantization)
    judge.check_scales(dataset.card)
    _warn_of_known_pairs(judge.description, dataset, options.split)
    return judge, judge.description


def _refuse(options: argparse.Namespace, chosen: str, others: Sequence[str]) -> None:
    """Options that mean nothing beside the one that was chosen."""
    for name in others:
        if getattr(options, name):
            raise UserError(f"{chosen} together with --{name.replace('_', '-')}; accepted: one of them")


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


def _hold_out(items: Sequence[str]) -> dict[str, list[str]] | None:
    held: dict[str, list[str]] = {}
    for item in items:
        column, sign, value = item.partition("=")
        if not (column and sign and value):
            raise UserError(f"--hold-out {item!r}: accepted: COLUMN=VALUE, such as system_id=codec-a")
        held.setdefault(column, []).append(value)
    return held or None


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
    from .eval.probes import DEFAULT_PROBES

    if names is None:
        return DEFAULT_PROBES
    return "all" if names == ["all"] else () if names == ["none"] else names


def _split_name(name: str) -> str | None:
    return None if name == "all" else name


def _read_report(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not an agreement report: {error}") from None


def _dataset_facts(dataset: PairDataset) -> dict[str, Any]:
    """What `import` and `combine` say of the dataset that they made."""
    return {
        "out": str(dataset.root),
        "pairs": len(dataset.pairs),
        "ratings": len(dataset.ratings),
        "raters": dataset.ratings["rater_id"].nunique(),
        "preferences": 0 if dataset.preferences is None else len(dataset.preferences),
        "groups": len({pair.group_id for pair in dataset.pairs}),
        "pairs_without_rating": len(dataset.pairs) - dataset.ratings["pair_id"].nunique(),
        "content_hash": dataset.card.content_hash,
        "description": dataset.card.description,
    }


def _print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=2, allow_nan=False))
        return
    for key, value in facts.items():
        print(f"{key}: {json.dumps(value) if isinstance(value, dict | list | tuple) else value}")


_COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "combine": combine,
    "inspect": inspect,
    "split": split,
    "sweep": sweep,
    "evaluate": evaluate,
    "compare": compare,
    "challenge": challenge,
    "agreement": agreement,
    "score": score,
    "calibrate": calibrate,
    "export": export,
    "ensemble": ensemble,
}
"""Beside `train` and `import_`."""


if __name__ == "__main__":
    sys.exit(main())
