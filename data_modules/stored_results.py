"""Results about a dataset that took long to find, in JSON files: in its folder or, where that cannot be written, in the
user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel

from ..core.errors import UserError
from ..core.files import kept_file, replace_text
from .schema import PairDataset


class StoredResult(BaseModel):
    """Valid while the content hash is that of the dataset, and the content of the file is what was written."""

    content_hash: str
    sha256: str = ""  # of all the rest

    def signed(self) -> str:
        """The text of the file."""
        unsigned = self.model_copy(update={"sha256": ""})
        sha256 = hashlib.sha256(unsigned.model_dump_json().encode()).hexdigest()
        return unsigned.model_copy(update={"sha256": sha256}).model_dump_json()


Result = TypeVar("Result", bound=StoredResult)


def read_result(dataset: PairDataset, name: str, kind: type[Result]) -> Result | None:
    """The result in a file; None where it is missing, damaged, changed, or of other clips."""
    return next(read_results(dataset, name, kind), None)


def read_results(dataset: PairDataset, name: str, kind: type[Result]) -> Iterator[Result]:
    """As `read_result`, where there may be two: one in the folder, which may not be written, and one in the user's
    cache, which is newer."""
    content_hash = dataset.card.content_hash
    for path in dict.fromkeys((dataset.root / name, kept_file(dataset.root, content_hash, name))):
        with suppress(OSError, UserError, ValueError):  # pydantic's ValidationError is a ValueError
            text = path.read_bytes()
            result = kind.model_validate_json(text)
            if result.signed().encode() == text and result.content_hash == content_hash:
                yield result


def store_result(dataset: PairDataset, name: str, result: StoredResult) -> None:
    """Writes the file that `read_result` reads; on a full disk the result is lost, but the call goes on."""
    with suppress(OSError):
        replace_text(kept_file(dataset.root, dataset.card.content_hash, name), result.signed())
