"""The OpenAPI document says what is accepted and what comes back, and the service keeps to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .services import FakeScorer, InProcess, in_process, live

ERRORS = {"400", "403", "408", "413", "415", "421", "422", "429", "500", "503", "504"}


def document_of(service: InProcess) -> dict[str, Any]:
    return service("GET", "/openapi.json").json()


def form_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    return document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]


@pytest.fixture(scope="module")
def documents() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Without a token, and with one."""
    with in_process(FakeScorer()) as first, in_process(FakeScorer(), token="t") as second:
        yield document_of(first), document_of(second)


def test_every_status_is_declared(documents):
    for document, token in zip(documents, (set(), {"401"}), strict=True):
        for path, more in (("/v1/score", ()), ("/v1/rank", ()), ("/v1/reward", ()), ("/v1/systemone", ("501",))):
            assert set(document["paths"][path]["post"]["responses"]) == {"200", *ERRORS, *more, *token}
        for status, response in document["paths"]["/v1/score"]["post"]["responses"].items():
            if status != "200":
                content = response["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}
                assert all(list(own["value"]) == ["error"] for own in content["examples"].values())
        assert set(document["paths"]["/readyz"]["get"]["responses"]) == {"200", "421", "503"}
    assert "securitySchemes" not in documents[0]["components"]


def test_the_form_is_described(documents):
    common = {"response", "context", "situation"}
    own = {"score": {"level"}, "rank": {"level", "dimension", "max_error"}, "reward": {"dimension", "deviations"}}
    for route, fields in own.items():
        form = form_of(documents[0], f"/v1/{route}")
        assert set(form["properties"]) == {*common, *fields}
        assert form["required"] == ["response"]
        assert form["additionalProperties"] is False
    properties = form_of(documents[0], "/v1/rank")["properties"]
    assert properties["level"]["enum"] == [0.5, 0.8, 0.9, 0.95]
    assert properties["max_error"]["enum"] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]


@pytest.mark.long
@pytest.mark.parametrize("token", [None, "sesame"])
def test_schemathesis_finds_nothing(token, tmp_path):
    command = [str(Path(sys.executable).with_name("st")), "run", "--seed", "1", "-n", "60", "--no-color"]
    header = ["--header", f"Authorization: Bearer {token}"] if token else []
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    scorer = FakeScorer()
    scorer.knows_levels = True
    with live(scorer, token=token) as service:
        found = subprocess.run(
            [*command, *header, f"{service.url}/openapi.json"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:]
    assert "Tested: 10" in found.stdout
