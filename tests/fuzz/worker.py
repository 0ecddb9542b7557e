"""The child process: builds valid sources once, then damages one file of one source for each job that it is given."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from empathy_judge.data_modules.errors import MAX_MESSAGE_CHARACTERS, UserError
from mutations import VALUES, mutate
from targets import Target, build

MEMORY = 8 << 30


def work(pipe: Connection, folder: str) -> None:
    """Answers each target and seed twice: with nothing where the clock starts, then with the outcome.

    Args:
        pipe: To the parent.
        folder: For the sources. The parent removes it: a child may not live to do so.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # decoders write to both
    os.dup2(silence, 2)
    home = tempfile.mkdtemp(dir=folder)
    os.environ["HF_HOME"] = home  # before the library is imported: it keeps locks and indices there
    built: dict[str, Target] = {}
    with contextlib.suppress(EOFError):
        while True:
            name, seed = pipe.recv()
            if name not in built:
                built[name] = build(name, Path(home))
            pipe.send({})
            outcome, mutation, detail = try_one(built[name], seed)
            pipe.send({"outcome": outcome, "mutation": mutation, "detail": detail})


def try_one(target: Target, seed: int) -> tuple[str, str, str]:
    """Outcome, what was done, and what went wrong."""
    rng = random.Random(f"{target.name}:{seed}")
    tables = [file for file in target.files if file.suffix in VALUES]
    file = rng.choice(tables if tables and rng.random() < 0.6 else target.files)  # there are more clips than tables
    before = file.read_bytes()
    data, mutation = mutate(file.name, before, rng)
    file.write_bytes(data)
    try:
        target.run(file, rng)
    except UserError as error:
        text = str(error)
        if "\n" in text or len(text) > MAX_MESSAGE_CHARACTERS:
            return "failed", mutation, f"the message has {len(text)} characters, not one short line: {text[:200]!r}"
        return "refused", mutation, text
    except BaseException as error:  # whatever it is, it is a bug, and the next mutation is to be tried
        last = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in last if "empathy_judge" in frame.filename or "/data_modules/" in frame.filename]
        where = f"{Path((own or last)[-1].filename).name}:{(own or last)[-1].lineno}"
        return "failed", mutation, f"{type(error).__name__} at {where}: {str(error)[:300]}"
    finally:
        with contextlib.suppress(OSError):
            file.write_bytes(before)
    return "accepted", mutation, ""
