"""Reports are read as they were written, or refused in a line."""

from __future__ import annotations

import json

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.report.base import Versioned, read_report


class Small(Versioned):
    seed: int


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": 2, "seed": 0}', "schema_version 2; expected 3: measure again"),
        ('{"seed": 0}', "not a report as it was written: schema_version"),
        ('{"schema_version": 3, "seed": "none"}', "not a report as it was written: seed 'none'"),
        ('{"schema_version": 3, "seed": 0, "colour": "red"}', "not a report as it was written: colour"),
        ('{"a":' * 3_000 + "1" + "}" * 3_000, "not JSON"),
    ],
)
def test_a_report_is_read_as_it_was_written_and_no_other(text, message, tmp_path):
    path, report = tmp_path / "report.json", Small(schema_version=3, seed=7)
    path.write_text(json.dumps(report.as_json()))
    assert read_report(path, Small) == report
    path.write_text(text)
    with pytest.raises(UserError, match=rf"report\.json: {message}"):
        read_report(path, Small)
