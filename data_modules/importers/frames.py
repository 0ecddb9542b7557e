"""Pair datasets from pandas frames, and as a Hugging Face dataset that ``import hugging-face`` reads back."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from scipy.io import wavfile

from ...audio.decode import AudioSource, Clip, load_clip, probe
from ...audio.samples import clip_of, decoded
from ...audio.stored_clips import CONTEXT, RESPONSE, StoredClip
from ...core.errors import AudioError, DataError, UserError, names_shown, shown
from ...core.spellings import spelling_hint
from ..ratings import MEAN, N_RATINGS, SD, SECONDS, Dimension, parse_dimension
from ..schema import Pair, PairDataset
from ..storage import NAME_COLUMNS, TAGS, TEXT_COLUMNS
from ..tables import SourceTable, TableMapping, check_header
from .assemble import assemble
from .clips import ClipCell, Content, path_or_bytes, read_clip
from .hugging_face import RATINGS
from .table import read_pairs

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS_AT_ONCE = 16  # whose audio is held twice


def dataset_from_frames(
    pairs: pd.DataFrame,
    ratings: pd.DataFrame,
    *,
    dimensions: Sequence[str | Dimension],
    folder: str | Path | None = None,
    synthetic: bool = False,
    overwrite: bool = False,
) -> PairDataset:
    """Makes a dataset of two frames. Every clip is decoded once and stored.

    Args:
        pairs: One row per pair: ``pair_id``, ``response_audio`` and any other column of `Pair`, with
            ``context_audio`` for its context and ``tag:NAME`` for a tag; others are left out. Audio is a path, the
            bytes of an audio file, or ``(samples, rate in Hz)`` with float samples; ``context_audio`` may be a list
            of ``{"role", "audio"}``. Without ``group_id``, pairs of the same context and situation are one group.
        ratings: ``pair_id, rater_id, dimension, score`` (rating points), and ``seconds`` where times are known; or
            one of the other layouts of ``import table``. NaN and None are not rated; the description says how many.
        dimensions: The scales, such as ``["vocal_empathy=1:5:1"]``: from 1 to 5 in steps of 1.
        folder: Of the dataset; None = a temporary one, which is gone when Python ends.
        synthetic: Whether the ratings were not given by people.
        overwrite: Replace a pair dataset in `folder`.

    Returns:
        The dataset as it loads. Without a column ``split`` it has no splits; `splits.split_dataset` makes them.

    Raises:
        DataError: If a frame breaks the contract or a clip cannot be used, naming row (from 1) and column.
    """
    # A text alone would be taken for a sequence of its letters
    specs = [dimensions] if isinstance(dimensions, str) else dimensions
    scales = [parse_dimension(spec) if isinstance(spec, str) else spec for spec in specs]
    mapping = TableMapping({}, {}, scales, synthetic=synthetic)
    with tempfile.TemporaryDirectory() as audio_folder:
        table = _table(pairs, "pairs", ("pair_id", RESPONSE))
        for row in table.rows:
            row[RESPONSE] = _content(row[RESPONSE], Path(audio_folder))
            if row.get(CONTEXT) is not None:
                row[CONTEXT] = _context(row[CONTEXT], Path(audio_folder))
        imported = read_pairs(table, [_table(ratings, "ratings", ("pair_id",))], mapping, ClipCell)
        return assemble(imported, folder or _temporary_folder(), overwrite=overwrite, max_skipped=0)


def _table(frame: pd.DataFrame, name: str, required: Sequence[str]) -> SourceTable:
    """A frame as a table that was read from a file; None is an empty cell."""
    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"{name} of type {type(frame).__name__}; expected a pandas DataFrame")
    columns = [str(column) for column in frame.columns]
    check_header(columns, Path(name))
    for column in required:
        if column not in columns:
            raise DataError(f"{name}: no column {column!r}; it has {names_shown(columns)}")
    plain = frame.astype(object).where(frame.notna(), None).set_axis(columns, axis="columns")
    return SourceTable(Path(name), tuple(columns), plain.to_dict("records"))


def _context(value: Any, made: Path) -> Any:
    if not isinstance(value, list):
        return _content(value, made)
    return [
        {**turn, "audio": _content(turn["audio"], made)} if isinstance(turn, Mapping) and "audio" in turn else turn
        for turn in value
    ]


def _content(value: Any, made: Path) -> Content:
    """The clip that a cell of audio refers to; samples and bytes are written into the folder `made`."""
    value = path_or_bytes(value)
    if isinstance(value, str | Path) and value != "":
        path = Path(value).absolute()
        if path.is_file():
            return path
        return AudioError(f"value {shown(str(value))}: no such file{spelling_hint(str(path))}", "no such file")
    if isinstance(value, StoredClip):
        return value
    try:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Real):
            value = clip_of(*value)
        elif not isinstance(value, Clip | bytes) and (samples := decoded(value)) is not None:
            value = samples
        if not isinstance(value, Clip | bytes):
            empty = value is None or isinstance(value, str)
            kind = "no clip" if empty else f"value of type {type(value).__name__}"
            raise AudioError(f"{kind}; expected a path, bytes of an audio file, or (samples, rate in Hz)", "not a clip")
        # Now, so that no message names a file that the user has never seen.
        probe(value)
        data = value if isinstance(value, bytes) else _wav(load_clip(value))
    except AudioError as error:
        return error
    path = made / f"{hashlib.sha256(data).hexdigest()}{'.wav' if isinstance(value, Clip) else ''}"
    if not path.exists():
        path.write_bytes(data)
    return path


def _wav(clip: Clip) -> bytes:
    """Every sample as it is, and the same bytes each time: libsndfile would write the date into files of floats."""
    file = io.BytesIO()
    wavfile.write(file, clip.rate, clip.samples)
    return file.getvalue()


def _temporary_folder() -> Path:
    """A folder that is gone when this process ends."""
    parent, owner = tempfile.mkdtemp(prefix="empathy-judge-"), os.getpid()

    def remove() -> None:
        # A fork of this process ends earlier, and must not take the folder away.
        if os.getpid() == owner:
            shutil.rmtree(parent, ignore_errors=True)

    atexit.register(remove)
    return Path(parent) / "frame"


def dataset_to_hugging_face(dataset: PairDataset) -> Dataset:
    """The pairs as a Hugging Face dataset with Audio columns; all audio is read into memory.

    ``dataset_to_hugging_face(dataset).save_to_disk(FOLDER)`` (or ``push_to_hub``, or ``to_parquet``) and
    ``empathy-judge import hugging-face FOLDER --dimension NAME=LOW:HIGH:STEP --out DATA`` give the same pairs,
    splits and ratings. The ratings of a pair stand in its row, in the column ``ratings``. Preferences and the
    files of the folder beside pairs and ratings are left out. As ever in that library, a row that is read is
    decoded by torchcodec, unless the column is cast to ``Audio(decode=False)``.

    Raises:
        AudioError: If a clip cannot be read.
        DataError: If some dimensions have ratings and others published means.
    """
    import datasets  # takes a second
    from datasets.table import InMemoryTable

    texts = [
        name
        for name in (*NAME_COLUMNS, *TEXT_COLUMNS)
        if any(getattr(pair, name) is not None for pair in dataset.pairs)
    ]
    tags = [TAGS] if any(pair.tags for pair in dataset.pairs) else []
    text, audio, number = datasets.Value("string"), datasets.Audio(), datasets.Value("float64")
    single = all(len(pair.context) <= 1 and all(turn.role == "user" for turn in pair.context) for pair in dataset.pairs)
    rated = dataset.ratings
    if SD in rated.columns:
        if rated[SD].isna().to_numpy().any():
            raise DataError(f"{dataset.root}: has published means and ratings; expected only one of these")
        rated = rated.rename(columns={"score": MEAN})
        rating = {"dimension": text, MEAN: number, SD: number, N_RATINGS: number}
    else:
        rating = {"rater_id": text, "dimension": text, "score": number}
        rating |= {SECONDS: number} if SECONDS in rated else {}
    features = datasets.Features(
        {
            "pair_id": text,
            "group_id": text,
            CONTEXT: audio if single else datasets.List({"role": text, "audio": audio}),
            RESPONSE: audio,
            **dict.fromkeys(texts, text),
            **dict.fromkeys(tags, datasets.List({"name": text, "value": text})),
            RATINGS: datasets.List(rating),
        }
    )
    ratings: dict[str, list[dict[str, Any]]] = {pair.pair_id: [] for pair in dataset.pairs}
    # NaN (a time that is not known) becomes null
    columns = rated[["pair_id", *rating]].astype(object)
    for pair_id, *values in columns.where(columns.notna(), None).itertuples(index=False, name=None):
        ratings[pair_id].append(dict(zip(rating, values, strict=True)))

    def row(pair: Pair) -> dict[str, Any]:
        turns = [{"role": turn.role, "audio": _cell(turn.audio)} for turn in pair.context]
        return {
            "pair_id": pair.pair_id,
            "group_id": pair.group_id,
            CONTEXT: ([turn["audio"] for turn in turns] or [None])[0] if single else turns,
            RESPONSE: _cell(pair.response),
            **{name: getattr(pair, name) for name in texts},
            **{name: [{"name": tag, "value": value} for tag, value in pair.tags] for name in tags},
            RATINGS: ratings[pair.pair_id],
        }

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(dataset.pairs), _ROWS_AT_ONCE):
            rows = [row(pair) for pair in dataset.pairs[start : start + _ROWS_AT_ONCE]]
            yield pa.RecordBatch.from_pylist(rows, features.arrow_schema)

    table = InMemoryTable(pa.Table.from_batches(batches(), features.arrow_schema))
    card = dataset.card
    scales = "; ".join(f"{dimension.name} {dimension.scale}" for dimension in card.dimensions)
    description = f"{card.description} Scales: {scales}.".strip()
    info = datasets.DatasetInfo(description=description, license=card.licence, features=features)
    return datasets.Dataset(table, info=info)


def _cell(source: AudioSource) -> dict[str, Any]:
    """A clip as Hugging Face datasets store it; the name is that of its content."""
    if isinstance(source, Clip):
        return {"bytes": _wav(source), "path": "clip.wav"}
    if isinstance(source, bytes):
        return {"bytes": source, "path": None}
    if isinstance(source, StoredClip):
        return {"bytes": read_clip(source), "path": source.sha256}
    return {"bytes": read_clip(Path(source)), "path": Path(source).name}
