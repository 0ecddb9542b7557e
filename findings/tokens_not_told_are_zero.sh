#!/usr/bin/env bash
# LiteLLM says 0 tokens and $0 of an answer whose server did not say how many tokens it took.
#
# One would guess: where an answer has no usage (many local and proxied servers leave it out), LiteLLM counts the tokens with its own
#   tokenizer, as it does for streams, or gives None, as OpenAI's SDK does: not known.
# What happens: usage is {"prompt_tokens": 0, "completion_tokens": 0} and completion_cost is 0.0, the same as of an answer that was
#   free. Nothing is logged. The same answer with usage costs what its text and audio tokens cost. A budget that adds up these costs
#   is never reached.
# Who meets it: whoever limits spending by LiteLLM's cost or counts. Ask for usage in each answer and take a sum of 0 for "unknown".
# Versions: litellm 1.110.2, openai 3.57.0; found in a run against a server on 127.0.0.1, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litellm==1.110.2 openai==3.57.0 2>/dev/null
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" - <<'PYTHON' # prices from the package, not from the network
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import litellm
import openai

USAGE = {"prompt_tokens": 350, "completion_tokens": 25, "total_tokens": 375, "prompt_tokens_details": {"audio_tokens": 100}}
usage = [USAGE]


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-audio-1.5", "choices": [choice]}
        sent = json.dumps(body | ({"usage": usage[0]} if usage[0] else {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
place, asked = f"http://127.0.0.1:{server.server_address[1]}/v1", [{"role": "user", "content": "Rate it."}]
print("litellm", version("litellm"), "openai", version("openai"))
found = {}
for name, usage[0] in {"with usage": USAGE, "without": None}.items():
    answer = litellm.completion(model="openai/gpt-audio-1.5", api_base=place, api_key="none", messages=asked)
    found[name] = answer.usage.prompt_tokens, answer.usage.completion_tokens, litellm.completion_cost(answer)
    print(f"litellm, {name}: {found[name][0]} tokens read, {found[name][1]} written, ${found[name][2]:.6f}")
client = openai.OpenAI(base_url=place, api_key="none", max_retries=0)
plain = client.chat.completions.create(model="gpt-audio-1.5", messages=asked).usage
print("openai, without: usage is", plain)
assert abs(found["with usage"][2] - (250 * 2.5 + 100 * 32 + 25 * 10) / 1e6) < 1e-9, "audio tokens cost something else now"
assert found["without"] == (0, 0, 0.0), "tokens that were not told are no zero any more"
assert plain is None, "the SDK makes up usage now"
print("as found")
PYTHON
