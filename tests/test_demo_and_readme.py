"""A small demo, and the commands and code blocks of README and of pages run on what it made.

That all others are understood by their parsers is the matter of `test_docs`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from empathy_judge import Scorer
from empathy_judge.cli import main, options_of
from empathy_judge.commands.judges import Serve
from empathy_judge.commands.options import Command
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import Report
from empathy_judge.eval.views import evaluation_views
from empathy_judge.scoring import three_way
from rich.table import Table

from .eval.judges.prompted.servers import Request, Response, gemini_answer, gemini_decision_answer, openai_answer, serve
from .pages import DOCS, ROOT, blocks, commands, python_blocks
from .serving.services import live

README = ROOT / "README.md"
# Pages whose `sh` blocks are run after those of the README, in this order
RUN_PAGES = (
    "howto/score-clips.md", "howto/import-data.md", "howto/train.md", "howto/prompted-judges.md", "howto/serve.md",
)  # fmt: skip
# Installation is what continuous integration does before any test
INSTALLATION = ("git clone", "make ")
# The 7B recipe needs a GPU and the hub; the nano recipe stands in for it
STAND_INS = {"--config qwen2_audio": "--config nano --trainer.max_epochs 1 --trainer.limit_train_batches 2"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with `demo/`, and the responses of three systems for the page on leaderboards; nothing else."""
    folder = tmp_path_factory.mktemp("workplace")
    with (
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(io.StringIO()) as told,
        pytest.MonkeyPatch.context() as at,
    ):
        at.setenv("COLUMNS", "50")
        assert main(["demo", "--out", str(folder / "demo"), "--groups", "32", "--epochs", "4", "--json"]) == 0
    assert json.loads(printed.getvalue())["judge"] == str(folder / "demo" / "judge")
    (folder / "told.txt").write_text(told.getvalue(), encoding="utf-8")
    _write_systems(PairDataset.load(folder / "demo" / "data"), folder)
    return folder


def _write_systems(dataset: PairDataset, folder: Path) -> None:
    """Eight contexts and what three systems answered, each in its folder; their manifest, and ratings of all."""
    ratings, rows = dataset.ratings.groupby("pair_id"), []
    rated: list[pd.DataFrame] = []
    for name in ("contexts", "v1", "v2", "v3"):
        (folder / name).mkdir()
    groups = list(dict.fromkeys(pair.group_id for pair in dataset.pairs))[:8]
    for number, group in enumerate(groups):
        own = [pair for pair in dataset.pairs if pair.group_id == group][:3]
        shutil.copy(str(own[0].context[0].audio), folder / "contexts" / f"c{number}.wav")
        for system, pair in zip(("v1", "v2", "v3"), own, strict=True):
            shutil.copy(str(pair.response), folder / system / f"c{number}.wav")
            clips = {"context_audio": f"contexts/c{number}.wav", "response_audio": f"{system}/c{number}.wav"}
            rows.append({"pair_id": f"{system}/c{number}", "group_id": f"c{number}", "system_id": system, **clips})
            rated.append(ratings.get_group(pair.pair_id).assign(pair_id=f"{system}/c{number}"))
    pd.DataFrame(rows).to_csv(folder / "systems.csv", index=False)
    pd.concat(rated).to_csv(folder / "systems-ratings.csv", index=False)


def test_demo_leaves_what_it_promises_and_already_learns(workplace):
    """Thirty-two scripts and four epochs: far above both oracles that hear one clip alone."""
    demo = workplace / "demo"
    assert sorted(entry.name for entry in demo.iterdir()) == ["data", "judge", "my", "report", "run"]
    report = json.loads((demo / "report" / "agreement.json").read_text())
    assert report["dataset"]["synthetic"]
    assert report["dimensions"]["vocal_empathy"]["n_groups"] == 5
    page = (demo / "report" / "index.html").read_text(encoding="utf-8")
    card = (demo / "judge" / "README.md").read_text(encoding="utf-8")
    assert "ynthetic" in page
    assert "Synthetic" in card
    spearman = report["dimensions"]["vocal_empathy"]["spearman"]["value"]
    assert f"{spearman:.2f}" in card
    assert spearman > 0.5
    typed = read_report(demo / "report" / "agreement.json", Report)
    tables = [view for view in evaluation_views(typed) if isinstance(view, Table)]
    (panel,) = [table for table in tables if "two raters" in str(table.title)]  # wider than 50 columns
    assert all(
        cell in (workplace / "told.txt").read_text(encoding="utf-8") for cell in map(str, panel.columns[-1].cells)
    )


