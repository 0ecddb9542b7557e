"""The options of the `empathy-judge` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.version import __version__
from .shared_options import (
    Functions,
    OneLineParser,
    add,
    add_command,
    add_data_option,
    add_device_options,
    add_loading_options,
    add_split_option,
    any_number,
    any_whole,
    device_name,
    dollars,
    output_folder,
    port_number,
    process_count,
    random_seed,
    resamples,
    seconds,
    share,
    whole_number,
)

if TYPE_CHECKING:
    from ..data_modules.importers import Importer

New = Callable[..., argparse.ArgumentParser]
"""Adds a command by its name and example, see `add_command`."""
_ANY_JUDGE = (
    "judge folder, run folder, openai:MODEL, gemini:MODEL (with settings, as in openai:gpt-audio-1.5,samples=5), "
    "scores:FILE, human:RATER (one rater against the others), probe:JUDGE_OR_BACKBONE (a regression on what the frozen "
    "backbone hears), or a baseline: acoustic, acoustic:egemaps, text, random, constant"
)
_JUDGE = "judge folder or run folder"
_SITUATION = "text about the situation, as raters were given it"


def build_parser(run: Functions) -> argparse.ArgumentParser:
    """The parser of all commands but ``train`` and ``import``, which have options of their own; `run` is command -> its
    function, whose docstring is its help."""
    parser = OneLineParser(
        prog="empathy-judge", description="Judge how a spoken response sounds for its context, and prove it."
    )
    parser.add_argument("--version", action="version", version=f"empathy-judge {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    new = partial(add_command, commands, run)
    _add_data_commands(commands, new)
    # `train` is dispatched before this parser; here it only shows in the list
    commands.add_parser("train", help="Train a judge: empathy-judge train --config nano (see train --help).")
    _add_training_commands(new)
    _add_measuring_commands(new)
    _add_scoring_commands(new)
    _add_making_commands(new)
    new("doctor", "")
    return parser


def import_parser(sources: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of ``import`` as far as the source."""
    parser = OneLineParser(
        prog="empathy-judge import",
        description="Turn a source into a pair dataset. Options of a source: empathy-judge import SOURCE --help",
        epilog="example: empathy-judge import table pairs.csv --dimension empathy=1:5:1 --out data",
    )
    add(parser, "source", "what kind of source it is", list(sources))
    return parser


