"""Imports a Hugging Face dataset: its id on the Hub, or a folder (``save_to_disk``, Parquet, JSON, CSV, audio files).

PATH is a folder, or an id such as ``org/name``, which is downloaded into the cache of ``huggingface_hub``; with
HF_HUB_OFFLINE=1 only what is there already is used. --files limits the download. No code of a dataset is ever run.

Columns are mapped as ``import table`` maps them (see there for the layouts of ratings): ``response_audio`` and
``context_audio`` are Audio columns, or paths relative to the folder. A class label counts as its name, inside lists
and structures as well; a negative one stands for "no label", a missing value. Without a column for ``pair_id`` it is
the number of the row, from 0; where rows name raters (``rater_id``), that of the first row with the same clips and
situation. Cells of CSV are text, as there. Columns ``chosen`` and ``rejected`` are preferences, as there. Audio is
taken as it is stored, not decoded and encoded again. Ratings may also stand in the rows of the pairs, in a column
``ratings``: a list of ``{rater_id, dimension, score}``, as `frames.dataset_to_hugging_face` writes it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ...core.errors import DataError, UserError, bad_value, shown
from ...core.files import path_version
from ..class_labels import has_labels
from ..embedded_tables import EmbeddingTable, Tables, parquet_tables
from ..layouts import read_rating_tables
from ..tables import SourceTable, read_csv, read_parts
from . import REPEATABLE, table
from .assemble import Imported
from .clips import ClipCell, find_clip, path_or_bytes
from .preferences import has_preferences
from .repeated_rows import has_raters

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

EXAMPLE = (
    "hugging-face org/name --split train --column response_audio=audio --column system_id=model "
    "--rating-column rater_id=annotator --dimension empathy=1:5:1 --out data"
)
RATINGS = "ratings"
"""Column in which a row holds the ratings of its pair, in long form."""
_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_Split = tuple[Callable[[], Mapping[str, Any]], Callable[[int], Tables]]
"""Two functions: features by column name, and the rows from a position on. Nothing is read before they are called."""
# What `Dataset.save_to_disk` and `DatasetDict.save_to_disk` leave.
_SAVED = ("state.json", "dataset_dict.json")


@dataclass(frozen=True, kw_only=True)
class Options(table.Options):
    """Options of Hugging Face datasets.

    Attributes:
        config: configuration, where the dataset has several
        split: split to import, where the dataset has several
        revision: branch, tag or commit on the Hub (default: main)
        files (PATTERN): download only such files from the Hub; repeatable
    """

    config: str | None = None
    split: str | None = None
    revision: str | None = None
    files: Sequence[str] | None = field(default=None, metadata=REPEATABLE)


def read(path: Path, options: Options) -> Imported:
    """Reads one split; clips are looked up, not decoded.

    Raises:
        DataError: If the dataset cannot be read or breaks the contract; row and column are named.
        UserError: If the package ``datasets`` is missing, or there is no such dataset, configuration or split.
    """
    mapping = table.mapping_from(options)
    folder, root = _folder(path, options.revision, options.files)
    pairs = _read_split(path, folder, options.config, options.split)
    compared = has_preferences(pairs, mapping.columns)
    by_rating = not options.ratings and has_raters(pairs, mapping.rating_columns)
    if "pair_id" not in {*mapping.columns, *pairs.columns} and not compared and not by_rating:
        numbered = [{"pair_id": str(number), **row} for number, row in enumerate(pairs.rows)]
        pairs = replace(pairs, columns=("pair_id", *pairs.columns), rows=numbered)
    ratings = read_rating_tables(options.ratings, table.NAMES)
    if not ratings and not compared and any(isinstance(row.get(RATINGS), list) for row in pairs.rows):
        pairs, inside = _without_ratings(pairs, mapping.columns.get("pair_id", "pair_id"))
        ratings = [inside]
    find = partial(_find, folder=folder, root=root, audio_root=options.audio_root)
    return table.read_pairs(pairs, ratings, mapping, find)


def _without_ratings(pairs: SourceTable, pair_id: str) -> tuple[SourceTable, SourceTable]:
    """The pairs, and the ratings that stand in a column of them, as a table of their own."""
    rows: list[dict[str, Any]] = []
    for position, row in enumerate(pairs.rows):
        for rating in row.pop(RATINGS, None) or ():
            if not isinstance(rating, Mapping):
                raise bad_value(pairs.place(position, RATINGS), rating, "a list of {rater_id, dimension, score}")
            rows.append({"pair_id": row.get(pair_id), **rating})
    ratings = SourceTable.of(Path(f"{pairs.path}: {RATINGS}"), rows)
    return SourceTable.of(pairs.path, pairs.rows), ratings


def _folder(path: Path, revision: str | None, files: Sequence[str] | None) -> tuple[Path, Path]:
    """The folder of the dataset, and the folder that none of its files may leave."""
    if path.is_dir():
        if revision or files:
            raise UserError(f"--revision or --files with the folder {path}; expected only with an id on the Hub")
        return path.resolve(), path.resolve()
    if path.is_absolute() or not _ID.fullmatch(path.as_posix()):
        raise UserError(f"{path}: no such folder, and not an id such as org/name")
    from huggingface_hub import snapshot_download

    try:
        only = None if files is None else [*files]
        snapshot = snapshot_download(path.as_posix(), repo_type="dataset", revision=revision, allow_patterns=only)
    except Exception as error:  # whatever the network, the Hub or the file system says
        raise UserError(f"{path}: neither a folder nor to be had from the Hub ({_reason(error)})") from None
    # Files of a snapshot are links to blobs/, which lies next to snapshots/.
    return Path(snapshot), Path(snapshot).parents[1].resolve()


def _read_split(name: Path, folder: Path, config: str | None, split: str | None) -> SourceTable:
    """The rows of a split, audio undecoded."""
    import datasets  # takes a second

    try:
        splits = _splits(datasets, folder, config)
    except UserError:
        raise
    except Exception as error:  # the library has no common base for what damaged files make it raise
        raise DataError(f"{name}: cannot be read as a Hugging Face dataset ({_reason(error)})") from None
    chosen = split if split is not None or len(splits) != 1 else next(iter(splits))
    if chosen is None or chosen not in splits:
        raise UserError(f"{name}: --split {shown(chosen)}; expected {', '.join(map(str, splits))}")
    try:
        read_features, read_from = splits[chosen]
        features, version = read_features(), f"{folder} {config} {chosen} {_version(folder)}"
        found = read_parts(name, EmbeddingTable(version, read_from), features)
    except UserError:
        raise
    except Exception as error:
        raise DataError(f"{name}: split {shown(chosen)} cannot be read ({_reason(error)})") from None
    if not found.rows:
        raise DataError(f"{name}: split {shown(chosen)} holds no rows")
    return found


def _splits(datasets: Any, folder: Path, config: str | None) -> Mapping[str, _Split]:
    """Split -> what it holds; nothing is read yet."""
    from datasets.packaged_modules.csv.csv import CsvConfig
    from datasets.packaged_modules.parquet.parquet import ParquetConfig

    if any((folder / file).is_file() for file in _SAVED):
        saved: Any = datasets.load_from_disk(str(folder))
        splits = saved if isinstance(saved, dict) else {"all": saved}
    else:
        builder: Any = datasets.load_dataset_builder(str(folder), config)
        of_split = (builder.config.data_files or {}).items()
        files = {str(split): [Path(file) for file in paths] for split, paths in of_split}
        if files and isinstance(builder.config, ParquetConfig):
            # Not as the library streams them: it would hold whole row groups, several times, and load torch
            return {
                split: (partial(_parquet_features, datasets, paths), partial(_parquet_tables, paths))
                for split, paths in files.items()
            }
        if files and isinstance(builder.config, CsvConfig):
            # The library lets pandas guess types: 007 would be 7, and a rater called NA none
            delimiter = builder.config.sep
            expected = CsvConfig(sep=delimiter).pd_read_csv_kwargs
            given = [name for name, value in builder.config.pd_read_csv_kwargs.items() if value != expected.get(name)]
            if given:
                raise DataError(f"{folder}: its card reads CSV with {', '.join(given)}; expected UTF-8 with a header")
            return {
                split: (lambda: _described(builder.info.features), partial(_csv_tables, paths, delimiter))
                for split, paths in files.items()
            }
        # A folder of audio files (datasets 4). The library reads its metadata.csv with pandas, which guesses types;
        # there is no option for it.
        if hasattr(builder, "_read_metadata"):
            builder._read_metadata = partial(_metadata_tables, builder._read_metadata)
        # Streamed: the other way would copy all of it into a cache, and encode audio files with torchcodec.
        splits = builder.as_streaming_dataset()
    return {
        str(name): (lambda split=split: _described(split.features), partial(_arrow_tables, split))
        for name, split in splits.items()
    }


def _described(features: Any) -> Mapping[str, Any]:
    """Features of the library, if there are any, as `name_labels` takes them."""
    return {} if features is None else features.to_dict()


def _csv_tables(files: Sequence[Path], delimiter: str, row: int) -> Tables:
    """The files one after the other, as text."""
    start, columns = 0, None
    for file in files:
        table = read_csv(file, delimiter)
        columns = _same_columns(table.columns, columns, file)
        yield start, _text_table(table)
        start += len(table.rows)


def _metadata_tables(read: Callable[..., Iterable[pa.Table]], file: str, **options: Any) -> Iterable[pa.Table]:
    """The metadata beside audio files, of CSV as text; `read` is the library's own way."""
    if options.get("metadata_ext") == ".csv":
        return iter([_text_table(read_csv(Path(file)))])
    return read(file, **options)


