"""Files of pairs as they are found and read, and the splits in them."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from empathy_judge.audio.decode import audio_hash
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.storage import PAIRS_SCHEMA, split_names
from empathy_judge.data_modules.writing import write_splits

from .builders import set_cell


def test_other_writers_call_the_parts_of_a_list_differently(sharded):
    path = sharded.out / "pairs/part-00000.parquet"
    table = pq.read_table(path).cast(PAIRS_SCHEMA)
    pq.write_table(table, path, use_compliant_nested_type=False)
    assert "context_audio.list.item.bytes" in {pq.ParquetFile(path).schema.column(n).path for n in range(8)}
    dataset = PairDataset.load(sharded.out)
    assert audio_hash(dataset.pairs[3].context[0].audio) == dataset.fingerprints["000-3"][0]


def test_missing_shards_and_two_layouts(sharded):
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


def test_bad_rows_are_named_by_shard(sharded):
    set_cell(sharded.out / "pairs/part-00001.parquet", "pair_id", 6, "000-3", row_group_size=4)
    with pytest.raises(
        DataError, match=r"part-00001\.parquet, row 7, .*'000-3'.* stands at .*part-00000\.parquet, row 4"
    ):
        PairDataset.load(sharded.out)
    set_cell(sharded.out / "pairs/part-00001.parquet", "pair_id", 6, "", row_group_size=4)
    with pytest.raises(DataError, match=r"part-00001\.parquet, row 7, column 'pair_id': value ''"):
        PairDataset.load(sharded.out)


def test_splits_are_read_from_the_shards_or_beside_them(sharded):
    assert split_names(sharded.out) == {None}
    set_cell(sharded.out / "pairs/part-00001.parquet", "split", 6, "test", row_group_size=4)
    assert split_names(sharded.out) == {None, "test"}
    write_splits(sharded.out, ["train", "validation"] * 30)
    assert split_names(sharded.out) == {"train", "validation"}
