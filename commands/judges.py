"""Commands that use a judge: score, rank, explain, serve. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data_modules.errors import AudioError, UserError
from ..data_modules.parallel import find_launch, say
from ..data_modules.written import writing
from . import DONE, FAILED_CHECKS, chosen, first_given

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.assessment import Assessment, Ranked
    from ..models.three_way import BesideNext
    from ..scorer import Scorer

_SETTINGS = ("backbone", "quantization", "batch_size", "cache", "windows")
_SERVING_EXTRA = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def score(options: argparse.Namespace) -> int:
    """Score one pair of files, or all pairs of a manifest.

    A manifest is CSV, TSV, JSONL or Parquet with response_audio and optionally pair_id, context_audio and situation;
    clips are paths relative to it that stay in its folder, or stand in the Parquet file. --audio-root names another
    folder in which they may lie: paths count from there, too, and its symbolic links are followed. Each row becomes a
    row of --out (CSV, TSV, JSONL or Parquet), in the same order: scores, or a status that says why there are none.
    Memory does not grow with the manifest.

    With --out what is done is kept in OUT.parts: after a kill, a crash or a signal (exit code 75) the same command goes
    on, and scores again what is damaged or was made of audio files that changed since. There is a worker for each GPU.
    Processes on any number of machines that see the folder share the work by their ranks: start the command with
    torchrun, accelerate launch or srun (see launch/), or with RANK and WORLD_SIZE in the environment. A file that this
    command did not write is replaced with --overwrite alone.

    Exit code: 0 = all rows have scores, 1 = some have none, 75 = asked to stop.
    """
    clips = [clip for clip in (options.context, options.response) if clip is not None]
    if len(clips) != (2 if options.manifest is None else 0):
        raise UserError("score: expected JUDGE CONTEXT RESPONSE (- for no context), or JUDGE --manifest FILE")
    if options.manifest is None:
        manifest_option = first_given(options, "out", "workers", "restart", "overwrite", "checksums")
        if manifest_option or options.engine != "local":
            unused = manifest_option or f"--engine {options.engine}"
            raise UserError(f"score: {unused} without --manifest; expected JUDGE --manifest FILE {unused}")
    elif options.situation is not None:
        raise UserError("score: --situation with --manifest; expected a column situation in the manifest")
    root = options.audio_root
    if root is not None and (options.manifest is None or not root.is_dir()):
        raise UserError(f"score: --audio-root {root}; expected a folder, with --manifest FILE")
    if options.manifest is not None and options.out is None:
        if unused := first_given(options, "workers", "restart", "overwrite", "checksums"):
            raise UserError(f"score: {unused} without --out; expected JUDGE --manifest FILE --out FILE {unused}")
        if find_launch().world > 1 or options.engine != "local":
            raise UserError("score: in several processes; expected JUDGE --manifest FILE --out FILE")
    from ..models.hub import require_judge

    require_judge(Path(options.judge), options.backbone)
    if options.manifest is None:
        return _score_pair(options)
    if options.out is not None:
        return _score_into_file(options)
    from ..batch_scoring.scores import print_scores, windows_in_words

    scorer = open_scorer(options)
    failed, windowed = print_scores(scorer, Path(options.manifest), sys.stdout, options.level, root, options.json)
    if windowed:
        print(windows_in_words(windowed), file=sys.stderr)
    return FAILED_CHECKS if failed else DONE


def _context(options: argparse.Namespace) -> str | None:
    if options.context == "":  # an unset variable of a shell
        raise UserError("context: an empty path; expected a file, or - for no context")
    return None if options.context == "-" else options.context


def _score_pair(options: argparse.Namespace) -> int:
    from ..batch_scoring.scores import flat_scores, score_columns
    from ..models.calibration import DEFAULT_LEVEL

    scorer, level = open_scorer(options), options.level or DEFAULT_LEVEL
    context = _context(options)
    assessment = scorer.assess(context, options.response, situation=options.situation, level=level)
    if options.json:
        print(json.dumps(flat_scores(assessment, score_columns(scorer)), allow_nan=False))
        return DONE
    for dimension in scorer.dimensions:
        scale = f"({dimension.minimum:g} to {dimension.maximum:g})"
        score = assessment.scores[dimension.name]
        print(f"{dimension.name} {score.score:.3f} {scale}{score.in_words(level)}")
    if assessment.windows > 1:
        print(_in_windows(assessment), file=sys.stderr)
    for caution in assessment.warnings:
        print(f"warning: {caution.text}", file=sys.stderr)
    return DONE


def _in_windows(found: Assessment) -> str:
    return f"heard in {found.windows} windows, {found.seconds:.1f} s of response"


def open_scorer(options: argparse.Namespace) -> Scorer:
    """Load the judge of a command; commands differ in the options that they have. A wrong name of the judge is reported
    before torch is loaded."""
    from ..models.hub import require_judge

    require_judge(Path(options.judge), options.backbone)
    from ..scorer import Scorer

    scorer = Scorer.from_pretrained(options.judge, device=options.device, **chosen(options, *_SETTINGS))
    if getattr(options, "level", None) is not None:
        scorer.require_calibration()
    return scorer


def _score_into_file(options: argparse.Namespace) -> int:
    from ..batch_scoring.job import Job
    from ..batch_scoring.run import make_engine, score_manifest

    judge, manifest, out = (Path(path) for path in (options.judge, options.manifest, options.out))
    job_options = chosen(options, "level", "checksums", "audio_root")
    job = Job(judge, manifest, out, **job_options, settings=chosen(options, *_SETTINGS))
    launch = find_launch()
    engine = make_engine(options.engine, launch, options.device, options.workers)
    summary = score_manifest(job, engine, launch, options.restart, options.overwrite)
    if summary is None:  # rank 0 reports the result
        return DONE
    if launch.rank == 0:
        print(json.dumps(asdict(summary), indent=2, ensure_ascii=False) if options.json else summary.in_words())
    return FAILED_CHECKS if summary.failed else DONE


def rank(options: argparse.Namespace) -> int:
    """Put several responses to one context in order, the best first.

    The order follows the place of the score on its scale; of several dimensions all count equally, or those of --by.
    Intervals show how far the order can be trusted: responses whose intervals overlap may as well change places. Where
    the calibration knows verdicts of people on two responses, and one dimension counts, each response also has the
    probability that people prefer it to the next one, or see no difference. With --max-error 0.1 a verdict is given
    only where at most 10 % of such verdicts are wrong; otherwise it is undecided. Of two responses a line says which
    one people prefer.
    """
    scorer = open_scorer(options)
    names = scorer.dimension_names(options.by)
    if options.max_error is not None:
        scorer.compared_on(names)
    context = _context(options)
    ranked = scorer.rank(context, options.responses, situation=options.situation, by=options.by)
    beside = scorer.beside_next(ranked, names, options.max_error)
    if options.json:
        rows = [_ranked_row(options.responses[item.index], place, item) for place, item in enumerate(ranked, start=1)]
        print(json.dumps([{**row, "over_next": odds and asdict(odds)} for row, odds in zip(rows, beside, strict=True)]))
    else:
        dimensions = [dimension.name for dimension in scorer.dimensions]
        table = _ranked_table(options.responses, ranked, dimensions, beside)
        say(table, stderr=False)
        if len(ranked) == 2 and (odds := beside[0]) is not None:
            first, second = (options.responses[item.index] for item in ranked)
            preferred = {"better": f"prefer {first}", "worse": f"prefer {second}"}.get(odds.verdict, odds.verdict)
            print(
                f"{preferred}: of people {odds.better:.0%} prefer {first}, {odds.worse:.0%} {second}, and "
                f"{odds.no_difference:.0%} see no difference"
            )
    return DONE if all(item.merit is not None for item in ranked) else FAILED_CHECKS


def _ranked_row(response: str, place: int, own: Ranked) -> dict[str, Any]:
    """One response of a ranking, for JSON."""
    if isinstance(own.found, AudioError):
        return {"place": None, "response": response, "merit": None, "status": str(own.found)}
    scores = {
        name: {"score": score.score, "low": score.low, "high": score.high, "label": score.label}
        for name, score in own.found.scores.items()
    }
    warnings = [{"code": caution.code, "text": caution.text} for caution in own.found.warnings]
    values = {"place": place, "response": response, "merit": own.merit, "scores": scores, "warnings": warnings}
    return {**values, "windows": own.found.windows, "seconds": own.found.seconds, "status": "ok"}


def _ranked_table(
    responses: Sequence[str],
    ranked: Sequence[Ranked],
    names: Sequence[str],
    over_next: Sequence[BesideNext | None],
) -> Table:
    """A ranking as a table for the terminal."""
    from ..eval.rendering import new_table

    table = new_table()
    table.add_column("place", justify="right")
    table.add_column("response", overflow="fold")
    compared = ["beside the next"] if any(over_next) else []
    for column in (*names, *compared, "remarks"):
        table.add_column(column)
    for place, (item, beside) in enumerate(zip(ranked, over_next, strict=True), start=1):
        if isinstance(item.found, AudioError):
            table.add_row("—", responses[item.index], *("—" for _ in (*names, *compared)), str(item.found))
        else:
            windows = [_in_windows(item.found)] if item.found.windows > 1 else []
            remarks = "; ".join([*windows, *(caution.text for caution in item.found.warnings)])
            scores = []
            for score in (item.found.scores[name] for name in names):
                ends = "" if score.low is None or score.high is None else f" ({score.low:.2f} to {score.high:.2f})"
                scores.append(f"{score.score:.2f}{ends} {score.label or ''}".rstrip())
            if beside is not None:
                chances = f"better {beside.better:.0%}, no difference {beside.no_difference:.0%}"
                scores.append(f"{beside.verdict} ({chances})")
            scores += ["" for _ in compared if beside is None]
            table.add_row(str(place), responses[item.index], *scores, remarks)
    return table


def explain(options: argparse.Namespace) -> int:
    """Which seconds of a context and a response cost the score.

    Windows of one clip are edited, and the pair is scored again (occlusion): by the noise floor near them, by speech of
    one pitch and loudness, and by neutral delivery, which a vocoder makes. A stretch is named if it moves the score by
    more than chance does (permutations of the windows) and by 5 % of the scale, or 15 % if for the better.
    """
    page = Path(options.page) if options.page else None
    with writing("explain", page.parent, page.name) if page else nullcontext():
        scorer = open_scorer(options)
        from ..eval.explain import explain as explained

        context = _context(options)
        clips = context, options.response
        explanation = explained(scorer, *clips, situation=options.situation, window=options.window, seed=options.seed)
        if page:
            from ..eval.pages.explanation import write_page

            write_page(explanation, *clips, options.judge, page)
    if options.json:
        print(json.dumps(asdict(explanation), allow_nan=False))
        return DONE
    for curve in explanation.curves:
        print(f"{curve.clip}, {curve.dimension} {explanation.scores[curve.dimension]:.2f}:")
        for stretch in (*curve.worst, *curve.best):
            print(f"  {stretch.reason}")
        if not curve.worst and not curve.best:
            print(f"  nothing stands out; {curve.lowest} add the fewest points")
    return DONE


def serve(options: argparse.Namespace) -> int:
    """Serve a judge over HTTP, with a page to try it.

    POST /v1/score takes a form with the files `response` and `context` and answers with JSON; /openapi.json describes
    it and all the rest. Requests that come together are scored together. A full queue refuses (429), a slow or large
    upload is cut (408, 413). SIGTERM lets in nobody new (503) and ends when all the others have their answers.
    If the environment variable EMPATHY_JUDGE_TOKEN is set, clients must send it as a bearer token: printable ASCII.
    """
    for name in _SERVING_EXTRA:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"serve: {name} is not installed; pip install 'empathy-judge[serve]'")
    from ..models.hub import require_judge
    from ..serving.settings import ServiceSettings, listen, read_settings, return_memory

    return_memory()  # before threads have heaps of their own
    folder = Path(options.judge)
    settings = read_settings(name=folder.resolve().name, **chosen(options, *ServiceSettings.model_fields))
    require_judge(folder, options.backbone)
    listener = listen(options.host, options.port)
    # from here on it takes seconds
    from ..scorer import Scorer
    from ..serving.app import create_app
    from ..serving.records import log_json
    from ..serving.running import run

    def load() -> Scorer:
        return Scorer.from_pretrained(folder, **chosen(options, "device", "kept_bytes", *_SETTINGS))

    log_json()
    run(create_app(load, settings), listener)
    return DONE
