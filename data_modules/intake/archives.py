"""Zip archives from outside, read without unpacking: no member can leave a folder, because none is written to one."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import AudioError


@dataclass(frozen=True)
class ArchiveMember:
    """One file in a zip archive.

    Attributes:
        archive: The zip file.
        name: Of the member, as the archive has it.
    """

    archive: Path
    name: str

    def read(self) -> bytes:
        """The content.

        Raises:
            AudioError: If the archive or this member of it is damaged.
        """
        try:
            with zipfile.ZipFile(self.archive) as archive:
                return archive.read(self.name)
        except (OSError, zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
            raise AudioError(f"{self.archive.name}/{self.name}: cannot be read ({error})") from None
