"""Processes whose parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

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
