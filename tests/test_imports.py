"""Imports run downward only, from commands to data, file by file: no file imports one that imports it, not even inside
a function or for a type. What `from empathy_judge import ...` gives, and that the package alone loads nothing heavy."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import empathy_judge
import pytest

from .pages import ROOT

# From the bottom up
STOREYS = (
    {"core"}, {"audio"}, {"data_modules"}, {"models"}, {"scoring"}, {"eval"}, {"train"}, {"serving"}, {"demo"},
    {"commands"}, {"cli"}, {"__main__"},
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(STOREYS) for name in names}


def _modules() -> Iterator[tuple[Path, list[str]]]:
    """Each file of the package with its name as parts, without that of the package."""
    for top in sorted(LEVEL):
        single = ROOT / f"{top}.py"
        files = [single] if single.is_file() else sorted((ROOT / top).rglob("*.py"))
        for file in files:
            parts = [*file.relative_to(ROOT).with_suffix("").parts]
            yield file, parts[:-1] if parts[-1] == "__init__" else parts


@cache
def _nodes(file: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def _imported(file: Path, name: list[str]) -> Iterator[tuple[int, str]]:
    """Line and top part of what a file imports of ours."""
    package = ".".join(["empathy_judge", *(name if file.name == "__init__.py" else name[:-1])])
    for node in _nodes(file):
        if isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            imported = [f"{module}.{alias.name}" for alias in node.names]
        else:
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for one in imported:
            first, *rest = one.split(".")
            if first == "empathy_judge" and rest:
                yield node.lineno, rest[0]


def test_every_part_has_a_storey():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "docs", "examples", "benchmarks"}
    assert folders | {path.stem for path in ROOT.glob("*.py")} - {"__init__"} <= LEVEL.keys()


def test_nothing_is_imported_from_above():
    upward = [
        f"{file.relative_to(ROOT)}:{line} imports {top}"
        for file, name in _modules()
        for line, top in _imported(file, name)
        if LEVEL[top] > LEVEL[name[0]]
    ]
    assert upward == []


def _files_imported(file: Path, name: list[str], files: Mapping[str, Path]) -> Iterator[Path]:
    """Files of ours that a file imports, at any place in it."""
    package = ".".join(["empathy_judge", *(name if file.name == "__init__.py" else name[:-1])])
    for node in _nodes(file):
        if isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                found = files.get(f"{module}.{alias.name}") or files.get(module)
                if found is not None:
                    yield found


def test_no_file_imports_one_that_imports_it():
    named = {".".join(["empathy_judge", *name]): (file, name) for file, name in _modules()}
    files = {module: file for module, (file, _) in named.items()}
    imported = {file: set(_files_imported(file, name, files)) - {file} for file, name in named.values()}
    assert sum(map(len, imported.values())) > 1_000
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        circle = [str(file.relative_to(ROOT)) for file in error.args[1]]
        pytest.fail(" is imported by ".join(circle))


def test_every_module_loads():
    for _, name in _modules():
        importlib.import_module(".".join(["empathy_judge", *name]))


# ---------------------------------------------------------------- what the package gives

# bitsandbytes 0.50.2 warns while it is imported, but only on a CPU with AVX-512 BF16: PEFT, which imports it, is
# imported while the loggers are quiet, and their levels are put back
PROGRAM = """
import logging, sys
logger, asked = logging.getLogger("bitsandbytes.backends.cpu.ops"), []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "bitsandbytes":
            asked.append(logger.isEnabledFor(logging.WARNING))
sys.meta_path.insert(0, Watch())
import empathy_judge
assert not {"torch", "pandas", "transformers"} & set(sys.modules)
from empathy_judge import train  # the package can be called, whoever imported it first
assert not {"torch", "pandas", "transformers"} & set(sys.modules)
import empathy_judge.eval.agreement_table, empathy_judge.eval.plan  # tables of ratings need no model
import empathy_judge.eval.views, empathy_judge.eval.other_views
assert not {"torch", "transformers", "sklearn"} & set(sys.modules)
assert not {"scipy.stats", "scipy.optimize", "scipy.linalg", "jinja2", "soundfile"} & set(sys.modules)
from empathy_judge.eval.modules import SCORE
import empathy_judge.models.weight_files
assert (asked, logger.level) == ([False], 0), (asked, logger.level)
from empathy_judge import Scorer
from empathy_judge.train import run
assert empathy_judge.train is train
run.train = lambda config, **options: (config, options)
assert train("nano", data="folder") == ("nano", {"data": "folder"})
"""


@pytest.mark.parametrize("name", empathy_judge.__all__)
def test_every_public_name_is_there(name):
    found = getattr(empathy_judge, name)
    assert isinstance(found, str) or callable(found)


def test_another_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'scorers'"):
        _ = empathy_judge.scorers


def test_the_package_is_light_train_can_be_called_and_no_import_prints_anything():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONWARN")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
