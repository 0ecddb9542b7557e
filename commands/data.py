"""Commands that make, check and split pair datasets. Heavy imports stand inside them, so that help is instant."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data_modules.errors import UserError, counted, system_errors
from ..data_modules.folders import CARD_FILE
from ..data_modules.written import changing, making, writing
from . import DONE, FAILED_CHECKS, chosen, first_given, tell
from .options import import_parser, source_parser

if TYPE_CHECKING:
    from rich.table import Table

    from ..data_modules.audit import SplitAudit


def import_(words: Sequence[str]) -> int:
    """Turn a source into a pair dataset."""
    from ..data_modules import importers

    parser = import_parser(importers.SOURCES)
    if not words or words[0].startswith("-"):
        parser.parse_args(words)  # --help, or what is missing
    name = parser.parse_args(words[:1]).source
    importer = importers.load(name)
    options = source_parser(name, importer).parse_args(words[1:])

    from ..data_modules.importers.assemble import SKIPPED_FILE, assemble

    with making(options.out, options.overwrite):
        with system_errors(options.path, "read"):
            imported = importer.read(Path(options.path), options)
        card = dataclasses.replace(
            imported.card,
            name=options.name or imported.card.name,
            source=options.origin or imported.card.source,
            licence=options.licence or imported.card.licence,
        )
        storing = chosen(options, "max_skipped", "overwrite", "embed_audio", "shard_rows")
        dataset = assemble(dataclasses.replace(imported, card=card), options.out, **storing)
    skipped = dataset.root / SKIPPED_FILE
    facts = {
        "out": str(dataset.root),
        "pairs": len(dataset.pairs),
        "ratings": len(dataset.ratings),
        "raters": dataset.ratings["rater_id"].nunique(),
        "preferences": 0 if dataset.preferences is None else len(dataset.preferences),
        "groups": len({pair.group_id for pair in dataset.pairs}),
        "pairs_without_rating": len(dataset.pairs) - dataset.ratings["pair_id"].nunique(),
        "content_hash": dataset.card.content_hash,
        "description": dataset.card.description,
        "skipped": str(skipped) if skipped.is_file() else None,
    }
    return tell(options, facts, _dataset_lines)


def inspect(options: argparse.Namespace) -> int:
    """Show what is in a dataset, how far its raters agree, and what is wrong with it."""
    if options.page is not None and (options.page / CARD_FILE).exists():  # its own clips lie in audio/
        raise UserError(f"--page {options.page}: holds a pair dataset ({CARD_FILE}); name a folder of its own")
    with writing("inspect", options.page):
        from ..data_modules.inspection import inspect_dataset
        from ..data_modules.schema import PairDataset
        from ..eval.inspection import inspection_facts
        from ..eval.other_views import inspection_tables

        dataset = PairDataset.load(options.data)
        inspection = inspect_dataset(dataset, max_seconds=options.max_seconds)
        facts = inspection_facts(dataset)
        pages = []
        if options.page is not None:
            from ..eval.pages.inspection import write_inspection_page

            pages.append(f"page: {write_inspection_page(dataset, inspection, facts, options.page)}")
    tell(
        options, {**inspection.to_dict(), **facts.as_json()}, lambda _: [*inspection_tables(inspection, facts), *pages]
    )
    leaks = any(inspection.crossings[kind] for kind in inspection.refused)
    return FAILED_CHECKS if inspection.problems or leaks else DONE


def split(options: argparse.Namespace) -> int:
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
    """
    from ..data_modules.splits import DEFAULT_FRACTIONS, leave_one_out, split_dataset

    method = "leave_out" if options.leave_out is not None else "folds" if options.folds is not None else None
    excluded = {"leave_out": ("by", "fractions", "folds", "hold_out"), "folds": ("fractions", "hold_out")}
    if method is not None and (unused := first_given(options, *excluded[method])):
        raise UserError(f"--{method.replace('_', '-')} together with {unused}; expected one of them")
    root = Path(options.data)
    with changing(root) if root.is_dir() else nullcontext():  # else it is refused in a moment
        if options.leave_out is not None:
            audit = leave_one_out(options.data, options.leave_out, overwrite=options.overwrite)
        else:
            audit = split_dataset(
                options.data,
                by=options.by or ["group_id"],
                fractions=dict(zip(DEFAULT_FRACTIONS, options.fractions or DEFAULT_FRACTIONS.values(), strict=True)),
                hold_out=_hold_out(options.hold_out),
                **chosen(options, "folds", "seed", "overwrite"),
            )
    return tell(options, audit.to_dict(), lambda _: _audit_views(audit))


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
    yield (
        f"{facts['out']}: {counted(facts['pairs'], 'pair')} in {counted(facts['groups'], 'group')}, "
        f"{counted(facts['ratings'], 'rating')} by {counted(facts['raters'], 'rater')}, "
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
    table = Table(Column("split", overflow="fold", min_width=10), *heads)  # names are typed: none is cut
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
