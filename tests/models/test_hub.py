"""Judges go to the hub and come from it: against a server of this test that answers as the hub does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.models import hub as module
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.hub import push_to_hub

NAME, TOKEN, COMMIT = "someone/judge", "hf_aVerySecretToken", "c" * 40


class Hub:
    """What a client asked for, and what it gets."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  # of the repository, by path
        self.asked: list[str] = []  # method and path of each request
        self.tokens: set[str | None] = set()  # what it sent as authorization
        self.private: bool | None = None
        self.status: int | None = None  # of every answer, if it is to be an error

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, content."""
        path = path.split("?")[0]
        if self.status is not None:
            return self.status, {"X-Error-Message": f"no, {TOKEN}"}, b"{}"
        if path == "/api/repos/create":
            made = json.loads(body)  # the field was renamed
            self.private = made.get("visibility", "public") == "private" or bool(made.get("private"))
            return _json({"url": f"https://huggingface.co/{NAME}", "id": "1"})
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path.startswith(f"/api/models/{NAME}/preupload/"):
            asked = [one["path"] for one in json.loads(body)["files"]]
            return _json({"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in asked]})
        if path.startswith(f"/api/models/{NAME}/commit/"):
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"https://huggingface.co/{NAME}/commit/{COMMIT}"
            return _json({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
        return self._file(path)

    def _file(self, path: str) -> tuple[int, dict[str, str], bytes]:
        for revision in ("main", "v1", COMMIT):
            if path == f"/api/models/{NAME}/revision/{revision}" or path == f"/api/models/{NAME}":
                return _json({"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": one} for one in self.files]})
            if path == f"/api/models/{NAME}/tree/{revision}":
                return _json([_entry(one, content) for one, content in self.files.items()])
            wanted = path.removeprefix(f"/{NAME}/resolve/{revision}/")
            if wanted in self.files:
                content = self.files[wanted]
                tag = hashlib.sha1(content).hexdigest()
                return 200, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}, content
        code = "RevisionNotFound" if f"/{NAME}/" in path else "RepoNotFound"
        return 404, {"X-Error-Code": code}, b"{}"


def _json(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    """The hub, on this machine, with a token in the environment."""
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            served.asked.append(f"{self.command} {self.path.split('?')[0]}")
            served.tokens.add(self.headers.get("Authorization"))
            status, headers, content = served.answer(self.command, self.path, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = respond

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    _point_to(f"http://127.0.0.1:{server.server_port}", monkeypatch, tmp_path)
    yield served
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()
    thread.join()


def _point_to(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = huggingface_hub.constants
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_pushed_is_the_folder_and_nothing_else(judge_folder, hub, capsys):
    found = push_to_hub(judge_folder, NAME, private=True)
    assert found.endswith(f"/{NAME}")
    assert hub.files == contents(judge_folder)
    assert hub.private is True
    assert f"Bearer {TOKEN}" in hub.tokens
    assert sum("/commit/" in one for one in hub.asked) == 1  # all or nothing
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err


def test_what_was_pushed_comes_back_and_stays(judge_folder, hub, monkeypatch):
    hub.files = {**contents(judge_folder), "modeling_empathy_judge.py": b"raise SystemExit"}
    folder = judge_folder_of(NAME)
    assert contents(folder) == contents(judge_folder)  # code is not fetched
    assert judge_folder_of(NAME, "v1") == folder
    asked = len(hub.asked)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert judge_folder_of(NAME) == folder
    assert len(hub.asked) == asked
    with pytest.raises(UserError, match=r"someone/other: no such folder, HF_HUB_OFFLINE is set, and no copy is in"):
        judge_folder_of("someone/other")


def test_a_hub_that_does_not_answer_is_given_up_in_time(monkeypatch, tmp_path):
    """It accepts connections and stays silent, as some firewalls do; libraries would try for half a minute."""
    silent = socket.create_server(("127.0.0.1", 0))
    _point_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch, tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 1.5)
    began = time.monotonic()
    for ask in (judge_folder_of, lambda name: load_backbone(Checkpoint(name))):
        with pytest.raises(UserError, match=r"someone/silent.*the hub cannot be reached .*hf download"):
            ask("someone/silent")
    silent.close()
    assert time.monotonic() - began < 2 * 1.5 + 2


def test_without_the_hub_the_cache_does(judge_folder, hub, monkeypatch, tmp_path):
    hub.files = contents(judge_folder)
    folder = judge_folder_of(NAME)
    _point_to("http://127.0.0.1:9", monkeypatch, tmp_path)  # nothing listens there
    assert judge_folder_of(NAME) == folder
    assert huggingface_hub.constants.HF_HUB_OFFLINE  # no further request is tried


def judge_folder_of(name: str, revision: str | None = None) -> Path:
    return module.judge_folder(Path(name), revision)


def test_a_judge_of_the_hub_scores(judge_folder, hub, make_tone):
    from empathy_judge.scoring.scorer import Scorer

    hub.files = contents(judge_folder)
    pair = (make_tone(0.5, 200, 0.3), 16_000), (make_tone(0.7, 300, 0.2), 16_000)
    expected = Scorer.from_pretrained(judge_folder, device="cpu").score(*pair)
    assert Scorer.from_pretrained(NAME, revision="main", device="cpu").score(*pair) == expected


def test_what_there_is_not_is_said_in_one_line(judge_folder, hub):
    hub.files = contents(judge_folder)
    for name, revision, reason in (
        ("someone/nothing", None, "not found; expected a public one, or `hf auth login`"),
        (NAME, "v9", "no such revision"),
    ):
        with pytest.raises(UserError, match=reason) as found:
            judge_folder_of(name, revision)
        assert TOKEN not in str(found.value)
    hub.files = {"README.md": b"another model"}
    with pytest.raises(UserError, match=r"no judge on the hub: it has no judge\.json"):
        judge_folder_of(NAME)


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "not logged in|not found"), (403, "has no right to it"), (400, "the hub answered 400")]
)
def test_a_push_that_the_hub_refuses(status, reason, judge_folder, hub):
    hub.status = status
    with pytest.raises(UserError, match=reason) as found:
        push_to_hub(judge_folder, NAME, private=False)
    assert TOKEN not in str(found.value)  # not even where the server repeats it
    assert hub.files == {}


def test_no_network(judge_folder, monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _point_to(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch, tmp_path)  # nobody listens
        for call in (lambda: push_to_hub(judge_folder, NAME, private=False), lambda: judge_folder_of(NAME)):
            with pytest.raises(UserError, match="the hub cannot be reached") as found:
                call()
            assert TOKEN not in str(found.value)
    huggingface_hub.close_session()


@pytest.mark.parametrize("name", ["judge", "a/b/c", "../judge", "some one/judge", "", "-a/b"])
def test_a_name_that_is_none(name, judge_folder):
    with pytest.raises(UserError, match="expected OWNER/NAME on the hub"):
        push_to_hub(judge_folder, name, private=False)


def test_a_folder_goes_before_the_hub(judge_folder, tmp_path, monkeypatch):
    (tmp_path / "someone").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "judge").symlink_to(judge_folder)
    assert judge_folder_of(NAME) == Path(NAME)
    with pytest.raises(UserError, match="revision 'v1' of a folder"):
        judge_folder_of(NAME, "v1")
    assert module.judge_folder(tmp_path / "no" / "folder") == tmp_path / "no" / "folder"  # no name on the hub


def test_export_pushes_what_it_wrote(judge_folder, hub, tmp_path, capsys):
    out = tmp_path / "judge"
    assert main(["export", str(judge_folder), "--out", str(out), "--push-to-hub", NAME, "--private"]) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(rf"judge: {out}\nhub: http\S+/{NAME}\n", printed.out)
    assert hub.files == contents(out)
    assert TOKEN not in printed.out + printed.err + "".join(path.decode(errors="ignore") for path in hub.files.values())
    hub.status = 403
    assert main(["export", str(judge_folder), "--out", str(tmp_path / "two"), "--push-to-hub", NAME]) == 2
    assert capsys.readouterr().err == f"error: push to {NAME}: this login has no right to it\n"
    assert (tmp_path / "two" / "judge.json").is_file()  # what was written stays
    assert main(["export", str(judge_folder), "--out", str(tmp_path / "three"), "--push-to-hub", "judge"]) == 2
    assert main(["export", str(judge_folder), "--out", str(tmp_path / "three"), "--private"]) == 2
    assert not (tmp_path / "three").exists()
