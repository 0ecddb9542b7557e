"""How the rows of a table are scored, and how scores are written, to a file or a DataFrame."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from ...core.errors import AudioError, UserError
from ...core.processes import ProgressBar
from ...data_modules.tables import plain_text
from ..score_table import DECIMALS, OK, Column, Value, flat_scores, row_columns
from .manifest import COLUMNS, Manifest, Row, RowReader
from .tally import Tally

if TYPE_CHECKING:  # torch and pandas: a process that only puts parts together needs neither
    import pandas as pd
    from datasets import Dataset, IterableDataset

    from ..assessment import Assessment
    from ..scorer import Scorer

_GROUP_ROWS = 2**16  # of a row group in Parquet, at least
_ARROW = {"number": pa.float64(), "count": pa.int64(), "flag": pa.bool_(), "text": pa.string()}


class ScoredRow(NamedTuple):
    """A row of scores."""

    values: list[Value]  # those of `row_columns`, after the id what is copied from the manifest
    error: AudioError | None  # why there are no scores; None = there are


def score_rows(scorer: Scorer, rows: Iterable[Row], level: float | None = None) -> Iterator[ScoredRow]:
    """Score rows, in order; they are taken a few batches at a time. `level` is that of the intervals of a calibrated
    judge (None = the usual one)."""
    from ..calibration import DEFAULT_LEVEL

    # Scores come some batches after their rows: `tee` holds the rows between
    rows, copies = itertools.tee(rows)
    assessments = scorer.assess_pairs((row.pair for row in copies), DEFAULT_LEVEL if level is None else level)
    return map(functools.partial(_scored, scorer.columns), rows, assessments)


def _scored(columns: Sequence[Column], row: Row, found: Assessment | AudioError) -> ScoredRow:
    if isinstance(found, AudioError):
        return ScoredRow([row.pair_id, *row.copied, *[None] * len(columns), str(found)], found)
    return ScoredRow([row.pair_id, *row.copied, *flat_scores(found, columns).values(), OK], None)


def write_scores(
    suffix: str, columns: Sequence[Column], pieces: Iterable[Sequence[Sequence[Value]]], file: BinaryIO
) -> None:
    """Write a file of scores, whose rows come some at a time; it stays open. By the suffix it is CSV or TSV (None is
    empty, flags are `true` and `false`, numbers have six decimals), JSONL (an object per row, None is null) or Parquet
    (numbers as float64, flags as booleans, text as strings)."""
    if suffix == ".parquet":
        schema = pa.schema([(column.name, _ARROW[column.kind]) for column in columns])
        # Row groups of a few rows would make a file slow to read
        waiting: list[Sequence[Value]] = []
        with pq.ParquetWriter(file, schema) as writer:
            for rows in itertools.chain(pieces, [[]]):
                waiting += rows
                # A row group is full, or this is the end
                if len(waiting) >= _GROUP_ROWS or (waiting and not rows):
                    values = zip(*waiting, strict=True)
                    arrays = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                    waiting = []
        return
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    write = _row_writer(suffix, columns, text)
    for row in itertools.chain.from_iterable(pieces):
        write(row)
    text.detach()  # flushes the buffer


def _row_writer(suffix: str, columns: Sequence[Column], file: TextIO) -> Callable[[Sequence[Value]], object]:
    """Return the function that writes a row of text; the header is written at once."""
    names = [column.name for column in columns]
    if suffix == ".jsonl":
        return lambda row: file.write(
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False) + "\n"
        )
    table = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
    table.writerow(names)
    return lambda row: table.writerow(map(_cell, row))


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{DECIMALS}f}" if isinstance(value, float) else str(value)


def windows_in_words(pairs: int) -> str:
    """A line about so many pairs."""
    return f"heard in windows: {pairs:,} (a clip is longer than the judge hears at once; --no-windows refuses these)"


def print_scores(
    scorer: Scorer, path: Path, file: TextIO, level: float | None, audio_root: Path | None, as_json: bool
) -> tuple[int, Tally]:
    """Score a manifest and write rows as scores come, CSV or an object on each line, for pipes; a run that ends early
    begins anew. `level` and `audio_root` are as in `score_rows` and `RowReader`.

    Returns:
        How many rows have no scores, and what the scores say together.

    Raises:
        DataError: If the manifest cannot be read, lacks `response_audio` or has an id twice.
    """
    manifest, failed = Manifest(path), 0
    # Before the first row: whoever reads the pipe gets no half of a table that is refused
    count = manifest.check()
    taken = {column.name for column in row_columns(scorer.columns)}
    reader = RowReader(path.parent, audio_root, manifest.copied(taken), may_name=True)
    file_columns = row_columns((*reader.copied, *scorer.columns))
    tally = Tally(file_columns)
    rows = (reader.of_record(record, path) for record in manifest.read(0, count))
    write = _row_writer(".jsonl" if as_json else ".csv", file_columns, file)
    # In a terminal the rows show the progress
    with ProgressBar("scoring", count, quiet=file.isatty()) as bar:
        for done, row in enumerate(score_rows(scorer, rows, level), start=1):
            failed += row.error is not None
            tally.add([row.values])
            write(row.values)
            bar.update(done)
    return failed, tally


def score_table(
    scorer: Scorer, table: pd.DataFrame | Dataset | IterableDataset, level: float | None = None
) -> pd.DataFrame:
    """Score each row of a table in memory.

    Args:
        scorer: The judge.
        table: With `response_audio`, and optionally `pair_id`, `context_audio` and `situation`. A clip is whatever
            `Scorer.score` takes; missing values are no context, no situation.
        level: Of the intervals of a calibrated judge; None = the usual one.

    Returns:
        A row for each row, with the index of a DataFrame: the columns of `row_columns`. Rows whose audio cannot be used
        have no scores, and `status` says why.

    Raises:
        UserError: If it is no such table, there is no column `response_audio`, or a row has no response or something
            else than a clip.
    """
    import pandas as pd

    from ..audio_inputs import is_missing, make_pair

    def rows() -> Iterator[Row]:
        for number, row in enumerate(_rows_of(table), start=1):
            cells = {name: row[name] for name in COLUMNS if name in row and not is_missing(row[name])}
            if "response_audio" not in cells:
                raise UserError(f"row {number}: no response_audio; expected columns {', '.join(COLUMNS)}")
            given = plain_text(cells.get("pair_id"))
            pair_id = str(number) if given is None else str(given)
            try:
                values = cells.get("context_audio"), cells["response_audio"], cells.get("situation")
                yield Row(pair_id, make_pair(pair_id, *values))
            except AudioError as error:  # the others are scored
                yield Row(pair_id, error)
            except UserError as error:
                raise error.at(f"row {number}") from None

    scored = [row.values for row in score_rows(scorer, rows(), level)]
    index = table.index if isinstance(table, pd.DataFrame) else None
    return pd.DataFrame(scored, columns=[column.name for column in row_columns(scorer.columns)], index=index)


def _rows_of(table: pd.DataFrame | Dataset | IterableDataset) -> Iterable[Mapping[str, Any]]:
    """Clips of data sets come as they are stored, since decoding them there takes another library."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        # `itertuples` with names would rename columns that are no identifiers
        names = [str(name) for name in table.columns]
        return (dict(zip(names, values, strict=True)) for values in table.itertuples(index=False, name=None))
    from datasets import Audio, Dataset, IterableDataset

    if not isinstance(table, Dataset | IterableDataset):
        expected = "expected a DataFrame of pandas, or a Dataset or IterableDataset of Hugging Face"
        raise UserError(f"table of type {type(table).__name__}; {expected}")
    for name, feature in (table.features or {}).items():
        if isinstance(feature, Audio):
            table = table.cast_column(name, Audio(decode=False))
    return map(dict, table)
