"""README, docs and notebook: short enough, every command and import in them exists, and every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from empathy_judge.audio.decode import Clip
from empathy_judge.cli import COMMANDS, main, options_of
from empathy_judge.data_modules import importers
from empathy_judge.data_modules.schema import PairDataset

from .conftest import loaded
from .pages import DOCS, PAGES, ROOT, blocks, commands, prose, python_blocks

README = ROOT / "README.md"
# Programs that are not ours, whose options no test of ours can know
FOREIGN = ("apptainer", "curl", "docker", "export", "git", "hf", "cd", "python3", "vllm")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _all_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of each page, as words; what `&&` joins is several."""
    for page in PAGES:
        for line in commands(page, "sh", "bash"):
            for part in line.split(" && "):
                yield _name(page), shlex.split(part)


def test_readme_takes_two_minutes():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1500
    assert max(len(line) for line in text.splitlines()) <= 120
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 80
    assert sum(path.stat().st_size for path in (DOCS / "images").iterdir()) <= 200_000


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_are_of_a_kind_that_is_tested(page):
    assert {language for language, _ in blocks(page)} <= {"sh", "bash", "python", "json", "text"}
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(blocks(page))


def _program(words: Sequence[str]) -> list[str] | None:
    """The arguments of `empathy-judge` that a command comes to, or None where it is another program."""
    first, *rest = words
    if first.removeprefix(".venv/bin/") == "empathy-judge":
        return rest
    if first == "sbatch":
        (script,) = [word for word in rest if word.startswith("launch/")]
        first, rest = script, rest[rest.index(script) + 1 :]
    if first.startswith("launch/"):
        assert (ROOT / first).is_file(), first
        return ["score" if "score" in first else "train", *rest]
    return None


def test_commands_are_understood(monkeypatch):
    """By the parser of the command itself; of other programs the file, target or extra exists. `train` is below."""
    monkeypatch.chdir(ROOT)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    count = 0
    for page, words in _all_commands():
        arguments = _program(words)
        where = f"{page}: {shlex.join(words)}"
        if arguments is None:
            program = words[0]
            if program == "make":
                assert f"\n{words[1]}:" in makefile, where
            elif program == "python":
                assert (ROOT / words[1]).exists(), where
            else:
                assert program in FOREIGN or program.startswith(".venv/bin/"), where
        elif "--help" in arguments:
            assert arguments[:-1] in ([], *([name] for name in COMMANDS)), where
        elif arguments[0] != "train":
            options_of(arguments)
            count += 1
    assert count > 30


@pytest.mark.slow
def test_training_commands_are_understood(monkeypatch):
    from empathy_judge.train.recipe import RecipeParser

    monkeypatch.chdir(ROOT)
    ours = [_program(line) or [""] for _, line in _all_commands()]
    known = {tuple(words) for words in ours if words[0] == "train"}
    parser = RecipeParser()
    for words in sorted(known):
        parser.parse(words[1:])
    assert len(known) >= 8


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_code_compiles_and_its_imports_exist(page):
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("empathy_judge"):
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {name for page in PAGES for name in re.findall(r"empathy-judge\[([a-z]+)\]", page.read_text("utf-8"))}
    assert named <= set(extras)
    assert named


def test_files_that_pages_name_exist():
    pattern = re.compile(r"`((?:configs|launch|benchmarks|examples)/[\w./-]+\.(?:yaml|sh|sbatch|py|md))`")
    missing = {(_name(page), path) for page in PAGES for path in pattern.findall(prose(page)) if "NAME" not in path}
    assert {path for _, path in missing if not (ROOT / path).is_file()} == set()


@pytest.fixture(scope="module")
def command_page() -> str:
    """The command reference as the pages have it."""
    return loaded(DOCS / "hooks.py").commands_page()


def test_command_reference_is_complete(command_page):
    for name in [*COMMANDS, *(f"import {source}" for source in importers.SOURCES)]:
        assert re.search(rf"^##+ {name}$", command_page, flags=re.MULTILINE), name
    for option in ("`--drain-seconds` SECONDS", "`--budget` DOLLARS", "`--fractions` TRAIN VALIDATION TEST"):
        assert f"| {option} |" in command_page
    assert "%(" not in command_page


