"""Audio inside tables is left there until it is needed, in whatever order."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from empathy_judge.audio.decode import audio_hash
from empathy_judge.core.errors import AudioError
from empathy_judge.data_modules import embedded_tables
from empathy_judge.data_modules.embedded_tables import EmbeddedClip
from empathy_judge.data_modules.importers import hugging_face, table
from empathy_judge.data_modules.importers.assemble import Imported, assemble
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.tables import read_table

from .builders import parsed

AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
TURNS = pa.list_(pa.struct([("role", pa.string()), ("audio", AUDIO)]))
PAIRS = 120
SCORES = {f"empathy:r{rater}": [1 + (row + rater) % 5 for row in range(PAIRS)] for rater in range(2)}
OPTIONS = ["--dimension", "empathy=1:5:1"]


def noise(path: Path, number: int) -> bytes:
    """A clip of 64 kB."""
    samples = 0.1 * np.random.default_rng(number).standard_normal(32_000)
    soundfile.write(path, samples, 16_000)
    return path.read_bytes()


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    return [noise(folder / f"{number}.wav", number) for number in range(PAIRS + 2)]


def columns(clips: list[bytes]) -> pa.Table:
    """Two turns of context, the first shared by all pairs, and a response, all with bytes."""
    cells = [{"bytes": clip, "path": None} for clip in clips]
    turns = [
        [{"role": "user", "audio": cells[-1]}, {"role": "assistant", "audio": cells[-2]}][: 1 + row % 2]
        for row in range(PAIRS)
    ]
    values = {
        "pair_id": pa.array([f"p{row}" for row in range(PAIRS)]),
        "context_audio": pa.array(turns, TURNS),
        "response_audio": pa.array(cells[:PAIRS], AUDIO),
    }
    return pa.table(values | {name: pa.array(scores) for name, scores in SCORES.items()})


@pytest.fixture(params=[7, PAIRS], ids=["many row groups", "one row group"])
def parquet(request, tmp_path, clips) -> Path:
    pq.write_table(columns(clips), tmp_path / "pairs.parquet", row_group_size=request.param)
    return tmp_path / "pairs.parquet"


def read_parquet(path: Path) -> Imported:
    return table.read(path, parsed(table, OPTIONS))


@pytest.fixture(params=[7, PAIRS, "saved"])
def read(request, tmp_path, clips, hub_cache) -> Callable[[], Imported]:
    """Reads the rows from Parquet with row groups of a size, or as `Dataset.save_to_disk` leaves them."""
    if request.param != "saved":
        pq.write_table(columns(clips), tmp_path / "pairs.parquet", row_group_size=request.param)
        return lambda: read_parquet(tmp_path / "pairs.parquet")
    datasets.Dataset(datasets.table.InMemoryTable(columns(clips))).save_to_disk(str(tmp_path / "saved"))
    return lambda: hugging_face.read(tmp_path / "saved", parsed(hugging_face, OPTIONS))


def check(dataset: PairDataset, clips: list[bytes]) -> None:
    for row, pair in enumerate(dataset.pairs):
        assert pair.pair_id == f"p{row}"
        assert audio_hash(pair.response) == audio_hash(clips[row])
        assert [audio_hash(turn.audio) for turn in pair.context] == [
            audio_hash(clip) for clip in (clips[-1], clips[-2])[: 1 + row % 2]
        ]
    assert len(dataset.pairs) == PAIRS


@pytest.mark.parametrize("embed", [False, True])
def test_every_clip_is_the_right_one(read, clips, tmp_path, embed):
    check(assemble(read(), tmp_path / "out", embed_audio=embed), clips)


def contents(imported: Imported) -> list[EmbeddedClip]:
    cells = [
        cell for row in imported.pairs for cell in [*(t["audio"] for t in row["context_audio"]), row["response_audio"]]
    ]
    assert all(isinstance(cell.content, EmbeddedClip) for cell in cells)
    return [cell.content for cell in cells]


def test_what_is_read_holds_no_audio(read, clips):
    read()  # what imports and caches take does not count
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    imported = read()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    total = sum(map(len, clips)) * 2.5  # contexts are stored again and again
    assert len(contents(imported)) == 2.5 * PAIRS
    assert held < 1e6
    assert peak < total / 4
    assert pa.total_allocated_bytes() - before < total / 4


def test_clips_in_any_order(parquet, clips, monkeypatch):
    monkeypatch.setattr(embedded_tables, "_WINDOW_BYTES", 10**6)
    monkeypatch.setattr(embedded_tables, "_WINDOW_ROWS", 8)
    responses = [row["response_audio"].content for row in read_parquet(parquet).pairs]
    order = list(range(PAIRS))
    random.Random(0).shuffle(order)
    for row in [PAIRS - 1, 0, *order]:
        assert responses[row].read() == clips[row]


def test_only_a_part_is_kept(parquet, clips, monkeypatch):
    # By itself pyarrow writes pages and dictionaries of 1024 values, however long these are; who reads holds a page.
    pq.write_table(columns(clips), parquet, write_batch_size=8, use_dictionary=False)
    monkeypatch.setattr(embedded_tables, "_WINDOW_BYTES", 10**6)
    monkeypatch.setattr(embedded_tables, "_WINDOW_ROWS", 8)
    opened = []
    parquet_file = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *args, **how: opened.append(1) or parquet_file(*args, **how))
    responses = [row["response_audio"].content for row in read_parquet(parquet).pairs]
    opened.clear()
    before = pa.total_allocated_bytes()
    most = 0
    for content in responses:
        content.read()
        most = max(most, pa.total_allocated_bytes() - before)
    assert len(opened) == 2  # front to back, once: the footer, then the rows
    assert most < 8e6
    responses[0].read()
    assert len(opened) == 4


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(64_044)])
def test_every_type_of_bytes(tmp_path, clips, kind):
    pq.write_table(pa.table({"audio": pa.array(clips[:3], kind), "text": ["a", None, "c"]}), tmp_path / "x.parquet")
    rows = read_table(tmp_path / "x.parquet").rows
    assert [row["audio"].read() for row in rows] == clips[:3]
    assert [row["text"] for row in rows] == ["a", None, "c"]


def test_a_file_that_got_shorter_after_it_was_read(parquet, clips):
    responses = [row["response_audio"].content for row in read_parquet(parquet).pairs]
    pq.write_table(columns(clips).slice(0, 50), parquet)
    assert responses[49].read() == clips[49]
    for row in (50, PAIRS - 1, 60):
        with pytest.raises(AudioError, match="cannot be read again"):
            responses[row].read()
    assert responses[3].read() == clips[3]


def test_the_same_content_is_stored_and_decoded_once(parquet, tmp_path, monkeypatch):
    from empathy_judge.data_modules.importers import clips as importing

    decoded = []
    load = importing.load_clip
    monkeypatch.setattr(importing, "load_clip", lambda *args, **how: decoded.append(1) or load(*args, **how))
    dataset = assemble(read_parquet(parquet), tmp_path / "out")
    assert PAIRS + 2 <= len(decoded) < PAIRS + 40  # threads may do the same clip at the same time
    assert len(list((tmp_path / "out/audio").iterdir())) == PAIRS + 2
    assert len(dataset.pairs) == PAIRS
