"""The options of the commands that score with a judge or make one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .shared_options import (
    Command,
    add_command,
    add_data_option,
    add_device_options,
    add_loading_options,
    device_name,
    output_folder,
    port_number,
    process_count,
    random_seed,
    seconds,
    share,
    whole_number,
)  # fmt: skip


def add_scoring_commands(commands: Any, run: Mapping[str, Command]) -> None:
    """The parsers of ``score``, ``rank``, ``explain``, ``serve``, ``calibrate``, ``export`` and ``ensemble``."""
    example = "empathy-judge score judge --manifest pairs.csv --out scores.csv"
    printed = "of a pair its scores, of a manifest an object on each line, or with --out what became of it"
    _add_score_options(add_command(commands, "score", run, example, json=f"print JSON: {printed}"))

    one = add_command(commands, "rank", run, "empathy-judge rank judge context.wav take1.wav take2.wav take3.wav")
    one.add_argument("judge", help="judge folder or run folder")
    one.add_argument("context", help="context clip; - for none")
    one.add_argument("responses", nargs="+", metavar="response", help="response clips")
    one.add_argument("--situation", help="text about the situation, as raters were given it")
    one.add_argument("--by", nargs="+", metavar="DIMENSION", help="what counts, equally (default: all dimensions)")
    one.add_argument(
        "--max-error", type=float, choices=[0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
        help="say which of two neighbours is better only where at most this share of such verdicts is wrong (default: "
        "always the likeliest)",
    )  # fmt: skip
    add_loading_options(one, cache=False)

    one = add_command(commands, "explain", run, "empathy-judge explain judge context.wav response.wav --page why.html")
    one.add_argument("judge", help="judge folder or run folder")
    one.add_argument("context", help="context clip; - for none")
    one.add_argument("response", help="response clip")
    one.add_argument("--situation", help="text about the situation, as raters were given it")
    one.add_argument(
        "--window", type=float, default=0.4, metavar="SECONDS", help="of a stretch, 0.25 to 1 (default: 0.4)"
    )
    one.add_argument(
        "--method", choices=["occlusion", "gradient"], default="occlusion", help="see above (default: occlusion)"
    )
    one.add_argument("--png", metavar="FILE", help="write a picture of waveforms and curves")
    one.add_argument("--page", metavar="FILE", help="write a page (HTML) with players that jump to a stretch")
    one.add_argument("--seed", type=random_seed, default=0, help="of noise and permutations (default: 0)")
    add_loading_options(one, cache=False)

    one = add_command(commands, "serve", run, "empathy-judge serve judge --port 8000", json=None)
    one.add_argument("judge", help="judge folder or run folder")
    _add_serving_options(one)
    add_loading_options(one)

    one = add_command(commands, "calibrate", run, "empathy-judge calibrate judge --data data --split calibration")
    one.add_argument("judge", type=output_folder, help="judge folder or run folder; the calibration is stored there")
    add_data_option(one, "validation")
    one.add_argument(
        "--method", choices=["none", "isotonic", "temperature"], default="none",
        help="how scores are mapped to ratings: not at all, along a rising curve (which ties scores beyond its ends), "
        "or along a curve of two numbers (which keeps their order) (default: none)",
    )  # fmt: skip
    one.add_argument(
        "--abstain", type=share, metavar="SHARE",
        help="abstain from this share of the pairs, those with the largest standard errors (default: from none); needs "
        "a head with a deviation, or an ensemble",
    )  # fmt: skip
    add_device_options(one)

    example = "empathy-judge export runs/first --out judge --report report/agreement.json"
    _add_export_options(add_command(commands, "export", run, example))

    one = add_command(commands, "ensemble", run, "empathy-judge ensemble runs/seed0 runs/seed1 runs/seed2 --out judge")
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument("judges", nargs="+", metavar="JUDGE", help="judge folders, run folders or checkpoints")
    one.add_argument("--out", required=True, type=output_folder, help="judge folder to make")
    one.add_argument("--average", action="store_true", help="one judge with the mean of the weights, see above")
    one.add_argument("--backbone", help="where the backbone lies now, if not where the first judge found it")


def _add_score_options(one: argparse.ArgumentParser) -> None:
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument("judge", help="judge folder or run folder")
    one.add_argument("context", nargs="?", help="context clip; - for none")
    one.add_argument("response", nargs="?", help="response clip")
    one.add_argument("--situation", help="text about the situation, as raters were given it")
    one.add_argument("--manifest", help="CSV, TSV, JSONL or Parquet, see above")
    one.add_argument(
        "--audio-root", type=Path, metavar="DIR",
        help="another folder in which clips of the manifest may lie, see above",
    )  # fmt: skip
    one.add_argument(
        "--out", help="CSV, TSV, JSONL or Parquet for the scores of a manifest (default: CSV on standard output)"
    )
    one.add_argument(
        "--level", type=float, choices=[0.5, 0.8, 0.9, 0.95],
        help="share of pairs that the intervals of a calibrated judge shall cover (default: 0.9)",
    )  # fmt: skip
    one.add_argument(
        "--workers", type=process_count, metavar="N",
        help="processes, each with a judge (default: one for each GPU, or one)",
    )  # fmt: skip
    one.add_argument(
        "--engine", choices=["local", "ray"], default="local",
        help="ray = on the Ray cluster that RAY_ADDRESS names, or on this machine: pip install 'empathy-judge[ray]'",
    )  # fmt: skip
    one.add_argument("--restart", action="store_true", help="delete what an earlier command has done and begin anew")
    one.add_argument("--overwrite", action="store_true", help="replace an --out that this command did not write")
    one.add_argument(
        "--checksums", action="store_true",
        help="tell by their content, not by size and modification time, which files changed since an earlier command",
    )  # fmt: skip
    one.add_argument(
        "--batch-size", type=whole_number, metavar="PAIRS", help="pairs per forward pass (default: 16; on a GPU 64)"
    )
    add_loading_options(one)


def _add_serving_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 = all (default: 127.0.0.1)")
    one.add_argument("--port", type=port_number, default=8000, help="0 = any that is free (default: 8000)")
    one.add_argument(
        "--batch-size", type=whole_number, default=16, metavar="PAIRS", help="most pairs scored together (default: 16)"
    )
    one.add_argument(
        "--open-metrics", action="store_true", help="/metrics needs no token, where there is one (default: it does)"
    )
    limits = one.add_argument_group("limits")
    for name, kind, default, metavar, text in (
        ("--max-queue", whole_number, 128, "PAIRS", "that wait; beyond, requests are refused with 429"),
        ("--max-wait", seconds, 0.005, "SECONDS", "that the judge waits for others to score together"),
        ("--max-bytes", whole_number, 32 * 2**20, "BYTES", "of a request; more is cut with 413"),
        ("--concurrency", whole_number, 64, "REQUESTS", "that are received and decoded at once; beyond, 429"),
        ("--decoders", whole_number, 2, "PROCESSES", "that decode"),
        ("--decode-seconds", seconds, 10.0, "SECONDS", "to decode a clip; beyond, it is refused"),
        ("--body-seconds", seconds, 60.0, "SECONDS", "to receive a request; beyond, 408"),
        ("--idle-seconds", seconds, 10.0, "SECONDS", "of silence while a request is received; beyond, 408"),
        ("--request-seconds", seconds, 60.0, "SECONDS", "from the last byte of a request to its answer; beyond, 504"),
        ("--kept-bytes", whole_number, 128 * 2**20, "BYTES", "of audio states in memory, for clips that come again"),
        ("--drain-seconds", seconds, 2.0, "SECONDS", "at least that requests are refused with 503 after SIGTERM"),
        ("--grace-seconds", seconds, 25.0, "SECONDS", "at most from SIGTERM to the end; who waits then is cut off"),
    ):
        limits.add_argument(name, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default})")
    limits.add_argument(
        "--max-seconds", type=seconds, metavar="SECONDS",
        help="of a clip (default: ten times what the backbone hears at once; with --no-windows once)",
    )  # fmt: skip


def _add_export_options(one: argparse.ArgumentParser) -> None:
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.add_argument("checkpoint", help="run folder (its best checkpoint), checkpoint file, or judge folder")
    one.add_argument("--out", required=True, type=output_folder, help="judge folder to make")
    one.add_argument("--report", help="agreement.json of this judge, for the model card")
    one.add_argument("--backbone", help="where the backbone lies now, if not where the run found it")
    one.add_argument(
        "--form", choices=["small", "merged", "huggingface"], default="small",
        help="without the backbone, or with it; see above (default: small)",
    )  # fmt: skip
    one.add_argument(
        "--quantization", choices=["none", "int8", "int4"], default="none",
        help="of the language model, as it is stored (default: none)",
    )  # fmt: skip
    one.add_argument(
        "--check-data", metavar="DIR",
        help="pair dataset on which scores before and after are compared (default: 16 pairs of synthetic signals)",
    )  # fmt: skip
    one.add_argument("--check-split", default="test", help="which of its pairs; all = every pair (default: test)")
    one.add_argument("--accept-loss", action="store_true", help="write it even if scores changed beyond the bounds")
    one.add_argument(
        "--device", type=device_name, help="where it is scored: cpu, cuda, ... (default: a GPU if there is one)"
    )
    one.add_argument(
        "--push-to-hub", metavar="OWNER/NAME",
        help="upload the folder to the Hugging Face hub too; needs HF_TOKEN or `hf auth login`",
    )  # fmt: skip
    one.add_argument("--private", action="store_true", help="if that makes a repository, only its owner sees it")
