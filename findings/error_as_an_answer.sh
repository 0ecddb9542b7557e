#!/usr/bin/env bash
# Where a server answers with status 200 and an error in the body, the SDKs of OpenAI and Google raise nothing: the answer is empty.
#
# One would guess: {"error": {"message": "...", "code": 401}} is raised as an error of the SDK, or as a ValidationError, since an answer
#   without choices (candidates) is no answer of the documented type.
# What happens: openai gives a ChatCompletion whose choices are None (so choices[0] is a TypeError far from the cause); the words of the
#   server are in model_extra alone. google-genai gives a response whose text is None; the words are nowhere in it. A body that is no JSON
#   ends in json.JSONDecodeError, which is no error of either SDK, so `except openai.OpenAIError` does not see it.
# Who meets it: whoever asks through a proxy or another server (OpenRouter, vLLM behind a gateway answer so), and counts what has no text
#   as a refusal of the model.
# Versions: openai 3.57.0, google-genai 3.6.1; found in a run against a server on 127.0.0.1, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openai==3.57.0 google-genai==3.6.1 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import openai
from google import genai

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
place = f"http://127.0.0.1:{server.server_address[1]}"
gpt = openai.OpenAI(base_url=f"{place}/v1", api_key="none", max_retries=0)
gemini = genai.Client(api_key="none", http_options={"base_url": place})
print("openai", version("openai"), "google-genai", version("google-genai"))
body[0] = json.dumps({"error": {"message": "wrong key", "code": 401}}).encode()
one = gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "Rate it."}])
other = gemini.models.generate_content(model="m", contents="Rate it.")
print("openai: choices", one.choices, "beside", one.model_extra)
print("google-genai: text", other.text, "beside", other.model_dump(exclude_none=True))
assert one.choices is None and one.model_extra["error"]["message"] == "wrong key", "openai tells it otherwise now"
assert other.text is None and "wrong key" not in str(other.model_dump()), "google-genai tells it now"
body[0] = b"<html>Sign in</html>"
for name, ask, family in (
    ("openai", lambda: gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]), openai.OpenAIError),
    ("google-genai", lambda: gemini.models.generate_content(model="m", contents="x"), genai.errors.APIError),
):
    try:
        ask()
    except Exception as error:
        print(f"{name}: a page is a {type(error).__module__}.{type(error).__name__}")
        assert isinstance(error, json.JSONDecodeError) and not isinstance(error, family), "a page is told otherwise now"
    else:
        raise AssertionError("a page is an answer now")
print("as found")
PYTHON