def _commands() -> list[str]:
    """Of the README, then of the pages."""
    lines = [line for page in (README, *(DOCS / name for name in RUN_PAGES)) for line in commands(page, "sh")]
    return [line for line in lines if not line.startswith(INSTALLATION)]


def _vendor(request: Request) -> Response:
    """Answers as either vendor does, a score that depends on the clips alone."""
    openai = "messages" in request.body
    if "questions" in request.body:
        best = int(hashlib.sha256(json.dumps(request.body["input"]).encode()).hexdigest(), 16) % 5
        return Response(gemini_decision_answer({"vocal_empathy": [0.6 if n == best else 0.1 for n in range(5)]}))
    asked = request.body["messages"][-1]["content"] if openai else request.body["contents"]
    score = 1 + int(hashlib.sha256(json.dumps(asked).encode()).hexdigest(), 16) % 5
    answer = json.dumps({"reason": "as canned", "vocal_empathy": score})
    return Response(openai_answer(calls=json.loads(answer)) if openai else gemini_answer(answer))


@contextmanager
def _serving(options: Command) -> Iterator[str]:
    """The service of these options, on a port that is free; its address."""
    assert isinstance(options, Serve)
    with live(Scorer.from_pretrained(options.judge, device="cpu")) as service:
        yield service.url


