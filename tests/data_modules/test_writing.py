"""Large datasets are written in shards of small row groups; splits are written without the audio."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules import writing
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.writing import write_splits


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


class TestSplits:
    def test_shards_are_not_written_again(self, sharded):
        before = {path: path.read_bytes() for path in (sharded.out / "pairs").iterdir()}
        splits = ["train" if number % 3 else None for number in range(len(sharded.pairs))]
        write_splits(sharded.out, splits)
        assert [pair.split for pair in PairDataset.load(sharded.out).pairs] == splits
        write_splits(sharded.out, splits[::-1])
        assert [pair.split for pair in PairDataset.load(sharded.out).pairs] == splits[::-1]
        assert {path: path.read_bytes() for path in (sharded.out / "pairs").iterdir()} == before

    def test_splits_of_other_pairs(self, sharded):
        write_splits(sharded.out, ["train"] * len(sharded.pairs))
        path = sharded.out / "splits.parquet"
        table = pq.read_table(path)
        for change in (table.slice(1), table.slice(0, 59), pa.concat_tables([table, table.slice(0, 1)])):
            pq.write_table(change, path)
            with pytest.raises(DataError, match=r"splits\.parquet: belongs to other pairs; run `empathy-judge split"):
                PairDataset.load(sharded.out)
