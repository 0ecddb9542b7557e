"""Workflows, issue forms, hooks and the Dockerfile (without Docker): they name targets, versions, files and commands
that exist."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from empathy_judge.cli import COMMANDS, options_of
from empathy_judge.commands.judges import Serve
from empathy_judge.serving.records import ROUTES

from .pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

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
                assert words[1] in COMMANDS


def test_a_checkout_may_have_any_name(request):
    """pytest 9.2 would import the root folder before its tests, and cannot where it is called `empathy-judge`."""
    assert ROOT not in [node.path for node in request.node.listchain() if isinstance(node, pytest.Package)]


def test_a_wheel_has_every_folder_of_code():
    folders = (path.parent.relative_to(ROOT).parts for path in ROOT.glob("[a-z]*/**/__init__.py"))
    ours = {".".join(("empathy_judge", *parts)) for parts in folders if parts[0] not in ("build", "tests")}
    assert {"empathy_judge", *ours} == set(PROJECT["tool"]["setuptools"]["packages"])


def test_a_wheel_has_every_mapping_of_a_corpus():
    mappings = {str(path.relative_to(ROOT)) for path in ROOT.glob("data_modules/**/*.yaml")}
    assert "data_modules/importers/corpora/trace.yaml" in mappings
    assert mappings <= set(package_files())


def test_every_python_that_we_support_is_tested():
    (ci,) = [path for path in WORKFLOWS if path.stem == "ci"]
    tested = _yaml(ci)["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"
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


# ---------------------------------------------------------------- the Dockerfile


@pytest.fixture(scope="module")
def steps() -> dict[str, list[str]]:
    """Instruction -> what follows it each time, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, rest = line.split(maxsplit=1)
            found[instruction].append(rest)
    return found


def ignored(path: str) -> bool:
    """Whether Docker leaves it out: the last pattern that fits it or a folder of it decides."""
    found = False
    parts = path.split("/")
    tops = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            anywhere = pattern.removeprefix("**/")
            names = parts if anywhere != pattern else tops
            if any(fnmatch.fnmatchcase(name, anywhere) and name.count("/") == anywhere.count("/") for name in names):
                found = not line.startswith("!")
    return found


def package_files() -> Iterator[str]:
    """All that a wheel holds."""
    tools = PROJECT["tool"]["setuptools"]
    for package in tools["packages"]:
        folder = ROOT / package.removeprefix("empathy_judge").strip(".").replace(".", "/")
        yield from (str(path.relative_to(ROOT)) for path in folder.glob("*.py"))
    for pattern in tools["package-data"]["empathy_judge"]:
        yield from (str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if path.is_file())


def test_the_image_gets_the_whole_package_and_little_else():
    files = [path for path in package_files() if not path.startswith(".")]
    assert "serving/app.py" in files
    assert "serving/page/page.html" in files
    assert "checkpoints/nano/model.safetensors" in files
    needed = [*files, "pyproject.toml", "constraints.txt", PROJECT["project"]["readme"], "LICENSE"]
    assert [path for path in needed if ignored(path) or not (ROOT / path).is_file()] == []
    left_out = (
        ".git/HEAD", ".venv/bin/python", "tests/conftest.py", "tools/fuzz/targets.py", "checkpoints/mine/a.ckpt",
        "checkpoints/nano/make/clips.py", "demo/judge/judge.json", "models/__pycache__/judge.pyc",
        "serving/.ruff_cache/x",
    )  # fmt: skip
    assert [path for path in left_out if not ignored(path)] == []


def test_what_it_copies_and_installs_is_there(steps):
    for rest in steps["COPY"]:
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            made = rest.startswith("--from=build")
            assert (source == "/opt/judge") if made else (ROOT / source).exists()
    (install,) = [shlex.split(rest) for rest in steps["RUN"] if "pip install" in rest]
    assert (ROOT / install[install.index("--constraint") + 1]).is_file()
    (extra,) = re.findall(r"\.\[(\w+)\]", " ".join(install))
    assert extra in PROJECT["project"]["optional-dependencies"]
    pinned = {re.split("[=<>]", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    wanted = {re.split("[=<>]", name)[0] for name in PROJECT["project"]["optional-dependencies"][extra]}
    assert wanted <= {name.replace("_", "-") for name in pinned}


def test_what_it_runs_is_a_command_of_ours(steps):
    (entry,), (words,) = steps["ENTRYPOINT"], steps["CMD"]
    program, *arguments = json.loads(entry) + json.loads(words)
    assert program in PROJECT["project"]["scripts"]
    options = options_of(arguments)
    assert isinstance(options, Serve)
    assert (options.judge, options.host) == ("/judge", "0.0.0.0")
    assert steps["EXPOSE"] == [str(options.port)]
    (check,) = steps["HEALTHCHECK"]
    *_, code = json.loads(check[check.index("[") :])
    compile(code, "HEALTHCHECK", "exec")
    (address,) = re.findall(r"http://[^']+", code)
    asked = urllib.parse.urlsplit(address)
    assert (asked.hostname, asked.port) == ("127.0.0.1", options.port)
    assert asked.path in ROUTES


def test_it_runs_as_nobody_special_and_names_no_index(steps):
    assert steps["USER"] == ["10001"]
    assert list(steps).index("USER") < list(steps).index("ENTRYPOINT")
    addresses = re.findall(r"https?://[\w.-]+", (ROOT / "Dockerfile").read_text())
    assert set(addresses) == {"http://127.0.0.1"}
    assert not re.search(r"(?i)token\s*=", "\n".join(steps["ENV"] + steps["ARG"]))
