"""Functions of ours that one pair passes from where it comes in to where it meets the network or the loss."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import empathy_judge
import pytest
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel

from .conftest import output_of
from .pages import DOCS

PAGE = DOCS / "architecture.md"
PACKAGE = Path(empathy_judge.__file__).parent  # as it was imported: by a link, it is not called as the repository is
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Functions up to Python 3.11, part of the function around them since."""


def stack(frame: FrameType | None) -> list[str]:
    """Functions of ours from the outermost to a frame: `file: function`; what libraries call in between is left out."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        ours = path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] not in ("tests", ".venv")
        if ours and frame.f_code.co_name not in COMPREHENSIONS:
            found.append(f"{path.relative_to(PACKAGE).as_posix()}: {frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


@pytest.fixture
def watch(monkeypatch) -> Callable[..., list[list[str]]]:
    """Keeps the stack of every call of a function."""

    def watch(owner: object, name: str) -> list[list[str]]:
        plain, seen = getattr(owner, name), []

        def watched(*arguments: object, **options: object) -> object:
            seen.append([*stack(sys._getframe()), f"{plain.__qualname__}"])
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)
        return seen

    return watch


def written(kind: str) -> list[str]:
    """The path as the page about the architecture has it."""
    (lines,) = re.findall(rf"<!-- path: {kind} -->\n((?:\d+\. .*\n)+)", PAGE.read_text(encoding="utf-8"))
    return [re.sub(r"^\d+\. `([^`]*)`.*", r"\1", line) for line in lines.splitlines()]


def check(path: list[str], *kinds: str) -> None:
    """A path is that of these kinds on the page, one after the other."""
    assert len(path) <= 6
    assert len({step.split(":")[0] for step in path[:-1]}) <= 6
    expected = [step for kind in kinds for step in written(kind)]
    assert path == expected, f"docs/architecture.md, path: {', '.join(kinds)}; expected\n" + "\n".join(path)


def test_from_score_to_the_network(judge_folder, dataset_folder, watch, capsys):
    manifest = dataset_folder / "one.csv"
    manifest.write_text("response_audio,context_audio\np00.wav,context0.wav\n")
    seen = watch(AudioLanguageModel, "hidden_states")
    lines = output_of(capsys, "score", judge_folder, "--manifest", manifest, "--device", "cpu").splitlines()
    assert lines[1].endswith(",ok")
    manifest.unlink()
    (path,) = seen
    check(path[path.index("commands/judges.py: run") :], "score", "network")


def test_from_a_worker_to_the_network(judge_folder, dataset_folder, tmp_path, watch):
    from empathy_judge.scoring.batch.job import Job, Parts
    from empathy_judge.scoring.batch.workers import Worker
    from empathy_judge.scoring.scorer import Scorer

    manifest = dataset_folder / "one.csv"
    manifest.write_text("response_audio\np00.wav\n")
    parts = Parts(Job(judge_folder, manifest, tmp_path / "scores.csv"))
    parts.plan(1)
    seen = watch(AudioLanguageModel, "hidden_states")
    Worker(parts, Scorer.from_pretrained(judge_folder, device="cpu")).run()
    manifest.unlink()
    (path,) = seen
    check(path, "worker", "network")


def test_from_a_request_to_the_network(judge_folder, dataset_folder, watch):
    from empathy_judge.scoring.scorer import Scorer

    from .serving.services import in_process

    scorer = Scorer.from_pretrained(judge_folder, device="cpu")
    with in_process(scorer) as service:
        seen = watch(AudioLanguageModel, "hidden_states")
        assert service.score((dataset_folder / "p00.wav").read_bytes()).status_code == 200
    (path,) = seen
    check(path, "request", "network")


@pytest.mark.slow
def test_from_train_to_the_loss(train_arguments, tmp_path, watch):
    from empathy_judge.commands.training import Train
    from empathy_judge.train import objective

    seen = watch(objective, "mse")
    Train(train_arguments(tmp_path / "run", trainer__max_epochs=1, trainer__logger="false")).run()
    check(seen[0], "train")
