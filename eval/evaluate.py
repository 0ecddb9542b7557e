"""Measures a judge on a pair dataset: the agreement report and the table of items behind it."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from ..core.errors import DataError, UserError, counted, shown
from ..core.version import __version__
from ..data_modules.audit import COLUMNS, known_columns, read_column, tag_columns
from ..data_modules.folds import group_of
from ..data_modules.ratings import raters_of
from ..data_modules.schema import Dimension, Pair, PairDataset
from ..scoring.score_table import ABSTAINED, DISTRIBUTION, WINDOWS, levels_text
from .checks import DEFAULT_CHECKS, Check, choose
from .dimension_report import (
    MISSING,
    Lengths,
    check_reports,
    dimension_report,
    judged_rows,
    response_lengths,
    slice_report,
)
from .frame import Frame, clusters_by
from .judges import INTERVAL_COLUMNS, Judge, check_score_table, score_table
from .judges.opening import AnyJudge, open_judges
from .listening import VOICE_CHECK, WORDS_CHECK, voice_and_words
from .measurement import Measurement, takes
from .prompted_report import Answers, prompting_report
from .rating_distribution import rating_distribution
from .report.base import SCHEMA_VERSION
from .report.dataset import Cluster, DatasetFacts, LeftOut, Report, Runtime
from .report.dimension import SliceReport, VoiceAndWords
from .results import ITEMS_FILE, REPORT_FILE, results_frame, signature_on, summary, summary_html, write_results
from .statistics.bootstrap import Resamples

DEFAULT_SLICES = ("setting", "system_id", "language")
"""Columns that reports are sliced by, in addition to all tags."""

MOST_VALUES = 100
"""A column with more distinct values than this is sliced by only where it is asked for."""
NOT_GIVEN = "(not given)"

LEFT_OUT = "left out by the check"
"""The status, in a listening check, of a pair that the check cannot change."""

_STATED = (*(name for ends in INTERVAL_COLUMNS.values() for name in ends), ABSTAINED, WINDOWS, DISTRIBUTION)

_PARTS = [f"{VOICE_CHECK}_score", f"{WORDS_CHECK}_score"]

_PORTION = 256  # pairs whose changed clips are in memory at a time: about 1 GB where every clip lasts 30 s

_PACKAGES = ("numpy", "scipy", "pandas", "torch", "transformers", "peft")


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """What `evaluate` found of one judge; a notebook shows it as a short table.

    Attributes:
        report: All figures, as they stand in ``agreement.json``.
        items: ``pair_id``, ``group_id``, ``dimension``, `DEFAULT_SLICES` and the columns that are sliced by,
            ``human_mean`` (NaN = not rated), ``n_raters``, ``score``, ``uncertainty`` (NaN = none), ``status``, and
            ``<check>_score`` per check; of a calibrated judge also its `judges.INTERVAL_COLUMNS` and, where it may
            abstain, `judges.ABSTAINED`; of one that predicts how ratings spread ``levels``, a tuple of shares.
        dataset: What was judged.
    """

    report: Report
    items: pd.DataFrame
    dataset: PairDataset

    def to_frame(self) -> pd.DataFrame:
        """Every statistic of the report, one row each: see `results.results_frame`."""
        return results_frame([self.report])

    def save(self, folder: str | Path) -> None:
        """Write what `empathy-judge evaluate` writes: page, JSON, tables of statistics and items, Markdown.

        All or none.

        Args:
            folder: Made if it does not exist. What an earlier call wrote is replaced.

        Raises:
            UserError: If a file of somebody else would be replaced.
            ValueError: If the report holds NaN or infinity.
        """
        from .pages import report as pages

        files: dict[str, Any] = {
            REPORT_FILE: self.report,
            ITEMS_FILE: _in_text(self.items),
            "results.csv": self.to_frame(),
            "agreement.md": pages.markdown_report(self.report),
            pages.PAGE_FILE: pages.render_page(self.report, self.items, self.dataset),
        }
        write_results("evaluate", Path(folder), files)

    def __repr__(self) -> str:
        return summary([self.report]).to_string(index=False)

    def _repr_html_(self) -> str:
        return summary_html([self.report])


def _in_text(items: pd.DataFrame) -> pd.DataFrame:
    """A table of items as a file has it."""
    if DISTRIBUTION not in items:
        return items
    cells = [levels_text(own) if isinstance(own, tuple) else None for own in items[DISTRIBUTION]]
    return items.assign(**{DISTRIBUTION: cells})


@takes(Measurement)
def evaluate(judge: AnyJudge, data: str | Path | PairDataset, **how: Any) -> Results:
    """Scores the pairs of a split, and changed versions of them, and compares with the human means.

    A pair without a score is counted in the coverage and left out; nothing is imputed. Human ceilings are
    those of the same items. A judge that scores none of the pairs gets a report that says so.

    Args:
        judge: The folder of a judge or of a run; a name, as ``empathy-judge evaluate`` takes it (``acoustic``,
            ``openai:MODEL``, ...); a `Scorer`; or an object that is a `Judge`.
        data: Pairs and ratings: a folder, its address, or a dataset.
        how: Any of the fields of `Measurement`, by name: ``split="validation", seed=1``.

    Raises:
        DataError: If the split is empty, a slice or a check is unknown, or judge and dataset share no dimension.
        UserError: If there is no such judge, or no pair has a rating.
        ValueError: If the judge breaks the protocol.
    """
    plan = Measurement(**how)
    opened = open_judges([judge], data, plan, plan.named_checks())
    return measure(opened.judges[0], opened.dataset, plan, opened.provenances[0])


def measure(
    judge: Judge,
    dataset: PairDataset,
    plan: Measurement,
    provenance: Mapping[str, Any] | None,
    lengths: Lengths | None = None,
) -> Results:
    """`evaluate` for a judge that is already loaded.

    `provenance`, what else is known of the judge, must fit strict JSON. `lengths` of the responses are passed where
    they were measured before.
    """
    split, seed = plan.split, plan.seed
    part = dataset.subset(split)
    columns = _slice_columns(part.pairs, plan.slices)
    dimensions = shared_dimensions(judge, dataset)
    named = plan.named_checks()
    chosen = choose(DEFAULT_CHECKS if named is None else named)

    started = time.perf_counter()
    scores = scored(judge, part.pairs)
    wall = time.perf_counter() - started
    if not np.isfinite(scores["score"].to_numpy(np.float64)).any():
        chosen = ()  # nothing to compare with
    refused = {check.name: judge.only_given or check.refuses(part.pairs) for check in chosen}
    possible = [check for check in chosen if refused[check.name] is None]
    runs = {check.name: _run_check(check, judge, part.pairs, seed) for check in possible}
    tables = [_items(part, dimension.name, scores, runs, columns) for dimension in dimensions]
    if not any(items["human_mean"].notna().any() for items in tables):
        raise UserError(
            f"none of the {counted(len(part.pairs), 'pair')} has a rating of {', '.join(d.name for d in dimensions)}"
        )
    clusters = clusters_of(part.pairs, plan.cluster)
    frame = Frame.of_dataset(part, {judge.name: pd.concat(tables)}, clusters)
    names = [dimension.name for dimension in dimensions]
    panels = [*frame.panels(plan.resamples, seed, plan.interval, names, judged=True)]
    judged_items = {
        panel.dimension: (panel.judged(judge.name), judged_rows(items))
        for panel, items in zip(panels, tables, strict=True)
    }
    # `compare` measures them once for all judges
    lengths = response_lengths(part.pairs) if lengths is None else lengths
    checks = {name: check_reports(*entry, chosen, refused) for name, entry in judged_items.items()}
    answers, prompted = Answers.of(scores, part.pairs), {}
    if answers is not None:
        # Over all pairs: what the answers cost and which failed is known of pairs without ratings, too
        drawn = Resamples.sample([*clusters.values()], plan.resamples, seed, plan.interval)
        prompted = {name: answers.dimension_report(name, drawn) for name in judged_items}
    draws: Any = {
        "seed": seed,
        "cluster": plan.cluster,
        "interval": plan.interval,
        "resamples": min(panel.draws.resamples for panel in panels),
    }

    def sliced(column: str) -> dict[str, dict[str, SliceReport]]:
        return {
            value: {
                name: slice_report(*entry, entry[1][column].fillna(NOT_GIVEN).eq(value).to_numpy(bool), possible)
                for name, entry in judged_items.items()
            }
            for value in sorted(set(tables[0][column].fillna(NOT_GIVEN)))
        }

    report = Report(
        schema_version=SCHEMA_VERSION,
        signature=signature_on(judge, dataset, split, provenance, **draws),
        judge=judge.name,
        dataset=DatasetFacts(
            name=dataset.card.name,
            source=dataset.card.source,
            licence=dataset.card.licence,
            synthetic=dataset.card.synthetic,
            content_hash=dataset.card.content_hash,
        ),
        split=split,
        split_hash=dataset.split_hash(),
        command=plan.command,
        **draws,
        versions={
            "python": platform.python_version(),
            "empathy-judge": __version__,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        provenance=dict(provenance or {}),
        left_out=LeftOut(
            not_judged=tuple(d.name for d in dataset.card.dimensions if d not in dimensions),
            not_rated=tuple(name for name in judge.dimensions if name not in {d.name for d in dimensions}),
        ),
        # Windows are those of the pair: every dimension has the same
        in_windows=int(np.count_nonzero(tables[0][WINDOWS] > 1)) if WINDOWS in tables[0] else None,
        runtime=Runtime(
            # Requests run side by side, and stored answers take no time: the clock says nothing of a prompted judge
            seconds_per_pair=(wall if answers is None else answers.seconds) / len(part.pairs),
            measured="wall_clock" if answers is None else "requests",
        ),
        prompting=None if answers is None else prompting_report(answers, [*runs.values()]),
        dimensions={
            dimension.name: dimension_report(
                dimension,
                judged_items[dimension.name][0],
                items,
                lengths,
                prompted.get(dimension.name),
                part,
                getattr(judge, "three_way", {}).get(dimension.name),
                rating_distribution(dimension, *judged_items[dimension.name], dataset, split),
            )
            for dimension, items in zip(dimensions, tables, strict=True)
        },
        checks={check.name: {name: results[check.name] for name, results in checks.items()} for check in chosen},
        voice_and_words={
            name: VoiceAndWords(
                **voice_and_words(judged.score, *items[_PARTS].to_numpy(np.float64).T, resamples=judged.panel.draws)
            )
            for name, (judged, items) in judged_items.items()
            if {*_PARTS} <= {*items}
        },
        # A slice that holds all items would repeat the report
        slices={column: sliced(column) for column in columns if len(set(tables[0][column].fillna(NOT_GIVEN))) >= 2},
    )
    return Results(report, pd.concat(tables, ignore_index=True), dataset)


def clusters_of(pairs: Sequence[Pair], cluster: Cluster) -> dict[str, str]:
    """Pair id -> its cluster, which the bootstrap draws as a whole; a pair that names none is a cluster of its own.

    Raises:
        UserError: If there is no such kind of cluster.
    """
    # In Python nothing checks a `Literal`, and another attribute of a pair would be taken for a cluster
    if cluster not in get_args(Cluster):
        raise UserError(f"cluster {cluster!r}: expected one of {', '.join(get_args(Cluster))}")
    ids = [pair.pair_id for pair in pairs]
    return dict(zip(ids, clusters_by((getattr(pair, cluster) for pair in pairs), ids), strict=True))


def shared_dimensions(judge: Judge, dataset: PairDataset) -> list[Dimension]:
    """The dimensions of the dataset that the judge scores.

    Raises:
        DataError: If there is none.
    """
    rated = dataset.card.dimensions
    shared = [dimension for dimension in rated if dimension.name in judge.dimensions]
    if not shared:
        raise DataError(
            f"judge {judge.name} scores {', '.join(judge.dimensions)}; "
            f"dataset {dataset.card.name} has ratings of {', '.join(dimension.name for dimension in rated)}"
        )
    return shared


def scored(judge: Judge, pairs: Sequence[Pair]) -> pd.DataFrame:
    """The table of scores; ValueError if the judge breaks the protocol."""
    check_score_table(table := judge.score(pairs), judge, pairs)
    return table


def _run_check(check: Check, judge: Judge, pairs: Sequence[Pair], seed: int) -> pd.DataFrame:
    """A pass of the judge over changed pairs; those that the check leaves out have the status `LEFT_OUT`."""
    portions = [pairs]
    if check.by_clip:  # pairs of a group side by side: they share clips
        ordered = sorted(pairs, key=group_of)
        portions = [ordered[start : start + _PORTION] for start in range(0, len(ordered), _PORTION)]
    tables, ids = [], set()
    for portion in portions:
        changed = check.apply(portion, seed)
        tables.append(scored(judge, changed))
        ids.update(pair.pair_id for pair in changed)
    if left_out := [pair for pair in pairs if pair.pair_id not in ids]:
        no_scores = np.full((len(left_out), len(judge.dimensions)), np.nan)
        tables.append(score_table(left_out, judge.dimensions, no_scores, statuses=[LEFT_OUT] * len(left_out)))
    return pd.concat(tables, ignore_index=True)


def _slice_columns(pairs: Sequence[Pair], asked: Sequence[str] | None) -> list[str]:
    tags = tag_columns(pairs)
    unknown = [column for column in asked or () if column not in COLUMNS and column not in tags]
    if unknown:
        raise DataError(f"slice {shown(unknown[0])}; expected {known_columns(pairs)}")
    if asked is not None:
        return list(asked)
    # A tag such as a file name would make a slice of each pair
    sliced_tags = [tag for tag in tags if len({read_column(pair, tag) for pair in pairs}) <= MOST_VALUES]
    return [*DEFAULT_SLICES, *sliced_tags]


def _items(
    part: PairDataset,
    dimension: str,
    scores: pd.DataFrame,
    runs: Mapping[str, pd.DataFrame],
    slices: Iterable[str],
) -> pd.DataFrame:
    """The rows of `Results.items` of one dimension, in the order of the pairs; always with `DEFAULT_SLICES`."""
    pair_ids = [pair.pair_id for pair in part.pairs]
    rows = _rows(scores, dimension, pair_ids)
    rated = part.ratings.loc[part.ratings["dimension"] == dimension]
    names = dict.fromkeys((*DEFAULT_SLICES, *slices))
    columns: dict[str, Any] = {
        "pair_id": pair_ids,
        "group_id": [group_of(pair) for pair in part.pairs],
        "dimension": dimension,
        **{name: [read_column(pair, name) for pair in part.pairs] for name in names},
        "human_mean": part.mean_scores()[dimension].to_numpy(),
        "n_raters": raters_of(rated, pair_ids),
        "score": rows["score"].to_numpy(np.float64),
        "uncertainty": rows["uncertainty"].to_numpy(np.float64),
        "status": rows["status"].to_numpy(),
        **{name: rows[name].to_numpy() for name in _STATED if name in rows},
    }
    for name, table in runs.items():
        changed = _rows(table, dimension, pair_ids)
        columns[f"{name}_score"] = changed["score"].to_numpy(np.float64)
        columns[f"{name}_status"] = changed["status"].to_numpy()
    return pd.DataFrame(columns)


def _rows(table: pd.DataFrame, dimension: str, pair_ids: Sequence[str]) -> pd.DataFrame:
    """One row per pair; a pair without a row has the status `MISSING`."""
    rows = table[table["dimension"] == dimension].set_index("pair_id").reindex(pair_ids)
    return rows.assign(status=rows["status"].fillna(MISSING))
