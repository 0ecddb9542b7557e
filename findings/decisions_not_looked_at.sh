#!/usr/bin/env bash
# Clients of decision models check the form of an answer and not its meaning: levels that do not exist and probabilities of 3 pass all.
#
# One would guess: a client typed from an OpenAPI document refuses a score of 9 on five levels, probabilities that sum to 3 or are
#   negative, a level that was not asked for; and it reads a confidence of null, which the protocol's draft allows, as None.
# What happens: the reverse. typesafe-sdk, LiteLLM and langchain-typesafe take all four; null for the confidence ends each of them (as an
#   InternalServerError in LiteLLM). LiteLLM drops what belongs to a level that
#   was not asked for, so that its probabilities are {} without a word, where the others keep it. A score of NaN is refused by one.
# Who meets it: judges behind self-made servers of this protocol: check the sum and the levels yourself, and always send a confidence.
# Versions: typesafe-sdk 0.7.5, litellm 1.110.2, langchain-typesafe 0.0.1a3; found in a run against a server on 127.0.0.1, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet typesafe-sdk==0.7.5 litellm==1.110.2 langchain-typesafe==0.0.1a3 2>/dev/null
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PYTHON' # prices from the package, not from the network
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import litellm
from langchain_typesafe import Score, TypeSafeClassifier
from typesafe_sdk import TypeSafeClient

body = [b""]


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body[0])))
        self.end_headers()
        self.wfile.write(body[0])

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
place, levels = f"http://127.0.0.1:{server.server_address[1]}", ["cold", "cool", "even", "kind", "warm"]
asked = {"q": {"type": "score", "instructions": "How warm?", "criteria": levels}}
sdk, chain = TypeSafeClient(api_key="x", base_url=place), TypeSafeClassifier(model="m", api_key="x", base_url=place)
clients = {
    "typesafe-sdk": lambda: sdk.system_one(state="s", model="m", questions=asked),
    "litellm": lambda: litellm.systemone(model="hosted_vllm/m", api_base=place, api_key="x", state="s", questions=asked),
    "langchain-typesafe": lambda: chain.invoke({"state": "s", "questions": {"q": Score(instructions="How warm?", criteria=levels)}}),
}
print({name: version(name) for name in clients})
good = {"type": "score", "score": 2.0, "confidence": 0.5, "legend": dict(enumerate(levels)), "probabilities": dict.fromkeys(range(5), 0.2)}
wrong = {
    "score 9": {"score": 9.0},
    "sum 3": {"probabilities": dict.fromkeys(range(5), 0.6)},
    "negative": {"probabilities": {0: -1.0, 1: 2.0}},
    "level 7": {"probabilities": {7: 1.0}},
    "score NaN": {"score": float("nan")},
    "confidence null": {"confidence": None},
}
found = {}
for case, change in wrong.items():
    body[0] = json.dumps({"answers": {"q": good | change}, "usage": {"input_tokens": 1, "output_tokens": 0}, "model": "m"}).encode()
    for name, ask in clients.items():
        try:
            answer = ask().answers["q"]
            found[case, name] = f"score {answer.score}, probabilities {len(answer.probabilities)}"
        except Exception as error:
            found[case, name] = type(error).__name__
    print(f"{case}:", {name: found[case, name] for name in clients})
for name in clients:
    assert all(found[case, name].startswith("score") for case in ("score 9", "sum 3", "negative", "level 7")), "a client looks now"
    assert not found["confidence null", name].startswith("score"), "null is read now"
assert found["level 7", "litellm"].endswith(" 0") and found["confidence null", "litellm"] == "InternalServerError"
print("as found")
PYTHON
