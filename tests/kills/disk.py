"""Commands on a disk that is full, or becomes read-only: ``python tests/kills disk --moments 20 -- COMMAND WORDS``.

The words are those of a command that writes to a folder, which stands there as ``OUT``; Linux, as root. The command is
first run with room enough, then on small disks (tmpfs), so that room ends at a random moment; every fourth becomes
read-only at a random moment instead, and every fifth process is not root. For each:

- it ends with 2 and one line that begins with ``error:``, or with 0, and no traceback is printed;
- no half-written checkpoint and no temporary file is left where the disk could be written;
- once there is room, the same command ends with 0 and, for training, in the state of the undisturbed run, bit for bit.

Prints what it saw as JSON; exits with 1 if something was not so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from empathy_judge.cli import main as command
from empathy_judge.models.weight_files import damage, read_checkpoint

_NOBODY = 65534


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside those of all."""
    parser.add_argument("words", nargs="+", help="of a command, after --, with OUT for the folder")


def harm(given: argparse.Namespace) -> int:
    """Fill the disk; print what was found."""
    rng = random.Random(given.seed)
    found: dict[str, Any] = {"moments": [], "failures": []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "disk")
        place.mkdir()
        os.chmod(folder, 0o755)
        start = time.monotonic()
        with _Disk(place, 10**9) as disk:
            # here, so that forked processes have imported everything: who is not root might not read Python's files
            with redirect_stdout(sys.stderr):
                code = command([word.replace("OUT", str(place / "out")) for word in given.words])
            seconds, size = time.monotonic() - start, disk.used()
            whole = _ends(place / "out")
        if code:
            found["failures"].append(f"undisturbed: {code}")
        for moment in range(0 if code else given.moments):
            read_only, nobody = moment % 4 == 3, moment % 5 == 4
            room = 10**9 if read_only else round(rng.uniform(0.02, 1.1) * size)
            with _Disk(place, room) as disk:
                after = rng.uniform(0.1, 1) * seconds if read_only else None
                code, text = _run(given.words, disk, nobody, after)
                lines = [line for line in text.splitlines() if line.startswith("error: ")]
                left = [] if read_only else _left(place)
                disk.grow(10**9)
                again, more = _run(given.words, disk, nobody)
                ends = _ends(place / "out")
            own = {"read_only": read_only, "nobody": nobody, "bytes": room, "code": code, "said": lines, "again": again}
            found["moments"].append(own)
            if code not in (0, 2) or "Traceback" in text + more or len(lines) != (code == 2):
                found["failures"].append({**own, "text": text[-1_500:]})
            if left or again or ends != whole:
                found["failures"].append({**own, "left": left, "text": more[-1_500:], "same end": ends == whole})
    print(json.dumps(found, indent=1))
    return 1 if found["failures"] else 0


class _Disk:
    """A file system in memory."""

    def __init__(self, place: Path, size: int) -> None:
        self.place, self._size = place, size

    def __enter__(self) -> _Disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size},mode=777", "tmpfs", self.place], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.place], check=True)

    def used(self) -> int:
        """Bytes."""
        facts = os.statvfs(self.place)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize

    def close(self) -> None:
        """Nobody can write any more, once no file is open for it."""
        while subprocess.run(["mount", "-o", "remount,ro", self.place], check=False, capture_output=True).returncode:
            time.sleep(0.002)

    def grow(self, size: int) -> None:
        """Room, for writing."""
        subprocess.run(["mount", "-o", f"remount,rw,size={size}", self.place], check=True)


def _run(words: list[str], disk: _Disk, nobody: bool, read_only_after: float | None = None) -> tuple[int, str]:
    """Exit code of a forked process and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        closing = 0 if read_only_after is None else os.fork()
        if read_only_after is not None and closing == 0:
            time.sleep(read_only_after)
            disk.close()
            os._exit(0)
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                if nobody:
                    os.setgroups([])
                    os.setgid(_NOBODY)
                    os.setuid(_NOBODY)
                code = command([word.replace("OUT", str(disk.place / "out")) for word in words])
            except SystemExit as stopped:
                code = stopped.code if isinstance(stopped.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if closing:
            os.kill(closing, signal.SIGKILL)
            os.waitpid(closing, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _left(place: Path) -> list[str]:
    """What should not be there."""
    files = [path for path in place.rglob("*") if path.is_file()]
    wrong = [path for path in files if path.suffix in (".tmp", ".unfinished")]
    wrong += [path for path in files if path.suffix == ".ckpt" and damage(path)]
    return [str(path.relative_to(place)) for path in wrong]


def _ends(out: Path) -> dict[str, Any]:
    """Hashes of the weights of all checkpoints."""
    weights = {path: read_checkpoint(path)["state_dict"].values() for path in sorted(out.rglob("*.ckpt"))}
    return {
        str(path.relative_to(out)): hashlib.sha256(b"".join(own.numpy().tobytes() for own in values)).hexdigest()
        for path, values in weights.items()
    }
