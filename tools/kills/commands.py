"""Harms commands at many moments: ``python tools/kills kill|full|readonly --moments 20``.

Every command that writes runs on a small disk of its own (a tmpfs: this must be root), where an earlier result lies if
the command replaces one. Then, at each moment:

- ``kill``: the process and what it started are killed by SIGKILL;
- ``full``: the disk has room for a part of the result, from nothing to all but a twentieth;
- ``readonly``: the disk becomes read-only, or with ``--user`` the folder may not be written by this user.

What is asserted: a refused command ends with code 2 and one line; the earlier result is as it was, or the new one is
there as a whole (of training: every checkpoint is whole); nothing else lies there but what the same
command goes on from; and the same command, on a disk with room, gives what an undisturbed one gives.

Processes are forked from one that has imported everything and computed nothing: most of the time would go into imports
otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from empathy_judge.models.weight_files import damage, read_checkpoint

COMMANDS = {
    "import": "import table {in}/pairs.csv --dimension warmth=1:{n}0:1 --out {disk}/out --overwrite",
    "split": "split {disk}/out --overwrite --seed {n}",
    "inspect": "inspect {in}/data --page {disk}/out",
    "evaluate": "evaluate {in}/judge --data {in}/data --split all --out {disk}/out --resamples {n}0 --device cpu",
    "compare": "compare constant random --data {in}/data --split all --out {disk}/out --resamples {n}0",
    "calibrate": "calibrate {disk}/out --data {in}/data --split all --device cpu",
    "export": "export {in}/run --backbone {in}/backbone --out {disk}/out",
    "merge": "export {in}/run --backbone {in}/backbone --out {disk}/out --form merged --device cpu --accept-loss",
    "ensemble": "ensemble {in}/run {in}/run/checkpoints/last.ckpt --backbone {in}/backbone --out {disk}/out",
    "score": "score {in}/judge --manifest {in}/pairs{n}.csv --out {disk}/out.csv --overwrite --device cpu",
    "cached": "score {in}/judge --manifest {in}/pairs2.csv --out {disk}/out.csv --device cpu --cache {disk}/states",
    "stress": "stress {in}/judge --data {in}/data --split all --checks louder --out {disk}/out --device cpu --seed {n}",
    "plan": "plan {in}/data --out {disk}/out --resamples {n}0",
    "train": "train {train} --run {disk}/out --resume auto --checkpoint-steps 2",
    "probe": "train {train} --run {disk}/out --resume auto --method probe --judge.head_input.audio all_layers",
    "demo": "demo --groups 10 --epochs {n} --out {disk}/out",
    "page": "explain {in}/judge - {in}/data/p00.wav --page {disk}/out.html --device cpu",
    "agreement": "agreement {in}/scores.csv --json --resamples 20",
    "explain": "explain {in}/judge - {in}/data/p00.wav --device cpu --json",
    "rank": "rank {in}/judge - {in}/data/p00.wav {in}/data/p01.wav --device cpu --json",
}
"""`{n}` is 2, of the earlier result 1."""
TRAIN = "--config {in}/run/config.yaml --trainer.max_epochs 2 --trainer.logger false"
GOING_ON = ("train", "probe")
"""Keep what they have done, and go on from there."""
OF_STARTS = ("config.yaml", "last.ckpt")
"""Of those: it says `resume: true`; it is missing if there was no room for it next to the last `best.ckpt`."""
PRINTING = ("agreement", "explain", "rank")
"""Write nothing but standard output, which goes to a file on the disk."""
PLACES = {"split": "data", "calibrate": "judge"}
"""What is changed in place, and is there beforehand."""
REPLACING = (
    *("import", "split", "inspect", "evaluate", "compare", "calibrate", "score", "cached", "stress", "plan"),
    *("demo", "page"),
)
EACH = ("page",)
"""Make several files, each as a whole or not at all."""
OUTPUTS = ("out", "out.csv", "out.txt", "out.html", "out.png")
BESIDE = (*OUTPUTS, "out.csv.summary.json", "states")
"""What may lie on the disk afterwards."""
LEFT, DAMAGED = (".tmp", ".unfinished"), "damaged"
"""What must not be left in it; and the mark of half a checkpoint."""
KEPT = (".parts", ".unfinished")
"""What the same command goes on from."""
CODES = {"kill": (-signal.SIGKILL, 0), "full": (0, 2), "readonly": (0, 2)}
PATIENCE = 300.0
PATIENT = 10
"""Times as many tries as moments: a process that ends before it is harmed does not count."""
State = dict[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this harm."""
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--user", type=int, help="a user id; default: root")
    parser.add_argument("--inputs", type=Path, help="folder of what is worked on; made if it does not exist")


