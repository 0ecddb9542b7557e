"""What was found about a dataset is read again only as it was written, and only for the same clips."""

from __future__ import annotations

import pytest
from empathy_judge.data_modules.stored_results import StoredResult, read_result, store_result

NAME = ".found.json"


class Found(StoredResult):
    seconds: float


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"content_hash": 1}', b"\xff\xff"])
def test_a_result_is_read_until_its_file_or_the_clips_change(source, damaged):
    dataset = source.load()
    found, path = Found(content_hash=dataset.card.content_hash, seconds=1.5), dataset.root / NAME
    assert read_result(dataset, NAME, Found) is None
    store_result(dataset, NAME, found)
    stored = read_result(dataset, NAME, Found)
    assert stored is not None
    assert (stored.seconds, len(stored.sha256)) == (1.5, 64)
    for content in (path.read_bytes().replace(b"1.5", b"2.5"), damaged):
        path.write_bytes(content)
        assert read_result(dataset, NAME, Found) is None
    store_result(dataset, NAME, found.model_copy(update={"content_hash": "0" * 64}))
    assert read_result(dataset, NAME, Found) is None
