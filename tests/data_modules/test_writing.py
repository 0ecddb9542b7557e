"""Large datasets are written in shards of small row groups; splits are written without the audio."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.audio.decode import audio_hash
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules import writing
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.storage import PAIRS_SCHEMA
from empathy_judge.data_modules.writing import write_splits

from .builders import set_cell


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
