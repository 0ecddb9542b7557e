"""A scorer, clips and ways to write a manifest of them."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge import Scorer
from empathy_judge.core.processes import ALONE, Launch
from empathy_judge.scoring.batch.job import Job, Parts
from empathy_judge.scoring.batch.run import Engine, Look, score_manifest
from empathy_judge.scoring.batch.workers import Worker

BAD = {
    1: ("cut.wav", "the file is cut off"),
    9: ("text.wav", "not a sound file"),
    12: ("empty.wav", "the file is empty"),
    13: ("absent.wav", "no such file"),
    19: ("../outside.wav", "leaves the folder"),
}


@pytest.fixture(scope="session")
def scorer(judge_folder) -> Scorer:
    return Scorer.from_pretrained(judge_folder, device="cpu", batch_size=8)


@pytest.fixture
def in_process(scorer) -> Engine:
    """An engine with one worker in this process: starting one takes longer than all these tests."""

    def run(parts: Parts, look: Look) -> None:
        Worker(parts, scorer).run()

    return run


@pytest.fixture
def clips(clips) -> Path:
    """The folder of all tests, with what cannot be scored."""
    (clips / "cut.wav").write_bytes((clips / "r0.wav").read_bytes()[:5_000])
    (clips / "text.wav").write_text("not audio")
    (clips / "empty.wav").write_bytes(b"")
    shutil.copy(clips / "c.wav", clips.parent / "outside.wav")
    return clips


Row = dict[str, Any]


def row(number: int, **values: Any) -> Row:
    plain = {"pair_id": f"p{number}", "context_audio": "c.wav", "response_audio": f"r{number % 4}.wav"}
    return plain | {"situation": None} | values


@pytest.fixture
def write(clips) -> Callable[..., Path]:
    """Writes rows to a file beside the clips."""

    def write(rows: list[Row], name: str = "manifest.csv") -> Path:
        path = clips / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        return path

    return write


@pytest.fixture
def make_job(judge_folder, clips) -> Callable[..., Job]:
    """A job for the judge of `scorer`: manifest, name of the output."""

    def make(manifest: Path, out: str = "out/scores.csv", **values: Any) -> Job:
        return Job(judge_folder, manifest, clips / out, **values)

    return make


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of scores; numbers of CSV stay text."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ","))


def rows_with_bad_ones() -> list[Row]:
    """20 rows, of which those of `BAD` cannot be scored."""
    rows = [row(number, context_audio="c.wav" if number % 3 else None) for number in range(20)]
    for number, (name, _) in BAD.items():
        rows[number]["response_audio"] = name
    return rows


@pytest.fixture
def small_chunks(monkeypatch) -> None:
    """Of 8 rows."""
    monkeypatch.setattr("empathy_judge.scoring.batch.job._STEP", 8)


class Killed(BaseException):
    """As if the process were no more."""


def fail(parts: Parts, look: Look) -> None:
    """An engine that ends at once."""
    raise Killed


def never(parts: Parts, look: Look) -> None:
    """An engine for which there is nothing to do."""
    raise AssertionError


@pytest.fixture
def undisturbed(make_job, in_process) -> Callable[[Path], Path]:
    """The scores of a manifest where nothing happens meanwhile."""

    def undisturbed(manifest: Path) -> Path:
        job = make_job(manifest, "whole.csv")
        score_manifest(job, in_process)
        return job.out

    return undisturbed


@pytest.fixture
def begin(scorer) -> Callable[..., None]:
    """Scores so many chunks of a job and is killed in the middle of the next one."""

    def begin(job: Job, chunks: int = 1, launch: Launch = ALONE, **options: Any) -> None:
        def run(parts: Parts, look: Look) -> None:
            worker, done = Worker(parts, scorer), []
            plain = worker._scored

            def scored(rows: Any) -> Iterator[Any]:
                for number, one in enumerate(plain(rows)):
                    if len(done) == chunks and number == 3:
                        raise Killed
                    yield one
                done.append(1)

            worker._scored = scored
            worker.run()

        with pytest.raises(Killed):
            score_manifest(job, run, launch, **options)

    return begin
