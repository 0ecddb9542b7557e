"""Commands that make, check and split pair datasets. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.errors import UserError, counted, system_errors
from ..core.files import CARD_FILE
from ..core.option_values import NO_OPTION, AnyNumber, AnyWhole, OutputFolder, Seconds, Seed
from ..core.written import changing, making, writing
from ..data_modules.importers import REPEATABLE, Importer
from . import DONE, FAILED_CHECKS
from .options import OneLineParser, add_options, first_given, parser_of, summary_and_more
from .shared import Printing

if TYPE_CHECKING:
    from rich.table import Table

    from ..data_modules.audit import SplitAudit


@dataclass(frozen=True)
class Import(Printing):
    """Turn a source into a pair dataset.

    The options of a source: `empathy-judge import SOURCE --help` shows them.

    Attributes:
        path: the source
        out: folder of the dataset to make; where an import was killed or interrupted, the same command goes on
        name: name of the dataset (default: that of the source, else of --out)
        origin: where the data comes from
        licence: its terms of use
        max_skipped (SHARE): share of the pairs that may be unusable; they are listed in skipped.csv
        embed_audio: keep audio inside Parquet files
        shard_rows (PAIRS): embed more pairs than these in several files, so many in each
        overwrite: replace the dataset at --out
    """

    EXAMPLE: ClassVar[str] = "table pairs.csv --dimension empathy=1:5:1 --out data"

    path: str
    _: KW_ONLY
    out: OutputFolder
    name: str | None = None
    origin: str | None = None
    licence: str | None = None
    max_skipped: AnyNumber = 0.01
    embed_audio: bool = False
    shard_rows: AnyWhole = 10_000
    overwrite: bool = False
    importer: Importer = field(metadata=NO_OPTION)
    of_source: Any = field(metadata=NO_OPTION)

    def run(self) -> int:
        from ..data_modules.importers.assemble import SKIPPED_FILE, assemble
        from ..data_modules.ratings import named_raters

        with making(self.out, self.overwrite):
            with system_errors(self.path, "read"):
                imported = self.importer.read(Path(self.path), self.of_source)
            card = replace(
                imported.card,
                name=self.name or imported.card.name,
                source=self.origin or imported.card.source,
                licence=self.licence or imported.card.licence,
            )
            dataset = assemble(
                replace(imported, card=card), self.out, max_skipped=self.max_skipped, overwrite=self.overwrite,
                embed_audio=self.embed_audio, shard_rows=self.shard_rows,
            )  # fmt: skip
        skipped = dataset.root / SKIPPED_FILE
        facts = {
            "out": str(dataset.root),
            "pairs": len(dataset.pairs),
            "ratings": len(dataset.ratings),
            "raters": named_raters(dataset.ratings),
            "preferences": 0 if dataset.preferences is None else len(dataset.preferences),
            "groups": len({pair.group_id for pair in dataset.pairs}),
            "pairs_without_rating": len(dataset.pairs) - dataset.ratings["pair_id"].nunique(),
            "content_hash": dataset.card.content_hash,
            "description": dataset.card.description,
            "skipped": str(skipped) if skipped.is_file() else None,
        }
        return self.tell(facts, _dataset_lines)


def read_import(words: Sequence[str]) -> Import:
    """The import that words say: each source has options of its own.

    Raises:
        UserError: As `options.read`.
    """
    from ..data_modules import importers

    parser = import_parser(importers.SOURCES)
    if not words or words[0].startswith("-"):
        parser.parse_args(words)  # --help, or what is missing
    # The source alone: which options there may be depends on it
    name = parser.parse_args(words[:1]).source
    importer = importers.load(name)
    parser = source_parser(name, importer)
    values = parser.read(words[1:])
    own = {one.name: values.pop(one.name) for one in fields(Import) if one.name in values}
    return Import(**own, importer=importer, of_source=importer.Options(**values))


def import_parser(sources: Sequence[str]) -> OneLineParser:
    """The parser of ``import`` as far as the source."""
    text, example = summary_and_more(Import), f"example: empathy-judge import {Import.EXAMPLE}"
    parser = OneLineParser(prog="empathy-judge import", description=text, epilog=example)
    parser.add_argument("source", help="what kind of source it is", choices=list(sources))
    return parser


def source_parser(name: str, importer: Importer) -> OneLineParser:
    """The parser of ``import SOURCE``: what all sources share, and the options of this one."""
    parser = parser_of(f"import {name}", Import)
    parser.description, parser.epilog = importer.__doc__, f"example: empathy-judge import {importer.EXAMPLE}"
    add_options(parser, importer.Options)
    return parser


@dataclass(frozen=True)
class Inspect(Printing):
    """Show what is in a dataset, how far its raters agree, and what is wrong with it.

    Attributes:
        data: folder of a pair dataset, or its address (hf://datasets/..., s3://...)
        page (DIR): also write DIR/index.html with charts and the most disputed items, whose clips are copied into
            DIR/audio
        max_seconds: longer clips are reported
    """

    EXAMPLE: ClassVar[str] = "data --page inspection"

    data: str
    _: KW_ONLY
    page: OutputFolder | None = None
    max_seconds: Seconds = 30.0

    def run(self) -> int:
        # The page copies clips into audio/, where those of a dataset lie
        if self.page is not None and (self.page / CARD_FILE).exists():
            raise UserError(f"--page {self.page}: holds a pair dataset ({CARD_FILE}); name a folder of its own")
        with writing("inspect", self.page):
            from ..data_modules.overview import inspect_dataset
            from ..data_modules.schema import PairDataset
            from ..eval.inspection import inspection_facts
            from ..eval.other_views import inspection_tables

            dataset = PairDataset.load(self.data)
            inspection = inspect_dataset(dataset, max_seconds=self.max_seconds)
            facts = inspection_facts(dataset)
            pages = []
            if self.page is not None:
                from ..eval.pages.inspection import write_inspection_page

                pages.append(f"page: {write_inspection_page(dataset, inspection, facts, self.page)}")
        self.tell(
            {**inspection.to_dict(), **facts.as_json()}, lambda _: [*inspection_tables(inspection, facts), *pages]
        )
        # Values that this split does not keep apart may cross it: only those that it promises to are a fault
        leaks = any(inspection.crossings[kind] for kind in inspection.refused)
        return FAILED_CHECKS if inspection.problems or leaks else DONE


@dataclass(frozen=True)
class SplitData(Printing):
    """Assign every pair to train, validation or test, to a fold, or to a fold for each value of a column.

    What shares a value of a column of --by stays together. Audio is compared, too, the same or nearly the same:
    with group_id among the columns (the default), what shares a clip stays together; otherwise contexts may be shared,
    and pairs whose response is in two splits are set aside: they are in none (`unsplit`), split.yaml lists them.

    Cross-validation trains once for each fold, on all but two of them:
      empathy-judge split data --folds 5
      empathy-judge train --config nano --data.path data --run runs/5 \\
          --data.train_split '[fold1, fold2, fold3]' --data.validation_split fold4
      empathy-judge evaluate runs/5 --data data --split fold5
    Leave-one-system-out has a fold for each system, called after it:
      empathy-judge split data --leave-out system_id
      empathy-judge train ... --data.train_split '[system_id=a, system_id=b]' --data.validation_split system_id=c
      empathy-judge evaluate runs/d --data data --split system_id=d

    Attributes:
        data: folder of a pair dataset
        by (COLUMN): what is never split apart: group_id (default), context_speaker, response_speaker, system_id,
            setting, language, situation, context_text, response_text, or a tag such as tag:cue
        fractions (TRAIN VALIDATION TEST): shares of the pairs (default: 0.7 0.15 0.15)
        folds (K): folds of equal size, fold1 and so on, instead
        leave_out (COLUMN): one fold for each value, called COLUMN=VALUE, instead
        hold_out (COLUMN=VALUE): test split; repeatable
        seed: random seed
        overwrite: replace an existing split
    """

    EXAMPLE: ClassVar[str] = "data --by group_id response_speaker --seed 1"

    data: str
    _: KW_ONLY
    by: Sequence[str] | None = None
    fractions: tuple[AnyNumber, AnyNumber, AnyNumber] | None = None
    folds: AnyWhole | None = None
    leave_out: str | None = None
    hold_out: Sequence[str] = field(default=(), metadata=REPEATABLE)
    seed: Seed = 0
    overwrite: bool = False

    def run(self) -> int:
        from ..data_modules.splits import DEFAULT_FRACTIONS, leave_one_out, split_dataset

        method = first_given(self, "leave_out", "folds")
        excluded = ("by", "fractions", "folds", "hold_out") if method == "--leave-out" else ("fractions", "hold_out")
        if method is not None and (unused := first_given(self, *excluded)):
            raise UserError(f"{method} together with {unused}; expected one of them")
        root = Path(self.data)
        with changing(root) if root.is_dir() else nullcontext():  # else it is refused in a moment
            if self.leave_out is not None:
                audit = leave_one_out(self.data, self.leave_out, overwrite=self.overwrite)
            else:
                audit = split_dataset(
                    self.data,
                    by=self.by or ["group_id"],
                    fractions=dict(zip(DEFAULT_FRACTIONS, self.fractions or DEFAULT_FRACTIONS.values(), strict=True)),
                    hold_out=_hold_out(self.hold_out),
                    folds=self.folds,
                    seed=self.seed,
                    overwrite=self.overwrite,
                )
        return self.tell(audit.to_dict(), lambda _: _audit_views(audit))


def _hold_out(items: Sequence[str]) -> dict[str, list[str]] | None:
    held: dict[str, list[str]] = {}
    for item in items:
        column, sign, value = item.partition("=")
        if not (column and sign and value):
            raise UserError(f"--hold-out {item!r}: expected COLUMN=VALUE, such as system_id=codec-a")
        held.setdefault(column, []).append(value)
    return held or None


def _dataset_lines(facts: dict[str, Any]) -> Iterator[str]:
    """What `import` says of the dataset that it made."""
    rated = f"{counted(facts['ratings'], 'rating')} by {counted(facts['raters'], 'rater')}"
    if facts["ratings"] and not facts["raters"]:
        rated = counted(facts["ratings"], "published mean")
    yield (
        f"{facts['out']}: {counted(facts['pairs'], 'pair')} in {counted(facts['groups'], 'group')}, "
        f"{rated}, "
        f"{counted(facts['preferences'], 'preference')}; "
        f"{counted(facts['pairs_without_rating'], 'pair has', 'pairs have')} no rating."
    )
    if facts["description"]:
        yield facts["description"]
        if "Columns not imported" in facts["description"]:
            yield "To import one, with --overwrite: --column OURS=THEIRS, as in --column response_speaker=speaker"
    if facts["skipped"]:
        yield f"What was skipped, and why: {facts['skipped']}"
    yield f"Content hash: {facts['content_hash']}"


def _audit_views(audit: SplitAudit) -> Iterator[Table | str]:
    """What is in each split, and what is in several."""
    from rich.table import Column, Table

    dimensions = list(dict.fromkeys(name for part in audit.splits.values() for name in part["mean_scores"]))
    heads = ("pairs", "share", "groups", "systems", "speakers", *(f"mean {name}" for name in dimensions))
    # Names of splits are typed again in commands: they are folded and never cut
    table = Table(Column("split", overflow="fold", min_width=10), *heads)
    for name, part in audit.splits.items():
        means = [part["mean_scores"][dimension] for dimension in dimensions]
        counts = [str(part[what]) for what in ("groups", "systems", "speakers")]
        scores = ["-" if mean is None else f"{mean:.2f}" for mean in means]
        table.add_row(name, str(part["pairs"]), f"{part['share']:.1%}", *counts, *scores)
    yield table
    if audit.comparisons_between:
        apart = counted(
            audit.comparisons_between, "comparison is in no split: its", "comparisons are in no split: their"
        )
        yield f"{apart} two pairs are not in the same one."
    if audit.unsplit:
        yield f"{counted(audit.unsplit, 'pair is', 'pairs are')} in no split; split.yaml lists them."
    shared = [f"{len(values)} of {kind}" for kind, values in audit.crossings.items() if values]
    yield f"Split by {', '.join(audit.by)}. In several splits: {', '.join(shared) or 'nothing'}."
    bytes_only = f", {audit.not_comparable} of them by their bytes only" if audit.not_comparable else ""
    yield f"{counted(audit.clips, 'clip was', 'clips were')} compared{bytes_only}."
