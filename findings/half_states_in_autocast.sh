#!/usr/bin/env bash
# torch.cat and torch.stack of float16 tensors raise in autocast with bfloat16 on the CPU, even if all are float16.
#
# One would guess: what works outside of autocast works inside; cat and stack are documented as operations that promote
#   to the widest type of their inputs.
# What happens: the rule that picks the widest type knows float32 and autocast's own type, and raises "Unexpected floating
#   ScalarType" for float16 in bfloat16 autocast (and for bfloat16 in that of float16). float64 passes. With autocast
#   off, float16 and bfloat16 give float32.
# Who meets it: training with precision bf16-mixed on a CPU whose features were stored in float16, half the bytes of a
#   cache: the first batch of two clips raises, and one line later, a matrix product takes them.
# Versions: torch 2.11.0 on the CPU, numpy 2.4.6; found in a run, 2026-11-30. Source: aten/src/ATen/autocast_mode.h, prioritize.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.11.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__)
float16, bfloat16, float32, float64 = (torch.ones(1, 2, dtype=getattr(torch, name)) for name in ("float16", "bfloat16", "float32", "float64"))


def outcome(operation, parts, dtype):
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        try:
            return str(operation(parts).dtype).removeprefix("torch.")
        except RuntimeError as problem:
            assert "Unexpected floating ScalarType" in str(problem), problem
            return "raises"


cases = {
    "cat, float16 twice, autocast off": (torch.cat, [float16, float16], None, "float16"),
    "cat, float16 and bfloat16, autocast off": (torch.cat, [float16, bfloat16], None, "float32"),
    "cat, float16 twice, bfloat16 autocast": (torch.cat, [float16, float16], torch.bfloat16, "raises"),
    "stack, float16 and float32, bfloat16 autocast": (torch.stack, [float16, float32], torch.bfloat16, "raises"),
    "cat, bfloat16 twice, float16 autocast": (torch.cat, [bfloat16, bfloat16], torch.float16, "raises"),
    "cat, float64 and bfloat16, bfloat16 autocast": (torch.cat, [float64, bfloat16], torch.bfloat16, "float64"),
    "matrix product of float16, bfloat16 autocast": (lambda parts: parts[0] @ parts[1].T, [float16, float16], torch.bfloat16, "bfloat16"),
}
for title, (operation, parts, dtype, expected) in cases.items():
    found = outcome(operation, parts, dtype)
    print(f"{title}: {found}")
    assert found == expected, f"{expected} before"
print("as found")
PYTHON
