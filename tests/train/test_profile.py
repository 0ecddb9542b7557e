"""`train --profile true`: the page is true, and the trace can be opened."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel
from empathy_judge.models.heads import RegressionHead
from empathy_judge.train import profile, stages
from empathy_judge.train.fit import train
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.profile import rounded
from empathy_judge.train.stages import COLLATE, LOSS, PROJECTOR, READING, REST, STAGES, TOWER, WAITING, StageClock


@pytest.fixture
def clock_time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the stage clock sees: change its only element."""
    now = [0.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: now[0])
    return now


def test_every_moment_belongs_to_the_innermost_stage(clock_time):
    clock = StageClock(torch.device("cpu"))
    clock_time[0] = 5
    clock.begin(LOSS)  # it stands still
    clock.resume()
    clock_time[0] = 6
    clock.begin(TOWER)
    clock_time[0] = 8
    clock.begin(PROJECTOR)
    clock_time[0] = 8.5
    clock.end()
    clock.end()
    clock_time[0] = 9
    clock.end()
    clock_time[0] = 9.25
    clock.pause()
    clock_time[0] = 20
    clock.begin(TOWER)
    clock_time[0] = 30
    clock.end()
    clock.resume()
    clock_time[0] = 31
    clock.pause()
    assert clock.seconds == {LOSS: 1 + 0.5, TOWER: 2, PROJECTOR: 0.5, REST: 0.25 + 1}


@pytest.mark.parametrize(
    "shares", [(1 / 3, 1 / 3, 1 / 3), (0.5, 0.2496, 0.2496, 0.0008), (1.0, 0.0), tuple([1 / 7] * 7)]
)
def test_shares_add_up(shares):
    found = rounded({str(number): share for number, share in enumerate(shares)})
    assert sum(round(10 * value) for value in found.values()) == 1000
    assert all(abs(value - 100 * share) < 0.1 for value, share in zip(found.values(), shares, strict=True))


def slower(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, seconds: float) -> None:
    inner = getattr(owner, name)

    def call(*args, **kwargs):
        time.sleep(seconds)
        return inner(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def milliseconds(page: str) -> dict[str, float]:
    return {name: float(ms) for name, ms in re.findall(r"^\| ([a-z ,]+) \| [\d.]+ % \| ([\d.]+) \|$", page, re.M)}


@pytest.mark.long
def test_the_page_finds_what_is_slow(train_arguments, tmp_path, monkeypatch, capsys):
    """What is put to sleep in a stage is there and nowhere else; twelve batches in two epochs."""
    slept = {COLLATE: 40, TOWER: 60, LOSS: 30, REST: 20}
    slower(monkeypatch, JudgeModule, "collate", 0.04)
    slower(monkeypatch, AudioLanguageModel, "encode_audio", 0.06)
    slower(monkeypatch, RegressionHead, "forward", 0.03)
    slower(monkeypatch, JudgeModule, "on_train_batch_end", 0.02)
    slower(monkeypatch, JudgeModule, "validation_step", 0.2)
    plain = tmp_path / "run"
    train(train_arguments(
        plain, model__cache="none", data__batch_size=2, trainer__max_epochs=2, profile="true"
    ))  # fmt: skip
    folder = plain / "profile"
    page = (folder / "summary.md").read_text(encoding="utf-8")
    found = milliseconds(page)
    assert list(found) == list(STAGES)
    for stage, ms in slept.items():
        assert found[stage] >= ms
    assert found[WAITING] + found[PROJECTOR] < 40
    total = float(re.search(r"\*\*all\*\* \| \*\*100.0 %\*\* \| \*\*([\d.]+)\*\*", page).group(1))
    assert sum(found.values()) == pytest.approx(total, abs=0.5)
    shares = [float(share) for share in re.findall(r"^\| [a-z ,]+ \| ([\d.]+) % \| [\d.]+ \|$", page, re.M)]
    assert sum(round(10 * share) for share in shares) == 1000
    assert page.startswith("# Where the time of training goes\n\n6 batches on 1 thread of a CPU")
    assert "a batch: 2.0 rows" in page
    assert f"profile: {folder / 'summary.md'}" in capsys.readouterr().err
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events if event.get("cat") == "user_annotation"]
    assert {COLLATE, TOWER, READING} <= set(names)
    assert names.count(TOWER) == 3
    assert "| `aten::" in page


def test_a_short_run_has_no_page(train_arguments, tmp_path, capsys):
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, trainer__logger="false", profile="true"))
    assert not (tmp_path / "run" / "profile" / "summary.md").exists()
    assert "no profile: training ended after 3 batches; it takes 7" in capsys.readouterr().err


def event(key: str, device: str, microseconds: float, region: bool = False, count: int = 6) -> SimpleNamespace:
    """A row of `key_averages`."""
    return SimpleNamespace(
        key=key, device_type=SimpleNamespace(name=device), is_user_annotation=region, count=count,
        self_cpu_time_total=1.0, self_device_time_total=microseconds,
    )  # fmt: skip


def test_a_gpu_shows_its_kernels_once():
    """Not the operations that launched them, nor the regions that they lie in."""
    events = [
        event("aten::mm", "CPU", 300),
        event("gemm", "CUDA", 300),
        event("softmax", "CUDA", 100, count=3),
        event(TOWER, "CUDA", 400, region=True),
        event("Optimizer.step#AdamW.step", "CUDA", 400, region=True),
    ]
    traced = SimpleNamespace(key_averages=lambda: events)
    found = profile.top_operations(traced, 3)  # pyright: ignore[reportArgumentType]
    assert [(one.name, one.share, one.calls) for one in found] == [("gemm", 0.75, 2), ("softmax", 0.25, 1)]


def test_a_large_trace_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "_LARGE", 10)

    class Traced:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text('{"traceEvents": []}')

    path = tmp_path / "trace.json"
    profile.write_trace(Traced(), path)  # pyright: ignore[reportArgumentType]
    assert not path.exists()
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == {"traceEvents": []}
