"""`doctor`: what it finds on this machine and on others, and that it shows no key."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.commands import doctor

from ..conftest import output_of


def _findings(capsys: pytest.CaptureFixture[str], code: int) -> dict[tuple[str, str], dict[str, str]]:
    assert main(["doctor", "--json"]) == code
    return {(one["part"], one["name"]): one for one in json.loads(capsys.readouterr().out)}


def test_this_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = _findings(capsys, 0)
    assert " GB free at " in found["machine", "models of the hub"]["detail"]  # of the folder above, which is there
    assert found["packages", "empathy-judge"]["detail"] == importlib.metadata.version("empathy-judge")
    assert found["optional parts", "serve"]["detail"].startswith("fastapi ")
    assert "dev" not in {name for part, name in found if part == "optional parts"}
    assert "optional parts" in output_of(capsys, "doctor")


def test_a_torchaudio_that_does_not_go_with_torch(capsys, monkeypatch):
    real = importlib.import_module

    def loads(name: str, *rest: Any) -> Any:
        if name == "torchaudio":
            raise RuntimeError("different CUDA versions\nmore")
        return real(name, *rest)

    monkeypatch.setattr("importlib.import_module", loads)
    found = _findings(capsys, 1)["packages", "torchaudio"]
    versions = [importlib.metadata.version(name) for name in ("torchaudio", "torch")]
    said = "{} cannot be imported beside torch {}: RuntimeError: different CUDA versions".format(*versions)
    assert (found["state"], found["detail"]) == ("broken", said)


def test_a_card_without_bf16_is_told_what_to_set(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = [SimpleNamespace(name=name, major=major, total_memory=15 << 30) for name, major in (("A2", 8), ("T4", 7))]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number=0: cards[number])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (14 << 30, 15 << 30))

    def refused(*_, **__):
        raise RuntimeError("no kernel image is available\nmore")

    monkeypatch.setattr(torch, "ones", refused)
    found = _findings(capsys, 1)
    assert found["GPUs", "cuda:0"]["detail"] == "A2, 14 of 15 GiB free, bf16"
    card = found["GPUs", "cuda:1"]["detail"]
    assert card == "T4, 14 of 15 GiB free, no bf16: trainer.precision 16-mixed, judge.dtype float16"
    assert found["GPUs", "a product of matrices"] == {
        "part": "GPUs", "name": "a product of matrices", "state": "broken", "detail": "no kernel image is available"
    }  # fmt: skip


def test_rates_are_measured_on_request(capsys, monkeypatch):
    """On a GPU that is not there products take a time of its own; what is predicted follows from them."""
    monkeypatch.setattr(doctor, "BENCH_SECONDS", 0.2)
    lines = output_of(capsys, "doctor", "--bench").splitlines()
    (line,) = (line for line in lines if "speed: processor" in line)
    product, copies = map(float, re.findall(r"([\d.e+-]+) [TG]", line))
    assert 1e-3 < product < 100  # TFLOP/s of one thread or of many
    assert 0.1 < copies < 10_000
    assert not any("speed: processor" in line for line in output_of(capsys, "doctor").splitlines())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch, "randn", lambda *shape, device: torch.empty(shape, device="meta"))
    monkeypatch.setattr(doctor, "_best_seconds", lambda function, device, seconds: 2 * 8192**3 / 770e12)
    *_, card, predicted = doctor._rates(10.0)
    assert card.name == "cuda:0"
    assert card.detail.startswith("products of matrices 770 TFLOP/s (bfloat16)")
    assert predicted.detail.startswith("scores 46 and trains on 45 pairs/s, predicted from")


def test_the_time_of_a_call_is_the_best_of_those_that_were_counted(monkeypatch):
    times = iter([0.0, 0.0, 5.0, 5.0, 5.4, 5.4, 5.7, 5.7, 9.0])  # 5 (the first, not counted), 0.4, 0.3, 3.3
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(times))
    assert doctor._best_seconds(lambda: None, torch.device("cpu"), 6.0) == pytest.approx(0.3)


def test_keys_are_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-verysecret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:mypassword@example.org:8000/v1?token=hidden")
    found = _findings(capsys, 0)
    assert found["environment", "OPENAI_API_KEY"]["detail"] == "set"
    assert found["environment", "OPENAI_BASE_URL"]["detail"] == "http://example.org:8000/v1"
    assert not any(secret in json.dumps([*found.values()]) for secret in ("verysecret", "mypassword", "hidden"))


@pytest.mark.parametrize(
    ("part", "versions", "state", "detail"),
    [
        ("wandb", {"wandb": None}, "missing", "pip install 'empathy-judge[wandb]'"),
        ("wandb", {"wandb": "0.1"}, "broken", "wandb 0.1; expected >=0.19"),
    ],
)
def test_an_optional_part_that_does_not_work(capsys, monkeypatch, part, versions, state, detail):
    real = importlib.metadata.version

    def installed(name: str) -> str:
        if (version := versions.get(name, "as it is")) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name) if version == "as it is" else version

    monkeypatch.setattr("importlib.metadata.version", installed)
    found = _findings(capsys, 1 if state == "broken" else 0)
    assert found["optional parts", part]["state"] == state
    assert detail in found["optional parts", part]["detail"]
