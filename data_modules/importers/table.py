"""Imports a table of pairs and a table of ratings: CSV, TSV, JSONL or Parquet, with the audio beside them.

Pairs
    One row per pair with ``pair_id`` and ``response_audio``; any other column of ``pairs.parquet`` may be there,
    under its own name or mapped. Audio is a path relative to the folder of the table, or bytes (Parquet).
    ``context_audio`` is one clip, or in JSONL and Parquet a list of ``{"role", "audio"}``. Without a column
    ``group_id``, pairs with the same context audio and situation are one group; a pair that has neither is in one
    group with those of the same response. A column ``tag:NAME``, such as ``tag:cue``, is a tag, which splits are made
    and reports sliced by; --column tag:cue=emotion makes another column one. The card's description lists the columns
    that were not imported. A pair whose clip is missing or unusable is skipped and listed, within --max-skipped.

Ratings, by the header:

    - long: ``pair_id, rater_id, dimension, score``; with one dimension its column may be left out;
    - ``pair_id, rater_id`` and one column per dimension: a row is what one rater says about one pair;
    - ``pair_id`` and columns ``DIMENSION:RATER``;
    - ``pair_id`` and one column per rater, for one dimension. Only on demand (--layout wide): a column such
      as ``mean`` would pass for a rater.

    The last two may also stand in the table of pairs. An empty cell of a wide table means not rated; in a
    long table a missing row does.

    In the first two layouts a column ``seconds`` may say how long the rater took for the row; empty = unknown. Under
    another name, or in the table of pairs, it is mapped (--rating-column seconds=NAME).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..intake.assemble import Imported
from ..intake.clips import find_clip
from ..intake.pair_tables import TableMapping, add_mapping_arguments, mapping_from, read_pairs
from ..intake.tables import read_table

EXAMPLE = "table pairs.csv --ratings ratings.csv --dimension vocal_empathy=1:5:1 --out data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of tables."""
    add_mapping_arguments(parser)


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads the tables that the command line names."""
    return read_tables(path, options.ratings, mapping_from(options))


def read_tables(pairs_path: str | Path, ratings_path: str | Path | None, mapping: TableMapping) -> Imported:
    """Reads pairs and ratings. Pairs without ratings are allowed.

    Args:
        pairs_path: The table of pairs; paths of audio are relative to its folder.
        ratings_path: The table of ratings; None = the ratings stand in the table of pairs.
        mapping: The columns and scales.

    Raises:
        DataError: If a table breaks the contract; file, row and column are named.
    """
    pairs = read_table(pairs_path)
    ratings = None if ratings_path is None else read_table(ratings_path)
    folder = pairs.path.parent.resolve()
    return read_pairs(pairs, ratings, mapping, lambda value, where: find_clip(value, folder, where))
