"""Commands that train a judge, or make one of another: calibrated, exported, put together. Heavy imports stand inside
them, so that help is instant."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..core.errors import UserError
from ..core.option_values import Device, OutputFolder, Share, SplitName, Whole
from ..core.processes import check_ranks
from ..core.written import making
from ..eval.measurement import Placed, Split
from . import DONE, FAILED_CHECKS
from .options import first_given
from .shared import Data, Printing

if TYPE_CHECKING:
    from ..data_modules.settings import DataSettings
    from ..scoring.artifact import LoadedJudge
    from ..scoring.export.check import ExportCheck
    from ..train.settings import ShippedRecipe


_OF_WHOLE = ("quantization", "check_data", "check_split", "accept_loss", "device")  # options of --form merged alone


@dataclass(frozen=True)
class Demo(Printing):
    """Sample, train, evaluate, export, score.

    Attributes:
        json: print JSON, and what happens meanwhile on standard error
        out: folder for everything the demo makes
        groups: scripts in the sample, 15 pairs each
        epochs: epochs of training (default: as the recipe nano)
    """

    EXAMPLE: ClassVar[str] = "--out demo"

    _: KW_ONLY
    out: OutputFolder = Path("demo")
    groups: Whole = 200
    epochs: Whole | None = None

    def run(self) -> int:
        check_ranks()
        # Read when torch is loaded. Threads that wait spin for 300,000 rounds, which costs half of the speed or more
        # where other programs run. Where none does, to sleep at once costs a tenth, after 2,000 rounds next to nothing.
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
        from ..demo import run_demo

        run_demo(self.out, groups=self.groups, epochs=self.epochs, as_json=self.json)
        return DONE


@dataclass(frozen=True)
class Train:
    """Train a judge: empathy-judge train --config nano (see train --help)."""

    EXAMPLE: ClassVar[str] = "--config nano --data.path my_data --run runs/first"

    words: Sequence[str]

    def run(self) -> int:
        """Train; what the words say is a tree of settings, which `train.recipe` reads."""
        if "--list" in self.words:
            raise UserError("train --list: recipes are listed by `empathy-judge recipes`")
        check_ranks()
        from ..train.recipe import RecipeParser, trainer_help

        if "--trainer.help" in self.words:
            print(trainer_help(), end="")
            return DONE
        if not any(word.startswith("--print_config") for word in self.words):
            # A first reading, without the settings of Lightning's trainer: errors are reported before torch is loaded
            parser = RecipeParser(trainer=False)
            parsed = parser.parse(self.words)
            parser.check(parsed)
            from ..models.hub import is_hub_name, require_backbone
            from ..models.shapes import shapes_of

            name = parsed.judge.backbone
            needed = not parsed.dry_run or shapes_of(name) is None
            # No hub is asked for data that cannot be used: training will say what is wrong with options or data
            if needed and (not is_hub_name(name) or Path(name).exists() or can_be_read(parsed.data)):
                require_backbone(name, parsed.judge.revision)
        from ..train.run import train as run

        done = run(self.words)
        if done is None:  # after a dry run
            return DONE
        if "--json" in self.words:
            facts = {"run": str(done.folder), "best_checkpoint": str(done.checkpoint)}
            print(json.dumps({**facts, "validation": dict(done.agreement)}, indent=2))
        else:
            texts = (f"{name} {'undefined' if rho is None else f'{rho:.2f}'}" for name, rho in done.agreement.items())
            print(f"Spearman with the validation ratings: {', '.join(texts)}\nbest checkpoint: {done.checkpoint}")
        return DONE


@dataclass(frozen=True)
class Recipes(Printing):
    """List the recipes that come with the package, or print one with the help of its settings.

    What a recipe needs is counted from the shapes of the model (train --dry-run), not measured on a GPU. A recipe
    without a backbone is laid over another one, as its command shows. To change one:
    empathy-judge recipes show qwen2_audio > mine.yaml, then train --config mine.yaml.

    Attributes:
        show: print one recipe as YAML, with help; needs NAME
        name (NAME): of the recipe, or a YAML file of yours
        gpu_gib: list those alone whose step fits the memory of such a GPU, without those that are added to others
    """

    EXAMPLE: ClassVar[str] = "--gpu-gib 24"

    show: Literal["show"] | None = None
    name: str | None = None
    _: KW_ONLY
    gpu_gib: Whole | None = None

    def run(self) -> int:
        from ..train.settings import find_recipe, shipped_recipes

        if self.show is not None:
            if self.name is None or self.json or self.gpu_gib is not None:
                expected = "expected recipes show NAME, without --json and --gpu-gib"
                raise UserError(f"recipes show prints one recipe as YAML; {expected}")
            path = find_recipe(self.name, "recipes show")
            from ..train.recipe import RecipeParser

            print(RecipeParser().with_help(path.read_text(encoding="utf-8")), end="")
            return DONE
        shipped = [recipe for recipe in shipped_recipes() if recipe.fits(self.gpu_gib)]
        lines = [
            *_listed("recipe", [recipe for recipe in shipped if recipe.backbone is not None]),
            *_listed("added to one", [recipe for recipe in shipped if recipe.backbone is None]),
            "recipes show NAME prints one in full; --json says what each needs, too",
        ]
        return self.tell([asdict(recipe) for recipe in shipped], lambda _: lines)


@dataclass(frozen=True)
class Calibrate(Printing, Data, Split, Placed):
    """Fit standard errors and intervals to rated pairs that the judge was not trained on.

    Training does this on the validation split, which also chose the checkpoint: the errors there look a little too
    small. A split that nothing was chosen on is better. The calibration of a judge folder stands in its judge.json,
    that of a run in calibration.json; an earlier one is replaced. The model card stays as it was written.

    Attributes:
        judge: judge folder or run folder; the calibration is stored there
        method: how scores are mapped to ratings: not at all, along a rising curve (which ties scores beyond its ends),
            or along a curve of two numbers (which keeps their order)
        abstain (SHARE): abstain from this share of the pairs, those with the largest standard errors (default: from
            none); needs a head with a deviation, or an ensemble
    """

    EXAMPLE: ClassVar[str] = "judge --data data --split calibration"

    judge: OutputFolder
    _: KW_ONLY
    split: SplitName = "validation"
    method: Literal["none", "isotonic", "temperature"] = "none"
    abstain: Share | None = None

    def run(self) -> int:
        from ..models import CHECKPOINTS, JUDGE_FILE
        from ..models.hub import require_judge

        if not (self.judge / JUDGE_FILE).is_file() and not (self.judge / CHECKPOINTS).is_dir():
            raise UserError(f"{self.judge}: expected a judge folder (with {JUDGE_FILE}) or a run folder")
        require_judge(self.judge, self.backbone)
        from ..data_modules.schema import PairDataset
        from ..scoring.artifact import Placement, load_any
        from ..scoring.calibration import to_json
        from ..scoring.judge_calibration import calibrate_judge, store_calibration
        from ..scoring.predictor import SPREAD

        placement = Placement(self.backbone, self.quantization, self.device == SPREAD)
        calibration = calibrate_judge(
            load_any(self.judge, placement),
            PairDataset.load(self.data),
            None if self.split is None else [self.split],
            method=self.method,
            abstain=self.abstain,
            device=self.device,
        )
        stored = store_calibration(calibration, self.judge)
        lines = [f"{name}: {dimension.in_words()}" for name, dimension in calibration.dimensions.items()]
        return self.tell(to_json(calibration), lambda _: [*lines, f"calibration: {stored}"])


@dataclass(frozen=True)
class Export(Printing):
    """Write the judge folder of a run, or another form of a judge folder.

    small: adapter, head and processor; the backbone is found where the run found it. merged: the adapter becomes part
    of the weights of the backbone, which come along: nothing else is needed, and the folder may be moved.

    --quantization stores the linear layers of the language model in 8 bits (torchao), or in 4 for GPUs with little
    memory (NF4; bitsandbytes). What merging and quantizing do to the scores is measured on pairs, printed, and kept in
    judge.json and on the card. If it is more than docs/howto/serve.md allows, nothing is written: exit code 1.

    Attributes:
        checkpoint: run folder (its best checkpoint), checkpoint file, or judge folder
        out: judge folder to make
        report: agreement.json of this judge, for the model card
        backbone: where the backbone lies now, if not where the run found it
        form: without the backbone, or with it; see above
        quantization: of the language model, as it is stored
        check_data (DIR): pair dataset on which scores before and after are compared (default: 16 pairs of synthetic
            signals)
        check_split: which of its pairs; all = every pair
        accept_loss: write it even if scores changed more than is allowed
        device: where it is scored: cpu, cuda, ... (default: a GPU if there is one)
        push_to_hub (OWNER/NAME): upload the folder to the Hugging Face hub too; needs HF_TOKEN or `hf auth login`
        private: if that makes a repository, only its owner sees it
    """

    EXAMPLE: ClassVar[str] = "runs/first --out judge --report report/agreement.json"

    checkpoint: str
    _: KW_ONLY
    out: OutputFolder
    report: str | None = None
    backbone: str | None = None
    form: Literal["small", "merged"] = "small"
    quantization: Literal["none", "int8", "int4"] = "none"
    check_data: str | None = None
    check_split: str = "test"
    accept_loss: bool = False
    device: Device | None = None
    push_to_hub: str | None = None
    private: bool = False

    def run(self) -> int:
        from ..models.hub import check_hub_name, check_judge, push_to_hub, require_judge

        source, out = Path(self.checkpoint), self.out
        if self.form == "small" and (unused := first_given(self, *_OF_WHOLE)):
            raise UserError(f"export: {unused} with --form small, which has no backbone; expected merged")
        if self.check_data is None and (unused := first_given(self, "check_split")):
            raise UserError(f"export: {unused}; expected with --check-data DIR")
        if self.private and self.push_to_hub is None:
            raise UserError("export: --private; expected with --push-to-hub OWNER/NAME")
        if self.push_to_hub is not None:
            check_hub_name(self.push_to_hub)
        # A judge on the hub is no checkpoint: it is exported already
        check_judge(source)
        require_judge(source, self.backbone)
        with making(out):
            from ..scoring.artifact import Placement, load_any, save_judge

            loaded = load_any(source, Placement(self.backbone))
            report = None if self.report is None else _read_report(Path(self.report), loaded)
            check, written = None, True
            if self.form != "small":
                check, written = self._export_whole(loaded, report)
            else:
                save_judge(loaded, out, report)
        if written and not self.json:
            print(f"judge: {out}")
        hub = push_to_hub(out, self.push_to_hub, self.private) if written and self.push_to_hub else None
        if self.json:
            measured = None if check is None else check.to_json()
            print(json.dumps({"judge": str(out) if written else None, "check": measured, "hub": hub}, indent=2))
        elif hub is not None:
            print(f"hub: {hub}")
        return DONE if written else FAILED_CHECKS

    def _export_whole(self, loaded: LoadedJudge, report: Mapping[str, Any] | None) -> tuple[ExportCheck, bool]:
        """What became of the scores, and whether the judge was written: not if they changed too much."""
        from ..data_modules.schema import PairDataset
        from ..scoring.export.check import rated_set, synthetic_set
        from ..scoring.export.write import WEIGHT_FORMS, LossTooLarge, write_whole

        if self.check_data is None:
            compared = synthetic_set(loaded)
        else:
            compared = rated_set(loaded, PairDataset.load(self.check_data), self.check_split)
        form, how = WEIGHT_FORMS[self.quantization], {"report": report, "accept_loss": self.accept_loss}
        try:
            check, written = write_whole(loaded, self.out, form, compared, device=self.device, **how), True
        except LossTooLarge as lost:
            check, written = lost.check, False
        if not self.json:
            print("\n".join(check.lines()))
        if not written:
            loss = "; ".join(check.beyond)
            print(f"not written: {loss}; --accept-loss writes it all the same", file=sys.stderr)
        for loss in check.beyond if written else ():
            print(f"written despite: {loss}", file=sys.stderr)
        return check, written


@dataclass(frozen=True)
class Ensemble(Printing):
    """Make one judge of several that share a frozen backbone.

    The judges must agree in backbone, dimensions and all settings that scores depend on: say, runs with several seeds
    or the folds of a cross-validation. Every command that takes a judge takes what is written. Its score is the mean of
    the members' scores; how far these lie apart goes into the standard error once the ensemble is calibrated. The
    backbone is loaded once, and clips are encoded once unless the audio tower was trained; the rest of the work is done
    for each member.

    Attributes:
        judges (JUDGE): judge folders, run folders or checkpoints
        out: judge folder to make
        backbone: where the backbone lies now, if not where the first judge found it
    """

    EXAMPLE: ClassVar[str] = "runs/seed0 runs/seed1 runs/seed2 --out judge"

    judges: Sequence[str]
    _: KW_ONLY
    out: OutputFolder
    backbone: str | None = None

    def run(self) -> int:
        from ..models.hub import check_judge, require_judge

        paths, out = [Path(path) for path in self.judges], self.out
        for path in paths:
            check_judge(path)
            require_judge(path, self.backbone)
        with making(out):
            from ..scoring.ensemble import write_ensemble

            write_ensemble(paths, out, self.backbone)
        return self.tell({"judge": str(out)}, lambda result: [f"judge: {result['judge']}"])


def _listed(head: str, recipes: Sequence[ShippedRecipe]) -> Iterator[str]:
    """Recipes as columns; the first sentence of what each is, so that all fit a screen."""
    rows = [(head, "GPU", "a step", "what it is")]
    for recipe in recipes:
        step = "" if recipe.step_gib is None else f"{recipe.step_gib:g} GiB"
        rows.append((recipe.name, recipe.gpu, step, recipe.about.partition(". ")[0].removesuffix(".")))
    widths = [max(len(row[number]) for row in rows) for number in range(3)]
    rest = max(20, shutil.get_terminal_size().columns - sum(widths) - 6)
    for name, gpu, step, about in rows if recipes else ():
        # Options and names of models are not cut at their hyphens
        first, *more = textwrap.wrap(about, rest, break_on_hyphens=False)
        yield f"{name:{widths[0]}}  {gpu:{widths[1]}}  {step:>{widths[2]}}  {first}"
        yield from (" " * (sum(widths) + 6) + line for line in more)


def can_be_read(settings: DataSettings) -> bool:
    """Whether there is a dataset with the splits that a recipe names; training reads the rest of it."""
    from ..data_modules.storage import split_names

    named = [settings.train_split, settings.validation_split]
    wanted = {name for splits in named for name in ([splits] if isinstance(splits, str) else splits)}
    try:
        return wanted <= split_names(settings.path)
    except UserError:
        return False


def _read_report(path: Path, loaded: LoadedJudge) -> Mapping[str, Any]:
    """Read a report for the model card; one of another judge, or of another version, is refused."""
    from ..eval.report.base import read_report
    from ..eval.report.dataset import Report

    report = read_report(path, Report)
    if report.provenance.get("provenance") != loaded.description["provenance"]:
        raise UserError(f"--report: it is of another judge ({report.judge}); expected one of this judge")
    return report.as_json()
