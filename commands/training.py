"""Commands that train. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ..data_modules.errors import UserError
from ..data_modules.launch import check_ranks
from . import DONE, FAILED_CHECKS


def demo(options: argparse.Namespace) -> int:
    """Sample, train, evaluate, export, score."""
    check_ranks()
    from ..demo import run_demo

    return run_demo(Path(options.out), groups=options.groups, epochs=options.epochs, as_json=options.json)


def train(arguments: Sequence[str]) -> int:
    """Train a judge; options come from the recipe."""
    if "--list" in arguments:
        raise UserError("train --list: recipes are listed by `empathy-judge recipes`")
    check_ranks()
    from ..models.hub import require_backbone
    from ..train.recipe import RecipeParser, trainer_help

    if "--trainer.help" in arguments:
        print(trainer_help(), end="")
        return DONE
    if not any(word.startswith("--print_config") for word in arguments):
        judge = RecipeParser(trainer=False).parse(arguments).judge  # what is wrong is told before torch is loaded
        require_backbone(judge.backbone, judge.revision)
    from ..train.run import train as run

    done = run(arguments)
    if done is not None:  # None after a dry run
        as_json = "--json" in arguments
        facts = {"run": str(done.folder), "best_checkpoint": str(done.checkpoint), "validation": dict(done.agreement)}
        if as_json:
            print(json.dumps(facts, indent=2))
        else:
            found = (f"{name} {'undefined' if own is None else f'{own:.2f}'}" for name, own in done.agreement.items())
            print(f"Spearman with the validation ratings: {', '.join(found)}\nbest checkpoint: {done.checkpoint}")
    return DONE


def recipes(options: argparse.Namespace) -> int:
    """List the recipes that come with the package, or print one with the help of its settings.

    What a recipe needs is counted from the shapes of the model (train --dry-run), not measured on a GPU. A recipe
    without a backbone is laid over another one, as its command shows. To change one:
    empathy-judge recipes show qwen2_audio > mine.yaml, then train --config mine.yaml.
    """
    from ..train.shipped import find_recipe, shipped_recipes

    if options.show is not None:
        if options.name is None or options.json:
            raise UserError("recipes show prints one recipe as YAML; expected recipes show NAME, without --json")
        path = find_recipe(options.name, "recipes show")
        from ..train.recipe import RecipeParser

        print(RecipeParser().with_help(path.read_text(encoding="utf-8")), end="")
        return DONE
    found = shipped_recipes()
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_lines=True)
        table.add_column("recipe", no_wrap=True)
        table.add_column("what it is", ratio=3)
        table.add_column("needs", ratio=2)
        for one in found:  # hub ids have no place on 80 columns; --json has them
            table.add_row(one.name, one.about, one.needs)
        Console().print(table, markup=False)
    return DONE


def upgrade(options: argparse.Namespace) -> int:
    """Convert what an earlier version wrote: a recipe, a sweep file, a run folder or a judge folder, in place.

    Prints each change. Judges and runs of earlier versions can be used without it; recipes cannot.
    """
    from ..train.upgrade import upgrade as convert

    changed = convert(Path(options.path))
    if options.json:
        print(json.dumps({"path": options.path, "changed": changed}, indent=2))
    else:
        print("\n".join(changed) if changed else f"{options.path}: nothing to convert")
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
      train: [nano]                         # recipes by name, or files
      overrides: {data.path: data}          # what holds in every trial
      search:
        optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}
        judge.lora.rank: {low: 8, high: 64, step: 8}
        judge.head: {choices: [regression, histogram]}
      trials: 20
      seeds: [0, 1, 2]
      sampler_seed: 0
    """
    from rich.console import Console

    check_ranks()
    from ..train.shipped import find_recipe
    from ..train.sweep import BEST_FILE, best_of, results_table, run_sweep

    out = Path(options.out)
    found, results = run_sweep(find_recipe(options.config), out)
    best = best_of(results)
    if options.json:
        facts = {"trials": [result.to_dict() for result in results], "best": None if best is None else best.number}
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        Console().print(results_table(found, results))
        if best is not None:
            print(f"best: trial {best.number}, {out / BEST_FILE}")
    return FAILED_CHECKS if best is None else DONE
