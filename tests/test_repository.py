"""Workflows, issue forms and hooks: they name targets, versions and commands that exist."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from empathy_judge.cli import NAMES

from .pages import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))


def _yaml(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_there_is(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    found = _yaml(workflow)
    assert found["permissions"] == {"contents": "read"}  # a change by a stranger runs here
    for job in found["jobs"].values():
        for line in "\n".join(step.get("run", "") for step in job["steps"]).splitlines():
            words = line.split()
            if words[:1] == ["make"]:
                assert words[1] in targets
            if words and words[0].endswith("/empathy-judge"):
                assert words[1] in NAMES


def test_a_wheel_has_every_folder_of_code():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = (path.parent.relative_to(ROOT).parts for path in ROOT.glob("[a-z]*/**/__init__.py"))
    ours = {".".join(("empathy_judge", *parts)) for parts in folders if parts[0] not in ("build", "tests")}
    assert {"empathy_judge", *ours} == set(project["tool"]["setuptools"]["packages"])


def test_every_python_that_we_support_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (ci,) = [path for path in WORKFLOWS if path.stem == "ci"]
    tested = _yaml(ci)["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={tested[0]}"
    assert tested == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("form", sorted(GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")), ids=lambda path: path.stem)
def test_issue_forms_have_what_github_wants(form):
    found = _yaml(form)
    assert found["name"]
    assert found["description"]
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in found["body"])
    assert len({field["id"] for field in found["body"]}) == len(found["body"])


def test_hooks_and_lint_are_the_same_ruff():
    (ruff,) = re.findall(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = {one["repo"].rpartition("/")[2]: one["rev"] for one in _yaml(ROOT / ".pre-commit-config.yaml")["repos"]}
    assert hooks["ruff-pre-commit"] == f"v{ruff}"
