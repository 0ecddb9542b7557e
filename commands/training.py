"""Commands that train a judge, or make one of another: calibrated, exported, put together. Heavy imports stand inside
them, so that help is instant."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data_modules.errors import UserError
from ..data_modules.parallel import check_ranks
from ..data_modules.written import making
from . import DONE, FAILED_CHECKS, chosen, first_given, tell

if TYPE_CHECKING:
    from ..models.artifact import LoadedJudge
    from ..models.export.check import ExportCheck


def demo(options: argparse.Namespace) -> int:
    """Sample, train, evaluate, export, score."""
    check_ranks()
    # Read when torch is loaded. Threads that wait spin for 300,000 rounds, which costs half of the speed or more where
    # other programs run. Where none does, to sleep at once costs a tenth, and after 2,000 rounds next to nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    from ..demo import run_demo

    run_demo(options.out, groups=options.groups, epochs=options.epochs, as_json=options.json)
    return DONE


def train(arguments: Sequence[str]) -> int:
    """Train a judge; options come from the recipe."""
    if "--list" in arguments:
        raise UserError("train --list: recipes are listed by `empathy-judge recipes`")
    check_ranks()
    from ..train.recipe import RecipeParser, trainer_help

    if "--trainer.help" in arguments:
        print(trainer_help(), end="")
        return DONE
    if not any(word.startswith("--print_config") for word in arguments):
        parser = RecipeParser(trainer=False)  # errors are reported before torch is loaded
        parsed = parser.parse(arguments)
        parser.check(parsed)
        from ..models.hub import require_backbone

        require_backbone(parsed.judge.backbone, parsed.judge.revision)
    from ..train.run import train as run

    done = run(arguments)
    if done is not None:  # None after a dry run
        as_json = "--json" in arguments
        facts = {"run": str(done.folder), "best_checkpoint": str(done.checkpoint), "validation": dict(done.agreement)}
        if as_json:
            print(json.dumps(facts, indent=2))
        else:
            texts = (f"{name} {'undefined' if rho is None else f'{rho:.2f}'}" for name, rho in done.agreement.items())
            print(f"Spearman with the validation ratings: {', '.join(texts)}\nbest checkpoint: {done.checkpoint}")
    return DONE


def recipes(options: argparse.Namespace) -> int:
    """List the recipes that come with the package, or print one with the help of its settings.

    What a recipe needs is counted from the shapes of the model (train --dry-run), not measured on a GPU. A recipe
    without a backbone is laid over another one, as its command shows. To change one:
    empathy-judge recipes show qwen2_audio > mine.yaml, then train --config mine.yaml.
    """
    from ..train.settings import find_recipe, shipped_recipes

    if options.show is not None:
        if options.name is None or options.json:
            raise UserError("recipes show prints one recipe as YAML; expected recipes show NAME, without --json")
        path = find_recipe(options.name, "recipes show")
        from ..train.recipe import RecipeParser

        print(RecipeParser().with_help(path.read_text(encoding="utf-8")), end="")
        return DONE
    from rich.table import Table

    shipped, table = shipped_recipes(), Table(show_lines=True)
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it is", ratio=3)
    table.add_column("needs", ratio=2)
    for recipe in shipped:  # hub ids have no place on 80 columns; --json has them
        table.add_row(recipe.name, recipe.about, recipe.needs)
    return tell(options, [dataclasses.asdict(recipe) for recipe in shipped], lambda _: [table])


def calibrate(options: argparse.Namespace) -> int:
    """Fit standard errors and intervals to rated pairs that the judge was not trained on.

    Training does this on the validation split, which also chose the checkpoint: the errors there look a little too
    small. A split that nothing was chosen on is better. The calibration of a judge folder stands in its judge.json,
    that of a run in calibration.json; an earlier one is replaced. The model card stays as it was written.
    """
    from ..models import CHECKPOINTS, JUDGE_FILE
    from ..models.hub import require_judge

    if not (options.judge / JUDGE_FILE).is_file() and not (options.judge / CHECKPOINTS).is_dir():
        raise UserError(f"{options.judge}: expected a judge folder (with {JUDGE_FILE}) or a run folder")
    require_judge(options.judge, options.backbone)
    from ..data_modules.schema import PairDataset
    from ..models.artifact import Placement, load_any
    from ..models.calibration import to_json
    from ..models.judge_calibration import calibrate_judge, store_calibration
    from ..models.scoring import SPREAD

    placement = Placement(options.backbone, options.quantization, options.device == SPREAD)
    calibration = calibrate_judge(
        load_any(options.judge, placement),
        PairDataset.load(options.data),
        None if options.split is None else [options.split],
        **chosen(options, "method", "abstain", "device"),
    )
    stored = store_calibration(calibration, options.judge)
    lines = [f"{name}: {dimension.in_words()}" for name, dimension in calibration.dimensions.items()]
    return tell(options, to_json(calibration), lambda _: [*lines, f"calibration: {stored}"])


def export(options: argparse.Namespace) -> int:
    """Write the judge folder of a run, or another form of a judge folder.

    small: adapter, head and processor; the backbone is found where the run found it. merged: the adapter becomes part
    of the weights of the backbone, which come along: nothing else is needed, and the folder may be moved.

    --quantization stores the linear layers of the language model in 8 bits (one scale for each row; torchao) or in 4
    (NF4; bitsandbytes). Activations keep their precision. 4 bits are meant for GPUs with little memory: CPUs read them
    with the same scores on each kind, but unpack them anew in every pass. Layers whose rows do not divide by 64 are
    left out of the 4 bits.

    What merging and quantizing do to the scores is measured on pairs, printed, and kept in judge.json and on the card.
    Beyond the bounds nothing is written and the exit code is 1: differences of 1e-5 of the width of the scale where
    weights are float32; 5 % (1 % on average) in bfloat16, float16 and 8 bits; 25 % (5 % on average) in 4 bits; and
    with rated pairs a change of Spearman with people of 0.001, of 0.005 in bfloat16 and float16, of 0.02 if quantized.
    """
    from ..models.hub import check_hub_name, check_judge, push_to_hub, require_judge

    source, out = Path(options.checkpoint), options.out
    of_weights = [] if options.quantization == "none" else ["quantization"]
    if options.form == "small" and (unused := first_given(options, *of_weights, "check_data", "accept_loss")):
        raise UserError(f"export: {unused} with --form small, which has no backbone; expected merged")
    if options.private and options.push_to_hub is None:
        raise UserError("export: --private; expected with --push-to-hub OWNER/NAME")
    if options.push_to_hub is not None:
        check_hub_name(options.push_to_hub)
    check_judge(source)  # one on the hub is no checkpoint
    require_judge(source, options.backbone)
    with making(out):
        from ..models.artifact import Placement, load_any, save_judge

        loaded = load_any(source, Placement(options.backbone))
        report = None if options.report is None else _read_report(Path(options.report), loaded)
        check, written = None, True
        if options.form != "small":
            check, written = _export_whole(options, loaded, report)
        else:
            save_judge(loaded, out, report)
    if written and not options.json:
        print(f"judge: {out}")
    hub = push_to_hub(out, options.push_to_hub, options.private) if written and options.push_to_hub else None
    if options.json:
        measured = None if check is None else check.to_json()
        print(json.dumps({"judge": str(out) if written else None, "check": measured, "hub": hub}, indent=2))
    elif hub is not None:
        print(f"hub: {hub}")
    return DONE if written else FAILED_CHECKS


def _export_whole(
    options: argparse.Namespace, loaded: LoadedJudge, report: Mapping[str, Any] | None
) -> tuple[ExportCheck, bool]:
    """What became of the scores, and whether the judge was written: not if they changed too much."""
    from ..data_modules.schema import PairDataset
    from ..models.export.check import rated_set, synthetic_set
    from ..models.export.write import WEIGHT_FORMS, LossTooLarge, write_whole

    if options.check_data is None:
        compared = synthetic_set(loaded)
    else:
        compared = rated_set(loaded, PairDataset.load(options.check_data), options.check_split)
    form, how = WEIGHT_FORMS[options.quantization], chosen(options, "device", "accept_loss")
    try:
        check, written = write_whole(loaded, options.out, form, compared, report=report, **how), True
    except LossTooLarge as lost:
        check, written = lost.check, False
    if not options.json:
        print("\n".join(check.lines()))
    if not written:
        loss = "; ".join(check.beyond)
        print(f"not written: {loss}; --accept-loss writes it all the same", file=sys.stderr)
    for loss in check.beyond if written else ():
        print(f"written despite: {loss}", file=sys.stderr)
    return check, written


def ensemble(options: argparse.Namespace) -> int:
    """Make one judge of several that share a frozen backbone.

    The judges must agree in backbone, dimensions and all settings that scores depend on: say, runs with several seeds
    or the folds of a cross-validation. Every command that takes a judge takes what is written. Its score is the mean of
    the members' scores; how far these lie apart goes into the standard error once the ensemble is calibrated. The
    backbone is loaded once, and clips are encoded once unless the audio tower was trained; the rest of the work is done
    for each member.
    """
    from ..models.hub import check_judge, require_judge

    paths, out = [Path(path) for path in options.judges], options.out
    for path in paths:
        check_judge(path)
        require_judge(path, options.backbone)
    with making(out):
        from ..models.ensemble import write_ensemble

        write_ensemble(paths, out, options.backbone)
    return tell(options, {"judge": str(out)}, lambda result: [f"judge: {result['judge']}"])


def _read_report(path: Path, loaded: LoadedJudge) -> Mapping[str, Any]:
    """Read a report for the model card; one of another judge, or of another version, is refused."""
    from ..eval.report.base import read_report
    from ..eval.report.dataset import Report

    report = read_report(path, Report)
    if report.provenance.get("provenance") != loaded.description["provenance"]:
        raise UserError(f"--report: it is of another judge ({report.judge}); expected one of this judge")
    return report.as_json()
