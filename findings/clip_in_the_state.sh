#!/usr/bin/env bash
# langchain-typesafe sends a clip as text: its base64 goes into the question's JSON, and no field of the request holds audio.
#
# One would guess: a content block of LangChain's standard form for audio, which its chat models turn into each vendor's own, is sent as
#   audio, or refused by a client that has no field for it.
# What happens: the block, base64 and all, becomes a part of `state`, which servers write into the prompt as text. A server without
#   ears answers as if it had heard; 30 s at 16 kHz are 1.3 million characters, billed as text or cut in silence. No warning, no error.
# Who meets it: judges of speech by decision models through LangChain. Send `audio` by LiteLLM or by HTTP.
# Versions: langchain-typesafe 0.0.1a3; found in a run against a server on 127.0.0.1, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet langchain-typesafe==0.0.1a3 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import base64
import json
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from langchain_core.messages import HumanMessage
from langchain_typesafe import Score, TypeSafeClassifier

received = []
levels = ["cold", "even", "warm"]
answer = {"type": "score", "score": 1.0, "confidence": 0.5, "legend": dict(enumerate(levels)), "probabilities": dict.fromkeys(range(3), 1 / 3)}


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"answers": {"q": answer}, "usage": {"input_tokens": 1, "output_tokens": 0}, "model": "m"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
judge = TypeSafeClassifier(model="m", api_key="x", base_url=f"http://127.0.0.1:{server.server_address[1]}")
clip = base64.b64encode(b"RIFF" + bytes(32_000)).decode()
block = {"type": "audio", "base64": clip, "mime_type": "audio/wav"}
print("langchain-typesafe", version("langchain-typesafe"))
for name, state in {"a block": [block], "in a message": [HumanMessage(content=[block])]}.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = judge.invoke({"state": state, "questions": {"q": Score(instructions="How warm?", criteria=levels)}})
    sent = received[-1]
    print(f"{name}: fields {sorted(sent)}, state of {len(json.dumps(sent['state'])):,} characters, answer {found.answers['q'].score}, warnings {len(said)}")
    assert sorted(sent) == ["model", "questions", "state"] and clip in json.dumps(sent["state"]) and not said, "audio is sent otherwise now"
print("as found")
PYTHON
