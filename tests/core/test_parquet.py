"""Small files that claim to hold much, and values that Python has no form for."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.core.parquet import open_parquet
from empathy_judge.data_modules.schema import DatasetCard, Dimension
from empathy_judge.data_modules.tables import read_table
from empathy_judge.data_modules.writing import write_dataset

# Bytes by which the memory of a new process grows, read after each of several lines
PROGRAM = """
import resource, sys
from pathlib import Path
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.tables import read_table
from empathy_judge.scoring.batch.manifest import Manifest

used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder, before = Path(sys.argv[1]), used()
for code in sys.argv[2:]:
    exec(code)
    print((used() - before) * 1024)
"""


def one_text(path: Path, rows: int, length: int, nested: bool = False) -> Path:
    """A file of less than a kilobyte or so, whose every row has the same long text."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * length]))
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), texts)
    pq.write_table(pa.table({"response_audio": texts}), path, compression="zstd", store_schema=False)
    return path


def test_a_text_that_repeats_is_held_once(tmp_path):
    """60,000 rows of 160,000 characters: 9.6 GB; in a dataset 300 MB."""
    lines = []
    for name, nested in (("plain", False), ("nested", True)):
        assert one_text(tmp_path / f"{name}.parquet", 60_000, 160_000, nested).stat().st_size < 2_000
        path = f"folder / '{name}.parquet'"
        lines += [f"read_table({path})", f"Manifest({path}).check(); list(Manifest({path}).read(0, 60000))"]
    ids = pd.DataFrame({"pair_id": [f"p{number}" for number in range(3_000)]})
    pairs = ids.assign(group_id="g", response_audio=b"RIFF", situation="x" * 100_000)
    ratings = ids.assign(rater_id="r", dimension="d", score=1.0)
    write_dataset(tmp_path / "data", DatasetCard("a", (Dimension("d", 1, 5),), "a", "a"), pairs, ratings)
    assert (tmp_path / "data/pairs.parquet").stat().st_size < 10 << 20
    words = [sys.executable, "-c", PROGRAM, tmp_path, "PairDataset.load(folder / 'data')", *lines]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    of_dataset, *of_files = map(int, ran.stdout.split())
    assert of_dataset < 200 << 20
    assert max(of_files) < 400 << 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pa.table({"a": pa.array(["x" * (200 << 20)])}),
         r"\d+ bytes that become \d+; expected at most 1000 times"),
        (lambda: pa.table({"a": pa.nulls(17_000_000, pa.int8())}),
         "17000000 rows of 1 columns; expected at most 16777216"),
    ],
)  # fmt: skip
def test_files_that_would_fill_the_memory(tmp_path, make, message):
    path = tmp_path / "a.parquet"
    pq.write_table(make(), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=rf"a\.parquet: not readable as Parquet \({message}"):
        read_table(path)


def test_lists_that_would_fill_the_memory(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": pa.array([[1] * 5_000])}), tmp_path / "a.parquet")
    monkeypatch.setattr("empathy_judge.core.parquet.MAX_VALUES", 4_999)
    with pytest.raises(pa.ArrowInvalid, match="5000 values in a row group; expected at most 4999"):
        open_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_many_columns_take_no_time(tmp_path, suffix):
    """A check of every name against every other took minutes: 100,000 names are 5 billion pairs."""
    names = [f"c{number}" for number in range(100_000 if suffix == ".csv" else 20_000)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(",".join(names) + "\n" + "," * (len(names) - 1) + "\n")
    else:
        pq.write_table(pa.table({name: [1] for name in names}), path)
    start = time.process_time()
    assert read_table(path).columns == tuple(names)
    assert time.process_time() - start < 20
    twice = [*names, names[0]]
    (tmp_path / "twice.csv").write_text(",".join(twice) + "\n" + "," * len(names) + "\n")
    with pytest.raises(DataError, match="column 'c0' stands twice in the header"):
        read_table(tmp_path / "twice.csv")


def test_a_long_cell_is_a_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"pair_id,situation\na,{'x' * 200_000}\n")
    assert [len(row["situation"]) for row in read_table(path).rows] == [200_000]


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("us"), pa.duration("ms")])
def test_a_time_that_python_has_not_spoils_one_cell(tmp_path, kind):
    times = pa.array([2**62 + 1, 0], pa.int64()).view(kind)
    lists = pa.ListArray.from_arrays([0, 2, 2], times)
    pq.write_table(pa.table({"pair_id": ["a", "b"], "time": times, "times": lists}), tmp_path / "a.parquet")
    first, second = read_table(tmp_path / "a.parquet").rows
    assert (first["pair_id"], second["pair_id"], second["times"]) == ("a", "b", [])
    assert repr(first["time"]).startswith(f"<{kind} that cannot be represented: ")
    assert first["times"][1] == second["time"]
