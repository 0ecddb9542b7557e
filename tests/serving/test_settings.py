"""What is refused at the start: limits, a token, an address; and memory that goes back to the system."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.serving.settings import TOKEN_VARIABLE, ServiceSettings, listen, read_token

from ..conftest import failed

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


@pytest.mark.parametrize("missing", ["fastapi", "prometheus_client"])
def test_what_is_not_installed_is_named(missing, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    expected = f"error: serve: {missing} is not installed; pip install 'empathy-judge[serve]'"
    assert failed(capsys, "serve", "judge") == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-seconds", "0"), ("--max-seconds", "0.01"), ("--decode-seconds", "0"), ("--body-seconds", "0"),
        ("--idle-seconds", "0"), ("--request-seconds", "0"), ("--max-bytes", "1"),
        ("--concurrency", "1000000"), ("--decoders", "1000000"),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused_at_start(option, value, capsys):
    assert re.search(
        rf"{option}: '{value}': expected .* from \S+ to \d+", failed(capsys, "serve", "judge", option, value)
    )


@pytest.mark.parametrize("token", ["", "   ", "\t", "geheimn\u00fcsse", "\u5bc6", "a\nb"])
def test_a_token_that_nobody_can_send_is_refused_at_start(token, monkeypatch, capsys):
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    line = failed(capsys, "serve", "judge")
    assert line.startswith(f"error: {TOKEN_VARIABLE}: expected printable ASCII characters")
    assert not token.strip() or token not in line


def test_a_token_is_read_without_blanks_around_it(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token() is None
    monkeypatch.setenv(TOKEN_VARIABLE, " open sesame\n")
    assert read_token() == "open sesame"
    assert "sesame" not in repr(ServiceSettings(token="open sesame"))


@pytest.mark.parametrize("host", ["a" * 64, "judge..example"])
def test_a_name_that_no_host_can_have_is_refused(host):
    with pytest.raises(UserError, match=rf"--host {host} --port 0: .*; expected an address of this machine"):
        listen(host, 0)


def test_what_stands_in_the_way_is_said_before_anything_is_loaded(tmp_path, judge_folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for judge, expected in (
            (tmp_path, rf"{tmp_path}: expected a judge folder \(with judge\.json\), a run folder or a checkpoint\n"),
            (judge_folder, rf"--host 127\.0\.0\.1 --port {port}: .*in use.*; expected an address .* and a free port\n"),
        ):
            code = f"from empathy_judge.cli import main; import sys; main({['serve', str(judge), '--port', str(port)]})"
            done = subprocess.run(
                [sys.executable, "-c", f"{code}; print('torch' in sys.modules, 'fastapi' in sys.modules)"],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert re.fullmatch(f"error: {expected}", done.stderr)
            assert done.stdout == "False False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_blocks_between_small_ones_go_back():
    def left(word: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert left("no") > 60
    assert left("yes") < 20
