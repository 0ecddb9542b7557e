"""Large datasets: they are read by columns; embedded audio: small row groups, shards, clips that are read when they are
needed."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules import clip_measures, stored_clips, writing
from empathy_judge.data_modules.audio import audio_hash, decode, probe
from empathy_judge.data_modules.errors import AudioError, DataError
from empathy_judge.data_modules.inspection import inspect_dataset
from empathy_judge.data_modules.parallel import map_threads
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.sampling import row_groups
from empathy_judge.data_modules.schema import DatasetCard, Pair, PairDataset
from empathy_judge.data_modules.storage import PAIRS_SCHEMA
from empathy_judge.data_modules.stored_clips import StoredClip
from empathy_judge.data_modules.writing import write_dataset, write_splits

from .builders import Source, set_cell

PAIRS, SHARD_ROWS = 60, 25


@pytest.fixture
def sharded(tmp_path, monkeypatch) -> Any:
    """60 embedded pairs in 3 shards, row groups of 4."""
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    source = Source(tmp_path / "source", groups=12, per_group=5)
    source.load(embed_audio=True, shard_rows=SHARD_ROWS)
    return source


class TestLayout:
    def test_shards_and_row_groups(self, sharded):
        shards = sorted((sharded.out / "pairs").iterdir())
        assert [shard.name for shard in shards] == [f"part-0000{n}.parquet" for n in range(3)]
        files = [pq.ParquetFile(shard) for shard in shards]
        assert [file.metadata.num_rows for file in files] == [25, 25, 10]
        assert [file.metadata.row_group(n).num_rows for file in files[1:] for n in range(file.num_row_groups)] == [
            *[4] * 6, 1, 4, 4, 2,
        ]  # fmt: skip

    def test_row_groups_are_limited_by_bytes(self, source, monkeypatch):
        size = (source.folder / "clips/000-0.wav").stat().st_size
        monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 2 * size + 1)
        source.load(embed_audio=True)
        assert pq.ParquetFile(source.out / "pairs.parquet").num_row_groups == 2

    def test_a_clip_that_repeats_is_stored_once(self, source):
        source.tone("clips/context0.wav", seconds=20)
        for row in source.pairs:
            row["context_audio"] = "clips/context0.wav"
        source.load(embed_audio=True)
        clip = (source.folder / "clips/context0.wav").stat().st_size
        assert clip < (source.out / "pairs.parquet").stat().st_size < 1.1 * clip

    def test_other_writers_call_the_parts_of_a_list_differently(self, sharded):
        path = sharded.out / "pairs/part-00000.parquet"
        table = pq.read_table(path).cast(PAIRS_SCHEMA)
        pq.write_table(table, path, use_compliant_nested_type=False)
        assert "context_audio.list.item.bytes" in {pq.ParquetFile(path).schema.column(n).path for n in range(8)}
        dataset = PairDataset.load(sharded.out)
        assert audio_hash(dataset.pairs[3].context[0].audio) == dataset.fingerprints["000-3"][0]

    def test_missing_shards_and_two_layouts(self, sharded):
        first, second, last = sorted((sharded.out / "pairs").iterdir())
        single = sharded.out / "pairs.parquet"
        for change, message in (
            (lambda: single.write_bytes(first.read_bytes()), r"has pairs\.parquet and a folder pairs; expected one of"),
            (lambda: [single.unlink(), last.unlink()], r"ratings\.parquet, row \d+, column 'pair_id': .*no such pair"),
            (first.unlink, r"part-00000\.parquet: no such file; the folder has 1 shard"),
            (second.unlink, r"part-00000\.parquet: no such file; the folder has 0 shards"),
        ):
            change()
            with pytest.raises(DataError, match=message):
                PairDataset.load(sharded.out)

    def test_bad_rows_are_named_by_shard(self, sharded):
        set_cell(sharded.out / "pairs/part-00001.parquet", "pair_id", 6, "000-3", row_group_size=4)
        with pytest.raises(
            DataError, match=r"part-00001\.parquet, row 7, .*'000-3'.* stands at .*part-00000\.parquet, row 4"
        ):
            PairDataset.load(sharded.out)
        set_cell(sharded.out / "pairs/part-00001.parquet", "pair_id", 6, "", row_group_size=4)
        with pytest.raises(DataError, match=r"part-00001\.parquet, row 7, column 'pair_id': value ''"):
            PairDataset.load(sharded.out)


class TestSplits:
    def test_shards_are_not_written_again(self, sharded):
        before = {path: path.read_bytes() for path in (sharded.out / "pairs").iterdir()}
        splits = ["train" if number % 3 else None for number in range(PAIRS)]
        write_splits(sharded.out, splits)
        assert [pair.split for pair in PairDataset.load(sharded.out).pairs] == splits
        write_splits(sharded.out, splits[::-1])
        assert [pair.split for pair in PairDataset.load(sharded.out).pairs] == splits[::-1]
        assert {path: path.read_bytes() for path in (sharded.out / "pairs").iterdir()} == before

    def test_splits_of_other_pairs(self, sharded):
        write_splits(sharded.out, ["train"] * PAIRS)
        path = sharded.out / "splits.parquet"
        table = pq.read_table(path)
        for change in (table.slice(1), table.slice(0, 59), pa.concat_tables([table, table.slice(0, 1)])):
            pq.write_table(change, path)
            with pytest.raises(DataError, match=r"splits\.parquet: belongs to other pairs; run `empathy-judge split"):
                PairDataset.load(sharded.out)


class TestClips:
    def test_every_clip_is_the_right_one(self, sharded):
        for row, pair in zip(sharded.pairs, PairDataset.load(sharded.out).pairs, strict=True):
            response, context = pair.response, pair.context[0].audio
            assert isinstance(response, StoredClip)
            assert isinstance(context, StoredClip)
            assert response.read() == (sharded.folder / row["response_audio"]).read_bytes()
            assert context.read() == (sharded.folder / row["context_audio"]).read_bytes()
            assert probe(context).seconds == pytest.approx(0.3)
            assert len(decode(response, 8_000)) == 2_400

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_other_processes(self, sharded, method):
        if method == "fork" and sys.platform == "win32":
            pytest.skip("no fork here")
        dataset = PairDataset.load(sharded.out)
        clips: Any = [pair.response for pair in dataset.pairs]
        wanted = [dataset.fingerprints[pair.pair_id][-1] for pair in dataset.pairs]
        assert audio_hash(clips[0]) == wanted[0]  # the parent has the file open
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(audio_hash, clips) == wanted
        assert len(pickle.dumps(dataset.pairs)) < 1_000 * PAIRS

    def test_threads(self, sharded):
        dataset = PairDataset.load(sharded.out)
        order = np.random.default_rng(0).integers(PAIRS, size=500).tolist()
        found = map_threads(lambda n: audio_hash(dataset.pairs[n].response), order, "", len(order))
        assert list(found) == [dataset.fingerprints[dataset.pairs[n].pair_id][-1] for n in order]

    def test_what_is_kept_is_limited(self, sharded, monkeypatch):
        columns = stored_clips._Columns()
        monkeypatch.setattr(stored_clips, "_columns", columns)
        monkeypatch.setattr(stored_clips, "_KEPT_BYTES", 100_000)
        for pair in PairDataset.load(sharded.out).pairs:
            assert isinstance(pair.response, StoredClip)
            pair.response.read()
        assert 50_000 < columns._bytes <= 100_000
        assert columns._bytes == sum(array.nbytes for array in columns._arrays.values())

    def test_a_new_file_in_the_same_place(self, sharded):
        before = PairDataset.load(sharded.out).pairs[0].response
        decode(before, 16_000)
        sharded.tone("clips/000-0.wav", seconds=0.5)
        sharded.load(embed_audio=True, shard_rows=SHARD_ROWS, overwrite=True)
        assert len(decode(PairDataset.load(sharded.out).pairs[0].response, 16_000)) == 8_000

    def test_changed_and_lost_content(self, sharded):
        dataset = PairDataset.load(sharded.out)
        path = sharded.out / "pairs/part-00000.parquet"
        other = {"path": None, "bytes": b"not audio", "sha256": dataset.fingerprints["000-2"][-1]}
        set_cell(path, "response_audio", 2, other, row_group_size=4)
        changed = PairDataset.load(sharded.out)
        with pytest.raises(AudioError, match=r"part-00000\.parquet, row 3, column 'response_audio': .* not what was"):
            decode(changed.pairs[2].response, 16_000)
        found = inspect_dataset(PairDataset.load(sharded.out))
        assert [(problem.kind, problem.pair_id, problem.clip) for problem in found.problems] == [
            ("unreadable", "000-2", "response")
        ]
        path.unlink()
        stored_clips._forget()
        with pytest.raises(AudioError, match=r"part-00000\.parquet, row 3.*: no such file"):
            decode(changed.pairs[2].response, 16_000)


def test_inspect_goes_on_and_decodes_nothing_a_second_time(sharded, monkeypatch):
    first = inspect_dataset(PairDataset.load(sharded.out))
    path = sharded.out / clip_measures.MEASURED_FILE
    assert sum(map(bool, path.read_text().splitlines())) == 72
    path.write_bytes(path.read_bytes()[:1_000] + b"\xff")  # as after a kill, and a fault of the disk
    known = path.read_bytes().count(b"}")
    assert 0 < known < 20
    decoded = Mock(wraps=clip_measures.load_clip)
    monkeypatch.setattr(clip_measures, "load_clip", decoded)
    for _ in range(2):
        assert inspect_dataset(PairDataset.load(sharded.out)) == first
        assert len(decoded.call_args_list) == 72 - known
    loud = inspect_dataset(PairDataset.load(sharded.out), max_seconds=0.1)
    assert len(loud.problems) == 2 * PAIRS  # thresholds are applied anew
    assert len(decoded.call_args_list) == 72 - known


def test_where_audio_is_not_embedded_the_order_is_as_ever(sharded):
    embedded = PairDataset.load(sharded.out).pairs
    groups = row_groups(embedded)
    assert groups is not None
    assert np.bincount(groups).tolist() == [*[4] * 6, 1, *[4] * 6, 1, 4, 4, 2]
    files = sharded.load(overwrite=True).pairs
    assert row_groups(files) is None
    assert row_groups((*embedded, Pair("x", b"some bytes"))) is None


@pytest.mark.parametrize("embed", [False, True])
def test_loading_looks_at_columns(source, embed):
    """No function of ours is called once for each pair."""
    package = str(Path(writing.__file__).parents[1])
    card = DatasetCard("tones", (Dimension("empathy", 1, 5, 1),), "test", "none")
    counts = []
    for n_pairs in (2, 120):
        clip: Any = (source.folder / "clips/000-0.wav").read_bytes() if embed else "clips/000-0.wav"
        pairs = pd.DataFrame({"pair_id": [f"p{number}" for number in range(n_pairs)]})
        pairs = pairs.assign(group_id=pairs["pair_id"], response_audio=[clip] * n_pairs, context_audio=[clip] * n_pairs)
        ratings = pairs[["pair_id"]].assign(rater_id="r", dimension="empathy", score=[1, 5] * (n_pairs // 2))
        write_dataset(source.folder, card, pairs.assign(tags=[{"number": name} for name in pairs["pair_id"]]), ratings)
        calls: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: Any, calls: Counter[str] = calls) -> None:
            code = frame.f_code
            ours = code.co_filename.startswith(package) and "site-packages" not in code.co_filename
            if event == "call" and ours and not code.co_name.startswith("<"):
                calls[code.co_qualname] += 1

        sys.setprofile(count)
        PairDataset.load(source.folder)
        sys.setprofile(None)
        counts.append(calls)
    assert counts[0] == counts[1]
    assert counts[0].total() < 100
