"""Measures a judge on a pair dataset: the agreement report and the table of items behind it."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import pandas as pd

from ..data_modules.audit import COLUMNS, known_columns, read_column, tag_columns
from ..data_modules.errors import DataError, UserError, shown
from ..data_modules.schema import Dimension, Pair, PairDataset
from .commonality import VOICE_PROBE, WORDS_PROBE, voice_and_words
from .dimension_report import (
    MISSING,
    Lengths,
    check_report,
    dimension_report,
    judged_rows,
    response_lengths,
    slice_report,
)
from .frame import Frame, Judged
from .judges import ABSTAINED, INTERVAL_COLUMNS, WINDOWS, Judge, check_score_table
from .judges.opening import AnyJudge, Loading, open_judges
from .probes import DEFAULT_PROBES, Probe, choose, group_of
from .prompted_report import Answers, effort_report, prompting_report
from .results import SCHEMA_VERSION, Report, Results, signature_on
from .statistics.agreement import as_report
from .statistics.bootstrap import Interval, Resamples

DEFAULT_SLICES = ("setting", "system_id", "language")
"""What reports are sliced by, beside all tags."""

MOST_VALUES = 100
"""A column with more of them is not sliced by unless it is asked for."""
NOT_GIVEN = "(not given)"

Cluster = Literal["group_id", "context_speaker", "response_speaker", "system_id"]
CLUSTERS: Mapping[Cluster, Callable[[Pair], str]] = {
    "group_id": group_of,
    "context_speaker": lambda pair: pair.context_speaker or pair.pair_id,
    "response_speaker": lambda pair: pair.response_speaker or pair.pair_id,
    "system_id": lambda pair: pair.system_id or pair.pair_id,
}
"""What a bootstrap can draw whole."""

LEFT_OUT = "left out by the probe"
"""The status, in a listening check, of a pair that the probe cannot change."""

_STATED = (*(name for ends in INTERVAL_COLUMNS.values() for name in ends), ABSTAINED, WINDOWS)

_PORTION = 256  # pairs whose changed clips are in memory at a time: about 1 GB where every clip lasts 30 s

_PACKAGES = ("empathy-judge", "numpy", "scipy", "pandas", "torch", "transformers", "peft")


def evaluate(
    judge: AnyJudge,
    data: str | Path | PairDataset,
    *,
    split: str | None = "test",
    slices: Sequence[str] | None = None,
    probes: Sequence[str] | Literal["all"] | None = None,
    cluster: Cluster = "group_id",
    interval: Interval = "percentile",
    resamples: int = 1000,
    seed: int = 0,
    command: str = "",
    **loading: Unpack[Loading],
) -> Results:
    """Scores the pairs of a split, and changed versions of them, and compares with the human means.

    A pair without a score is counted in the coverage and left out; nothing is imputed. Human ceilings are
    those of the same items. A judge that scores none of the pairs gets a report that says so.

    Args:
        judge: The folder of a judge or of a run; a name, as ``empathy-judge evaluate`` takes it (``acoustic``,
            ``openai:MODEL``, ...); a `Scorer`; or an object that is a `Judge`.
        data: Pairs and ratings: a folder, its address, or a dataset.
        split: Which pairs; None = all.
        slices: Columns to slice by: of `columns.COLUMNS`, or tags (``tag:NAME``). None = `DEFAULT_SLICES` and all tags
            of these pairs that have at most `MOST_VALUES` values. A column with fewer than two is left out.
        probes: The listening checks, by their names in `probes.PROBES`: each is one more pass of the judge. ``all`` =
            every one; None = `DEFAULT_PROBES`, which prompted judges do not take unless they are named.
        cluster: What intervals draw whole: groups, speakers or systems. A pair that names none is one of its own.
        interval: The kind of intervals.
        resamples: Bootstrap resamples of an interval.
        seed: Of bootstrap, halvings and swaps.
        command: The command line, for the record.
        loading: How a judge that is named is loaded: ``device, backbone, quantization, cache``; what a prompted judge
            may cost: ``budget`` (dollars); and where its answers are kept: ``answers``.

    Raises:
        DataError: If the split is empty, a slice or a probe is unknown, or judge and dataset share no dimension.
        UserError: If there is no such judge, or no pair has a rating.
        ValueError: If the judge breaks the protocol.
    """
    opened = open_judges([judge], data, split, seed, probes, loading)
    return measure(
        opened.judges[0],
        opened.dataset,
        split=split,
        slices=slices,
        probes=probes,
        cluster=cluster,
        interval=interval,
        resamples=resamples,
        seed=seed,
        command=command,
        provenance=opened.provenances[0],
    )


def measure(
    judge: Judge,
    dataset: PairDataset,
    *,
    split: str | None,
    slices: Sequence[str] | None,
    probes: Sequence[str] | Literal["all"] | None,
    cluster: Cluster,
    interval: Interval,
    resamples: int,
    seed: int,
    command: str,
    provenance: Mapping[str, Any] | None,
    lengths: Lengths | None = None,
) -> Results:
    """`evaluate` with a judge at work.

    Args:
        judge: What scores.
        dataset: Pairs and ratings.
        split: As `evaluate`; also the others that are not named here.
        slices: Columns.
        probes: Listening checks.
        cluster: What intervals draw whole.
        interval: The kind.
        resamples: Of an interval.
        seed: Of everything drawn.
        command: For the record.
        provenance: What else is known of the judge; must fit strict JSON.
        lengths: Of the responses, by pair, where they were measured before (`dimension_report.response_lengths`).
    """
    part = dataset.subset(split)
    columns = _slice_columns(part.pairs, slices)
    dimensions = _shared_dimensions(judge, dataset)
    chosen = choose(DEFAULT_PROBES if probes is None else probes)

    begun = time.perf_counter()
    scores = _score(judge, part.pairs)
    wall = time.perf_counter() - begun
    if not np.isfinite(scores["score"].to_numpy(np.float64)).any():
        chosen = ()  # nothing to compare with
    runs = {probe.name: _run_check(probe, judge, part.pairs, seed) for probe in chosen}
    parts = [_items(part, dimension.name, scores, runs, columns) for dimension in dimensions]
    if not any(items["human_mean"].notna().any() for items in parts):
        raise UserError(f"none of the {len(part.pairs)} pairs has a rating of {', '.join(d.name for d in dimensions)}")
    clusters = {pair.pair_id: CLUSTERS[cluster](pair) for pair in part.pairs}
    frame = Frame.of_dataset(part, {judge.name: pd.concat(parts)}, clusters)
    panels = [frame.panel(None, own.name, resamples, seed, interval, judge.name) for own in dimensions]
    results = [(panel.judged(judge.name), judged_rows(items)) for panel, items in zip(panels, parts, strict=True)]
    lengths = response_lengths(part.pairs) if lengths is None else lengths
    answers = Answers.of(scores, part.pairs)
    drawn = None if answers is None else Resamples.draw([*clusters.values()], resamples, seed, interval)
    named = dict(zip((dimension.name for dimension in dimensions), results, strict=True))

    drawn_n = min([panel.draws.resamples for panel in panels])
    report: Report = {
        "schema_version": SCHEMA_VERSION,
        "signature": signature_on(
            judge, dataset, split, provenance, cluster=cluster, interval=interval, resamples=drawn_n, seed=seed
        ),
        "judge": judge.name,
        "dataset": {
            "name": dataset.card.name,
            "source": dataset.card.source,
            "licence": dataset.card.licence,
            "synthetic": dataset.card.synthetic,
            "content_hash": dataset.card.content_hash,
        },
        "split": split,
        "split_hash": dataset.split_hash(),
        "command": command,
        "seed": seed,
        "cluster": cluster,
        "interval": interval,
        "resamples": drawn_n,
        "versions": _versions(),
        "provenance": dict(provenance or {}),
        "left_out": {
            "not_judged": [d.name for d in dataset.card.dimensions if d not in dimensions],
            "not_rated": [name for name in judge.dimensions if name not in {d.name for d in dimensions}],
        },
        "in_windows": int(np.count_nonzero(parts[0][WINDOWS] > 1)) if WINDOWS in parts[0] else None,
        "effort": effort_report(answers, len(part.pairs), wall),
        "asking": None
        if answers is None
        else prompting_report(answers, [run.table for run in runs.values() if run.table is not None]),
        "dimensions": {
            dimension.name: dimension_report(
                dimension,
                named[dimension.name][0],
                items,
                lengths,
                None if answers is None or drawn is None else answers.dimension_report(dimension.name, drawn),
            )
            for dimension, items in zip(dimensions, parts, strict=True)
        },
        "checks": {
            probe.name: {name: check_report(*own, probe, runs[probe.name].reason) for name, own in named.items()}
            for probe in chosen
        },
        "voice_and_words": {
            name: _voice_and_words(*own)
            for name, own in named.items()
            if {f"{VOICE_PROBE}_score", f"{WORDS_PROBE}_score"} <= set(own[1])
        },
        "slices": {},
    }
    done = [probe for probe in chosen if runs[probe.name].table is not None]
    for column in columns:
        values = set(parts[0][column].fillna(NOT_GIVEN))
        if len(values) >= 2:
            report["slices"][column] = {
                value: {
                    name: slice_report(*own, own[1][column].fillna(NOT_GIVEN).eq(value).to_numpy(bool), done)
                    for name, own in named.items()
                }
                for value in sorted(values)
            }
    return Results(report, pd.concat(parts, ignore_index=True), dataset)


class _Run(NamedTuple):
    """A pass of the judge over changed pairs: its table and their ids, or the reason why there was none."""

    table: pd.DataFrame | None
    changed: frozenset[str]
    reason: str | None = None


def _shared_dimensions(judge: Judge, dataset: PairDataset) -> list[Dimension]:
    rated = dataset.card.dimensions
    shared = [dimension for dimension in rated if dimension.name in judge.dimensions]
    if not shared:
        raise DataError(
            f"judge {judge.name} scores {', '.join(judge.dimensions)}; "
            f"dataset {dataset.card.name} has ratings of {', '.join(dimension.name for dimension in rated)}"
        )
    return shared


def _score(judge: Judge, pairs: Sequence[Pair]) -> pd.DataFrame:
    table = judge.score(pairs)
    check_score_table(table, judge, pairs)
    return table


def _run_check(probe: Probe, judge: Judge, pairs: Sequence[Pair], seed: int) -> _Run:
    reason = judge.only_given or probe.refuses(pairs)
    if reason is not None:
        return _Run(None, frozenset(), reason)
    portions = [pairs]
    if probe.by_clip:  # pairs of a group side by side: they share clips
        ordered = sorted(pairs, key=group_of)
        portions = [ordered[start : start + _PORTION] for start in range(0, len(ordered), _PORTION)]
    tables, ids = [], set()
    for portion in portions:
        changed = probe.apply(portion, seed)
        tables.append(_score(judge, changed))
        ids.update(pair.pair_id for pair in changed)
    return _Run(pd.concat(tables, ignore_index=True), frozenset(ids))


def _slice_columns(pairs: Sequence[Pair], asked: Sequence[str] | None) -> list[str]:
    tags = tag_columns(pairs)
    unknown = [column for column in asked or () if column not in COLUMNS and column not in tags]
    if unknown:
        raise DataError(f"slice {shown(unknown[0])}; expected {known_columns(pairs)}")
    if asked is not None:
        return list(asked)
    few = [tag for tag in tags if len({read_column(pair, tag) for pair in pairs}) <= MOST_VALUES]
    return [*DEFAULT_SLICES, *few]


def _items(
    part: PairDataset,
    dimension: str,
    scores: pd.DataFrame,
    runs: Mapping[str, _Run],
    slices: Iterable[str],
) -> pd.DataFrame:
    """The rows of `Results.items` of one dimension, in the order of the pairs; always with `DEFAULT_SLICES`."""
    pair_ids = [pair.pair_id for pair in part.pairs]
    own = _rows(scores, dimension, pair_ids)
    rated = part.ratings.loc[part.ratings["dimension"] == dimension]
    named = dict.fromkeys((*DEFAULT_SLICES, *slices))
    columns: dict[str, Any] = {
        "pair_id": pair_ids,
        "group_id": [group_of(pair) for pair in part.pairs],
        "dimension": dimension,
        **{name: [read_column(pair, name) for pair in part.pairs] for name in named},
        "human_mean": part.mean_scores()[dimension].to_numpy(),
        "n_raters": rated["pair_id"].value_counts().reindex(pair_ids, fill_value=0).to_numpy(),
        "score": own["score"].to_numpy(np.float64),
        "uncertainty": own["uncertainty"].to_numpy(np.float64),
        "status": own["status"].to_numpy(),
        **{name: own[name].to_numpy() for name in _STATED if name in own},
    }
    for name, run in runs.items():
        if run.table is not None:
            changed = _rows(run.table, dimension, pair_ids)
            columns[f"{name}_score"] = changed["score"].to_numpy(np.float64)
            columns[f"{name}_status"] = [
                status if pair_id in run.changed else LEFT_OUT
                for pair_id, status in zip(pair_ids, changed["status"], strict=True)
            ]
    return pd.DataFrame(columns)


def _voice_and_words(judged: Judged, items: pd.DataFrame) -> dict[str, Any]:
    """From the probes that keep the one and the other."""
    voice, words = (items[f"{probe}_score"].to_numpy(np.float64) for probe in (VOICE_PROBE, WORDS_PROBE))
    return as_report(voice_and_words(judged.score, voice, words, judged.draws))


def _rows(table: pd.DataFrame, dimension: str, pair_ids: Sequence[str]) -> pd.DataFrame:
    """One row per pair; a pair without a row has the status `MISSING`."""
    rows = table[table["dimension"] == dimension].set_index("pair_id").reindex(pair_ids)
    return rows.assign(status=rows["status"].fillna(MISSING))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