def _curl(service: str, arguments: Sequence[str]) -> None:
    """What `curl -F name=value -F name=@file ADDRESS` does, and that it is answered."""
    *given, address = arguments
    if given[:2] == ["-sf", "--retry"]:  # a script waits until the judge is loaded; -f hides the answers until then
        assert httpx.get(service + address.removeprefix("localhost:8000")).json() == {"status": "ready"}
        return
    assert given[::2] == ["-F"] * (len(given) // 2)
    fields = [field.split("=", 1) for field in given[1::2]]
    files = [(name, (value[1:], Path(value[1:]).read_bytes())) for name, value in fields if value.startswith("@")]
    texts = {name: value for name, value in fields if not value.startswith("@")}
    answer = httpx.post(service + address.removeprefix("localhost:8000"), files=files, data=texts, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "vocal_empathy" in answer.text


@pytest.mark.usefixtures("worker_in_process")
def test_commands_run_in_order(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))  # where answers are kept
    lines = _commands()
    assert len(lines) >= 20
    service = ""
    with ExitStack() as stack:
        server = stack.enter_context(serve(_vendor))
        stand_ins = STAND_INS | {
            "openai:gpt-audio-1.5": f"openai:gpt-audio-1.5,base_url={server.url}/v1,price=2.5:32:10",
            "gemini:gemini-3.1-pro-preview": f"gemini:gemini-3.1-pro-preview,base_url={server.url},price=2:2:12",
            "gemini-decision:gemini-decision-1": f"gemini-decision:m,base_url={server.url},price=0.1:0.1:0",
        }
        for command in lines:
            for given, stand_in in stand_ins.items():
                command = command.replace(given, stand_in)
            program, *arguments = shlex.split(command)
            if program == "curl":
                _curl(service, arguments)
                continue
            assert program == "empathy-judge", command
            if arguments[0] == "serve":  # it would serve until it is told to stop
                service = stack.enter_context(_serving(options_of(arguments)))
                continue
            if arguments[0] in ("compare", "evaluate") and "--dry-run" not in arguments:
                arguments += ["--resamples", "200"]  # less to compute than the default
            before = len(server.requests)
            assert main(arguments) == 0, command
            if "compare" in command and "--dry-run" in command:
                assert len(server.requests) == before
                expected = '"criteria": [' if "gemini-decision" in command else '"model": "gpt-audio-1.5"'
                assert expected in capsys.readouterr().out
    tested = len(PairDataset.load("demo/data").subset("test").pairs)
    assert len(server.requests) == (3 + 5 + 1) * tested
    scores = pd.read_csv(workplace / "scores.csv")
    assert list(scores["status"]) == ["ok"] * 12 * 15  # scripts, pairs of each


def _run(blocks: Sequence[str], **names: Any) -> dict[str, Any]:
    """Run code blocks one after the other, as a reader would."""
    for block in blocks:
        exec(compile(block, "page", "exec"), names)
    return names


def test_readme_code_runs(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    _run(python_blocks(README))
    scores, rewards = capsys.readouterr().out.splitlines()
    (score,) = re.findall(r"^\{'vocal_empathy': ([1-5]\.\d+)\}$", scores)
    (reward,) = json.loads(rewards)
    assert reward == pytest.approx((float(score) - 1) / 4, abs=1e-5)


def test_code_of_pages_runs(workplace, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(workplace, tmp_path / "own"))
    monkeypatch.setattr(three_way, "_FEWEST", 2)  # so small a demo has too few contexts to learn what people prefer
    assert main(["calibrate", "demo/judge", "--data", "demo/data", "--split", "validation"]) == 0
    capsys.readouterr()
    # the last block is a pipeline of Ray
    _run(
        python_blocks(DOCS / "howto" / "score-clips.md")[:-1],
        pairs=[("demo/my/context.wav", "demo/my/response.wav")] * 2,
    )
    first, *lines = capsys.readouterr().out.splitlines()
    (score,) = re.findall(r"^\{'vocal_empathy': ([1-5]\.\d+)\}$", first)
    points, low, high, label = lines[0].split(maxsplit=3)
    assert float(points) == pytest.approx(float(score), abs=1e-5)
    assert float(low) < float(points) < float(high)
    assert label in ("very poor", "poor", "fair", "good", "excellent")
    assert [float(value) for value in re.findall(r"'vocal_empathy': ([\d.]+)", "".join(lines[2:]))] == pytest.approx(
        [float(score)] * 2, abs=1e-5
    )
    _run(python_blocks(DOCS / "howto" / "reward.md")[:1])  # the others want a policy and a trainer
    (reward,) = json.loads(capsys.readouterr().out)
    assert 0 <= reward < (float(score) - 1) / 4  # half a standard error below


@pytest.mark.usefixtures("worker_in_process")
def test_systems_are_compared_as_the_page_says(workplace, tmp_path, monkeypatch, capsys):
    """Word by word, from the folders to the page; people rate what was drawn."""
    monkeypatch.chdir(shutil.copytree(workplace, tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "100")
    manifest, ratings = Path("systems.csv"), Path("systems-ratings.csv")
    expected, given = manifest.read_text(), pd.read_csv(ratings)
    manifest.unlink()
    names: dict[str, Any] = {}
    for language, text in blocks(DOCS / "howto" / "leaderboard.md"):
        if language == "python":
            exec(compile(text, "leaderboard.md", "exec"), names)
        elif language == "sh":
            for command in text.splitlines():
                assert main(shlex.split(command)[1:]) == 0, command
        if Path("to-rate.csv").exists():
            drawn = pd.read_csv("to-rate.csv")["pair_id"]
            assert len(drawn) == 18
            given[given["pair_id"].isin(drawn)].to_csv(ratings, index=False)
    assert sorted(manifest.read_text().splitlines()) == sorted(expected.splitlines())
    printed = capsys.readouterr().out
    assert "Means and differences are those of people" in printed
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == [
        row.system for row in names["board"].report.boards[0].against
    ]
    assert Path("board/index.html").read_text().count("<audio ") == 15


@pytest.mark.long
def test_code_that_compares_judges_runs(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    calls, _ = python_blocks(DOCS / "howto" / "compare-judges.md")
    exec(compile(calls, "compare-judges.md", "exec"), {})
    demo, again = (
        json.loads((workplace / folder / "agreement.json").read_text())["dimensions"]["vocal_empathy"]["spearman"]
        for folder in ("demo/report", "report")
    )
    assert again["value"] == pytest.approx(demo["value"], abs=1e-6)
    reports = json.loads((workplace / "comparison" / "comparison.json").read_text())["reports"]
    assert [report["judge"] for report in reports] == ["judge", "acoustic", "constant"]


def test_code_for_the_evaluate_library_runs(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    _, measuring = python_blocks(DOCS / "howto" / "compare-judges.md")
    items = pd.read_csv(workplace / "demo" / "report" / "items.csv")
    panel = PairDataset.load(workplace / "demo" / "data").ratings.pivot(
        index="pair_id", columns="rater_id", values="score"
    )
    given = {"scores": items["score"].tolist(), "ratings": panel.loc[items["pair_id"]].to_numpy().tolist()}
    found: list[dict[str, Any]] = []
    calls = re.sub(r"^(evaluate\.load.*?\))(?:  #.*)?$", r"found.append(\1)", measuring, flags=re.MULTILINE)
    exec(compile(calls, "README.md", "exec"), {**given, "found": found})
    agreement, score = found
    report = json.loads((workplace / "demo" / "report" / "agreement.json").read_text())["dimensions"]["vocal_empathy"]
    assert agreement["spearman"] == pytest.approx(report["spearman"]["value"])
    assert agreement["one_rater"] == pytest.approx(report["ceiling"]["spearman"]["value"])
    assert 1 <= score["scores"]["vocal_empathy"][0] <= 5
