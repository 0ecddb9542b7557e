#!/usr/bin/env bash
# google-genai sends decisions.create to /v1, where Google documents the endpoint under v1beta; two spellings of criteria both pass.
#
# One would guess: a client knows the address of each of its own methods: POST /v1beta/decisions, as the documentation has it; and a
#   yes-or-no question whose criteria have the wrong names ("true", "false" of the System One protocol) is refused before it is sent.
# What happens: since 3.0 the default version of all calls is v1, decisions among them. The names "true" and "false" are sent as they
#   stand beside "true_description" and "false_description", and a score with one level or with none goes out, too.
# Who meets it: first steps with Gemini's decisions. Set api_version="v1beta", and count levels yourself.
# Versions: google-genai 3.6.1; found in a run against a server on 127.0.0.1, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet google-genai==3.6.1 2>/dev/null
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from google import genai

got = []


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
place = f"http://127.0.0.1:{server.server_address[1]}"
print("google-genai", version("google-genai"))
questions = {
    "warm": {"type": "noul", "instructions": "Warm?", "criteria": {"true": "warm", "false": "cold"}},
    "none": {"type": "score", "instructions": "How warm?", "criteria": []},
    "one": {"type": "score", "instructions": "How warm?", "criteria": ["warm"]},
}
asked = {"model": "gemini-decision-1", "input": "x", "questions": questions}
plain = genai.Client(api_key="none", http_options={"base_url": place})
plain.decisions.create(**asked)
beta = genai.Client(api_key="none", http_options={"base_url": place, "api_version": "v1beta"})
beta.decisions.create(**asked)
print("paths:", [path for path, _ in got])
print("criteria sent:", {name: question["criteria"] for name, question in got[0][1]["questions"].items()})
assert [path for path, _ in got] == ["/v1/decisions", "/v1beta/decisions"], "another path now"
assert all(got[0][1]["questions"][name]["criteria"] == question["criteria"] for name, question in questions.items())
print("as found")
PYTHON
