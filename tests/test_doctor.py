"""`doctor`: what it finds on this machine, what it calls broken, and what it never shows."""

from __future__ import annotations

import importlib.metadata
import json

import pytest
from empathy_judge.cli import main

from .conftest import output_of


def _findings(capsys: pytest.CaptureFixture[str], code: int) -> dict[tuple[str, str], dict[str, str]]:
    assert main(["doctor", "--json"]) == code
    return {(one["part"], one["name"]): one for one in json.loads(capsys.readouterr().out)}


def test_this_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = _findings(capsys, 0)
    assert found["packages", "empathy-judge"]["detail"] == importlib.metadata.version("empathy-judge")
    assert found["optional parts", "serve"]["detail"].startswith("fastapi ")
    assert "dev" not in {name for part, name in found if part == "optional parts"}
    assert " GB free at " in found["disks", "models of the hub"]["detail"]  # of the folder above, which is there
    assert found["cached models", "none"]["state"] == "missing"
    assert "optional parts" in output_of(capsys, "doctor")


def test_keys_are_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-verysecret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:mypassword@example.org:8000/v1?token=hidden")
    found = _findings(capsys, 0)
    assert found["environment", "OPENAI_API_KEY"]["detail"] == "set"
    assert found["environment", "OPENAI_BASE_URL"]["detail"] == "http://example.org:8000/v1"
    assert not any(secret in json.dumps([*found.values()]) for secret in ("verysecret", "mypassword", "hidden"))


@pytest.mark.parametrize(
    ("version", "state", "detail"),
    [(None, "missing", "pip install 'empathy-judge[sweep]'"), ("0.1", "broken", "optuna 0.1; expected >=4")],
)
def test_an_optional_part_that_does_not_work(capsys, monkeypatch, version, state, detail):
    real = importlib.metadata.version

    def installed(name: str) -> str:
        if name != "optuna":
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr("importlib.metadata.version", installed)
    found = _findings(capsys, 1 if state == "broken" else 0)
    assert found["optional parts", "sweep"]["state"] == state
    assert detail in found["optional parts", "sweep"]["detail"]
