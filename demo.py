"""`empathy-judge demo`: the whole pipeline on a synthetic sample, from audio to a report and a scorer."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from .audio.decode import AudioSource
from .core.errors import UserError, counted
from .core.files import CARD_FILE
from .core.processes import say
from .core.written import changing
from .data_modules.sample import DIMENSION, make_sample
from .data_modules.schema import Pair, PairDataset
from .data_modules.splits import split_dataset
from .eval.evaluate import evaluate
from .eval.judges.trained import TrainedJudge
from .eval.views import evaluation_views
from .scoring.scorer import Scorer
from .train.run import train

_MADE = ("data", "run", "judge", "report", "my")
_EXAMPLE_SCRIPTS = 12  # in the tables: enough to split and to train on


def run_demo(out: Path, *, groups: int, epochs: int | None, as_json: bool = False) -> None:
    """Sample, train, evaluate, export, score; everything stays under `out`.

    Args:
        out: `data`, `run`, `judge`, `report` and `my` (clips and tables as a user has them) are made in it; those
            of an earlier demo stay until this one is done.
        groups: Scripts in the sample.
        epochs: Of training; None = as the configuration says.
        as_json: Print where everything is as JSON; what happens meanwhile goes to standard error.

    Raises:
        UserError: If `out` holds folders of these names that no demo made, or another demo makes some there.
    """
    note = Console(stderr=as_json).print
    start = time.monotonic()

    def step(number: int, text: str) -> None:
        note(f"[bold]{number}/5[/bold] {text} [dim]({time.monotonic() - start:.0f} s so far)[/dim]")

    with changing(out), _replacing(out):
        step(1, f"sample: {counted(groups, 'script')} spoken in many tones, rated by a simulated panel (synthetic)")
        make_sample(out / "data", groups=groups)
        split_dataset(out / "data")
        step(2, "train: LoRA on the nano backbone")
        overrides = [] if epochs is None else ["--trainer.max_epochs", str(epochs)]
        run = train(["--config", "nano", *overrides], out / "data", out / "run")
        assert run is not None  # only a dry run has none
        step(3, "evaluate: agreement on contexts that training has not seen, and listening checks")
        dataset = PairDataset.load(out / "data")
        judge = TrainedJudge.load(run.folder)
        judge.name = "nano judge"
        measured = evaluate(judge, dataset, command="empathy-judge demo")
        measured.save(out / "report")
        step(4, "export: the judge as a folder that others can load")
        run.export(out / "judge", measured.report)
        step(5, "score: one context, two answers")
        responses = _rivals(dataset)
        _write_example(dataset, responses, out / "my")
        scorer = Scorer.from_pretrained(out / "judge")
        for response in (responses[0], responses[-1]):
            score = scorer.score(response.context[0].audio, response.response)[DIMENSION.name]
            mean = dataset.mean_scores().at[response.pair_id, DIMENSION.name]
            note(f"    {response.pair_id}: judge {score:.2f}, panel {mean:.2f} (scale 1 to 5)")
        for view in evaluation_views(measured.report):
            say(view, stderr=as_json)
        note("All ratings are simulated: this shows that the pipeline works, not how well it would agree with people.")
    seconds = time.monotonic() - start
    if as_json:
        print(json.dumps({**{name: str(out / name) for name in _MADE}, "seconds": round(seconds, 1)}, indent=2))
    else:
        note(f"report: {out / 'report' / 'index.html'}   judge: {out / 'judge'}   ({seconds:.0f} s)")


@contextmanager
def _replacing(out: Path) -> Iterator[None]:
    """Move the folders of an earlier demo aside, and back if the block fails; after a kill, the next call does that."""
    moving, earlier, done = (out / f".{name}" for name in ("moving", "earlier", "replaced"))
    _restore(out, moving, earlier)
    if any((out / name).exists() for name in _MADE):
        if not (out / "data" / CARD_FILE).is_file():
            raise UserError(f"{out}: holds folders that no demo made; expected another --out")
        if not PairDataset.load(out / "data").card.synthetic:
            raise UserError(f"{out / 'data'}: holds data that no demo made; expected another --out")
    shutil.rmtree(done, ignore_errors=True)
    try:
        # One by one into `moving`, then one rename: `earlier` holds all or is not there, whenever a kill comes
        moving.mkdir(parents=True)
        for path in [out / name for name in _MADE if (out / name).exists()]:
            path.rename(moving / path.name)
        moving.rename(earlier)
        yield
        # This rename decides that the new demo stays; to delete takes longer, and may be cut off
        earlier.rename(done)
    except BaseException:
        _restore(out, moving, earlier)
        with suppress(OSError):  # there is something in it
            out.rmdir()
        raise
    shutil.rmtree(done, ignore_errors=True)


def _restore(out: Path, moving: Path, earlier: Path) -> None:
    if earlier.is_dir():  # the folders in its place are unfinished
        for name in _MADE:
            shutil.rmtree(out / name, ignore_errors=True)
        earlier.rename(moving)
    if moving.is_dir():
        for path in moving.iterdir():
            path.rename(out / path.name)
        moving.rmdir()


def _rivals(dataset: PairDataset) -> list[Pair]:
    """The responses to the context of the test split whose mean ratings differ most, the best first."""
    rated = dataset.mean_scores()[DIMENSION.name]
    answers: dict[AudioSource, list[Pair]] = {}
    for pair in dataset.subset("test").pairs:
        answers.setdefault(pair.context[0].audio, []).append(pair)
    rivals = max(answers.values(), key=lambda pairs: np.ptp([rated[pair.pair_id] for pair in pairs]))
    return sorted(rivals, key=lambda pair: -rated[pair.pair_id])


def _write_example(dataset: PairDataset, responses: Sequence[Pair], folder: Path) -> None:
    """What the commands of the README read: a context and the responses to it, the best first, and tables of pairs,
    of systems and of ratings beside their clips."""
    folder.mkdir()
    shutil.copy(str(responses[0].context[0].audio), folder / "context.wav")
    shutil.copy(str(responses[0].response), folder / "response.wav")
    for take, pair in enumerate((responses[0], responses[len(responses) // 2], responses[-1]), start=1):
        shutil.copy(str(pair.response), folder / f"take{take}.wav")
    scripts = set(list(dict.fromkeys(pair.group_id for pair in dataset.pairs))[:_EXAMPLE_SCRIPTS])
    part = dataset.only({pair.pair_id for pair in dataset.pairs if pair.group_id in scripts})
    rows = []
    for pair in part.pairs:
        row = {"pair_id": pair.pair_id, "group_id": pair.group_id}
        for column, clip in (("context_audio", pair.context[0].audio), ("response_audio", pair.response)):
            row[column] = f"clips/{Path(str(clip)).name}"
            (folder / "clips").mkdir(exist_ok=True)
            shutil.copy(str(clip), folder / row[column])
        rows.append(row)
    table = pd.DataFrame(rows)
    table.to_csv(folder / "pairs.csv", index=False)
    # As if three systems had answered each script: the first responses to it, one each
    place = table.groupby("group_id").cumcount() + 1
    systems = table.assign(system_id="v" + place.astype(str)).loc[place <= 3]
    systems.to_csv(folder / "systems.csv", index=False)
    part.ratings.to_csv(folder / "ratings.csv", index=False)
