"""The notebook of `examples/`: its cells run in order, and hold nothing of a run."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from .pages import ROOT

NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_no_output_is_kept(cells):
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_its_links_lead_somewhere(cells):
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).is_file()] == []


@pytest.mark.long
def test_its_cells_run_in_order(cells, tmp_path, monkeypatch, capsys):
    """With less data and one epoch; what a cell ends with is shown as a notebook shows it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in cells:
        if cell["cell_type"] == "code":
            small = "parameters" in cell["metadata"].get("tags", ())
            tree = ast.parse("scripts, epochs = 6, 1" if small else "".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, NOTEBOOK.name, "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    tables = [found._repr_html_() for found in shown if hasattr(found, "_repr_html_")]
    assert sum("noise ceiling" in table for table in tables) == 3
    assert set(names["run"].agreement) == {"vocal_empathy"}
    assert (tmp_path / "first_hour" / "judge" / "judge.json").is_file()
    assert "data | ratings, row 1, column 'score': value 9" in capsys.readouterr().out
