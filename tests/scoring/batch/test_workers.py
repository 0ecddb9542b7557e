"""Workers: their devices and ranks, how they share chunks, and what becomes of rows that kill them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import SimpleNamespace

import pytest
from empathy_judge.core.errors import ASKED_TO_STOP, UserError
from empathy_judge.core.processes import Launch, find_launch
from empathy_judge.data_modules.schema import Pair
from empathy_judge.scoring.batch.job import Job, Parts
from empathy_judge.scoring.batch.run import score_manifest
from empathy_judge.scoring.batch.workers import AttemptLog, Worker, _work, worker_devices

from .conftest import Killed, never, read, row, rows_with_bad_ones

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.mark.parametrize(
    ("killers", "deaths", "named"),
    [
        ({1, 8}, 2 * (3 + 2), {1, 8}),  # per chunk: a start and two retries, then the row twice
        ({*range(8)}, 3 + 2 * 4, {0, 1, 2, 3}),  # after four rows the rest of the chunk is not tried
    ],
)
def test_rows_that_kill_are_passed_over(killers, deaths, named, write, make_job, in_process, undisturbed, monkeypatch):
    """An error in this process stands for the death of a worker: both leave the same notes."""
    job = make_job(write([row(number) for number in range(10)]))
    whole = read(undisturbed(job.manifest))
    plain, died = Worker._scored, []

    def deadly(self, rows):
        for one in rows:
            if isinstance(one.pair, Pair) and int(one.pair_id[1:]) in killers:
                died.append(one.pair_id)
                raise MemoryError
            yield one

    monkeypatch.setattr(Worker, "_scored", lambda self, rows: plain(self, deadly(self, rows)))
    summary = None
    while summary is None:
        with suppress(MemoryError):
            summary = score_manifest(job, in_process, Launch(0, 2, 0))
    assert len(died) == deaths
    assert summary.failed == {"process died": len(killers)}
    for number, (found, expected) in enumerate(zip(read(job.out), whole, strict=True)):
        if number in killers:
            whose = "this row" if number in named else "several rows near this one"
            assert found["status"] == f"the process that scored {whose} died each time"
        else:
            assert float(found["warmth"]) == pytest.approx(float(expected["warmth"]), abs=1e-5)


def test_a_start_that_was_asked_to_stop_or_may_go_on_is_no_death(write, make_job):
    def look(parts, look):
        (chunk,) = parts.chunks()
        for owner, words, row_by_row in (
            ("0", ["start", "stop"] * 4, False),
            ("0", ["start", "start"], False),
            ("1", ["start", "3"], False),  # of another: at work
            ("1", ["start"], True),  # it died in its third row, and was started again
        ):
            log = AttemptLog(parts, chunk, owner)
            for word in words:
                log.note(word)
            assert AttemptLog(parts, chunk, "0").row_by_row == row_by_row
        for _ in range(2):
            AttemptLog(parts, chunk, "1").note("3")
            AttemptLog(parts, chunk, "1").note("start")
        assert AttemptLog(parts, chunk, "2").bad_rows == {3}
        notes = parts.path(chunk, "tries")  # of no worker: all is passed over that is not a note
        notes.with_name(f"{notes.name}-3").mkdir()
        notes.with_name(f"{notes.name}-4").write_bytes(b"start\nx\n" * 3 + b"\xff\xfe []\nstart\n" + b"9" * 5_000)
        assert AttemptLog(parts, chunk, "2").bad_rows == {3}
        raise Killed

    with pytest.raises(Killed):
        score_manifest(make_job(write([row(0)])), look)


@pytest.mark.parametrize("fails", ["loading", "running"])
def test_what_the_machine_refuses_a_worker_is_no_death(fails, write, make_job, scorer, monkeypatch):
    def load(job, device):
        if fails == "loading":
            raise ImportError("libtorch_cpu.so: failed to map segment from shared object")
        return scorer

    def look(parts, look):
        (chunk,) = parts.chunks()
        path = parts.path(chunk, "tries")
        (path := path.with_name(f"{path.name}-0")).mkdir()
        said, expected = [], {
            "loading": ["Cannot allocate memory; expected more memory, or a smaller --batch-size"],
            "running": [None, f"{path}: Is a directory; expected a file"],
        }  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr("empathy_judge.scoring.batch.workers.signal.signal", lambda *_: None)
            patched.setattr(Job, "load", load)
            _work(parts, (0, 1), None, None, SimpleNamespace(send=said.append))
        assert said == expected[fails]
        raise Killed

    with pytest.raises(Killed):
        score_manifest(make_job(write([row(0)])), look)


def test_a_disk_that_refuses_a_part_is_no_death(write, make_job, in_process, monkeypatch):
    def refuse(*_):
        raise UserError("no room")

    job = make_job(write([row(number) for number in range(3)]))
    with monkeypatch.context() as patched:
        patched.setattr(Parts, "write", refuse)
        for _ in range(3 + 2):  # after so many deaths their row is passed over
            with pytest.raises(UserError, match="no room"):
                score_manifest(job, in_process)
    assert score_manifest(job, in_process).failed == {}


def test_ranks_take_turns_and_then_what_is_missing(write, make_job, scorer):
    """Rank 1 of 3 begins with its share, goes on with what the others have not done, and leaves the rest to rank 0."""
    job = make_job(write([row(number) for number in range(8 * 5)]))
    order = []

    def run(parts, look):
        worker = Worker(parts, scorer, 1, 3)
        plain = worker.score
        worker.score = lambda chunk: (order.append(chunk.number), plain(chunk))
        worker.run()

    assert score_manifest(job, run, Launch(1, 3, 1)) is None
    assert order[:2] == [1, 4]
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert not job.out.exists()

    assert score_manifest(job, never, Launch(0, 3, 0)).rows == 40
    assert len(read(job.out)) == 40


def test_a_chunk_that_another_worker_finishes_is_left(write, make_job, scorer, monkeypatch):
    monkeypatch.setattr("empathy_judge.scoring.batch.workers._LOOK", 0.0)
    job = make_job(write([row(number) for number in range(8)]))

    def run(parts, look):
        (chunk,), worker = parts.chunks(), Worker(parts, scorer)
        plain = worker._scored

        def scored(rows):
            for number, one in enumerate(plain(rows)):
                assert number < 4
                if number == 3:
                    Worker(parts, scorer, owner="other").score(chunk)
                yield one

        worker._scored = scored
        worker.score(chunk)
        assert [path.name[:4] for path in parts.entries()] == ["part"]

    assert score_manifest(job, run).scored == 8


def test_a_signal_ends_with_a_word_how_to_go_on(write, make_job, in_process, scorer, capsys):
    job = make_job(write(rows_with_bad_ones()))
    before = signal.getsignal(signal.SIGTERM)

    def run(parts, look):
        Worker(parts, scorer).score(parts.chunks()[0])
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as stopped:
        score_manifest(job, run)
    assert stopped.value.code == ASKED_TO_STOP
    assert signal.getsignal(signal.SIGTERM) is before
    assert "asked to stop: 1 of 3 parts are done; the same command goes on from there" in capsys.readouterr().err
    assert score_manifest(job, in_process).done_before == 8


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, Launch()),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Launch(3, 4, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Launch()),
        (
            {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"},
            Launch(9, 16, 1),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, Launch()),
    ],
    ids=["alone", "torchrun", "torchrun of one", "srun", "a batch script that starts one process"],
)
def test_who_is_who(environment, launch, monkeypatch):
    monkeypatch.setattr(os, "environ", environment)
    assert find_launch() == launch


@pytest.mark.parametrize(
    ("gpus", "launch", "device", "workers", "devices"),
    [
        (0, Launch(), None, None, [None]),
        (0, Launch(), "cpu", 2, ["cpu", "cpu"]),
        (4, Launch(), "cpu", None, ["cpu"]),
        (2, Launch(), None, None, ["cuda:0", "cuda:1"]),
        (2, Launch(), "cuda", 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (2, Launch(), "cuda:1", None, ["cuda:1"]),
        (8, Launch(), "auto", None, ["auto"]),
        (8, Launch(11, 16, 3), None, None, ["cuda:3"]),
        (8, Launch(3, 4, 3), None, 2, ["cuda:6", "cuda:7"]),
        (1, Launch(3, 4, 3), None, None, ["cuda:0"]),
        (0, Launch(1, 2, 1), None, None, [None]),
    ],
)
def test_each_worker_has_a_device(gpus, launch, device, workers, devices, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert worker_devices(launch, device, workers) == devices


@pytest.mark.parametrize(
    ("launch", "device", "workers", "text"),
    [
        (Launch(0, 2, 0), "cuda:0", None, "--device cuda:0 for several workers.*expected no --device, cuda, or cpu"),
        (Launch(), "auto", 2, "--device auto for several workers"),
    ],
)
def test_workers_that_would_be_in_each_others_way_are_refused(launch, device, workers, text):
    with pytest.raises(UserError, match=text):
        worker_devices(launch, device, workers)
