"""Kills a service at random, or fills the disk of its cache: ``python tools/kills serve JUDGE CLIPS --moments 20``.

The service keeps audio states on a small disk (a tmpfs: this must be root), while clients ask for scores all the time.
Each time it is killed by SIGKILL within `LOAD` seconds after its first answer; after every
fourth time another one lives while the disk is filled or becomes read-only. What is asserted:

- every answer that comes is whole and is that of a service that nothing happened to, within `TOLERANCE`;
- the processes that decode end without their parent;
- the next service starts on the same port and the same cache, and gives the scores of the undisturbed one;
- a service whose cache cannot be written goes on answering, and ends with 0 after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from commands import remount, with_disk

LOAD = 4.0
PATIENCE = 120.0
CLIENTS = 3
TOLERANCE = 2e-6
"""In points: requests that come together are padded to the longest."""
Scores = dict[str, dict[str, float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this harm."""
    parser.add_argument("judge", help="judge folder")
    parser.add_argument("clips", help="folder with WAV files")


def harm(given: argparse.Namespace) -> int:
    """Harm; print what was found as JSON; 1 if something was not as it should."""
    rng = random.Random(given.seed)
    clips = {path.name: path.read_bytes() for path in sorted(Path(given.clips).glob("*.wav"))[:6]}
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "disk")
        disk.mkdir()
        os.environ.update(XDG_CACHE_HOME=f"{folder}/cache", TMPDIR=folder, HF_HUB_OFFLINE="1", no_proxy="*")
        port = _free_port()
        with _Service(given.judge, port, None) as service:
            begun = service.seconds
            truth = {name: service.score(name, clip) for name, clip in clips.items()}
        trial = _Trial(given.judge, port, disk, clips, truth)
        for moment in range(given.moments):
            with_disk(disk, 16)
            try:
                trial.killed(rng.uniform(0, LOAD))
                if moment % 4 == 3:
                    trial.without_room("read-only" if moment % 8 == 7 else "full")
            finally:
                subprocess.run(["umount", "-l", disk], check=True)
    print(json.dumps({"seconds to start": round(begun, 1), **trial.found}))
    return 1 if trial.found["wrong"] else 0


class _Service:
    """`empathy-judge serve` in a process of its own."""

    def __init__(self, judge: str, port: int, cache: Path | None) -> None:
        program = "import sys; from empathy_judge.cli import main; sys.exit(main())"
        words = ["serve", judge, "--port", str(port), "--device", "cpu", "--drain-seconds", "0"]
        words += ["--cache", str(cache)] if cache else []
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed with the service
        start = time.monotonic()
        self.process = subprocess.Popen([sys.executable, "-c", program, *words], stdout=self._said, stderr=self._said)
        self.url, self._start, self.seconds = f"http://127.0.0.1:{port}", start, 0.0

    def __enter__(self) -> _Service:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> None:
        """Until it is ready."""
        while time.monotonic() < self._start + PATIENCE and self.process.poll() is None:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    self.seconds = time.monotonic() - self._start
                    return
            time.sleep(0.05)
        raise AssertionError(f"it did not start: {self.said()}")

    def score(self, name: str, clip: bytes) -> dict[str, float]:
        """Of one clip."""
        answer = httpx.post(f"{self.url}/v1/score", files={"response": (name, clip)}, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return {dimension: own["score"] for dimension, own in answer.json()["scores"].items()}

    def end(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def said(self) -> str:
        """All that it printed."""
        self._said.seek(0)
        return self._said.read()


class _Trial:
    """A service, harmed again and again."""

    def __init__(self, judge: str, port: int, disk: Path, clips: dict[str, bytes], truth: Scores) -> None:
        self._judge, self._port, self._disk, self._clips, self._truth = judge, port, disk, clips, truth
        self.found: dict[str, Any] = {"killed": 0, "requests under way": 0, "full": 0, "read-only": 0, "answers": 0}
        self._under_way: set[int] = set()
        self.found |= {"largest difference": 0.0, "kept on the disk": 0, "wrong": []}

    def killed(self, after: float) -> None:
        """SIGKILL so many seconds after the first answer, then another one on the same port and cache."""
        service = _Service(self._judge, self._port, self._disk / "states")
        end, clients = threading.Event(), []
        for number in range(CLIENTS):
            clients.append(threading.Thread(target=self._ask, args=(service, number, end)))
            clients[-1].start()
        service.wait()
        answers = self.found["answers"]
        while self.found["answers"] == answers and service.process.poll() is None:
            time.sleep(0.01)
        time.sleep(after)
        children = psutil.Process(service.process.pid).children(recursive=True)
        self.found["requests under way"] += len(self._under_way)
        service.process.kill()
        service.process.wait()
        end.set()
        for client in clients:
            client.join()
        self.found["killed"] += 1
        _, alive = psutil.wait_procs(children, timeout=20)
        if alive:
            self._wrong(f"killed after {after:.1f} s: {len(alive)} processes live on")
        self._same_scores(f"killed after {after:.1f} s")

    def without_room(self, how: str) -> None:
        """The disk of the cache is filled or made read-only while clients ask."""
        self.found[how] += 1
        for state in self._disk.rglob("*.safetensors"):
            state.unlink()
        with _Service(self._judge, self._port, self._disk / "states") as service:
            name = next(iter(self._clips))
            self._check(name, service.score(name, self._clips[name]))
            if how == "read-only":
                assert remount(self._disk, "ro")
            else:
                room = os.statvfs(self._disk)
                (self._disk / "ballast").write_bytes(b"0" * (room.f_bavail * room.f_frsize))
            for name, clip in self._clips.items():
                self._check(name, service.score(name, clip))
            code = service.end()
            if code or "Traceback" in service.said():
                self._wrong(f"{how}: ended with {code}: {service.said()[-500:]}")
        remount(self._disk, "rw")
        (self._disk / "ballast").unlink(missing_ok=True)
        self._same_scores(how)

    def _same_scores(self, after: str) -> None:
        try:
            self.found["kept on the disk"] += len(list(self._disk.rglob("*.safetensors")))
            with _Service(self._judge, self._port, self._disk / "states") as service:
                for name, clip in self._clips.items():
                    self._check(name, service.score(name, clip))
                if code := service.end():
                    self._wrong(f"{after}: the next one ended with {code}")
        except (AssertionError, httpx.HTTPError) as error:
            self._wrong(f"{after}: {error}")

    def _ask(self, service: _Service, number: int, end: threading.Event) -> None:
        """As a client that is refused until the service listens."""
        names = list(self._clips)
        while not end.is_set():
            name = names[number % len(names)]
            number += 1
            self._under_way.add(threading.get_ident())
            try:
                self._check(name, service.score(name, self._clips[name]))
            except httpx.HTTPError:
                time.sleep(0.02)
            except AssertionError as error:
                if '"loading"' not in str(error):
                    self._wrong(f"{name}: {error}")
                time.sleep(0.02)
            finally:
                self._under_way.discard(threading.get_ident())

    def _check(self, name: str, scores: dict[str, float]) -> None:
        expected = self._truth[name]
        difference = max(abs(scores[dimension] - expected[dimension]) for dimension in expected)
        self.found["answers"] += 1
        self.found["largest difference"] = max(self.found["largest difference"], difference)
        if difference > TOLERANCE or set(scores) != set(expected):
            self._wrong(f"{name}: {scores}, not {expected}")

    def _wrong(self, text: str) -> None:
        if text not in self.found["wrong"]:
            self.found["wrong"].append(text)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
