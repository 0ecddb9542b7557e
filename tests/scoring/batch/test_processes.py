"""Worker processes: killed, stopped, several together, and those that rows kill. The command as people start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest
from empathy_judge.core.errors import ASKED_TO_STOP
from empathy_judge.scoring.batch.job import Job, Parts

from ...conftest import until
from .conftest import read, row

pytestmark = pytest.mark.long

# Python runs this first in every process whose PYTHONPATH has it: a clip that kills, and clips that take their time
HOOK = """
import os, pathlib, signal, time
plain = pathlib.Path.read_bytes
def read_bytes(path):
    if path.name == "killer.wav":
        os.kill(os.getpid(), signal.SIGSEGV)
    if path.name == "slow.wav":
        time.sleep(float(os.environ.get("SLOW", "0")))
    return plain(path)
pathlib.Path.read_bytes = read_bytes
"""


@pytest.fixture
def environment(tmp_path, clips) -> dict[str, str]:
    """In which `killer.wav` is deadly and each `slow.wav` takes `SLOW` seconds."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK)
    for name in ("killer", "slow"):
        (clips / f"{name}.wav").write_bytes((clips / "r1.wav").read_bytes())
    path = os.pathsep.join([str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


@pytest.fixture
def same(undisturbed) -> Callable[[Job], None]:
    """The rows of a job are those of an undisturbed one, scores to what batches of another size make of them; and its
    parts are gone."""

    def same(job: Job) -> None:
        for found, expected in zip(read(job.out), read(undisturbed(job.manifest)), strict=True):
            assert (found["pair_id"], found["status"]) == (expected["pair_id"], expected["status"])
            assert float(found["warmth"] or 0) == pytest.approx(float(expected["warmth"] or 0), abs=1e-5)
        assert not Parts(job).folder.exists()

    return same


def words(job: Job, *more: str) -> list[str]:
    command = [sys.executable, "-m", "empathy_judge.cli", "score", str(job.judge), "--manifest", str(job.manifest)]
    return [*command, "--out", str(job.out), "--device", "cpu", *more]


def part_count(job: Job) -> int:
    return len(list(Parts(job).folder.glob("part-*")))


def slow_rows(count: int = 150):
    rows = [row(number) for number in range(count)]
    for start in range(0, count, 64):
        rows[start]["response_audio"] = "slow.wav"
    return rows


def test_a_row_that_kills_workers_is_named_and_the_others_are_scored(write, make_job, undisturbed, environment):
    rows = [row(number) for number in range(130)]
    rows[70]["response_audio"] = "killer.wav"
    job = make_job(write(rows))
    done = subprocess.run(words(job, "--json"), env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["failed"] == {"process died": 1}
    assert done.stderr.count("a worker was killed by SIGSEGV: its rows are tried again by another") == 5
    whole = read(undisturbed(job.manifest))  # where the clip kills nobody
    for number, (found, expected) in enumerate(zip(read(job.out), whole, strict=True)):
        if number == 70:
            assert found["status"] == "the process that scored this row died each time"
        else:
            assert found["status"] == expected["status"] == "ok"
            assert float(found["warmth"]) == pytest.approx(float(expected["warmth"]), abs=1e-5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_goes_on(number, write, make_job, same, environment):
    job = make_job(write(slow_rows()))
    stopped = {**environment, "SLOW": "5"}
    process = subprocess.Popen(words(job), env=stopped, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: part_count(job) >= 1 or process.poll() is not None, 240)
    workers = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert psutil.wait_procs(workers, timeout=60)[1] == []  # workers whose main process was killed end by themselves
    assert process.returncode == (-number if number == signal.SIGKILL else ASKED_TO_STOP)
    assert ("parts are done; the same command goes on from there" in said) == (number != signal.SIGKILL)
    assert not job.out.exists()
    before = part_count(job)
    assert 1 <= before < 3
    done = subprocess.run(words(job, "--json"), env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done_before"] >= 64 * before
    same(job)


def test_two_processes_of_accelerate_with_a_worker_each_write_one_file(write, make_job, same, environment):
    rows = slow_rows()
    rows[20]["response_audio"] = "text.wav"
    job = make_job(write(rows))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, *words(job)[1:]], env={**environment, "SLOW": "3"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 1, done.stderr  # a row has no scores
    same(job)


def test_two_commands_at_once_end_with_the_right_file(write, make_job, same, environment):
    job = make_job(write(slow_rows()))
    both = [
        subprocess.Popen(words(job), env={**environment, "SLOW": "1"}, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        said = process.communicate(timeout=900)[1]
        assert process.returncode == 0, said
    same(job)


def test_two_workers_that_meet_an_error_say_it_once(write, make_job, environment):
    job = make_job(write([row(0), row(1)]))
    command = words(job, "--workers", "2", "--level", "0.9")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "no intervals: the judge is not calibrated" in lines[0]
    assert "Traceback" not in done.stderr
    assert not Parts(job).folder.exists()


def test_a_process_that_only_waits_loads_no_torch():
    code = "import sys, empathy_judge.scoring.batch.run; print({'torch', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
