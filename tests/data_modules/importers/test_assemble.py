"""Imports that are killed go on where they stopped; those that fail leave nothing; memory does not grow with audio."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.core.staging import STAGE_NOTES
from empathy_judge.data_modules import storage
from empathy_judge.data_modules.importers import assemble as assembling
from empathy_judge.data_modules.importers import clips
from empathy_judge.data_modules.schema import PairDataset
from filelock import FileLock

from ..builders import Source

GROUPS, PER_GROUP = 12, 5
PAIRS, CLIPS = GROUPS * PER_GROUP, GROUPS * (PER_GROUP + 1)
SHARD_ROWS = 7
SHARDS = 9
SLOW_IMPORT = """
import sys, time
from empathy_judge import cli
from empathy_judge.data_modules.importers import assemble, clips

def slowed(function):
    def run(*arguments, **named):
        time.sleep(0.05)
        return function(*arguments, **named)
    return run

module, name = {"check": (clips, "load_clip"), "write": (assemble, "write_pairs")}[sys.argv[1]]
setattr(module, name, slowed(getattr(module, name)))
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.fixture
def large(tmp_path) -> Any:
    """A source of 60 pairs and 72 clips."""
    return Source(tmp_path / "source", groups=GROUPS, per_group=PER_GROUP)


def stage_of(source: Any) -> Path:
    return source.out.with_name(f".{source.out.name}.unfinished")


def kill_when(source: Any, slow: str, words: list[str], ready: Callable[[], bool]) -> None:
    """Starts an import in a process of its own and kills it as soon as `ready`."""
    pairs, ratings = source.table("pairs.csv", source.pairs), source.table("ratings.csv", source.ratings)
    arguments = ["import", "table", str(pairs), "--ratings", str(ratings), "--dimension", "empathy=1:5:1"]
    arguments += ["--out", str(source.out), *words]
    process = subprocess.Popen([sys.executable, "-c", SLOW_IMPORT, slow, *arguments], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    _, error = process.communicate()
    assert process.returncode == -signal.SIGKILL, error.decode()
    assert not source.out.exists()


def counting(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Mock:
    """A function that counts its calls from now on."""
    counted = Mock(wraps=getattr(module, name))
    monkeypatch.setattr(module, name, counted)
    return counted


def whole_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.mark.parametrize("embed", [False, True])
def test_clips_are_not_checked_again_after_a_kill(large, embed, monkeypatch, tmp_path):
    options = {"embed_audio": embed, "shard_rows": SHARD_ROWS}
    words = [*(["--embed-audio"] if embed else []), "--shard-rows", str(SHARD_ROWS)]
    journal = stage_of(large) / STAGE_NOTES / "clips.jsonl"
    kill_when(large, "check", words, lambda: whole_lines(journal) >= 10)
    done = whole_lines(journal)
    assert 10 <= done < CLIPS
    with journal.open("ab") as file:
        file.write(b'["cut off by th')
    decoded = counting(monkeypatch, clips, "load_clip")
    resumed = large.load(**options)
    assert len(decoded.call_args_list) == CLIPS - done
    assert resumed.card.content_hash == whole(large, tmp_path, **options).card.content_hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "other", "source"]
    assert STAGE_NOTES not in {path.name for path in large.out.iterdir()}


def whole(source: Any, folder: Path, **options: Any) -> PairDataset:
    """The dataset of an import that nothing interrupts."""
    other = copy.copy(source)
    other.out = folder / "other"
    return other.load(**options)


def test_shards_are_not_written_again_after_a_kill(large, monkeypatch, tmp_path):
    shards = [stage_of(large) / storage.shard_name(number) for number in range(SHARDS)]
    words = ["--embed-audio", "--shard-rows", str(SHARD_ROWS)]
    kill_when(large, "write", words, lambda: shards[2].is_file())
    done = [shard.stat().st_mtime_ns for shard in shards if shard.is_file()]
    assert 3 <= len(done) < SHARDS
    decoded = counting(monkeypatch, clips, "load_clip")
    written = counting(monkeypatch, assembling, "write_pairs")
    resumed = large.load(embed_audio=True, shard_rows=SHARD_ROWS)
    decoded.assert_not_called()
    assert [call.args[-1].name for call in written.call_args_list] == [shard.name for shard in shards[len(done) :]]
    final = [large.out / storage.shard_name(number) for number in range(SHARDS)]
    assert [path.stat().st_mtime_ns for path in final[: len(done)]] == done
    unbroken = whole(large, tmp_path, embed_audio=True, shard_rows=SHARD_ROWS)
    assert resumed.card.content_hash == unbroken.card.content_hash
    assert [pair.response.read() for pair in resumed.pairs] == [pair.response.read() for pair in unbroken.pairs]


def interrupted(source: Any, monkeypatch: pytest.MonkeyPatch, after: int, **options: Any) -> None:
    """An import that Ctrl-C stops when so many clips were checked."""
    with monkeypatch.context() as patch:
        counting(patch, clips, "load_clip").side_effect = chain(repeat(DEFAULT, after), repeat(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            source.load(**options)


def test_other_input_begins_anew(large, monkeypatch):
    for change in ("clip", "text", "layout"):
        interrupted(large, monkeypatch, after=40, overwrite=True)
        assert (stage_of(large) / clips.AUDIO_FOLDER).is_dir()
        if change == "clip":
            os.utime(large.folder / "clips/000-0.wav", ns=(1, 1))
        elif change == "text":
            large.pairs[0]["system_id"] = "another"
        with monkeypatch.context() as patch:
            decoded = counting(patch, clips, "load_clip")
            large.load(embed_audio=change == "layout", overwrite=True)
            assert len(decoded.call_args_list) == CLIPS
        assert not stage_of(large).exists()


def test_two_imports_into_one_folder(large):
    notes = stage_of(large) / STAGE_NOTES
    notes.mkdir(parents=True)
    with FileLock(notes / "lock"), pytest.raises(DataError, match="dataset: another process is writing it; wait"):
        large.load()
    assert len(large.load().pairs) == PAIRS


def test_a_kill_between_the_renames_loses_nothing(large):
    large.load()
    large.out.rename(large.out.with_name(f".{large.out.name}.replaced"))
    with pytest.raises(DataError, match="dataset: exists; expected"):
        large.load()
    assert len(PairDataset.load(large.out).pairs) == PAIRS


def test_a_clip_that_changes_during_the_import(large, monkeypatch):
    read = clips.read_clip
    monkeypatch.setattr(assembling, "read_clip", lambda content: read(content) + b"0")
    large.refuses(r"row 1 .*: the clip was changed during the import", embed_audio=True)


@pytest.mark.parametrize("share", ["nan", "-1", "1.5", "inf"])
def test_max_skipped_is_a_share(source, share):
    source.refuses(f"--max-skipped {share}: expected a share of the pairs, from 0 to 1", max_skipped=float(share))
