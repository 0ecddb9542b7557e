"""Whether the audio of a dataset still is what was imported, before it is trained on or measured with.

Clips inside Parquet files and behind an address are compared with their hash whenever they are read; those that lie in
the folder as files are compared here. Most calls only ask the system for sizes and times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from ..core.errors import DataError, counted, names_shown
from ..core.files import file_hash
from ..core.processes import map_threads
from .schema import PairDataset
from .stored_results import StoredResult, read_results, store_result

CHECKED_FILE = ".checked-1.json"
"""In the dataset folder or the user's cache: the files that had the content of the import, and their `State` then."""
_SHOWN = 3
_ASKED_TOGETHER, _ASKING = 256, 32  # files of a thread, and threads: on a network disk an answer takes a millisecond
_SETTLED_NS = 2_000_000_000
"""A file that changed less than so many nanoseconds ago may change again without another time: some disks count in
steps of 2 s."""

State = tuple[str, int, int, int]
"""Hash, size in bytes, and time in nanoseconds of the last change of the content and of the entry. Tools that copy a
file over another may copy the first of the times, but not the second."""


class _Checked(StoredResult):
    files: dict[str, State]  # by path, relative to the folder if it is in it


def check_unchanged(dataset: PairDataset) -> None:
    """Check that the files of all clips have the content that was imported.

    A file is read and hashed the first time, and where its size or a time is another than when it was last hashed, as
    after a copy. The results are stored in the dataset folder or, where that may not be written, in the user's cache;
    the dataset itself is not changed. Files that cannot be read are passed over: whoever needs the clip names it.

    Raises:
        DataError: If some have another content; it says how many, and names the first.
    """
    folder = f"{Path(dataset.root).resolve()}{os.sep}" if isinstance(dataset.root, Path) else ""
    expected: dict[str, str] = {}  # a file, by its path in the folder if it is there, and its hash
    changed = set[str]()  # files that stand for clips of different content: paths are those of the ends of links
    for pair in dataset.pairs:
        for clip, sha256 in zip(pair.clips, dataset.fingerprints.get(pair.pair_id, ()), strict=False):
            if isinstance(clip, Path):
                name = str(clip).removeprefix(folder)
                if expected.setdefault(name, sha256) != sha256:
                    changed.add(name)
    if not expected:
        return
    states, known = _states(folder, expected), dict[str, State]()
    for stored in read_results(dataset, CHECKED_FILE, _Checked):
        known |= stored.files
    unknown = [name for name, state in states.items() if known.get(name) != state]
    if not unknown and not changed:
        return
    # Before the files are read: one that changes meanwhile is not taken for settled
    latest = time.time_ns() - _SETTLED_NS
    paths = [os.path.join(folder, name) for name in unknown]
    found = map_threads(_hash, paths, "Comparing audio with what was imported", len(paths))
    for name, sha256 in zip(unknown, found, strict=True):
        known.pop(name, None)
        if sha256 not in (None, expected[name]):
            changed.add(name)
        elif sha256 is not None and max(states[name][2:]) < latest:
            known[name] = states[name]
    store_result(dataset, CHECKED_FILE, _Checked(content_hash=dataset.card.content_hash, files=known))
    if changed:
        more = f" and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
        clips = counted(len(changed), "clip is not what was imported", "clips are not what was imported")
        names = names_shown(sorted(changed)[:_SHOWN])
        raise DataError(
            f"{dataset.root}: {clips}: {names}{more}; `empathy-judge inspect` lists them; "
            "expected the files of the import: put them back, or import the data anew"
        )


def _states(folder: str, expected: dict[str, str]) -> dict[str, State]:
    """What the system says of each file now, as it should be; a file that it says nothing of is left out."""

    def ask(names: Sequence[str]) -> list[tuple[str, State]]:
        answers = []
        for name in names:
            try:
                facts = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            answers.append((name, (expected[name], facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)))
        return answers

    # in parts, since a future for each of a million local files would take longer than asking the system
    names = list(expected)
    parts = [names[start : start + _ASKED_TOGETHER] for start in range(0, len(names), _ASKED_TOGETHER)]
    with ThreadPoolExecutor(min(_ASKING, len(parts))) as pool:
        return dict(chain.from_iterable(pool.map(ask, parts)))


def _hash(path: str) -> str | None:
    try:
        return file_hash(path)
    except OSError:
        return None