def source_parser(name: str, importer: Importer) -> argparse.ArgumentParser:
    """The parser of ``import SOURCE``: what all sources share, and the options of this one."""
    parser = OneLineParser(
        prog=f"empathy-judge import {name}",
        description=importer.__doc__,
        epilog=f"example: empathy-judge import {importer.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add(parser, "path", "the source")
    made = "folder of the dataset to make; where an import was killed or interrupted, the same command goes on"
    add(parser, "--out", made, output_folder, required=True)
    importer.add_arguments(parser)
    add(parser, "--json", "print JSON", bool)
    add(parser, "--name", "name of the dataset (default: that of the source, else of --out)")
    add(parser, "--origin", "where the data comes from")
    add(parser, "--licence", "its terms of use")
    skipped = "share of the pairs that may be unusable; they are listed in skipped.csv"
    add(parser, "--max-skipped", skipped, any_number, 0.01, metavar="SHARE")
    add(parser, "--embed-audio", "keep audio inside Parquet files", bool)
    several = "embed more pairs than these in several files, so many in each"
    add(parser, "--shard-rows", several, any_whole, 10_000, metavar="PAIRS")
    add(parser, "--overwrite", "replace the dataset at --out", bool)
    return parser


def _add_data_commands(commands: Any, new: New) -> None:
    progress = "print JSON, and what happens meanwhile on standard error"
    one = new("demo", "--out demo", json=progress)
    add(one, "--out", "folder for everything the demo makes", output_folder, "demo")
    add(one, "--groups", "scripts in the sample, 15 pairs each", whole_number, 200)
    add(one, "--epochs", "epochs of training (default: as the recipe nano)", whole_number)

    # `import` is dispatched before this parser; here it only shows in the list
    commands.add_parser("import", help="Turn a source into a pair dataset (see import --help).")

    one = new("inspect", "data --page inspection")
    add(one, "data", "folder of a pair dataset, or its address (hf://datasets/..., s3://...)")
    page = "also write DIR/index.html with charts and the most disputed items, whose clips are copied into DIR/audio"
    add(one, "--page", page, output_folder, metavar="DIR")
    add(one, "--max-seconds", "longer clips are reported", seconds, 30.0)

    one = new("split", "data --by group_id response_speaker --seed 1", raw=True)
    add(one, "data", "folder of a pair dataset")
    columns = (
        "what is never split apart: group_id (default), context_speaker, response_speaker, system_id, setting, "
        "language, situation, context_text, response_text, or a tag such as tag:cue"
    )
    add(one, "--by", columns, many="COLUMN")
    shares = "shares of the pairs (default: 0.7 0.15 0.15)"
    add(one, "--fractions", shares, any_number, nargs=3, metavar=("TRAIN", "VALIDATION", "TEST"))
    add(one, "--folds", "folds of equal size, fold1 and so on, instead", any_whole, metavar="K")
    add(one, "--leave-out", "one fold for each value, called COLUMN=VALUE, instead", metavar="COLUMN")
    add(one, "--hold-out", "test split; repeatable", default=[], action="append", metavar="COLUMN=VALUE")
    add(one, "--seed", "of all that is drawn", random_seed, 0)
    add(one, "--overwrite", "replace an existing split", bool)


def _add_training_commands(new: New) -> None:
    one = new("recipes", "show qwen2_audio")
    add(one, "show", "print one recipe as YAML, with help; needs NAME", ["show"], nargs="?")
    add(one, "name", "of the recipe, or a YAML file of yours", nargs="?", metavar="NAME")


def _add_measuring_commands(new: New) -> None:
    printed = "print JSON (documented in eval/results.py)"
    one = new("evaluate", "runs/first --data data --out report", json=printed)
    add(one, "judge", _ANY_JUDGE)
    add_data_option(one)
    _add_evaluation_options(one)
    add(one, "--out", "folder of the report", output_folder, "report")
    add(one, "--explain", "also explain the largest disagreements (judge folders), see explain", bool)

    one = new("compare", "judge scores:gemini.csv constant --data data", json=printed)
    add(one, "judges", f"{_ANY_JUDGE}; with --table names of annotators", many="JUDGE")
    where = one.add_mutually_exclusive_group(required=True)
    add_data_option(where, required=False)
    add(where, "--table", "table of scores by people and judges instead, without audio: see agreement")
    _add_evaluation_options(one)
    add(one, "--out", "folder for index.html, comparison.json and comparison.md (with --data)", output_folder)
    _add_table_options(one.add_argument_group("with --table"))

    one = new("challenge", "aeq-bench judge --data empathy-eval")
    add(one, "name", "whose rules", ["aeq-bench", "echomind"])
    add(one, "judge", _ANY_JUDGE)
    add_data_option(one, "all")
    _add_draws(one)
    add_loading_options(one)
    _add_asking_options(one)

    one = new("stress", "demo/judge --data demo/data")
    add(one, "judge", _JUDGE)
    add_data_option(one, "test")
    checks = "silence, twice, loop, louder, softer, breath, noise, hum, monotone, copy, adversarial (default: all)"
    add(one, "--checks", checks, many="NAME")
    add(one, "--pairs", "draw at most so many", whole_number, 100)
    _add_draws(one)
    add(one, "--out", "folder for stress.json and results.csv", output_folder, metavar="DIR")
    add_loading_options(one)

    example = "ratings.csv --column item=clip annotator=who --judges gpt_4o gemini --pairs"
    one = new("agreement", example, json="print JSON (documented in eval/agreement_table.py)")
    _add_agreement_options(one)

    one = new("plan", "pilot.csv --judges gpt --difference 0.05 --price 0.2")
    _add_plan_options(one)


def _add_agreement_options(one: argparse.ArgumentParser) -> None:
    add(one, "table", "CSV, TSV, JSONL or Parquet")
    judges = "annotators that are judges; the others are people, whose mean the judges are compared with"
    add(one, "--judges", judges, default=[], many="NAME")
    _add_table_options(one)
    add(one, "--pairs", "also compare every two annotators", bool)
    distances = "weighted kappa's distances: between scores, or ranks of the categories that occur (scikit-learn's)"
    add(one, "--kappa-weights", distances, ["scores", "ranks"], "scores")
    add(one, "--cluster", "column whose values intervals and tests keep whole", ["group", "system"], "group")
    _add_interval_options(one)


def _add_plan_options(one: argparse.ArgumentParser) -> None:
    add(one, "pilot", "table (CSV, TSV, JSONL or Parquet) or folder of a pair dataset", nargs="?")
    variances = "instead of a pilot: variances of item, residual, rater and group in squared rating points"
    add(one, "--variance", variances, default=[], many="NAME=NUMBER")
    add(one, "--group-size", "items per group, with --variance (default: 1)", whole_number)
    add(one, "--judges", "annotators of the table that are judges, not people", default=[], many="NAME")
    _add_table_options(one)
    add(one, "--dimension", "plan for these (default: for an average dimension of all)", default=[], many="NAME")
    add(one, "--items", "numbers of items", whole_number, [], many="N")
    add(one, "--raters", "ratings per item", whole_number, [], many="K")
    reached = "the better judge's Spearman over the noise ceiling (default: of the best judge of the pilot, else 0.6)"
    add(one, "--agreement", reached, any_number)
    add(one, "--difference", "by which the other judge agrees less", any_number, 0.05)
    add(one, "--power", "wanted", any_number, 0.8)
    between = "Spearman between the judges (default: that of the pilot, else as if their errors were independent)"
    add(one, "--between", between, any_number, metavar="R")
    add(one, "--price", "of a rating", dollars)
    learned = "with a pair dataset: also Spearman of a probe on this frozen backbone by the number of training pairs"
    add(one, "--learning", learned, metavar="JUDGE_OR_BACKBONE")
    add(one, "--out", "folder for plan.csv, plan.json and plan.png", output_folder, metavar="DIR")
    _add_draws(one)


def _add_table_options(one: argparse._ActionsContainer) -> None:
    columns = "column names, where they differ from item, annotator, dimension, score, dataset, group, system"
    add(one, "--column", columns, default=[], many="OURS=THEIRS", action="extend")
    add(one, "--annotators", "only these count (default: all)", default=[], many="NAME")
    add(one, "--exclude", "these do not count, such as a median of the others", default=[], many="NAME")


def _add_evaluation_options(one: argparse.ArgumentParser) -> None:
    add_split_option(one, "test")
    probes = (
        "listening checks, each one more pass of the judge: names, all, or none (default: response_only, "
        "context_swapped, silent, flat_prosody, low_pass)"
    )
    add(one, "--probes", probes, many="NAME")
    slices = (
        "what to slice the report by, such as response_speaker or tag:cue (default: setting, system_id, language and "
        "all tags)"
    )
    add(one, "--slices", slices, many="COLUMN")
    clusters = ["group_id", "context_speaker", "response_speaker", "system_id"]
    add(one, "--cluster", "what intervals and tests keep whole", clusters, "group_id")
    _add_interval_options(one)
    add_loading_options(one)
    _add_asking_options(one)


def _add_interval_options(one: argparse.ArgumentParser) -> None:
    kinds = (
        "kind of bootstrap intervals of what is no correlation; bca: bias-corrected and accelerated; correlations have "
        "t intervals; of pairs, groups, systems and calibration all are percentile ones"
    )
    add(one, "--interval", kinds, ["percentile", "bca"], "percentile")
    _add_draws(one)


def _add_draws(one: argparse.ArgumentParser) -> None:
    add(one, "--resamples", "bootstrap resamples", resamples, 1000)
    add(one, "--seed", "of all that is drawn", random_seed, 0)


def _add_asking_options(one: argparse.ArgumentParser) -> None:
    asking = one.add_argument_group("prompted LLM judges (openai:..., gemini:...)")
    add(asking, "--budget", "spend at most this much on each of them", dollars, metavar="DOLLARS")
    kept = "SQLite file in which answers are kept, so that nothing is asked twice (default: in the user's cache)"
    add(asking, "--answers", kept, metavar="FILE")
    said = "say what would be sent, where to and what it costs, print one request, and send nothing"
    add(asking, "--dry-run", said, bool)


def _add_scoring_commands(new: New) -> None:
    printed = "print JSON: of a pair its scores, of a manifest an object on each line, or with --out what became of it"
    _add_score_options(new("score", "judge --manifest pairs.csv --out scores.csv", json=printed, raw=True))

    one = new("rank", "judge context.wav take1.wav take2.wav take3.wav")
    add(one, "judge", _JUDGE)
    add(one, "context", "context clip; - for none")
    add(one, "responses", "response clips", many="response")
    add(one, "--situation", _SITUATION)
    add(one, "--by", "what counts, equally (default: all dimensions)", many="DIMENSION")
    error = "say which of two neighbours is better only where at most this share is wrong (default: the likeliest)"
    add(one, "--max-error", error, any_number, choices=[0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
    add_loading_options(one, cache=False)

    one = new("explain", "judge context.wav response.wav --page why.html")
    add(one, "judge", _JUDGE)
    add(one, "context", "context clip; - for none")
    add(one, "response", "response clip")
    add(one, "--situation", _SITUATION)
    add(one, "--window", "of a stretch, 0.25 to 1", any_number, 0.4, metavar="SECONDS")
    add(one, "--page", "write a page (HTML) with players that jump to a stretch", metavar="FILE")
    add(one, "--seed", "of noise and permutations", random_seed, 0)
    add_loading_options(one, cache=False)

    one = new("serve", "judge --port 8000", json=None)
    add(one, "judge", _JUDGE)
    _add_serving_options(one)
    add_loading_options(one)


def _add_score_options(one: argparse.ArgumentParser) -> None:
    add(one, "judge", _JUDGE)
    add(one, "context", "context clip; - for none", nargs="?")
    add(one, "response", "response clip", nargs="?")
    add(one, "--situation", _SITUATION)
    add(one, "--manifest", "CSV, TSV, JSONL or Parquet, see above")
    elsewhere = "another folder in which clips of the manifest may lie, see above"
    add(one, "--audio-root", elsewhere, Path, metavar="DIR")
    add(one, "--out", "CSV, TSV, JSONL or Parquet for the scores of a manifest (default: CSV on standard output)")
    covered = "share of pairs that the intervals of a calibrated judge shall cover (default: 0.9)"
    add(one, "--level", covered, any_number, choices=[0.5, 0.8, 0.9, 0.95])
    workers = "processes, each with a judge (default: one for each GPU, or one)"
    add(one, "--workers", workers, process_count, metavar="N")
    ray = "ray = on the Ray cluster that RAY_ADDRESS names, or on this machine: pip install 'empathy-judge[ray]'"
    add(one, "--engine", ray, ["local", "ray"], "local")
    add(one, "--restart", "delete what an earlier command has done and begin anew", bool)
    add(one, "--overwrite", "replace an --out that this command did not write", bool)
    changed = "tell by their content, not by size and modification time, which files changed since an earlier command"
    add(one, "--checksums", changed, bool)
    add(one, "--batch-size", "pairs per forward pass (default: 16; on a GPU 64)", whole_number, metavar="PAIRS")
    add_loading_options(one)


def _add_serving_options(one: argparse.ArgumentParser) -> None:
    add(one, "--host", "address to listen on; 0.0.0.0 = all", default="127.0.0.1")
    add(one, "--port", "0 = any that is free", port_number, 8000)
    hosts = (
        "names by which clients ask, such as that of a proxy, beside localhost, --host and IP addresses; '*' = any "
        "(default: none, or with a token any)"
    )
    add(one, "--allowed-hosts", hosts, default=(), many="NAME")
    add(one, "--batch-size", "most pairs scored together", whole_number, 16, metavar="PAIRS")
    add(one, "--open-metrics", "/metrics needs no token, where there is one (default: it does)", bool)
    limits = one.add_argument_group("limits")
    for name, kind, default, metavar, text in (
        ("--max-queue", whole_number, 128, "PAIRS", "that wait; beyond, requests are refused with 429"),
        ("--max-wait", seconds, 0.005, "SECONDS", "that the judge waits for others to score together"),
        ("--max-bytes", whole_number, 32 * 2**20, "BYTES", "of a request; more is cut with 413"),
        ("--concurrency", whole_number, 256, "REQUESTS", "that are received and decoded at once; beyond, 429"),
        ("--decoders", whole_number, 2, "PROCESSES", "that decode"),
        ("--decode-seconds", seconds, 10.0, "SECONDS", "to decode a clip; beyond, it is refused"),
        ("--body-seconds", seconds, 60.0, "SECONDS", "to receive a request; beyond, 408"),
        ("--idle-seconds", seconds, 10.0, "SECONDS", "of silence while a request is received; beyond, 408"),
        ("--request-seconds", seconds, 60.0, "SECONDS", "from the last byte of a request to its answer; beyond, 504"),
        ("--kept-bytes", whole_number, 128 * 2**20, "BYTES", "of audio states in memory, for clips that come again"),
        ("--drain-seconds", seconds, 2.0, "SECONDS", "at least that requests are refused with 503 after SIGTERM"),
        ("--grace-seconds", seconds, 25.0, "SECONDS", "at most from SIGTERM to the end; who waits then is cut off"),
    ):
        add(limits, name, text, kind, default, metavar=metavar)
    longest = "of a clip (default: ten times what the backbone hears at once; with --no-windows once)"
    add(limits, "--max-seconds", longest, seconds, metavar="SECONDS")


def _add_making_commands(new: New) -> None:
    one = new("calibrate", "judge --data data --split calibration")
    add(one, "judge", f"{_JUDGE}; the calibration is stored there", output_folder)
    add_data_option(one, "validation")
    mapped = (
        "how scores are mapped to ratings: not at all, along a rising curve (which ties scores beyond its ends), or "
        "along a curve of two numbers (which keeps their order)"
    )
    add(one, "--method", mapped, ["none", "isotonic", "temperature"], "none")
    unsure = (
        "abstain from this share of the pairs, those with the largest standard errors (default: from none); needs a "
        "head with a deviation, or an ensemble"
    )
    add(one, "--abstain", unsure, share, metavar="SHARE")
    add_device_options(one)

    _add_export_options(new("export", "runs/first --out judge --report report/agreement.json", raw=True))

    one = new("ensemble", "runs/seed0 runs/seed1 runs/seed2 --out judge", raw=True)
    add(one, "judges", "judge folders, run folders or checkpoints", many="JUDGE")
    add(one, "--out", "judge folder to make", output_folder, required=True)
    add(one, "--backbone", "where the backbone lies now, if not where the first judge found it")


def _add_export_options(one: argparse.ArgumentParser) -> None:
    add(one, "checkpoint", "run folder (its best checkpoint), checkpoint file, or judge folder")
    add(one, "--out", "judge folder to make", output_folder, required=True)
    add(one, "--report", "agreement.json of this judge, for the model card")
    add(one, "--backbone", "where the backbone lies now, if not where the run found it")
    add(one, "--form", "without the backbone, or with it; see above", ["small", "merged"], "small")
    add(one, "--quantization", "of the language model, as it is stored", ["none", "int8", "int4"], "none")
    compared = "pair dataset on which scores before and after are compared (default: 16 pairs of synthetic signals)"
    add(one, "--check-data", compared, metavar="DIR")
    add(one, "--check-split", "which of its pairs; all = every pair", default="test")
    add(one, "--accept-loss", "write it even if scores changed beyond the bounds", bool)
    add(one, "--device", "where it is scored: cpu, cuda, ... (default: a GPU if there is one)", device_name)
    hub = "upload the folder to the Hugging Face hub too; needs HF_TOKEN or `hf auth login`"
    add(one, "--push-to-hub", hub, metavar="OWNER/NAME")
    add(one, "--private", "if that makes a repository, only its owner sees it", bool)
