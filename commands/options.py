"""The options of the `empathy-judge` command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .scoring_options import add_scoring_commands
from .shared_options import (
    Command,
    OneLineParser,
    add_command,
    add_data_option,
    add_loading_options,
    add_split_option,
    dollars,
    output_folder,
    random_seed,
    resamples,
    seconds,
    whole_number,
)

if TYPE_CHECKING:
    from ..data_modules.importers import Importer

_JUDGES = (
    "judge folder, run folder, openai:MODEL, gemini:MODEL (with settings, as in openai:gpt-audio-1.5,samples=5), "
    "local:BACKBONE (nano, folder or hub id, prompted on this machine), scores:FILE, human:RATER (one rater against "
    "the others), probe:JUDGE_OR_BACKBONE (a regression on what the frozen backbone hears), or a baseline: acoustic, "
    "acoustic:egemaps, text, quality, random, constant"
)


def build_parser(run: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of all commands but ``train`` and ``import``, which have options of their own; `run` is command -> its
    function, whose docstring is its help."""
    parser = OneLineParser(
        prog="empathy-judge", description="Judge how a spoken response sounds for its context, and prove it."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_data_commands(commands, run)
    _add_judge_commands(commands, run)
    add_scoring_commands(commands, run)
    add_command(commands, "doctor", run, "empathy-judge doctor")
    return parser


def import_parser(sources: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of ``import`` as far as the source."""
    parser = OneLineParser(
        prog="empathy-judge import",
        description="Turn a source into a pair dataset. Options of a source: empathy-judge import SOURCE --help",
        epilog="example: empathy-judge import table pairs.csv --dimension empathy=1:5:1 --out data",
    )
    parser.add_argument("source", choices=sources, help="what kind of source it is")
    return parser


def source_parser(name: str, importer: Importer) -> argparse.ArgumentParser:
    """The parser of ``import SOURCE``: what all sources share, and the options of this one."""
    parser = OneLineParser(
        prog=f"empathy-judge import {name}",
        description=importer.__doc__,
        epilog=f"example: empathy-judge import {importer.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", help="the source")
    parser.add_argument(
        "--out", required=True, type=output_folder,
        help="folder of the dataset to make; where an import was killed or interrupted, the same command goes on",
    )  # fmt: skip
    importer.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--name", help="name of the dataset (default: that of the source, else of --out)")
    parser.add_argument("--origin", help="where the data comes from")
    parser.add_argument("--licence", help="its terms of use")
    parser.add_argument(
        "--max-skipped", type=float, default=0.01, metavar="SHARE",
        help="share of the pairs that may be unusable; they are listed in skipped.csv (default: 0.01)",
    )  # fmt: skip
    _add_storing_options(parser)
    return parser


def _add_storing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--embed-audio", action="store_true", help="keep audio inside Parquet files")
    parser.add_argument(
        "--shard-rows", type=int, default=10_000, metavar="PAIRS",
        help="embed more pairs than these in several files, so many in each (default: 10000)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace the dataset at --out")


def _add_data_commands(commands: Any, run: Mapping[str, Command]) -> None:
    progress = "print JSON, and what happens meanwhile on standard error"
    one = add_command(commands, "demo", run, "empathy-judge demo --out demo", json=progress)
    one.add_argument(
        "--out", type=output_folder, default="demo", help="folder for everything the demo makes (default: demo)"
    )
    one.add_argument(
        "--groups", type=whole_number, default=200, help="scripts in the sample, 15 pairs each (default: 200)"
    )
    one.add_argument(
        "--epochs", type=whole_number, default=None, help="epochs of training (default: as the recipe nano)"
    )

    # `import` is dispatched before this parser; here it only shows in the list
    commands.add_parser("import", help="Turn a source into a pair dataset (see import --help).")

    one = add_command(
        commands, "combine", run, "empathy-judge combine lab crowd --rename crowd:warmth=empathy --out both"
    )
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument("datasets", nargs="+", metavar="DATASET", help="folders of pair datasets, or their addresses")
    one.add_argument("--out", required=True, type=output_folder, help="folder of the dataset to make")
    one.add_argument("--names", nargs="+", metavar="NAME", help="of the datasets, in order (default: as they say)")
    one.add_argument(
        "--rename", nargs="+", action="extend", default=[], metavar="NAME:OLD=NEW",
        help="dimension OLD of dataset NAME is called NEW",
    )  # fmt: skip
    one.add_argument(
        "--shared", nargs="+", default=[], metavar="COLUMN",
        help="columns whose names mean the same in all datasets and are kept: group_id, context_speaker, "
        "response_speaker, system_id, rater_id",
    )  # fmt: skip
    _add_storing_options(one)

    one = add_command(commands, "inspect", run, "empathy-judge inspect data --page inspection")
    one.add_argument("data", help="folder of a pair dataset, or its address (hf://datasets/..., s3://...)")
    one.add_argument(
        "--page", metavar="DIR", type=output_folder,
        help="also write DIR/index.html with charts and the most disputed items to listen to; their clips are copied "
        "into DIR/audio",
    )  # fmt: skip
    one.add_argument("--max-seconds", type=seconds, default=30.0, help="longer clips are reported (default: 30)")

    one = add_command(commands, "split", run, "empathy-judge split data --by group_id response_speaker --seed 1")
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument("data", help="folder of a pair dataset")
    one.add_argument(
        "--by", nargs="+", metavar="COLUMN",
        help="what is never split apart: group_id (default), context_speaker, response_speaker, system_id, setting, "
        "language, situation, context_text, response_text, or a tag such as tag:cue",
    )  # fmt: skip
    one.add_argument(
        "--fractions", nargs=3, type=float, metavar=("TRAIN", "VALIDATION", "TEST"),
        help="shares of the pairs (default: 0.7 0.15 0.15)",
    )  # fmt: skip
    one.add_argument("--folds", type=int, metavar="K", help="folds of equal size, fold1 and so on, instead")
    one.add_argument("--leave-out", metavar="COLUMN", help="one fold for each value, called COLUMN=VALUE, instead")
    one.add_argument("--hold-out", action="append", default=[], metavar="COLUMN=VALUE", help="test split; repeatable")
    one.add_argument("--seed", type=random_seed, default=0)
    one.add_argument("--overwrite", action="store_true", help="replace an existing split")


def _add_judge_commands(commands: Any, run: Mapping[str, Command]) -> None:
    # `train` is dispatched before this parser; here it only shows in the list
    commands.add_parser("train", help="Train a judge: empathy-judge train --config nano (see train --help).")

    one = add_command(commands, "recipes", run, "empathy-judge recipes show qwen2_audio")
    one.add_argument("show", nargs="?", choices=["show"], help="print one recipe as YAML, with help; needs NAME")
    one.add_argument("name", nargs="?", metavar="NAME", help="of the recipe, or a YAML file of yours")

    one = add_command(commands, "sweep", run, "empathy-judge sweep --config sweep_nano --out sweeps/nano")
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument(
        "--config", required=True, metavar="SWEEP.yaml", help="what is searched, see above; a file, or sweep_nano"
    )
    one.add_argument(
        "--out", type=output_folder, default="sweep", metavar="DIR", help="folder of the sweep (default: sweep)"
    )

    one = add_command(commands, "upgrade", run, "empathy-judge upgrade runs/first")
    one.add_argument("path", help="recipe or sweep file (YAML), run folder or judge folder")

    printed = "print JSON (documented in eval/results.py)"
    example = "empathy-judge evaluate runs/first --data data --out report"
    one = add_command(commands, "evaluate", run, example, json=printed)
    one.add_argument("judge", help=_JUDGES)
    add_data_option(one)
    _add_evaluation_options(one)
    one.add_argument("--out", type=output_folder, default="report", help="folder of the report (default: report)")
    one.add_argument(
        "--explain", action="store_true", help="also explain the largest disagreements (judge folders), see explain"
    )

    example = "empathy-judge compare judge scores:gemini.csv constant --data data"
    one = add_command(commands, "compare", run, example, json=printed)
    one.add_argument("judges", nargs="+", metavar="JUDGE", help=f"{_JUDGES}; with --table names of annotators")
    where = one.add_mutually_exclusive_group(required=True)
    add_data_option(where, required=False)
    where.add_argument("--table", help="table of scores by people and judges instead, without audio: see agreement")
    _add_evaluation_options(one)
    one.add_argument(
        "--out", type=output_folder, help="folder for index.html, comparison.json and comparison.md (with --data)"
    )
    _add_table_options(one.add_argument_group("with --table"))

    one = add_command(commands, "challenge", run, "empathy-judge challenge aeq-bench judge --data empathy-eval")
    one.add_argument("name", choices=["aeq-bench", "echomind"], help="whose rules")
    one.add_argument("judge", help=_JUDGES)
    add_data_option(one, "all")
    _add_draws(one)
    add_loading_options(one)
    _add_asking_options(one)

    one = add_command(commands, "layers", run, "empathy-judge layers nano --data data --out layers")
    one.add_argument("judge", metavar="JUDGE_OR_BACKBONE", help="judge folder, run folder, or a backbone")
    add_data_option(one)
    one.add_argument(
        "--split", action="append", metavar="NAME", help="whose pairs; may be repeated (default: train, validation)"
    )
    one.add_argument(
        "--out", metavar="DIR", type=output_folder, help="folder for layers.csv, layers.json and layers.png"
    )
    _add_draws(one)
    one.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")

    one = add_command(commands, "stress", run, "empathy-judge stress demo/judge --data demo/data")
    one.add_argument("judge", help="judge folder or run folder")
    add_data_option(one, "test")
    one.add_argument(
        "--checks", nargs="+", metavar="NAME",
        help="silence, twice, loop, louder, softer, breath, noise, hum, monotone, copy, adversarial (default: all)",
    )  # fmt: skip
    one.add_argument("--pairs", type=whole_number, default=100, help="draw at most so many (default: 100)")
    _add_draws(one)
    one.add_argument("--out", metavar="DIR", type=output_folder, help="folder for stress.json and results.csv")
    add_loading_options(one)

    example = "empathy-judge agreement ratings.csv --column item=clip annotator=who --judges gpt_4o gemini --pairs"
    one = add_command(commands, "agreement", run, example, json="print JSON (documented in eval/agreement_table.py)")
    _add_agreement_options(one)

    one = add_command(commands, "plan", run, "empathy-judge plan pilot.csv --judges gpt --difference 0.05 --price 0.2")
    _add_plan_options(one)

    one = add_command(commands, "suggest", run, "empathy-judge suggest judge --data data --ratings 200 --out next")
    one.add_argument("judge", help=_JUDGES)
    add_data_option(one, "all")
    one.add_argument("--ratings", type=whole_number, default=100, help="how many there will be (default: 100)")
    one.add_argument(
        "--out", metavar="DIR", type=output_folder, help="folder for suggestions.csv: all pairs, the best first"
    )
    one.add_argument("--seed", type=random_seed, default=0, help="of the comparison with pairs at random (default: 0)")
    add_loading_options(one)
    _add_asking_options(one)


def _add_agreement_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("table", help="CSV, TSV, JSONL or Parquet")
    one.add_argument(
        "--judges", nargs="+", default=[], metavar="NAME",
        help="annotators that are judges; the others are people, whose mean the judges are compared with",
    )  # fmt: skip
    _add_table_options(one)
    one.add_argument("--pairs", action="store_true", help="also compare every two annotators")
    one.add_argument(
        "--rasch", action="store_true",
        help="also severity and fit of each person by a many-facet Rasch model; every score is a step of the scale",
    )  # fmt: skip
    one.add_argument(
        "--kappa-weights", choices=["scores", "ranks"], default="scores",
        help="distances of weighted kappa: between scores (default), or between ranks of the categories that occur "
        "(as scikit-learn does)",
    )  # fmt: skip
    one.add_argument(
        "--cluster", choices=["group", "system"], default="group",
        help="column whose values intervals and tests keep whole (default: group)",
    )  # fmt: skip
    _add_interval_options(one)


def _add_plan_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("pilot", nargs="?", help="table (CSV, TSV, JSONL or Parquet) or folder of a pair dataset")
    one.add_argument(
        "--variance", nargs="+", default=[], metavar="NAME=NUMBER",
        help="instead of a pilot: variances of item, residual, rater and group in squared rating points",
    )  # fmt: skip
    one.add_argument("--group-size", type=whole_number, help="items per group, with --variance (default: 1)")
    one.add_argument(
        "--judges", nargs="+", default=[], metavar="NAME", help="annotators of the table that are judges, not people"
    )
    _add_table_options(one)
    one.add_argument(
        "--dimension", nargs="+", default=[], metavar="NAME",
        help="plan for these (default: for an average dimension of all)",
    )  # fmt: skip
    one.add_argument("--items", nargs="+", type=whole_number, default=[], metavar="N", help="numbers of items")
    one.add_argument("--raters", nargs="+", type=whole_number, default=[], metavar="K", help="ratings per item")
    one.add_argument(
        "--agreement", type=float,
        help="Spearman of the better judge with the true scores, that is over the noise ceiling (default: that of the "
        "best judge of the pilot, else 0.6)",
    )  # fmt: skip
    one.add_argument(
        "--difference", type=float, default=0.05, help="by which the other judge agrees less (default: 0.05)"
    )
    one.add_argument("--power", type=float, default=0.8, help="wanted (default: 0.8)")
    one.add_argument(
        "--between", type=float, metavar="R",
        help="Spearman between the two judges (default: between those of the pilot, else as if their errors had "
        "nothing in common)",
    )  # fmt: skip
    one.add_argument("--price", type=dollars, help="of a rating")
    one.add_argument(
        "--learning", metavar="JUDGE_OR_BACKBONE",
        help="with a pair dataset: also Spearman of a probe on this frozen backbone by the number of training pairs",
    )  # fmt: skip
    one.add_argument("--out", metavar="DIR", type=output_folder, help="folder for plan.csv, plan.json and plan.png")
    _add_draws(one)


def _add_table_options(one: argparse._ActionsContainer) -> None:
    one.add_argument(
        "--column", nargs="+", action="extend", default=[], metavar="OURS=THEIRS",
        help="column names, where they differ from item, annotator, dimension, score, dataset, group, system",
    )  # fmt: skip
    one.add_argument("--annotators", nargs="+", default=[], metavar="NAME", help="only these count (default: all)")
    one.add_argument(
        "--exclude", nargs="+", default=[], metavar="NAME", help="these do not count, such as a median of the others"
    )


def _add_evaluation_options(one: argparse.ArgumentParser) -> None:
    add_split_option(one, "test")
    one.add_argument(
        "--probes", nargs="+", metavar="NAME",
        help="listening checks, each one more pass of the judge: names, all, or none (default: response_only, "
        "context_swapped, silent, flat_prosody, low_pass)",
    )  # fmt: skip
    one.add_argument(
        "--slices", nargs="+", metavar="COLUMN",
        help="what to slice the report by, such as response_speaker or tag:cue (default: setting, system_id, language "
        "and all tags)",
    )  # fmt: skip
    one.add_argument(
        "--cluster", choices=["group_id", "context_speaker", "response_speaker", "system_id"], default="group_id",
        help="what intervals and tests keep whole (default: group_id)",
    )  # fmt: skip
    _add_interval_options(one)
    add_loading_options(one)
    _add_asking_options(one)


def _add_interval_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--interval", choices=["percentile", "bca"], default="percentile",
        help="kind of bootstrap intervals of what is no correlation; bca: bias-corrected and accelerated; correlations "
        "have t intervals; of pairs, groups, systems and calibration all are percentile ones (default: percentile)",
    )  # fmt: skip
    _add_draws(one)


def _add_draws(one: argparse.ArgumentParser) -> None:
    one.add_argument("--resamples", type=resamples, default=1000, help="bootstrap resamples (default: 1000)")
    one.add_argument("--seed", type=random_seed, default=0, help="of all that is drawn (default: 0)")


def _add_asking_options(one: argparse.ArgumentParser) -> None:
    asking = one.add_argument_group("prompted LLM judges (openai:..., gemini:..., local:...)")
    asking.add_argument("--budget", type=dollars, metavar="DOLLARS", help="spend at most this much on each of them")
    asking.add_argument(
        "--answers", metavar="FILE",
        help="SQLite file in which answers are kept, so that nothing is asked twice (default: in the user's cache)",
    )  # fmt: skip
    asking.add_argument(
        "--dry-run", action="store_true",
        help="say what would be sent, where to and what it costs, print one request, and send nothing",
    )  # fmt: skip
