"""Commands that score with a judge or make one. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data_modules.errors import UserError
from . import DONE, FAILED_CHECKS

if TYPE_CHECKING:
    from ..models.artifact import LoadedJudge
    from ..scorer import Scorer


def score(options: argparse.Namespace) -> int:
    """Score one pair of files, or all pairs of a manifest.

    A manifest is CSV, TSV, JSONL or Parquet with response_audio and optionally pair_id, context_audio and situation;
    clips are paths relative to it that stay in its folder, or stand in the Parquet file. Each row becomes a row of
    --out (CSV, TSV, JSONL or Parquet), in the same order: scores, or a status that says why there are none. Memory does
    not grow with the manifest.

    With --out what is done is kept in OUT.parts: after a kill, a crash or a signal (exit code 75) the same command goes
    on, and scores again what is damaged or was made of audio files that changed since. There is a worker for each GPU.
    Processes on any number of machines that see the folder share the work by their ranks: start the command with
    torchrun, accelerate launch or srun (see launch/), or with RANK and WORLD_SIZE in the environment. A file that this
    command did not write is replaced with --overwrite alone.

    Exit code: 0 = all rows have scores, 1 = some have none, 75 = asked to stop.
    """
    clips = [clip for clip in (options.context, options.response) if clip is not None]
    if len(clips) != (2 if options.manifest is None else 0):
        raise UserError("score: expected JUDGE CONTEXT RESPONSE, or JUDGE --manifest FILE")
    if options.manifest is None:
        return _score_pair(options)
    if options.out is not None:
        return _score_into_file(options)
    from ..batch_scoring.scores import print_scores
    from ..batch_scoring.workers import find_launch

    for name in ("workers", "restart", "overwrite", "checksums", "json"):
        if getattr(options, name):
            raise UserError(f"score: --{name} without --out; expected JUDGE --manifest FILE --out FILE --{name}")
    if find_launch().world > 1 or options.engine != "local":
        raise UserError("score: in several processes; expected JUDGE --manifest FILE --out FILE")
    failed = print_scores(_scorer(options), Path(options.manifest), sys.stdout, options.level)
    return FAILED_CHECKS if failed else DONE


def _score_pair(options: argparse.Namespace) -> int:
    from ..batch_scoring.scores import flat_scores, score_columns
    from ..models.calibration import DEFAULT_LEVEL

    scorer, level = _scorer(options), options.level or DEFAULT_LEVEL
    context = None if options.context in ("", "-") else options.context
    found = scorer.assess(context, options.response, situation=options.situation, level=level)
    if options.json:
        print(json.dumps(flat_scores(found, score_columns(scorer)), allow_nan=False))
        return DONE
    for dimension in scorer.dimensions:
        scale = f"({dimension.minimum:g} to {dimension.maximum:g})"
        own = found.scores[dimension.name]
        print(f"{dimension.name} {own.score:.3f} {scale}{own.in_words(level)}")
    for caution in found.warnings:
        print(f"warning: {caution.text}", file=sys.stderr)
    return DONE


def _scorer(options: argparse.Namespace) -> Scorer:
    from ..scorer import Scorer

    scorer = Scorer.from_pretrained(options.judge, device=options.device, **_settings(options))
    if options.level is not None:
        scorer.require_calibration()
    return scorer


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("backbone", "quantization", "batch_size", "cache")}


def _score_into_file(options: argparse.Namespace) -> int:
    from ..batch_scoring.job import Job
    from ..batch_scoring.run import make_engine, score_manifest
    from ..batch_scoring.workers import find_launch

    paths = (Path(path) for path in (options.judge, options.manifest, options.out))
    job = Job(*paths, level=options.level, checksums=options.checksums, settings=_settings(options))
    launch = find_launch()
    engine = make_engine(options.engine, launch, options.device, options.workers)
    summary = score_manifest(job, engine, launch, options.restart, options.overwrite)
    if summary is None:  # rank 0 says what became of it
        return DONE
    if launch.rank == 0:
        print(json.dumps(asdict(summary), indent=2, ensure_ascii=False) if options.json else summary.in_words())
    return FAILED_CHECKS if summary.failed else DONE


def calibrate(options: argparse.Namespace) -> int:
    """Fit standard errors and intervals to rated pairs that the judge was not trained on.

    Training does this on the validation split, which also chose the checkpoint: the errors there look a little too
    small. A split that nothing was chosen on is better. The calibration of a judge folder stands in its judge.json,
    that of a run in calibration.json; an earlier one is replaced. The model card stays as it was written.
    """
    from ..data_modules.schema import PairDataset
    from ..models.artifact import Placement, load_any
    from ..models.calibration import to_json
    from ..models.file_names import CHECKPOINTS, JUDGE_FILE
    from ..models.judge_calibration import calibrate_judge, store_calibration
    from ..models.scoring import SPREAD

    folder = Path(options.judge)
    if not (folder / JUDGE_FILE).is_file() and not (folder / CHECKPOINTS).is_dir():
        raise UserError(f"{folder}: expected a judge folder (with {JUDGE_FILE}) or a run folder")
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
    """Write the judge folder of a run, or another form of a judge folder.

    small: adapter, head and processor; the backbone is found where the run found it. merged: the adapter becomes part
    of the weights of the backbone, which come along: nothing else is needed, and the folder may be moved. huggingface:
    another name for merged.

    --quantization stores the linear layers of the language model in 8 bits (one scale for each row; torchao) or in 4
    (NF4; bitsandbytes). Activations keep their precision. 4 bits are meant for GPUs with little memory: CPUs read them
    with the same scores on each kind, but unpack them anew in every pass.

    What merging and quantizing do to the scores is measured on pairs, printed, and kept in judge.json and on the card.
    Beyond the bounds nothing is written and the exit code is 1: differences of 1e-5 of the width of the scale where
    weights are float32; 5 % (1 % on average) in bfloat16, float16 and 8 bits; 25 % (5 % on average) in 4 bits; and
    with rated pairs a change of Spearman with people of 0.001, of 0.005 in bfloat16 and float16, of 0.02 if quantized.
    """
    from ..models.artifact import Placement, load_judge, load_run, save_judge
    from ..models.file_names import JUDGE_FILE
    from ..models.hub import check_hub_name
    from ..models.model_card import render_card

    source, out = Path(options.checkpoint), Path(options.out)
    _check_export(options)
    if options.push_to_hub is not None:
        check_hub_name(options.push_to_hub)
    report = None if options.report is None else _read_report(Path(options.report))
    load = load_judge if (source / JUDGE_FILE).is_file() else load_run
    loaded = load(source, Placement(options.backbone))
    if report is not None:
        _check_report(report, loaded)
    if options.form != "small":
        if not _export_whole(options, loaded, report):
            return FAILED_CHECKS
    else:
        save_judge(loaded, out, render_card(loaded.description, report))
    print(f"judge: {out}")
    if options.push_to_hub is not None:
        print(f"hub: {_push(options)}")
    return DONE


def _check_export(options: argparse.Namespace) -> None:
    """Options that would do nothing are refused."""
    if options.form == "small":
        given = {
            "--quantization": options.quantization != "none",
            "--check-data": options.check_data is not None,
            "--accept-loss": options.accept_loss,
        }
        for name, there in given.items():
            if there:
                raise UserError(
                    f"export: {name} with --form small, which has no backbone; expected merged, huggingface"
                )
    if options.private and options.push_to_hub is None:
        raise UserError("export: --private; expected with --push-to-hub OWNER/NAME")


def _export_whole(options: argparse.Namespace, loaded: LoadedJudge, report: Mapping[str, Any] | None) -> bool:
    """False if scores changed too much."""
    from ..data_modules.schema import PairDataset
    from ..models.export.check import rated_set, synthetic_set
    from ..models.export.write import WEIGHT_FORMS, LossTooLarge, write_whole

    if options.check_data is None:
        chosen = synthetic_set(loaded)
    else:
        chosen = rated_set(loaded, PairDataset.load(options.check_data), options.check_split)
    try:
        check = write_whole(
            loaded,
            Path(options.out),
            options.form,
            WEIGHT_FORMS[options.quantization],
            chosen,
            report=report,
            device=options.device,
            accept_loss=options.accept_loss,
        )
    except LossTooLarge as lost:
        print("\n".join(lost.check.lines()))
        print(f"not written: {lost}; --accept-loss writes it all the same", file=sys.stderr)
        return False
    print("\n".join(check.lines()))
    for loss in check.beyond:
        print(f"accepted: {loss}", file=sys.stderr)
    return True


def _check_report(report: Mapping[str, Any], loaded: LoadedJudge) -> None:
    """What is measured of one judge does not go on the card of another, nor what an older version measured."""
    from ..eval.results import SCHEMA_VERSION

    judged = (report.get("provenance") or {}).get("provenance")
    if judged != loaded.description["provenance"]:
        raise UserError(f"--report: it is of another judge ({report.get('judge')}); expected one of this judge")
    if report.get("schema_version") != SCHEMA_VERSION:
        raise UserError("--report: it is of another version; measure again with empathy-judge evaluate")


def _push(options: argparse.Namespace) -> str:
    from ..models.hub import push_to_hub

    return push_to_hub(Path(options.out), options.push_to_hub, options.private)


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
    from ..models.ensemble import ALIKE, write_average, write_ensemble

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


def _read_report(path: Path) -> Mapping[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not an agreement report: {error}") from None
    if not isinstance(report, dict) or "dimensions" not in report:
        raise UserError(f"{path}: not an agreement report: it has no dimensions")
    return report
