"""The OpenAPI document says what is accepted and what comes back, and the service keeps to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.schema import Dimension

from .services import FakeScorer, InProcess, in_process, live, wav

ERRORS = {"400", "403", "408", "413", "415", "421", "422", "429", "500", "503", "504"}


def document_of(service: InProcess) -> dict[str, Any]:
    return service("GET", "/openapi.json").json()


def form_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    return document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]


@pytest.fixture(scope="module")
def documents() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Of a calibrated judge, and of one with a token, two dimensions and no calibration."""
    plain, other = FakeScorer(), FakeScorer()
    other.calibration = None
    other.dimensions = (Dimension("warmth", 1, 5), Dimension("empathy", 1, 5))
    with in_process(plain) as first, in_process(other, token="t") as second:
        yield document_of(first), document_of(second)


def test_every_status_is_declared(documents):
    for document, token in zip(documents, (set(), {"401"}), strict=True):
        for path in ("/v1/score", "/v1/rank", "/v1/reward"):
            assert set(document["paths"][path]["post"]["responses"]) == {"200", *ERRORS, *token}
        for status, response in document["paths"]["/v1/score"]["post"]["responses"].items():
            if status != "200":
                content = response["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}
                assert all(list(own["value"]) == ["error"] for own in content["examples"].values())
        assert set(document["paths"]["/readyz"]["get"]["responses"]) == {"200", "421", "503"}
    assert "securitySchemes" not in documents[0]["components"]


def test_the_form_is_described_for_this_judge(documents):
    calibrated, plain = documents
    assert set(form_of(calibrated, "/v1/score")["properties"]) == {"response", "context", "situation", "level"}
    assert form_of(calibrated, "/v1/score")["properties"]["level"]["enum"] == [0.5, 0.8, 0.9, 0.95]
    assert set(form_of(plain, "/v1/score")["properties"]) == {"response", "context", "situation"}
    assert form_of(plain, "/v1/rank")["properties"]["dimension"]["enum"] == ["warmth", "empathy"]
    assert form_of(calibrated, "/v1/rank")["properties"]["dimension"]["enum"] == ["empathy", ""]
    assert "max_error" not in form_of(calibrated, "/v1/rank")["properties"]
    scorer = FakeScorer()
    scorer.knows_preferences = True
    with in_process(scorer) as service:
        known = form_of(document_of(service), "/v1/rank")["properties"]["max_error"]
    assert known["enum"] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    assert form_of(plain, "/v1/reward")["properties"]["dimension"]["enum"] == ["warmth", "empathy", ""]
    assert set(form_of(plain, "/v1/reward")["properties"]) == {"response", "context", "situation", "dimension"}
    assert "deviations" in form_of(calibrated, "/v1/reward")["properties"]
    for path in ("/v1/score", "/v1/rank", "/v1/reward"):
        assert form_of(calibrated, path)["required"] == ["response"]
        assert form_of(calibrated, path)["additionalProperties"] is False


def test_answers_have_examples(documents):
    schemas = documents[0]["components"]["schemas"]
    for name in ("Scored", "Ranking", "Rewards"):
        (example,) = schemas[name]["examples"]
        assert set(example) == set(schemas[name]["required"])


def test_a_number_in_a_form_is_a_text_like_any_other():
    scorer = FakeScorer()
    with in_process(scorer) as service:
        assert service.score(wav(), situation="-2.54e+16").status_code == 200
    assert [pair.situation for pair in scorer.heard] == ["-2.54e+16"]


@pytest.mark.long
@pytest.mark.parametrize("token", [None, "sesame"])
def test_schemathesis_finds_nothing(token, tmp_path):
    command = [str(Path(sys.executable).with_name("st")), "run", "--seed", "1", "-n", "60", "--no-color"]
    header = ["--header", f"Authorization: Bearer {token}"] if token else []
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    with live(FakeScorer(), token=token) as service:
        found = subprocess.run(
            [*command, *header, f"{service.url}/openapi.json"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:]
    assert "Tested: 8" in found.stdout