def _text_table(table: SourceTable) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in table.rows], pa.string()) for name in table.columns})


def _same_columns(columns: Iterable[str], first: frozenset[str] | None, file: Path) -> frozenset[str]:
    """The columns of a file, which are those of the first file of the split (None = this is the first)."""
    found = frozenset(columns)
    if first is not None and found != first:
        name = min(found ^ first)
        raise DataError(f"{file}: column {shown(name)} is not in all files of the split; expected the same columns")
    return found


def _parquet_features(datasets: Any, files: Sequence[Path]) -> Mapping[str, Any]:
    """The features of a split. Files may differ in the types of numbers, not in columns and the names of classes."""
    first: Mapping[str, Any] = {}
    for number, file in enumerate(files):
        features = datasets.Features.from_arrow_schema(pq.read_schema(file)).to_dict()
        first = features if number == 0 else first
        _same_columns(features, frozenset(first), file)
        for column, feature in features.items():
            if feature != first[column] and (has_labels(feature) or has_labels(first[column])):
                raise DataError(
                    f"{file}: column {shown(column)} has other class labels than in {files[0].name}; "
                    "expected the same in all files of a split"
                )
    return first


def _arrow_tables(split: Dataset | IterableDataset, row: int) -> Tables:
    """The split from a row on. Arrow tables come without decoding."""
    remaining = (split.skip(row) if row else split).with_format("arrow")
    # One row each: those of metadata may differ in type, 1 and 1.0
    return enumerate(cast(Iterable[pa.Table], remaining.iter(batch_size=1)), row)


def _parquet_tables(files: Sequence[Path], row: int) -> Tables:
    """The files one after the other, from a row on."""
    offset = 0
    for file in files:
        with pq.ParquetFile(file) as opened:
            count = opened.metadata.num_rows
        if offset + count > row:
            for start, table in parquet_tables(file, row - offset if row > offset else 0):
                yield offset + start, table
        offset += count


def _version(folder: Path) -> str:
    """Changes when a file of the folder does."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {path_version(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _find(value: Any, where: str, folder: Path, root: Path, audio_root: str | None) -> ClipCell:
    """The clip of a cell. The library writes absolute paths for files of the folder."""
    value = path_or_bytes(value)
    if isinstance(value, str) and value and "\0" not in value:
        path = Path(os.path.realpath(folder / value))
        for allowed in (root, *([Path(audio_root).resolve()] if audio_root else [])):
            if path.is_relative_to(allowed):
                return find_clip(path.relative_to(allowed).as_posix(), where, allowed)
        if os.path.isabs(value) and Path(value).is_relative_to(folder):
            value = Path(value).relative_to(folder).as_posix()
    return find_clip(value, where, root, audio_root, may_name=True)


def _reason(error: Exception) -> str:
    """Type and text of the error that a chain of causes began with."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