def harm(given: argparse.Namespace) -> int:
    """Harm; print a line for each command; 1 if something was not as it should."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.environ.update(XDG_CACHE_HOME=f"{folder}/cache", TMPDIR=f"{folder}/tmp", HF_HUB_OFFLINE="1")
        for name in ("disk", "cache", "tmp"):
            Path(folder, name).mkdir()
            os.chmod(f"{folder}/{name}", 0o777)
        inputs = given.inputs or Path(folder, "in")
        if not inputs.exists():
            make_inputs(inputs)
        for name in given.only:
            trial = Trial(name, given.harm, Path(folder), inputs, given.user, random.Random(given.seed))
            found = trial.run(given.moments)
            wrong += len(found["wrong"])
            print(json.dumps({"command": name, **found}), flush=True)
    return 1 if wrong else 0


def make_inputs(folder: Path) -> None:
    """A pair dataset, another one, a table, a judge and a run, as the tests make them."""
    plugin = Path(__file__).with_name("inputs.py")
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "empathy_judge.tests.conftest", str(plugin)]
    environment = {**os.environ, "KILLS_INPUTS": str(folder)}
    subprocess.run([sys.executable, "-m", "pytest", *words], env=environment, check=True, stdout=subprocess.DEVNULL)


class Trial:
    """One command, harmed again and again."""

    def __init__(self, name: str, harm: str, folder: Path, inputs: Path, user: int | None, rng: random.Random) -> None:
        self._name, self._harm, self._user, self._rng = name, harm, user, rng
        self._in, self._disk, self._said = inputs, folder / "disk", folder / "said"
        self._text = COMMANDS[name]
        self._reached = False  # the last process was harmed before its end

    def run(self, moments: int) -> dict[str, Any]:
        """The outcomes, counted, and what was wrong."""
        with_disk(self._disk, 64)
        try:
            self._import()
            self._prepare()
            earlier = self._state()
            start = time.monotonic()
            assert self._forked(None) == 0, self._said.read_text()
            first, new = time.monotonic() - start, self._state()
            self._prepare()
            start = time.monotonic()
            assert self._forked(None) == 0
            seconds, second = min(first, time.monotonic() - start), self._state()
            self._new = {
                path: mark for path, mark in new.items() if second.get(path) == mark
            }  # the rest tells the time
            self._old = earlier
            changed = [path for path in second if self._name not in PLACES or second[path] != earlier[path]]
            size = sum((self._disk / path).stat().st_size for path in changed)
            counted: Counter[str] = Counter()
            wrong: list[str] = []
            moment, late = 0, 0
            while moment < moments and late < PATIENT * moments:
                self._prepare()
                code = self._harmed(moment / moments, size, seconds)
                outcome, problem = self._judge(code)
                if not problem and not self._reached:
                    late += 1
                    continue
                counted[outcome] += 1
                problem = problem or self._again()
                if problem:
                    wrong.append(f"moment {moment}: {problem}")
                moment += 1
            if moment < moments:
                wrong.append(f"harmed at {moment} moments only, the others came after the end")
            return {"seconds": round(seconds, 2), "moments": moment, "outcomes": dict(counted), "wrong": wrong}
        finally:
            subprocess.run(["umount", "-l", str(self._disk)], check=True)

    def _import(self) -> None:
        """What the command imports; it runs elsewhere: torch's threads would be missing in forked processes."""
        self._prepare()
        text = f"import json, sys; from empathy_judge.cli import main; main({self._words(2)!r}); "
        text += "print(json.dumps(list(sys.modules)), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        for name in json.loads(done.stderr.splitlines()[-1]):
            with suppress(Exception):  # what is made while running
                importlib.import_module(name)

    def _prepare(self) -> None:
        """An empty disk with the earlier result."""
        remount(self._disk, "rw")
        os.chmod(self._disk, 0o777)
        for path in self._disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self._name in PLACES:
            shutil.copytree(self._in / PLACES[self._name], self._disk / "out")
        elif self._name in REPLACING:
            if not (kept := self._disk.with_name(f"earlier-{self._name}")).exists():
                assert self._forked(None, number=1) == 0, self._said.read_text()
                shutil.copytree(self._disk, kept)
            else:
                shutil.copytree(kept, self._disk, dirs_exist_ok=True)
        for path in (self._disk, *self._disk.rglob("*")):
            os.chmod(path, 0o777 if path.is_dir() else 0o666)

    def _words(self, number: int) -> list[str]:
        places = {"in": self._in, "disk": self._disk, "n": number}
        return shlex.split(self._text.format(train=TRAIN.format(**places), **places))

    def _forked(self, user: int | None, number: int = 2, kill: float | None = None, harm: Any = None) -> int:
        """The command in a process of its own: its exit code, or less the number of a signal."""

        def command() -> int:
            out = self._disk / "out.txt" if self._name in PRINTING else Path(os.devnull)
            for path, stream in ((self._said, 2), (out, 1)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), stream)
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            from empathy_judge.cli import main

            return main(self._words(number))

        code, harmed = forked(command, kill, harm)
        self._reached = harmed and (self._harm != "kill" or code == -signal.SIGKILL)
        return code

    def _harmed(self, moment: float, size: int, seconds: float) -> int:
        when = self._rng.uniform(0, 1.05 * seconds)
        if self._harm == "kill":

            def kill(child: int) -> bool:
                try:
                    os.killpg(child, signal.SIGKILL)
                except ProcessLookupError:  # it has no group yet
                    return False
                return True

            return self._forked(self._user, kill=when, harm=kill)
        if self._harm == "full":
            room = os.statvfs(self._disk)
            free = max(room.f_bavail * room.f_frsize - int(size * moment), 0)
            with open(self._disk / "ballast", "wb") as file:
                file.write(b"0" * free)
            return self._forked(self._user)
        if self._user is None:
            return self._forked(None, kill=when, harm=lambda _: remount(self._disk, "ro"))

        def close(child: int) -> bool:
            for folder, _, names in os.walk(self._disk):
                with suppress(FileNotFoundError):  # the command goes on meanwhile
                    os.chmod(folder, 0o555)
                    for name in names:
                        os.chmod(Path(folder, name), 0o444)
            return True

        return self._forked(self._user, kill=when, harm=close)

    def _judge(self, code: int) -> tuple[str, str]:
        """What became of it, and what is wrong with that."""
        remount(self._disk, "rw")
        os.chmod(self._disk, 0o777)
        (self._disk / "ballast").unlink(missing_ok=True)
        said = self._said.read_text(errors="replace")
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        if code not in CODES[self._harm]:
            return str(code), f"exit code {code}: {said[-500:]}"
        if code == 2 and (len(lines) != 1 or "Traceback" in said):
            return "2", f"said {said[-500:]}"
        state = self._state()
        if DAMAGED in state.values():
            return str(code), f"half-written: {[path for path, mark in state.items() if mark == DAMAGED]}"
        is_new = {path: state.get(path) for path in self._new} == self._new
        if self._name in PRINTING:
            return f"{code}", ""
        if code == -signal.SIGKILL and not state and (self._disk / ".out.replaced").exists():
            return f"{code}, between two renames", ""  # the same command puts it back
        if self._name == "demo" and any((self._disk / "out" / name).exists() for name in (".moving", ".earlier")):
            return f"{code}", ""  # the earlier one lies there, where the same command finds it
        each = self._name in EACH and all(state[path] in (self._old.get(path), self._new.get(path)) for path in state)
        if state != self._old and not is_new and not each and self._name not in GOING_ON:
            changed = sorted(path for path in {**state, **self._old} if state.get(path) != self._old.get(path))
            return str(code), f"neither as before nor new: {changed[:8]}; {lines}"
        if code != -signal.SIGKILL:
            beside = [path.name for path in self._disk.iterdir() if path.name not in BESIDE]
            hidden = [path for path in self._disk.rglob(".*") if ".parts" not in str(path)]
            if self._harm == "readonly":  # what was begun cannot be removed either
                beside = [name for name in beside if not name.endswith((*KEPT, ".tmp", ".replaced"))]
            else:
                beside = [name for name in beside if not name.endswith(KEPT[:1])]
                beside += [path.name for path in hidden if path.suffix in LEFT]
            if beside:
                return str(code), f"left beside: {beside}"
        return f"{code}, {'as before' if state == self._old else 'new' if is_new else 'a part'}", ""

    def _again(self) -> str:
        """What is wrong with what the same command makes on a disk with room."""
        for path in (self._disk, *self._disk.rglob("*")):
            os.chmod(path, 0o777 if path.is_dir() else 0o666)
        if self._name in ("export", "merge", "ensemble") and (self._disk / "out").exists():
            return ""  # it was done
        code = self._forked(self._user)
        if code != 0:
            return f"the same command again: {code}: {self._said.read_text(errors='replace')[-500:]}"
        state = self._state()
        other = [path for path in self._new if state.get(path) != self._new[path] and Path(path).name not in OF_STARTS]
        other += [path.name for path in self._disk.iterdir() if path.name.endswith(KEPT[1:])]
        return f"the same command again gave others: {other[:5]}" if other else ""

    def _state(self) -> State:
        """Every file of the result, by its content."""
        files = (path for path in self._disk.rglob("*") if path.is_file())
        marks = {str(path.relative_to(self._disk)): _mark(path) for path in files}
        return {
            path: mark for path, mark in marks.items() if path.split("/")[0] in OUTPUTS and not path.endswith(".tmp")
        }


def _mark(path: Path) -> str:
    """A hash of what a file holds; of a checkpoint its weights alone, for it counts starts and seconds, too."""
    if path.suffix != ".ckpt":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if damage(path):
        return DAMAGED
    weights = read_checkpoint(path)["state_dict"].values()
    return hashlib.sha256(b"".join(own.numpy().tobytes() for own in weights)).hexdigest()


def forked(run: Callable[[], int], after: float | None = None, harm: Any = None) -> tuple[int, bool]:
    """Run something in a process of its own, which is harmed after so many seconds if it lives so long.

    Returns:
        Its exit code, or less the number of a signal (SIGALRM: it took too long); and whether it was harmed, if it was
        to be.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = run()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    begun, harmed = time.monotonic(), after is None
    while (lived := time.monotonic() - begun) < PATIENCE:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), harmed
        if after is not None and not harmed and lived >= after:
            harmed = harm(child)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM, harmed


def with_disk(folder: Path, mebibytes: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=777", "tmpfs", str(folder)], check=True)


def remount(folder: Path, mode: str) -> bool:
    """Whether it could be done: not to read-only while a file is open for writing."""
    return subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], capture_output=True).returncode == 0
