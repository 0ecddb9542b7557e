"""A large manifest, scored and disturbed: `python benchmarks/scoring_at_scale.py JUDGE --folder DIR`.

It makes 300 clips of 0.3 to 1 s and a manifest of 100,000 rows that refer to them, a quarter of them with a context and
one in a thousand with a file that is missing, cut off, empty, no audio, or outside the folder. `empathy-judge score`
scores it; after a third its main process is killed (SIGKILL), after two thirds all of its processes, and the same
command goes on each time. Then the scores are checked: a row for each row, in order, those with bad files named and no
others. The memory of workers is sampled all the while. Last, a manifest of 3,000 rows is scored by a command that is
killed in the middle, by one that is not, and by Ray, if it is installed: the files must be the same, byte for byte.

Prints JSON; exits with 1 if something is not as it should be. Needs psutil. A third of an hour on two cores.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile

CLIPS = 300
BAD = {
    "clips/absent.wav": "no such file",
    "clips/cut.wav": "the file is cut off",
    "clips/text.wav": "not a sound file",
    "clips/empty.wav": "the file is empty",
    "../outside.wav": "leaves the folder",
}
_POLL = 0.5


def main() -> int:
    """Score, kill, check; print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--folder", required=True, help="for everything that is made")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    folder = Path(given.folder)
    bad = make_manifest(folder, "large.csv", given.rows)
    command = [sys.executable, "-m", "empathy_judge.cli", "score", given.judge, "--device", given.device]
    large = [*command, "--manifest", str(folder / "large.csv"), "--out", str(folder / "scores.csv"), "--json"]
    large += ["--workers", str(given.workers)]
    found: dict[str, Any] = {"rows": given.rows, "workers": given.workers, "starts": []}
    for share, everyone in ((1 / 3, False), (2 / 3, True), (None, False)):
        until = None if share is None else share * given.rows
        found["starts"].append(scored_until(large, folder / "scores.csv.parts", until, everyone))
    problems = differences(folder, given.rows, bad)
    found["summary"] = json.loads((folder / "scores.csv.summary.json").read_text())
    make_manifest(folder, "small.csv", 3_000)
    small = [*command, "--manifest", str(folder / "small.csv"), "--workers", "2"]
    files = ["undisturbed.csv", "killed.csv"]
    subprocess.run([*small, "--out", str(folder / files[0])], check=False, capture_output=True)
    killed = [*small, "--out", str(folder / files[1])]
    scored_until(killed, folder / f"{files[1]}.parts", 1_500, everyone=True)
    subprocess.run(killed, check=False, capture_output=True)
    if importlib.util.find_spec("ray") is not None:
        files.append("ray.csv")
        subprocess.run([*small, "--out", str(folder / files[2]), "--engine", "ray"], check=False, capture_output=True)
    contents = {name: (folder / name).read_bytes() for name in files}
    found["same_bytes"] = {name: content == contents[files[0]] for name, content in contents.items()}
    problems += [f"{name} differs from {files[0]}" for name, same in found["same_bytes"].items() if not same]
    found["problems"] = problems
    print(json.dumps(found, indent=2))
    return 1 if problems else 0


def make_manifest(folder: Path, name: str, rows: int) -> dict[int, str]:
    """Write clips and a manifest; returns the bad files by row, from 0."""
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(CLIPS):
        times = np.arange(round(16_000 * rng.uniform(0.3, 1.0))) / 16_000
        tone = 0.3 * np.sin(2 * np.pi * rng.uniform(90, 400) * times) + 0.05 * rng.normal(size=len(times))
        soundfile.write(folder / f"clips/{number}.wav", tone.astype(np.float32), 16_000)
    whole = (folder / "clips/0.wav").read_bytes()
    (folder / "clips/cut.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "clips/text.wav").write_text("no audio")
    (folder / "clips/empty.wav").write_bytes(b"")
    draw, bad = random.Random(rows), {}
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["pair_id", "context_audio", "response_audio"])
        for row in range(rows):
            response = f"clips/{draw.randrange(CLIPS)}.wav"
            if draw.random() < 0.001:
                response = bad[row] = draw.choice(list(BAD))
            context = f"clips/{draw.randrange(CLIPS)}.wav" if draw.random() < 0.25 else ""
            writer.writerow([f"pair-{row:07d}", context, response])
    return bad


def scored_until(command: Sequence[str], parts: Path, rows: float | None, everyone: bool) -> dict[str, Any]:
    """Run a command, until it ends or, with `rows`, so many are done; kill its first process, or all."""
    begin = time.monotonic()
    memory: dict[int, list[float]] = {}
    with open(f"{parts}.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    main_process = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(_POLL)
        sample(main_process, memory)
        if rows is not None and done(parts) >= rows:
            os.killpg(process.pid, signal.SIGKILL) if everyone else process.kill()
            process.wait()
    while any(lives(worker) for worker in memory):
        time.sleep(_POLL)  # workers notice that nobody listens to them any more
    seconds = time.monotonic() - begin
    megabytes = [quarters(samples) for samples in memory.values()]
    return {"exit": process.returncode, "seconds": round(seconds, 1), "worker_megabytes": megabytes}


def lives(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sample(process: psutil.Process, memory: dict[int, list[float]]) -> None:
    """The resident memory of workers (MB) that have loaded their judge."""
    try:
        for child in process.children():
            resident = child.memory_info().rss / 1e6
            if any("spawn_main" in word for word in child.cmdline()) and resident > 600:
                memory.setdefault(child.pid, []).append(resident)
    except psutil.Error:
        return


def quarters(samples: list[float]) -> dict[str, float]:
    """Means of the first and last quarter of what was sampled after the first tenth, in which judges are loaded."""
    kept = samples[len(samples) // 10 :]
    size = max(len(kept) // 4, 1)
    parts = {"first": kept[:size], "last": kept[-size:]}
    return {name: round(statistics.fmean(values), 1) for name, values in parts.items()} | {"most": round(max(kept), 1)}


def done(parts: Path) -> int:
    """Rows in finished parts."""
    rows = 0
    for path in parts.glob("part-*"):
        with open(path, "rb") as file:
            rows += json.loads(file.readline())["rows"]
    return rows


def differences(folder: Path, rows: int, bad: dict[int, str]) -> list[str]:
    """What is wrong with the scores of the large manifest."""
    found = []
    with open(folder / "scores.csv", newline="", encoding="utf-8") as file:
        count = 0
        for row in csv.DictReader(file):
            good = row["pair_id"] == f"pair-{count:07d}"
            if count in bad:
                good = good and BAD[bad[count]] in row["status"] and bad[count] in row["status"]
            else:
                good = good and row["status"] == "ok"
            if not good:
                found.append(f"row {count + 1}: {row}")
            count += 1
    if count != rows:
        found.append(f"{count} rows of {rows}")
    return found[:20]


if __name__ == "__main__":
    sys.exit(main())
