"""Who may ask: by which names, and pages of which origins."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ..conftest import failed
from .services import FakeScorer, InProcess, error_of, in_process, wav


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, InProcess]]:
    """With the usual settings, for a proxy, on all addresses, with a token, and with a token for a proxy."""
    proxy: dict[str, Any] = {"allowed_hosts": ("Judge.example",)}
    with (
        in_process(FakeScorer()) as usual,
        in_process(FakeScorer(), **proxy) as proxied,
        in_process(FakeScorer(), host="0.0.0.0") as everywhere,
        in_process(FakeScorer(), host="0.0.0.0", token="t") as token,
        in_process(FakeScorer(), token="t", **proxy) as both,
        in_process(FakeScorer(), allowed_hosts=("*",)) as any_host,
    ):
        yield {
            "usual": usual, "proxied": proxied, "everywhere": everywhere, "token": token, "both": both, "any": any_host,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("which", "host", "status"),
    [
        ("usual", "localhost", 200), ("usual", "LocalHost:8000", 200), ("usual", "localhost.", 200),
        ("usual", "127.0.0.1:8000", 200), ("usual", "[::1]:8000", 200), ("usual", "10.0.0.7", 200),
        ("usual", "evil.example", 421), ("usual", "evil.example:8000", 421), ("usual", "127.0.0.1.evil.example", 421),
        ("usual", "localhost.evil.example", 421), ("usual", "judge.example", 421), ("usual", "2130706433", 421),
        ("usual", "", 400), ("usual", "a b", 400), ("usual", "evil.example@localhost", 400), ("usual", "[::1", 400),
        ("usual", "localhost:80:80", 400), ("usual", "localhost/", 400), ("usual", "[localhost]", 400),
        ("proxied", "judge.example", 200), ("proxied", "JUDGE.example:443", 200), ("proxied", "localhost", 200),
        ("proxied", "a.judge.example", 421),
        ("everywhere", socket.gethostname(), 200), ("everywhere", "10.0.0.7:8000", 200), ("everywhere", "judge", 421),
        ("token", "judge", 200), ("token", "a b", 400),
        ("both", "judge", 421), ("both", "judge.example", 200),
        ("any", "judge", 200),
    ],
)  # fmt: skip
def test_the_service_is_asked_by_its_own_names(services, which, host, status):
    answer = services[which]("GET", "/healthz", headers={"Host": host})
    if status == 421:
        said = "this service is not asked by that Host; expected an IP address, localhost, or a name of serve"
        assert error_of(answer) == (421, "wrong_host", f"{said} --allowed-hosts")
    elif status == 400:
        assert error_of(answer)[:2] == (400, "bad_request")
    else:
        assert answer.status_code == 200


def post(service: InProcess, **headers: str) -> Any:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return service("POST", "/v1/score", files={"response": wav()}, headers={"Authorization": "Bearer t", **sent})


@pytest.mark.parametrize(
    ("which", "headers", "status"),
    [
        ("usual", {}, 200),
        ("usual", {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000", "Sec_Fetch_Site": "same-origin"}, 200),
        ("usual", {"Host": "10.0.0.7:8000", "Origin": "http://10.0.0.7:8000"}, 200),
        ("usual", {"Sec_Fetch_Site": "none"}, 200),
        ("usual", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("usual", {"Sec_Fetch_Site": "same-site"}, 403),
        ("usual", {"Origin": "http://evil.example"}, 403),
        ("usual", {"Origin": "http://10.0.0.8"}, 403),
        ("usual", {"Origin": "null"}, 403),
        ("usual", {"Origin": ""}, 403),
        ("usual", {"Host": "evil.example", "Origin": "http://evil.example", "Sec_Fetch_Site": "same-origin"}, 421),
        ("proxied", {"Host": "10.0.0.7", "Origin": "https://judge.example", "Sec_Fetch_Site": "same-origin"}, 200),
        ("proxied", {"Host": "10.0.0.7", "Origin": "https://evil.example"}, 403),
        ("token", {"Host": "judge", "Origin": "https://judge.example", "Sec_Fetch_Site": "same-origin"}, 200),
        ("token", {"Origin": "null"}, 403),
        ("token", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("both", {"Origin": "https://evil.example"}, 403),
    ],
)
def test_pages_of_other_origins_may_not_ask(services, which, headers, status):
    answer = post(services[which], **headers)
    assert answer.status_code == status
    if status == 403:
        said = "a page of another origin may not ask; expected the page of this service, or a host of serve"
        assert error_of(answer) == (403, "other_origin", f"{said} --allowed-hosts")
        assert services[which]("GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link


def test_the_page_asks_as_its_own_origin(services):
    """With `mode` left as it is, a browser sends the origin, although the page lets no referrer out."""
    page = services["usual"]("GET", "/").text
    assert "fetch(path, { ...options, headers: authorization() })" in page
    assert "mode:" not in page


@pytest.mark.parametrize("name", ["http://judge.example", "judge.example:80", "a b", "", "*.example", "judge/"])
def test_what_is_no_name_is_refused_at_start(name, capsys):
    line = failed(capsys, "serve", "judge", "--allowed-hosts", "a", name)
    assert "--allowed-hosts" in line
    assert f"{name!r}: expected names such as judge.example" in line
