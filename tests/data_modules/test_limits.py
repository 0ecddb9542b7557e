"""Small files that claim to hold much, values that Python has no form for, and what a system may refuse."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules import folders
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.folders import resolve_inside
from empathy_judge.data_modules.inspection import inspect_dataset
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.staging import staged_folder
from empathy_judge.data_modules.storage import open_parquet
from empathy_judge.data_modules.tables import read_table
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.data_modules.yaml_files import read_yaml

MEMORY = 400 << 20


def peak_growth(code: str, path: Path) -> int:
    """Bytes by which the memory of a new process grows."""
    program = (
        "import resource, sys; from pathlib import Path; path = Path(sys.argv[1]);"
        "from empathy_judge.data_modules.tables import read_table;"
        "from empathy_judge.data_modules.schema import PairDataset;"
        "from empathy_judge.batch_scoring.manifest import Manifest;"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        f"before = used(); {code}; print((used() - before) * 1024)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def one_text(path: Path, rows: int, length: int, nested: bool = False) -> Path:
    """A file of less than a kilobyte or so, whose every row has the same long text."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * length]))
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), texts)
    pq.write_table(pa.table({"response_audio": texts}), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("code", ["read_table(path)", "Manifest(path).check(); list(Manifest(path).read(0, 60000))"])
def test_a_text_that_repeats_is_held_once(tmp_path, code, nested):
    """60,000 rows of 160,000 characters: 9.6 GB."""
    path = one_text(tmp_path / "a.parquet", 60_000, 160_000, nested)
    assert path.stat().st_size < 2_000
    assert peak_growth(code, path) < MEMORY


def test_a_dataset_whose_text_repeats(tmp_path):
    ids = pd.DataFrame({"pair_id": [f"p{number}" for number in range(6_000)]})
    pairs = ids.assign(group_id="g", response_audio=b"RIFF", situation="x" * 100_000)
    ratings = ids.assign(rater_id="r", dimension="d", score=1.0)
    write_dataset(tmp_path / "data", DatasetCard("a", (Dimension("d", 1, 5),), "a", "a"), pairs, ratings)
    assert (tmp_path / "data/pairs.parquet").stat().st_size < 10 << 20
    assert peak_growth("PairDataset.load(path)", tmp_path / "data") < MEMORY


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
    monkeypatch.setattr("empathy_judge.data_modules.storage.MAX_VALUES", 4_999)
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


YAML = {
    "bomb": ("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)), "more than 1000000 values"),
    "itself": ("a: &a [*a]\n", "more than 1000000 values"),
    "deep": ("a: " + "[" * 3_000 + "]" * 3_000, "nested too deep"),
    "deep block": ("".join(f"{' ' * n}a:\n" for n in range(3_000)), "nested too deep"),
    "twice": ("a: 1\nb: {c: 1, c: 2}\n", "key 'c' stands twice in a mapping, line 2, column 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_is_more_than_it_looks(tmp_path, name):
    text, message = YAML[name]
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=rf"dataset\.yaml: not readable as YAML \({message}"):
        PairDataset.load(tmp_path)


def test_many_keys_take_no_time(tmp_path):
    """Counting each key among all took minutes."""
    values = {f"k{number}": number for number in range(8_000)}
    (tmp_path / "a.yaml").write_text(json.dumps(values))
    start = time.process_time()
    assert read_yaml(tmp_path / "a.yaml") == values
    assert time.process_time() - start < 12


@pytest.mark.parametrize("share", ["nan", "-1", "1.5", "inf"])
def test_max_skipped_is_a_share(source, share):
    source.refuses(f"--max-skipped {share}: expected a share of the pairs, from 0 to 1", max_skipped=float(share))


# What the system may refuse


@pytest.fixture
def small_disk(tmp_path) -> Any:
    """A file system of 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("embed", [False, True])
def test_a_full_disk_leaves_the_earlier_result(source, small_disk, embed):
    source.out = small_disk / "data"
    first = source.load(embed_audio=embed)
    before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    for number in range(10):
        clip = source.tone(f"clips/long{number}.wav", hertz=500 + number, seconds=3)
        source.pairs[0]["context_audio"] = clip
        source.pairs.append({**source.pairs[0], "pair_id": f"new{number}", "response_audio": clip})
    source.refuses(r"cannot be written \(No space left on device\)", overwrite=True, embed_audio=embed)
    assert {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()} == before
    assert PairDataset.load(source.out).card == first.card
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        split_dataset(source.out, fractions={"train": 0.5, "test": 0.5})
    assert PairDataset.load(source.out).split_hash() == first.split_hash()
    assert inspect_dataset(first).counts["all"]["pairs"] == 4  # what was measured is not kept


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_is_said(source, monkeypatch, number):
    first = source.load()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.os, "replace", refuse)
    for write in (
        lambda: source.load(overwrite=True),
        lambda: split_dataset(source.out, fractions={"train": 0.5, "test": 0.5}),
    ):
        with pytest.raises(DataError, match=rf"cannot be written \({os.strerror(number)}\)"):
            write()
    monkeypatch.undo()
    assert PairDataset.load(source.out).card == first.card
    assert not list(source.out.parent.glob(".*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_what_may_not_be_read_is_no_missing_file(source):
    source.load()
    (source.folder / "locked").mkdir(mode=0o700)
    (source.folder / "closed.csv").touch(mode=0o600)
    for folder in (source.folder, *source.folder.parents[:-2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        for ask in (
            lambda: resolve_inside(source.folder, "locked/a.wav", "cell"),
            lambda: read_table(source.folder / "locked/a.csv"),
            lambda: read_table(source.folder / "closed.csv"),
            lambda: PairDataset.load(source.folder / "locked/data"),
        ):
            with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
                ask()
    finally:
        os.seteuid(0)


def test_names_that_are_too_long(tmp_path, source):
    name = "n" * 250
    source.load()  # so that there are tables
    source.out = tmp_path / name
    source.refuses(r"cannot be written \(File name too long\)")
    for ask in (lambda: read_table(tmp_path / f"{name}{name}.csv"), lambda: PairDataset.load(tmp_path / (name * 2))):
        with pytest.raises(DataError, match=r"cannot be read \(File name too long\)"):
            ask()
    with pytest.raises(DataError, match="cannot be written"), staged_folder(tmp_path / (name * 2)):
        pass
    source.pairs[0]["response_audio"] = f"{name * 2}.wav"
    source.out = tmp_path / "short"
    source.refuses(r"column 'response_audio': value 'nnn.*cannot be read \(File name too long\)")


def test_names_are_bounded(source):
    source.ratings[0]["rater_id"] = "r" * 10_001
    source.refuses(r"ratings\.csv, row 1 \(line 2\), column 'rater_id': value 'rrr")
