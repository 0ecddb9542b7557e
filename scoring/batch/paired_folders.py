"""A manifest of two folders whose files pair by name: ``contexts/a.wav`` and ``responses/a.wav``."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import UserError, counted, shown
from ...core.processes import say
from ...data_modules.importers.clips import AUDIO_SUFFIXES
from ...data_modules.ratings import A_NAME, is_name


@contextmanager
def manifest_of_folders(contexts: Path | None, responses: Path) -> Iterator[tuple[Path, Path]]:
    """A manifest with a row for each response, in the order of names, and the folder that all clips are in; the
    manifest is gone afterwards. The folder of the responses is the system, the name of a file without the suffix the
    group, and both the id of the pair: scores of several folders make one board of systems.

    Raises:
        UserError: If a folder is none or holds no audio, two files have one name, a name cannot be an id, or a response
            has no context.
    """
    answers = _clips(responses)
    asked = {} if contexts is None else _clips(contexts)
    lonely = [path.name for name, path in answers.items() if contexts is not None and name not in asked]
    if lonely:
        raise UserError(
            f"{contexts}: no context for {counted(len(lonely), 'response')} of {responses}, such as "
            f"{shown(lonely[0])}; expected a file of the same name, whatever its suffix"
        )
    if unused := len(asked.keys() - answers.keys()):
        say(f"{counted(unused, 'context')} of {contexts} without a response: not scored")
    folders = [folder.resolve() for folder in (contexts, responses) if folder is not None]
    with tempfile.TemporaryDirectory() as made:
        manifest = Path(made) / "manifest.csv"
        with manifest.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            columns = ["pair_id", "group_id", "system_id", "response_audio"]
            table.writerow(columns + (["context_audio"] if contexts is not None else []))
            for name, path in answers.items():
                system = path.parent.name
                row = [f"{system}/{name}", name, system, path]
                table.writerow(row + ([asked[name]] if contexts is not None else []))
        yield manifest, Path(os.path.commonpath(folders))


def _clips(folder: Path) -> dict[str, Path]:
    """Name without suffix -> audio file of a folder, by name; other files are passed over."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected two folders, or two files")
    found: dict[str, Path] = {}
    for path in sorted(folder.resolve().iterdir()):
        # macOS leaves ._NAME beside a file
        if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file() and not path.name.startswith("."):
            if not is_name(f"{path.parent.name}/{path.stem}") or not is_name(path.stem):
                raise UserError(f"{folder}: {shown(path.name)}: expected folder and file named by {A_NAME}")
            if path.stem in found:
                raise UserError(f"{path}: {found[path.stem].name} has the same name; expected each name once")
            found[path.stem] = path
    if not found:
        raise UserError(f"{folder}: holds no audio; expected {', '.join(AUDIO_SUFFIXES)}")
    return found
