"""Datasets in folders and behind addresses: read alike and lazily; no path leaves, no message holds a secret."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from empathy_judge.audio.decode import audio_hash, decode, probe
from empathy_judge.audio.stored_clips import StoredClip
from empathy_judge.core import files as folders
from empathy_judge.core.errors import AudioError, DataError
from empathy_judge.core.files import RemotePath, data_path, resolve_inside
from empathy_judge.data_modules import clip_measures
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.tables import read_table
from empathy_judge.data_modules.writing import write_splits

from ..data_modules.builders import set_cell

ADDRESS = "memory://bucket/tones"


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def upload(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/bucket/tones/{path.relative_to(folder).as_posix()}", path.read_bytes())


@pytest.mark.parametrize("embed", [False, True])
def test_remote_and_local_are_the_same(source, memory, embed):
    local = source.load(embed_audio=embed, shard_rows=3)
    upload(source.out, memory)
    remote = PairDataset.load(ADDRESS)
    assert remote.card == local.card
    assert remote.fingerprints == local.fingerprints
    assert remote.ratings.equals(local.ratings)
    for there, here in zip(remote.pairs, local.pairs, strict=True):
        assert isinstance(there.response, StoredClip)
        assert (decode(there.response, 8_000) == decode(here.response, 8_000)).all()
        assert probe(there.context[0].audio) == probe(here.context[0].audio)
        assert audio_hash(there.response) == local.fingerprints[there.pair_id][-1]
    assert str(remote.root / "split.yaml") == f"{ADDRESS}/split.yaml"


def test_load_reads_no_audio(source, memory, monkeypatch):
    for row in source.pairs:
        source.tone(row["response_audio"], seconds=20, hertz=300 + len(row["pair_id"]))
    source.load(embed_audio=True, shard_rows=2)
    upload(source.out, memory)
    stored = sum(path.stat().st_size for path in source.out.rglob("*.parquet"))
    sizes: list[int] = []
    opening = RemotePath.open

    def counted(path: RemotePath) -> Any:
        file = opening(path)
        reading = file.read
        monkeypatch.setattr(file, "read", lambda size=-1: sizes.append(size) or reading(size), raising=False)
        return file

    monkeypatch.setattr(RemotePath, "open", counted)
    PairDataset.load(ADDRESS)
    assert stored > 1_000_000
    assert 0 < sum(sizes) < 0.2 * stored


@pytest.mark.parametrize("address", ["file://{}", "local://{}"])
def test_file_addresses_are_local_paths(source, address):
    source.out = source.out.with_name("a b")
    source.load()
    quoted = address.format(str(source.out).replace(" ", "%20"))
    assert data_path(quoted) == source.out
    assert PairDataset.load(quoted).pairs[0].response.is_relative_to(source.out.resolve())


def test_inspect_keeps_what_it_measured_in_the_users_cache(source, memory, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(folders, "user_cache_path", lambda *_, **__: cache)
    source.load(embed_audio=True)
    upload(source.out, memory)
    first = inspect_dataset(PairDataset.load(ADDRESS))
    assert [len(path.read_text().split()) > 0 for path in cache.iterdir()] == [True]
    monkeypatch.setattr(clip_measures, "load_clip", None)
    assert inspect_dataset(PairDataset.load(ADDRESS)) == first
    assert not memory.exists(f"/bucket/tones/{clip_measures.MEASURED_FILE}")


def test_splits_are_not_written_to_an_address(source, memory):
    source.load()
    upload(source.out, memory)
    before = {path: memory.cat_file(path) for path in memory.find("/bucket")}
    with pytest.raises(DataError, match=r"^memory://bucket/tones: .*expected a local copy"):
        write_splits(ADDRESS, ["train"] * 4)
    with pytest.raises(DataError, match="expected a local copy"):
        split_dataset(ADDRESS, fractions={"train": 0.5, "test": 0.5})
    assert {path: memory.cat_file(path) for path in memory.find("/bucket")} == before


@pytest.mark.parametrize("path", ["../secret.wav", "/bucket/secret.wav", "audio/../../secret.wav", "a\\..\\..\\x"])
def test_no_path_leaves_a_remote_folder(source, memory, path):
    source.load()
    set_cell(source.out / "pairs.parquet", "response_audio", 1, {"path": path})
    upload(source.out, memory)
    memory.pipe_file("/bucket/secret.wav", b"secret")
    with pytest.raises(DataError, match=r"row 2, column 'response_audio': value .* leaves the folder memory://bucket"):
        PairDataset.load(ADDRESS)


def test_missing_files(source, memory):
    with pytest.raises(DataError, match=r"memory://bucket/tones: not a pair dataset, it has no dataset\.yaml"):
        PairDataset.load(ADDRESS)
    source.load()
    upload(source.out, memory)
    dataset = PairDataset.load(ADDRESS)
    (gone,) = memory.glob(f"/bucket/tones/audio/{dataset.fingerprints['000-1'][-1][:32]}*")
    memory.rm(gone)
    with pytest.raises(AudioError, match=r"^memory://bucket/tones/audio/.*: no such file"):
        decode(dataset.pairs[1].response, 16_000)
    with pytest.raises(DataError, match=r"pairs\.parquet, row 2, column 'response_audio': .*no such file in memory"):
        PairDataset.load(ADDRESS)
    memory.pipe_file("/bucket/tones/ratings.parquet", b"PAR1 and no more")
    memory.pipe_file(gone, b"x")
    with pytest.raises(DataError, match=r"memory://bucket/tones/ratings\.parquet: not readable as Parquet"):
        PairDataset.load(ADDRESS)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere://x/y", "nowhere://x/y: Protocol not known: nowhere; expected a local folder, hf://"),
        ("ftp://me:hunter2@localhost:1/data?token=hunter2", r"^ftp://localhost:1/data\S*: cannot be reached \(Conn"),
        ("zip://x::nowhere://hunter2@y", "Protocol not known: nowhere|not an address"),
    ],
)
def test_bad_addresses(address, message):
    with pytest.raises(DataError, match=message) as caught:
        PairDataset.load(address)
    assert "hunter2" not in str(caught.value)


def test_no_secret_is_shown():
    path = RemotePath("s3://key:hunter2@bucket/data?X-Amz-Signature=hunter2") / "pairs.parquet"
    assert (str(path), repr(path)) == ("s3://bucket/data/pairs.parquet", "RemotePath('s3://bucket/data/pairs.parquet')")
    assert path.name == "pairs.parquet"
    assert pickle.loads(pickle.dumps(path)) == path


def test_a_forked_process_reads_through_a_connection_of_its_own(source, memory):
    source.load(embed_audio=True)
    upload(source.out, memory)
    pairs = PairDataset.load(ADDRESS).pairs
    here = [audio_hash(pair.response) for pair in pairs]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(audio_hash, [pair.response for pair in pairs]) == here


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
