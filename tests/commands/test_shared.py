"""What a command prints."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from empathy_judge.commands.shared import Printing


def test_what_is_found_is_printed_as_views_or_as_strict_json(capsys):
    report = SimpleNamespace(as_json=lambda: {"spearman": None})
    assert Printing().tell(report, lambda _: ["one", "two"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    for found, printed in ((report, {"spearman": None}), ([1, {"a": 0.5}], [1, {"a": 0.5}])):
        assert Printing(json=True).tell(found, lambda _: ["one"]) == 0
        assert json.loads(capsys.readouterr().out) == printed
    with pytest.raises(ValueError, match="JSON"):
        Printing(json=True).tell({"spearman": float("nan")}, lambda _: [])
