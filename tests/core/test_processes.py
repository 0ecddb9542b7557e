"""How far work is: a bar in a terminal, a line now and then in a log, nothing where it is not asked for; and processes
whose parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from empathy_judge.core import processes as parallel
from empathy_judge.core.processes import ProgressBar, progress, say


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    now = [100.0]
    monkeypatch.setattr(parallel.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_a_log_gets_a_line_every_30_seconds(clock, capsys):
    for _ in progress(range(90), "scoring", 100, done=10):
        clock(7)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 90 * 7 // 35  # the first item that ends 30 s after the last line
    assert lines[0] == "scoring: 15 of 100, 7.0 s each, 10 min left"
    assert lines[-1] == "scoring: 100 of 100, 7.0 s each, 0 s left"


def test_what_was_done_before_does_not_count_for_the_rate(clock, capsys):
    bar = ProgressBar("scoring", 20_000, done=10_000)
    bar.update(10_000)
    clock(40)
    bar.update(10_000)
    clock(60)
    bar.update(11_000, "3 without scores")
    clock(29)
    bar.update(12_000)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 10,000 of 20,000, 0.0 per second",
        "scoring: 11,000 of 20,000, 10.0 per second, 15 min left, 3 without scores",
    ]


def test_a_terminal_gets_a_bar_with_rate_and_remaining_time(clock, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    for _ in progress(range(8), "scoring", 8):
        clock(60)
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert "60.0 s each" in shown
    assert "0:00:00" in shown
    assert "8 of 8" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_one_process_of_several_shows_it(terminal, clock, capsys, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for _ in progress(range(8), "scoring", 8, quiet=True):
        clock(60)
    assert capsys.readouterr().err == ""


def test_what_is_said_names_files_as_they_are(capsys):
    say("passed over runs/a:cat:[b]")
    assert capsys.readouterr().err == "passed over runs/a:cat:[b]\n"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (89, "89 s"), (91, "2 min"), (7_000, "117 min"), (7_500, "2 h 5 min")]
)
def test_durations(seconds, words):
    assert parallel.duration(seconds) == words


PROGRAM = """
import multiprocessing, os, signal, time
from empathy_judge.core.processes import end_with_parent

def work(started):
    end_with_parent()
    started.set()
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    started = context.Event()
    context.Process(target=work, args=(started,)).start()
    started.wait()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_process_ends_where_the_one_that_started_it_is_killed(method, tmp_path):
    """It has the pipe to this test open: reading would wait for it."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("METHOD", repr(method)))
    killed = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not allot cores to processes")
def test_cores_are_those_that_a_scheduler_allots():
    program = (
        "import os; from empathy_judge.core.processes import available_cores; before = available_cores(); "
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(before, available_cores())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(len(os.sched_getaffinity(0))), "1"]
