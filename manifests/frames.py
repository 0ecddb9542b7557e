"""Tables of pairs in memory, scored: a DataFrame, or a data set of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..assessment import Assessment
from ..audio_inputs import Audio, clip, make_pair
from ..data_modules.errors import AudioError, UserError
from ..data_modules.schema import Pair
from .columns import flat_row, flat_scores, row_columns, score_columns
from .records import ACCEPTED

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    from ..scorer import Scorer


def score_table(scorer: Scorer, table: pd.DataFrame | Dataset | IterableDataset, level: float) -> pd.DataFrame:
    """Score each row.

    Args:
        scorer: The judge.
        table: With `response_audio`, and optionally `pair_id`, `context_audio` and `situation`. A clip is whatever
            `Scorer.score` takes; missing values are no context, no situation.
        level: Of the intervals of a calibrated judge.

    Returns:
        A row for each row, with the index of a DataFrame: the columns of `columns.row_columns`. Rows whose audio cannot
        be used have no scores, and `status` says why.

    Raises:
        UserError: If there is no column `response_audio`, or a row has no response or something else than a clip.
    """
    columns = score_columns(scorer)
    index = table.index if isinstance(table, pd.DataFrame) else None
    rows = []
    for pair, found in scorer.assess_pairs(_pairs(table), level):
        scores = flat_scores(found, columns) if isinstance(found, Assessment) else None
        status = str(found) if isinstance(found, AudioError) else "ok"
        rows.append(flat_row(pair.pair_id, scores, status, columns))
    return pd.DataFrame(rows, columns=[column.name for column in row_columns(columns)], index=index)


def _pairs(table: pd.DataFrame | Dataset | IterableDataset) -> Iterator[Pair]:
    for position, row in enumerate(_rows(table)):
        cells = {name: row[name] for name in ACCEPTED if name in row and not _is_missing(row[name])}
        if "response_audio" not in cells:
            raise UserError(f"row {position + 1}: no response_audio; accepted: columns {', '.join(ACCEPTED)}")
        context: Audio | None = cells.get("context_audio")
        yield make_pair(
            str(cells.get("pair_id", position + 1)),
            None if context is None else clip(context),
            clip(cells["response_audio"]),
            cells.get("situation"),
        )


def _rows(table: pd.DataFrame | Dataset | IterableDataset) -> Iterator[Mapping[str, Any]]:
    """One after the other; clips of data sets as they are stored, since decoding them there takes another library."""
    if isinstance(table, pd.DataFrame):
        names = [str(name) for name in table.columns]
        for values in table.itertuples(index=False, name=None):
            yield dict(zip(names, values, strict=True))
        return
    from datasets import Audio as AudioFeature

    for name, feature in (table.features or {}).items():
        if isinstance(feature, AudioFeature):
            table = table.cast_column(name, AudioFeature(decode=False))
    for row in table:
        yield dict(row)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