def _anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page, command_page):
    text = prose(page)
    references = {f"[{name}]" for name in re.findall(r"^\[(.+?)\]: ", text, flags=re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), target
        # a site is made of docs/ alone
        assert not page.is_relative_to(DOCS) or found.is_relative_to(DOCS), target
        if anchor:
            there = prose(found) + (command_page if found.name == "commands.md" else "")
            assert anchor in _anchors(there), target
    used = set(re.findall(r"(\[[\w -]+\])(?![\w(:\[])", re.sub(r"`[^`]*`", "", text)))
    assert used <= references


def test_configuration_reference_has_every_key():
    """Below its section with its help, values and default."""
    page = loaded(DOCS / "hooks.py").configuration_page()
    assert "\n#### judge.lora\n" in page
    assert "\n| `rank` | Rank of the update. Default: `16`. |\n" in page
    assert 'One of `lora`, `rslora`, `dora`. Default: `"lora"`. |' in page
    assert re.search(r"^\| `resume` \| .* One of `true`, `false`, `auto`\. Default: `false`\. \|$", page, re.MULTILINE)
    assert page.count("\n| `") > 100
    assert "``" not in page


def _example(page: str, package: str, number: int = 0) -> dict[str, Any]:
    """What a Python block of a page defines, as if it stood in this package."""
    found: dict[str, Any] = {"__package__": f"empathy_judge.{package}", "__name__": "example"}
    exec(python_blocks(DOCS / "howto" / page)[number], found)
    return found


def test_the_importer_of_the_page_imports(tmp_path):
    for name in ("c1", "r1", "r2"):
        soundfile.write(tmp_path / f"{name}.wav", np.full(8000, 0.1), 16_000)
    rows = [
        {"reply": f"r{n}.wav", "caller": "c1.wav", "model": model, "script": "s1", "warmth": ratings}
        for n, model, ratings in ((1, "a", {"anna": 4, "ben": 5}), (2, "b", {"anna": 9}))
    ]
    (tmp_path / "sessions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    importer = _example("extend.md", "data_modules.importers")
    found = importer["read"](tmp_path, importer["Options"]())
    assert [(pair["system_id"], pair["group_id"]) for pair in found.pairs] == [
        ("a", found.pairs[0]["group_id"]),
        ("b", found.pairs[0]["group_id"]),
    ]
    assert found.ratings[["rater_id", "score"]].values.tolist() == [["anna", 4.0], ["ben", 5.0]]
    assert [one.reason for one in found.skipped] == ["value 9; expected a number from 1 to 5"]


def test_the_campaigns_of_the_page_become_one_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, scores in {"lab": (1, 4), "crowd": (1, 4)}.items():
        rows = [f"{n},{name}{n}.wav,3,{score}" for n, score in enumerate(scores)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["pair_id,response_audio,rater_id,score", *rows]))
        for n in range(2):
            soundfile.write(tmp_path / f"{name}{n}.wav", np.full(8000, 0.1 * (n + 1)), 16_000)
    _example("import-data.md", "data_modules", 1)
    (command,) = [line for line in commands(DOCS / "howto" / "import-data.md", "bash") if "both.csv" in line]
    assert main(shlex.split(command)[1:]) == 0
    both = PairDataset.load(tmp_path / "both")
    assert [(pair.pair_id, pair.tags) for pair in both.pairs] == [
        (f"{name}/{n}", (("campaign", name),)) for name in ("lab", "crowd") for n in range(2)
    ]
    assert both.ratings.set_index("pair_id")["score"].to_dict() == {"lab/0": 1, "lab/1": 4, "crowd/0": 1, "crowd/1": 3}
    assert set(both.ratings["rater_id"]) == {"lab/3", "crowd/3"}


def test_the_loss_of_the_page_is_log_cosh():
    log_cosh = _example("extend.md", "models", 1)["log_cosh"]
    prediction, target = torch.tensor([[0.2], [0.9], [0.5]]), torch.tensor([[0.5], [0.1], [torch.nan]])
    mask = torch.tensor([[True], [True], [False]])
    expected = 0.04 * torch.log(torch.cosh(torch.tensor([-1.5, 4.0]))).mean()
    assert log_cosh(prediction, target, mask, 0.2).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_listening_check_of_the_page_slows_down():
    clip = Clip(np.sin(np.arange(16_000) * 2 * np.pi * 200 / 16_000).astype(np.float32), 16_000)
    changed = _example("extend.md", "eval.checks", 2)["slower"](clip, np.random.default_rng(0))
    assert len(changed.samples) == 17_600
    assert np.abs(np.fft.rfft(changed.samples)).argmax() / 1.1 == pytest.approx(200 / 1.1, abs=1)


def test_every_page_is_in_the_navigation():
    def leaves(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        else:
            for one in nav.values() if isinstance(nav, dict) else nav:  # type: ignore[attr-defined]
                yield from leaves(one)

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(leaves(navigation)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


# ---------------------------------------------------------------- the notebook of `examples/`

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


def test_every_field_of_a_report_is_described():
    """`make docs` puts the tables where the page has its mark."""
    hooks = loaded(DOCS / "hooks.py")
    page = (DOCS / "reference" / "reports.md").read_text(encoding="utf-8")
    made = hooks.on_page_markdown(page, None)
    assert hooks.REPORT_FIELDS in page
    assert hooks.REPORT_FIELDS not in made
    rows = [line for line in made.splitlines() if line.startswith("| `") and line.count(" | ") >= 2]
    assert len(rows) > 300
    assert [row for row in rows if not row.rstrip("| ").rpartition(" | ")[2].strip(" `")] == []
    for field in ("schema_version", "undefined_resamples", "vs_single_rater", "seconds_per_pair"):
        assert f"| `{field}` |" in made
    for _, link in re.findall(r"\[(\w+)\]\(#(\w+)\)", made):
        assert re.search(rf"(?im)^##+ {link}$", made), link
