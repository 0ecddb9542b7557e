#!/usr/bin/env bash
# inspect_ai's match(numeric=True) reads "4 out of 5" as 5: an answer of 4 is wrong, and 5 is right.
#
# One would guess: the number at the end of an answer is its rating; "4 out of 5" and "4/5" are a 4, or no number at all.
# What happens: `location="end"`, the default, takes the last word that is a number: the 5 of "4 out of 5". A judge that says
#   "N out of 5" agrees with every human 5 and with no other rating. "4/5" is no number, for any target. `any` counts
#   "On a scale from 1 to 5: 4" as right for 1, for 4 and for 5. Nothing is said, and no sample is counted as unreadable.
# Who meets it: evaluations of judges that answer in words. Ask for JSON, or take the number by a pattern of your own.
# Versions: inspect-ai 0.3.285; source: match_str in inspect_ai/scorer/_common.py, and a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet inspect-ai==0.3.285 2>/dev/null
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import asyncio
from importlib.metadata import version

from inspect_ai.model import ModelName, ModelOutput
from inspect_ai.scorer import Target, match
from inspect_ai.solver import TaskState

print("inspect-ai", version("inspect-ai"))


def state(answer):
    output = ModelOutput.from_content("judge", answer)
    return TaskState(model=ModelName("mockllm/judge"), sample_id=1, epoch=1, input="How warm?", messages=[], output=output)


async def right(answer, **how):
    """The ratings, of 1 to 5, for which the answer counts as correct."""
    scorer = match(numeric=True, **how)
    return [rating for rating in range(1, 6) if (await scorer(state(answer), Target([str(rating)]))).value == "C"]


found = {}
for answer in ("4", "I would say 4.", "4 out of 5", "4 of 5 points", "4/5", "On a scale from 1 to 5: 4"):
    found[answer] = asyncio.run(right(answer)), asyncio.run(right(answer, location="any"))
    print(f"{answer!r:29} is right for {found[answer][0]}, with location='any' for {found[answer][1]}")
assert found["4"][0] == found["I would say 4."][0] == [4]
assert found["4 out of 5"][0] == found["4 of 5 points"][0] == [5], "4 out of 5 is no 5 now"
assert found["4/5"] == ([], [])
assert found["On a scale from 1 to 5: 4"][1] == [1, 4, 5]
print("as found")
PYTHON
