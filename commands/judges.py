"""Commands that use a judge: score, rank, explain, serve. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ..core.errors import AudioError, UserError
from ..core.option_values import AnyNumber, Port, Processes, Seed, Whole, any_number
from ..core.processes import find_launch, say
from ..core.written import writing
from ..eval.measurement import Loading, Placed, chosen
from ..serving.settings import Limits, ServiceSettings, host_name, listen, read_token, return_memory
from . import DONE, FAILED_CHECKS
from .options import first_given
from .shared import Printing, open_scorer

if TYPE_CHECKING:
    from rich.table import Table

    from ..scoring.assessment import Assessment, Ranked
    from ..scoring.batch.manifest import Row
    from ..scoring.scorer import Scorer
    from ..scoring.three_way import OverNext

_EXPECTED = "score: expected JUDGE CONTEXT RESPONSE (- for no context), or JUDGE --manifest FILE"
_SERVING_EXTRA = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


@dataclass(frozen=True)
class Score(Printing, Loading):
    """Score one pair of files, two folders whose files pair by name, or all pairs of a manifest.

    A manifest is CSV, TSV, JSONL or Parquet with response_audio and optionally pair_id, context_audio and situation;
    clips are paths relative to it that stay in its folder, or stand in the Parquet file. --audio-root names another
    folder in which they may lie: paths count from there, too, and its symbolic links are followed. Each row becomes a
    row of --out (CSV, TSV, JSONL or Parquet), in the same order: its other columns and scores, or a status that says
    why there are none.
    Memory does not grow with the manifest.

    With --out what is done is kept in OUT.parts: after a kill, a crash or a signal (exit code 75) the same command goes
    on, and scores again what is damaged or was made of audio files that changed since. There is a worker for each GPU.
    Processes on any number of machines that see the folder share the work by their ranks: start the command with
    torchrun, accelerate launch or srun (see launch/), or with RANK and WORLD_SIZE in the environment. A file that this
    command did not write is replaced with --overwrite alone.

    Exit code: 0 = all rows have scores, 1 = some have none, 75 = asked to stop.

    Attributes:
        judge: judge folder or run folder
        context: context clip, or a folder of them; - for none
        response: response clip, or a folder of them
        json: print JSON: of a pair its scores, of a manifest an object on each line, or with --out what became of it
        situation: text about the situation, as raters were given it
        manifest: CSV, TSV, JSONL or Parquet, see above
        audio_root (DIR): another folder in which clips of the manifest may lie, see above
        out: CSV, TSV, JSONL or Parquet for the scores of a manifest (default: CSV on standard output)
        level: share of pairs that the intervals of a calibrated judge cover (default: 0.9)
        workers (N): processes, each with a judge (default: one for each GPU, or one)
        engine: ray = on the Ray cluster that RAY_ADDRESS names, or on this machine: pip install 'empathy-judge[ray]'
        restart: delete what an earlier command has done and begin anew
        overwrite: replace an --out that this command did not write
        checksums: find files that changed since an earlier command by their content, not by size and modification time
        batch_size (PAIRS): most pairs per forward pass (default: 16; on a GPU 128, or as many as its memory holds)
        dry_run: say how many pairs and minutes it is, how large passes are, and how long it takes; nothing is scored
        gpu_gib: ask --dry-run about a GPU with so much memory (default: the device here)
    """

    EXAMPLE: ClassVar[str] = "judge --manifest pairs.csv --out scores.csv"

    judge: str
    context: str | None = None
    response: str | None = None
    _: KW_ONLY
    situation: str | None = None
    manifest: str | None = None
    audio_root: Path | None = None
    out: str | None = None
    level: Annotated[float, any_number, (0.5, 0.8, 0.9, 0.95)] | None = None
    workers: Processes | None = None
    engine: Literal["local", "ray"] = "local"
    restart: bool = False
    overwrite: bool = False
    checksums: bool = False
    batch_size: Whole | None = None
    dry_run: bool = False
    gpu_gib: Whole | None = None

    def run(self) -> int:
        if self.gpu_gib is not None and not self.dry_run:
            raise UserError("score: --gpu-gib; expected with --dry-run")
        root = self.audio_root
        if root is not None and (self.manifest is None or not root.is_dir()):
            raise UserError(f"score: --audio-root {root}; expected a folder, with --manifest FILE")
        if self.response is not None and self.manifest is None and Path(self.response).is_dir():
            if self.situation is not None:
                raise UserError("score: --situation with folders; expected --manifest FILE with a column situation")
            from ..scoring.batch.paired_folders import manifest_of_folders

            contexts = None if self.context in (None, "-") else Path(self.context or "")
            with manifest_of_folders(contexts, Path(self.response)) as (manifest, parent):
                return replace(self, context=None, response=None, manifest=str(manifest), audio_root=parent).run()
        into_file = first_given(self, "workers", "restart", "overwrite", "checksums")
        if self.manifest is None:
            if self.context is None or self.response is None:
                raise UserError(_EXPECTED)
            unused = first_given(self, "out") or into_file
            if unused or self.engine != "local":
                unused = unused or f"--engine {self.engine}"
                raise UserError(f"score: {unused} without --manifest; expected JUDGE --manifest FILE {unused}")
            return self._score_pair(self.context, self.response)
        if self.context is not None:
            raise UserError(_EXPECTED)
        if self.situation is not None:
            raise UserError("score: --situation with --manifest; expected a column situation in the manifest")
        if self.out is not None:
            return self._score_into_file(Path(self.manifest), Path(self.out))
        if into_file:
            raise UserError(f"score: {into_file} without --out; expected JUDGE --manifest FILE --out FILE {into_file}")
        # Each process would print all rows
        if find_launch().world > 1 or self.engine != "local":
            raise UserError("score: in several processes; expected JUDGE --manifest FILE --out FILE")
        if self.dry_run:
            from ..scoring.batch.manifest import rows_of_manifest

            return self._say_what_it_takes(rows_of_manifest(Path(self.manifest), root))
        scorer = self._open()
        from ..scoring.batch.scores import print_scores, windows_in_words
        from ..scoring.batch.tally import in_words

        failed, tally = print_scores(scorer, Path(self.manifest), sys.stdout, self.level, root, self.json)
        lines = [f"rows: {tally.rows:,}, with scores: {tally.rows - failed:,}"]
        lines += in_words(tally.rows, tally.seconds, tally.systems, tally.warnings)
        lines += [windows_in_words(tally.windowed)] if tally.windowed else []
        print("\n".join(lines), file=sys.stderr)
        return FAILED_CHECKS if failed else DONE

    def _open(self) -> Scorer:
        """Load the judge; one that shall give intervals must have some."""
        scorer = open_scorer(self.judge, self, self.batch_size)
        if self.level is not None:
            scorer.require_calibration()
        return scorer

    def _say_what_it_takes(self, rows: Iterable[Row], done: int = 0, one: bool = False) -> int:
        """Print what scoring these rows takes; of `one` pair, what is wrong with it is an error."""
        from ..models.hub import require_judge

        require_judge(Path(self.judge), self.backbone, shapes=True)
        from ..scoring.batch.dry_run import dry_run

        how = {**chosen(self, Placed), "windows": self.windows, "batch_size": self.batch_size, "level": self.level}
        plan = dry_run(Path(self.judge), rows, gpu_gib=self.gpu_gib, done_before=done, **how)
        if one and plan.first_failure:
            raise UserError(plan.first_failure)
        self.tell(plan, lambda found: found.lines())
        return FAILED_CHECKS if plan.failed else DONE

    def _score_pair(self, context: str, response: str) -> int:
        """Print the scores of a pair."""
        if self.dry_run:
            from ..scoring.audio_inputs import make_pair
            from ..scoring.batch.manifest import Row

            return self._say_what_it_takes(
                [Row("1", make_pair("1", _context(context), response, self.situation))], one=True
            )
        scorer = self._open()
        from ..scoring.calibration import DEFAULT_LEVEL
        from ..scoring.score_table import flat_scores

        level = self.level or DEFAULT_LEVEL
        assessment = scorer.assess(_context(context), response, situation=self.situation, level=level)
        if self.json:
            print(json.dumps(flat_scores(assessment, scorer.columns), allow_nan=False))
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

    def _score_into_file(self, manifest: Path, out: Path) -> int:
        """Write the scores of a manifest, or go on with them."""
        from ..models.hub import require_judge

        judge = Path(self.judge)
        require_judge(judge, self.backbone, shapes=self.dry_run)
        from ..scoring.batch.job import Job
        from ..scoring.batch.run import done_before, make_engine, score_manifest

        settings = {**chosen(self, Loading), "batch_size": self.batch_size}
        # Each worker loads the judge on a device of its own
        del settings["device"]
        job = Job(judge, manifest, out, self.level, self.checksums, self.audio_root, settings)
        launch = find_launch()
        engine = make_engine(self.engine, launch, self.device, self.workers)
        if self.dry_run:
            from ..scoring.batch.manifest import rows_of_manifest

            rows = rows_of_manifest(manifest, self.audio_root)
            return self._say_what_it_takes(rows, done_before(job, self.restart, self.overwrite))
        summary = score_manifest(job, engine, launch, self.restart, self.overwrite)
        if summary is None:  # rank 0 reports the result
            return DONE
        if launch.rank == 0:
            print(json.dumps(asdict(summary), indent=2, ensure_ascii=False) if self.json else summary.in_words())
        return FAILED_CHECKS if summary.failed else DONE


def _context(clip: str | None) -> str | None:
    # An unset variable of a shell: the path of an empty text would be the current folder
    if clip == "":
        raise UserError("context: an empty path; expected a file, or - for no context")
    return None if clip == "-" else clip


def _in_windows(found: Assessment) -> str:
    return f"heard in {found.windows} windows, {found.seconds:.1f} s of response"


@dataclass(frozen=True)
class Rank(Printing, Loading):
    """Put several responses to one context in order, the best first.

    The order follows the place of the score on its scale; of several dimensions all count equally, or those of --by.
    Intervals show how far the order can be trusted: responses whose intervals overlap may as well change places. Where
    the calibration knows verdicts of people on two responses, and one dimension counts, each response also has the
    probability that people prefer it to the next one, or see no difference. With --max-error 0.1 a verdict is given
    only where at most 10 % of such verdicts are wrong; otherwise it is undecided. Of two responses a line says which
    one people prefer.

    Attributes:
        judge: judge folder or run folder
        context: context clip; - for none
        responses (response): response clips
        situation: text about the situation, as raters were given it
        by (DIMENSION): what counts, equally (default: all dimensions)
        max_error: say which of two neighbours is better only where at most this share is wrong (default: the likeliest)
    """

    EXAMPLE: ClassVar[str] = "judge context.wav take1.wav take2.wav take3.wav"

    judge: str
    context: str
    responses: Sequence[str]
    _: KW_ONLY
    situation: str | None = None
    by: Sequence[str] | None = None
    max_error: Annotated[float, any_number, (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)] | None = None

    def run(self) -> int:
        scorer = open_scorer(self.judge, self)
        names = scorer.dimension_names(self.by)
        # Before a clip is scored: a judge that knows no preferences is refused at once
        if self.max_error is not None:
            scorer.compared_on(names)
        context = _context(self.context)
        ranked = scorer.rank(context, self.responses, situation=self.situation, by=self.by)
        verdicts = scorer.over_next(ranked, names, self.max_error)
        if self.json:
            rows = [_ranked_row(self.responses[item.index], place, item) for place, item in enumerate(ranked, start=1)]
            found = [{**row, "over_next": odds and asdict(odds)} for row, odds in zip(rows, verdicts, strict=True)]
            print(json.dumps(found))
        else:
            dimensions = [dimension.name for dimension in scorer.dimensions]
            table = _ranked_table(self.responses, ranked, dimensions, verdicts)
            say(table, stderr=False)
            if len(ranked) == 2 and (odds := verdicts[0]) is not None:
                first, second = (self.responses[item.index] for item in ranked)
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
    verdicts: Sequence[OverNext | None],
) -> Table:
    """A ranking as a table for the terminal."""
    from ..eval.rendering import new_table

    table = new_table()
    table.add_column("place", justify="right")
    table.add_column("response", overflow="fold")
    compared = ["beside the next"] if any(verdicts) else []
    for column in (*names, *compared, "remarks"):
        table.add_column(column)
    for place, (item, odds) in enumerate(zip(ranked, verdicts, strict=True), start=1):
        if isinstance(item.found, AudioError):
            table.add_row("—", responses[item.index], *("—" for _ in (*names, *compared)), str(item.found))
        else:
            windows = [_in_windows(item.found)] if item.found.windows > 1 else []
            remarks = "; ".join([*windows, *(caution.text for caution in item.found.warnings)])
            scores = []
            for score in (item.found.scores[name] for name in names):
                ends = "" if score.low is None or score.high is None else f" ({score.low:.2f} to {score.high:.2f})"
                scores.append(f"{score.score:.2f}{ends} {score.label or ''}".rstrip())
            if odds is not None:
                chances = f"better {odds.better:.0%}, no difference {odds.no_difference:.0%}"
                scores.append(f"{odds.verdict} ({chances})")
            # The last one has nothing beside it that it could be compared with
            scores += ["" for _ in compared if odds is None]
            table.add_row(str(place), responses[item.index], *scores, remarks)
    return table


@dataclass(frozen=True)
class Explain(Printing, Loading):
    """Which seconds of a context and a response cost the score.

    Windows of one clip are edited, and the pair is scored again (occlusion): by the noise floor near them, by speech of
    one pitch and loudness, and by neutral delivery, which a vocoder makes. A stretch is named if it moves the score by
    more than chance does (permutations of the windows) and by 5 % of the scale, or 15 % if for the better.

    Attributes:
        judge: judge folder or run folder
        context: context clip; - for none
        response: response clip
        situation: text about the situation, as raters were given it
        window (SECONDS): of a stretch, 0.25 to 1
        page (FILE): write a page (HTML) with players that jump to a stretch
        seed: of noise and permutations
    """

    EXAMPLE: ClassVar[str] = "judge context.wav response.wav --page why.html"

    judge: str
    context: str
    response: str
    _: KW_ONLY
    situation: str | None = None
    window: AnyNumber = 0.4
    page: str | None = None
    seed: Seed = 0

    def run(self) -> int:
        page = Path(self.page) if self.page else None
        with writing("explain", page.parent, page.name) if page else nullcontext():
            scorer = open_scorer(self.judge, self)
            from ..eval.explain import explain as explained

            context = _context(self.context)
            clips = context, self.response
            explanation = explained(scorer, *clips, situation=self.situation, window=self.window, seed=self.seed)
            if page:
                from ..eval.pages.explanation import write_page

                write_page(explanation, *clips, self.judge, page)
        if self.json:
            print(json.dumps(asdict(explanation), allow_nan=False))
            return DONE
        for curve in explanation.curves:
            print(f"{curve.clip}, {curve.dimension} {explanation.scores[curve.dimension]:.2f}:")
            for stretch in (*curve.worst, *curve.best):
                print(f"  {stretch.reason}")
            if not curve.worst and not curve.best:
                print(f"  nothing stands out; {curve.lowest} add the fewest points")
        return DONE


@dataclass(frozen=True)
class Serve(Limits, Loading):
    """Serve a judge over HTTP, with a page to try it.

    POST /v1/score takes a form with the files `response` and `context` and answers with JSON; /openapi.json describes
    it and all the rest. Requests that come together are scored together. A full queue refuses (429), a slow or large
    upload is cut (408, 413). SIGTERM lets in nobody new (503) and ends when all the others have their answers.
    If the environment variable EMPATHY_JUDGE_TOKEN is set, clients must send it as a bearer token: printable ASCII.

    Attributes:
        judge: judge folder or run folder
        host: address to listen on; 0.0.0.0 = all
        port: 0 = any that is free
        allowed_hosts (NAME): more names by which clients ask than localhost, --host and IP addresses, such as that of
            a proxy; '*' = any (default: none, or with a token any)
        batch_size (PAIRS): most pairs scored together (default: 16; on a GPU 128, or as many as its memory holds)
        open_metrics: /metrics needs no token (default: the same as all else)
    """

    EXAMPLE: ClassVar[str] = "judge --port 8000"

    judge: str
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: Port = 8000
    allowed_hosts: Sequence[Annotated[str, host_name]] = ()
    batch_size: Whole | None = None
    open_metrics: bool = False

    def run(self) -> int:
        for name in _SERVING_EXTRA:
            if importlib.util.find_spec(name) is None:
                raise UserError(f"serve: {name} is not installed; pip install 'empathy-judge[serve]'")
        from ..models.hub import require_judge

        # glibc gives each thread a heap of its own; this must be said before there are any
        return_memory()
        folder = Path(self.judge)
        limits = {limit.name: getattr(self, limit.name) for limit in fields(Limits)}
        settings = ServiceSettings(
            name=folder.resolve().name, windows=self.windows, token=read_token(), open_metrics=self.open_metrics,
            host=self.host, allowed_hosts=self.allowed_hosts, **limits,
        )  # fmt: skip
        require_judge(folder, self.backbone)
        listener = listen(self.host, self.port)
        # Options, extras, judge and port are known to be right: from here on it takes seconds
        from ..scoring.scorer import Scorer
        from ..serving.app import create_app
        from ..serving.records import log_json
        from ..serving.running import run

        def load() -> Scorer:
            how = chosen(self, Loading)
            return Scorer.from_pretrained(folder, batch_size=self.batch_size, kept_bytes=self.kept_bytes, **how)

        log_json()
        run(create_app(load, settings), listener)
        return DONE
