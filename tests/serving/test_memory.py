"""Large blocks go back to the system, whatever was allocated between them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from empathy_judge.serving.settings import return_memory
if sys.argv[1] == "yes":
    return_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.free(libc.malloc(30_000_000))  # from now on glibc thinks that 30 MB is small
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before, large, small = resident(), [], []
for _ in range(12):
    large.append(libc.malloc(8_000_000))
    ctypes.memset(large[-1], 1, 8_000_000)
    small.append(libc.malloc(100_000))
for block in large:
    libc.free(block)
print((resident() - before) // 1_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_blocks_between_small_ones_go_back() -> None:
    def left(word: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert left("no") > 60
    assert left("yes") < 20
