"""Two commands with one `--out`: the same job is shared, another one is refused while the first works. What the file of
scores may replace."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest
from empathy_judge.core import locks
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.batch.claim import Claim
from empathy_judge.scoring.batch.job import Job, Parts
from empathy_judge.scoring.batch.run import score_manifest
from empathy_judge.scoring.batch.workers import Worker

from .conftest import fail, never, read, row, rows_with_bad_ones

pytestmark = pytest.mark.usefixtures("small_chunks")

HOLD = """
import sys
from pathlib import Path
from empathy_judge.scoring.batch.claim import Claim
from empathy_judge.scoring.batch.job import Job, Parts
parts = Parts(Job(*map(Path, sys.argv[1:])))
claim = Claim(parts)
claim.take(20, None, False)
print(flush=True)
sys.stdin.read()
"""


def held(job: Job) -> subprocess.Popen:
    """Another process that has begun a job and has no part yet."""
    words = [sys.executable, "-c", HOLD, str(job.judge), str(job.manifest), str(job.out)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


@pytest.fixture
def jobs(write, make_job) -> tuple[Job, Job]:
    """Two manifests with one file for their scores."""
    first = make_job(write(rows_with_bad_ones()), "scores.csv")
    return first, make_job(write([row(number) for number in range(20)], "other.csv"), "scores.csv")


@pytest.mark.parametrize("restart", [False, True])
def test_another_manifest_is_refused_while_the_first_works(restart, jobs, in_process):
    first, second = jobs
    with held(first) as process:
        plan = (Parts(first).folder / "plan.json").read_bytes()
        begin = time.monotonic()
        with pytest.raises(UserError) as error:
            score_manifest(second, never, restart=restart)
        assert time.monotonic() - begin < 5
        assert str(error.value).startswith(f"{second.out}: another process is scoring into it with another manifest (")
        assert str(error.value).endswith("; expected another --out, or wait for its end")
        assert (Parts(first).folder / "plan.json").read_bytes() == plan
        summary = score_manifest(first, in_process)  # the same manifest shares the work
        assert summary is not None
        assert summary.rows == 20
        process.kill()
    assert [own["pair_id"] for own in read(first.out)] == [f"p{number}" for number in range(20)]


def test_what_a_killed_process_began_gives_way_if_it_has_no_part(jobs, in_process, begin):
    first, second = jobs
    with held(first) as process:
        process.kill()
    assert Parts(first).under_way()
    assert score_manifest(second, in_process).scored == 20
    begin(first, 1, overwrite=True)
    with pytest.raises(UserError, match=r"begun with another manifest .* or --restart to delete what is done"):
        score_manifest(second, never)
    assert score_manifest(second, in_process, restart=True).done_before == 0


def test_of_two_that_plan_at_once_the_second_is_refused(jobs):
    first, second = Parts(jobs[0]), Parts(jobs[1])
    late = Claim(second)
    with held(first.job) as process:
        with pytest.raises(UserError, match="another process is scoring into it with another manifest"):
            late.take(20, None, False)
        assert first.under_way()
        process.kill()


def test_without_locks_the_plan_of_another_job_stays_until_restart(jobs, in_process, monkeypatch):
    first, second = jobs
    with held(first) as process:
        process.kill()

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "lockf", unknown)
    with pytest.raises(UserError, match=r"begun with another manifest .* or --restart to delete what is done"):
        score_manifest(second, never)
    assert score_manifest(second, in_process, restart=True).scored == 20
    assert not Parts(second).folder.exists()


# ---------------------------------------------------------------- what is replaced


def mine(path: Path, kind: str) -> None:
    if kind == "link":
        path.unlink(missing_ok=True)
        path.symlink_to(path.with_name("elsewhere"))
    else:
        path.write_text("mine")


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.summary.json"])
def test_neither_scores_nor_summary_replace_a_file_of_the_user(name, kind, jobs, in_process):
    job, _ = jobs
    path = job.out.with_name(name)
    mine(path, kind)
    reason = f"{name}: exists, and is not what this command wrote there; expected another --out, or --overwrite"
    with pytest.raises(UserError, match=reason):
        score_manifest(job, fail)
    assert path.is_symlink() if kind == "link" else path.read_text() == "mine"
    assert not Parts(job).folder.exists()
    assert score_manifest(job, in_process, overwrite=True).rows == 20
    assert not path.is_symlink()


def test_a_file_that_somebody_puts_there_meanwhile_stays(jobs, scorer):
    job, _ = jobs

    def run(parts, look):
        Worker(parts, scorer).run()
        job.out.write_text("mine")

    with pytest.raises(UserError, match=r"scores\.csv: exists, and is not what this command wrote there"):
        score_manifest(job, run)
    assert job.out.read_text() == "mine"
    with pytest.raises(UserError, match=r"scores\.csv: exists, and is not what this command wrote there"):
        score_manifest(job, never)  # at once
    job.out.rename(job.out.with_name("mine.csv"))
    assert score_manifest(job, never).done_before == 20  # nothing that was done is lost


def test_the_same_command_that_was_faster_is_no_obstacle(jobs, scorer, undisturbed, monkeypatch):
    """Its scores stand there already, its summary does not, and its parts are not deleted yet."""
    job, _ = jobs
    whole = undisturbed(job.manifest).read_bytes()

    def run(parts, look):
        Worker(parts, scorer).run()
        job.out.write_bytes(whole)

    assert score_manifest(job, run).rows == 20
    assert job.out.read_bytes() == whole
