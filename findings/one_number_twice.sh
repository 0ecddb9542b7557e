#!/usr/bin/env bash
# jsonargparse reads the same text as two numbers: 012 is 12 as an option and 10 in a config file, and 1:30 as an option is 90.
#
# One would guess: an option and a config file are parsed by the same loader, since both go through YAML, so a run can be moved from
#   a command line into a file. And an option of type int that gets 1:30 is refused.
# What happens: an option is first tried as it stands by the type (int("012") is 12), a file by PyYAML's YAML 1.1, in which a
#   leading zero means octal (10) and colons mean base 60 (90). What int() refuses goes to YAML as well, so 1:30 and 0x10
#   are numbers on the command line, too.
# Who meets it: seeds and ranks with leading zeros (from shell loops, SLURM array ids), times given for counts.
# Versions: jsonargparse 4.53.0, PyYAML 6.0.3; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jsonargparse==4.53.0 PyYAML==6.0.3 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import jsonargparse
from jsonargparse import ArgumentParser

print("jsonargparse", jsonargparse.__version__)
parser = ArgumentParser(exit_on_error=False)
parser.add_argument("--rank", type=int)
found = {}
for text in ("12", "012", "1:30", "0x10"):
    for door in ("option", "file"):
        try:
            parsed = parser.parse_args(["--rank", text]) if door == "option" else parser.parse_string(f"rank: {text}")
            found[text, door] = parsed.rank
        except jsonargparse.ArgumentError as error:
            found[text, door] = "refused"
    print(f"rank {text:5} as an option: {found[text, 'option']!s:8} in a file: {found[text, 'file']}")
assert found["12", "option"] == found["12", "file"] == 12
assert (found["012", "option"], found["012", "file"]) == (12, 10), "012 is one number now"
assert found["1:30", "option"] == 90, "1:30 is no number any more"
print("as found")
PYTHON
